//! The agent accepts the configurations in the pages for users, and the pages name all of its legacy variables.

use std::collections::BTreeSet;

use testkit::docs::{self, Fence, Page};

use crate::common::{Host, has};

fn fences(path: &str) -> Vec<Fence> {
    Page::read(path).unwrap().fences()
}

/// The fix of an overlap proposes 10.84.0.0/16 first.
#[test]
fn examples_do_not_use_the_subnet_that_fixes_propose() {
    let texts: Vec<String> = docs::user_pages().unwrap().into_iter().map(|page| page.text).collect();
    assert!(texts.iter().any(|text| text.contains(r#""subnet": "10."#)));
    assert!(texts.iter().all(|text| !text.contains(r#""subnet": "10.84."#)));
}

#[test]
fn the_eleven_variables_of_the_install_page_are_the_agents() {
    let fences = fences("docs/install.md");
    let block = fences.iter().find(|fence| fence.text().starts_with("ETCD_HOST=")).unwrap();
    let named: BTreeSet<&str> = block.lines.iter().map(|line| line.split_once('=').unwrap().0).collect();
    let known: BTreeSet<&str> = config::KEYS.iter().flat_map(|key| key.aliases).copied().collect();
    assert_eq!((&named, named.len()), (&known, 11));
    let deploy = Page::read("deploy/README.md").unwrap().text;
    assert!(known.iter().all(|name| deploy.contains(&format!("`{name}`"))), "{known:?} in deploy/README.md");

    let host = Host::new("variables");
    let mut argv = vec!["env"];
    argv.extend(block.lines.iter().map(String::as_str));
    argv.extend([host.tool.to_str().unwrap(), "agent", "--config", "/dev/null", "--print-config"]);
    let printed = host.node.run(&argv, b"").unwrap();
    assert!(printed.success(), "{}", printed.stderr);
    let endpoints = "endpoints = [\"https://etcd-1:2379\", \"https://etcd-2:2379\"]";
    has(&printed.stdout, &["store = \"etcd\"", endpoints, "margin = 8", "enabled = true"]);
}

#[test]
fn every_agent_toml_in_the_pages_is_read_by_the_agent() {
    let host = Host::new("files");
    let pages = docs::user_pages().unwrap();
    let blocks = pages.iter().flat_map(Page::fences).filter(|fence| fence.language() == "toml");
    let mut count = 0;
    for block in blocks {
        count += 1;
        let file = host.node.dir().join("agent.toml");
        std::fs::write(&file, block.text()).unwrap();
        let printed = host.run(&["agent", "--config", file.to_str().unwrap(), "--print-config"]);
        assert!(printed.success(), "{}\n{}", printed.stderr, block.text());
    }
    assert!(count > 0, "no page has a toml block");
}

#[test]
fn the_install_pages_file_is_a_configuration_for_many_nodes() {
    let host = Host::new("many");
    let fences = fences("docs/install.md");
    let block = fences.iter().find(|fence| fence.text().starts_with("[etcd]")).unwrap();
    let file = host.node.dir().join("agent.toml");
    std::fs::write(&file, block.text()).unwrap();
    let printed = host.run(&["agent", "--config", file.to_str().unwrap(), "--print-config"]);
    let parts = ["store = \"etcd\"", "endpoints = [\"https://", "ca = \"/etc/podwire/", "margin = 8"];
    has(&printed.stdout, &parts);
}
