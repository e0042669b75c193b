use std::collections::BTreeSet;

use testkit::{DEADLINE, wait_until};

use crate::common::{Host, has};

const README: &str = include_str!("../../../../README.md");
const DEPLOY: &str = include_str!("../../../../deploy/README.md");

#[test]
fn the_readme_has_the_generated_table_of_keys() {
    let part =
        README.split("\n## The agent's configuration\n").nth(1).unwrap().split("\n## ").next().unwrap();
    let table: String =
        part.lines().filter(|line| line.starts_with('|')).map(|line| format!("{line}\n")).collect();
    assert_eq!(table, config::reference(), "`podwire agent --print-config-reference` prints it");
}

#[test]
fn the_agent_prints_its_configuration_reference_and_sample() {
    let host = Host::new("print");
    let config = host.node.dir().join("a.toml");
    std::fs::write(&config, "node = \"seven\"\n[network]\nmode = \"bridge\"\n").unwrap();
    let config = config.to_str().unwrap();
    let outcome = host.run(&["agent", "--config", config, "--workers", "3", "--print-config"]);
    assert!(outcome.success(), "{}", outcome.stderr);
    has(&outcome.stdout, &["node = \"seven\"", "workers = 3", "mode = \"bridge\"", "bridge = \"podwire0\""]);
    // The printed configuration is valid and complete.
    let printed = host.node.dir().join("b.toml");
    std::fs::write(&printed, &outcome.stdout).unwrap();
    let second = host.run(&["agent", "--config", printed.to_str().unwrap(), "--print-config"]);
    assert_eq!(second.stdout, outcome.stdout, "{}", second.stderr);
    assert_eq!(host.run(&["agent", "--print-config-reference"]).stdout, config::reference());
    assert_eq!(host.run(&["agent", "--print-config-sample"]).stdout, config::sample());
    // An invalid configuration is refused.
    let invalid = host.run(&["agent", "--workers", "0", "--print-config"]);
    assert!(!invalid.success());
    has(&invalid.stderr, &["workers", "256"]);
}

/// The fix of an overlap proposes 10.84.0.0/16 first.
#[test]
fn examples_in_the_readme_do_not_use_the_subnet_of_fixes() {
    assert!(README.contains(r#""subnet": "10."#) && !README.contains(r#""subnet": "10.84."#));
}

#[test]
fn the_readme_lists_all_paths_of_the_api() {
    let known = [
        api::CNI,
        api::HEALTH,
        api::READY,
        api::ATTACHMENTS,
        api::VERSION,
        api::STATUS,
        api::NODES,
        api::ROUTES,
        api::BLOCKS,
        api::CNI_CONFIG,
        api::METRICS,
    ];
    for path in known {
        assert!(README.contains(&format!("{path}`")), "{path} is not in the README");
    }
    let removal = format!("`DELETE {}/NAME`", api::NODES);
    assert!(README.contains(&removal), "{removal} is not in the README");
}

#[test]
fn metrics_in_the_readme_exist() {
    let host = Host::new("metrics");
    let agent = host.agent(&["--no-install"]);
    let pod = host.node.pod("a").unwrap();
    host.plugin.add(&pod, &agent.config(&serde_json::json!({}))).unwrap().ok().unwrap();
    // A repair, because metrics without a value are not exported.
    host.node.sh(&["nft", "delete", "table", "inet", "podwire"]).unwrap();
    // A request is counted after its answer was sent.
    let mut page = String::new();
    wait_until("request and repair to be counted", DEADLINE, || {
        page = agent.metrics()?;
        Ok(["podwire_requests_total{", "podwire_reconcile_repairs_total{"].iter().all(|it| page.contains(it)))
    })
    .unwrap();
    let named: Vec<&str> = README
        .split('`')
        .filter(|word| word.starts_with("podwire_") || word.starts_with("process_"))
        .collect();
    assert!(named.len() >= 8, "{named:?}");
    for name in named {
        let name = name.split('{').next().unwrap();
        assert!(page.contains(&format!("# TYPE {} ", name.trim_end_matches("_total"))), "{name} in:\n{page}");
    }
}

/// Code blocks and inline code of a Markdown text.
fn code(text: &str) -> (Vec<&str>, Vec<String>) {
    let (mut blocks, mut inline) = (Vec::new(), Vec::new());
    for (n, part) in text.split("```").enumerate() {
        if n % 2 == 1 {
            blocks.push(part.split_once('\n').map_or("", |(_, block)| block));
        } else {
            inline.extend(part.split('`').skip(1).step_by(2).map(|words| words.replace('\n', " ")));
        }
    }
    (blocks, inline)
}

/// A command in the documentation.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct DocumentedCommand {
    subcommands: Vec<String>,
    flags: Vec<String>,
}

impl DocumentedCommand {
    /// Indented lines, and lines with a version after `podwire`, are output of commands.
    fn find(line: &str) -> Option<Self> {
        let line = line.strip_prefix("# ").unwrap_or(line).split(" #").next()?;
        let line = line.strip_prefix("sudo ").unwrap_or(line);
        let rest =
            ["podwire ", "target/release/podwire "].iter().find_map(|start| line.strip_prefix(start))?;
        let is_word = |word: &&str| word.chars().all(|c| c.is_ascii_lowercase());
        let words = rest.split_whitespace();
        let subcommands: Vec<String> = words.clone().take_while(is_word).map(str::to_owned).collect();
        let flags = words.filter(|word| word.starts_with("--")).map(str::to_owned).collect();
        (!subcommands.is_empty()).then_some(Self { subcommands, flags })
    }

    fn all(text: &str) -> BTreeSet<Self> {
        let (blocks, inline) = code(text);
        let lines = blocks.into_iter().flat_map(str::lines).chain(inline.iter().map(String::as_str));
        lines
            .flat_map(|line| line.split(" && "))
            .flat_map(|line| line.split(" -- "))
            .filter_map(Self::find)
            .collect()
    }
}

#[test]
fn commands_are_found_in_markdown() {
    let find = |line: &str| {
        let command = DocumentedCommand::find(line)?;
        Some((command.subcommands.join(" "), command.flags.join(" ")))
    };
    let some = |words: &str, flags: &str| Some((words.to_owned(), flags.to_owned()));
    assert_eq!(find("podwire node rm NAME"), some("node rm", ""));
    assert_eq!(find("sudo target/release/podwire install --standalone"), some("install", "--standalone"));
    assert_eq!(find("podwire lab up --nodes 3   # --not-a-flag"), some("lab up", "--nodes"));
    assert_eq!(find("podwire 0.1.0 on worker-1: ready"), None);
    assert_eq!(find("  podwire agent, again"), None);
    let all = DocumentedCommand::all(
        "x `podwire a\nb` y\n```\npodwire c && podwire lab exec n1 -- podwire d\n```\n`podwire e`",
    );
    let all: Vec<String> = all.iter().map(|command| command.subcommands.join(" ")).collect();
    assert_eq!(all, ["a b", "c", "d", "e", "lab exec"]);
}

#[test]
fn commands_and_flags_in_the_readmes_exist() {
    let host = Host::new("commands");
    let commands: BTreeSet<DocumentedCommand> =
        [README, DEPLOY].into_iter().flat_map(DocumentedCommand::all).collect();
    assert!(commands.len() >= 20, "{commands:#?}");
    for DocumentedCommand { subcommands, flags } in &commands {
        let mut args: Vec<&str> = subcommands.iter().map(String::as_str).collect();
        args.push("--help");
        let help = host.run(&args);
        assert!(help.success(), "podwire {}: {}", subcommands.join(" "), help.stderr);
        let known: BTreeSet<&str> = help.stdout.split([' ', ',', '\n', '[', ']']).collect();
        for flag in flags {
            assert!(
                known.contains(flag.as_str()),
                "podwire {} {flag}:\n{}",
                subcommands.join(" "),
                help.stdout
            );
        }
    }
}

/// The example is a valid configuration.
#[test]
fn the_readme_lists_all_alias_variables() {
    let (blocks, _) = code(README);
    let block = blocks.iter().find(|block| block.starts_with("ETCD_HOST=")).unwrap();
    let named: BTreeSet<&str> = block.lines().map(|line| line.split_once('=').unwrap().0).collect();
    let known: BTreeSet<&str> = config::KEYS.iter().flat_map(|key| key.aliases).copied().collect();
    assert_eq!((&named, named.len()), (&known, 11));
    assert!(known.iter().all(|name| DEPLOY.contains(&format!("`{name}`"))), "{known:?} in deploy/README.md");

    let host = Host::new("variables");
    let mut argv = vec!["env"];
    argv.extend(block.lines());
    argv.extend([host.tool.to_str().unwrap(), "agent", "--config", "/dev/null", "--print-config"]);
    let printed = host.node.run(&argv, b"").unwrap();
    assert!(printed.success(), "{}", printed.stderr);
    let endpoints = "endpoints = [\"https://etcd-1:2379\", \"https://etcd-2:2379\"]";
    has(&printed.stdout, &["store = \"etcd\"", endpoints, "margin = 8", "enabled = true"]);
}

/// The examples of agent.toml configure a cluster.
#[test]
fn config_files_in_the_readmes_are_valid() {
    let host = Host::new("files");
    for text in [README, DEPLOY] {
        let (blocks, _) = code(text);
        let block = blocks.iter().find(|block| block.starts_with("[etcd]")).unwrap();
        let file = host.node.dir().join("agent.toml");
        std::fs::write(&file, block).unwrap();
        let printed = host.run(&["agent", "--config", file.to_str().unwrap(), "--print-config"]);
        assert!(printed.success(), "{}\n{block}", printed.stderr);
        has(
            &printed.stdout,
            &["store = \"etcd\"", "endpoints = [\"https://", "ca = \"/etc/podwire/", "margin = 8"],
        );
    }
}
