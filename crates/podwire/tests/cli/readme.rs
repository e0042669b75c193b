use std::collections::BTreeSet;

use crate::common::{Host, has};

const README: &str = include_str!("../../../../README.md");
const DEPLOY: &str = include_str!("../../../../deploy/README.md");

/// The fix of an overlap proposes 10.84.0.0/16 first.
#[test]
fn the_readmes_examples_leave_the_subnet_that_fixes_propose() {
    assert!(README.contains(r#""subnet": "10."#) && !README.contains(r#""subnet": "10.84."#));
}

/// A text in Markdown: its code blocks, and what stands between backticks elsewhere.
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

/// A command that somebody is told to type.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Typed {
    subcommands: Vec<String>,
    flags: Vec<String>,
}

impl Typed {
    /// What is indented, or goes on with a number, is what a command printed.
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
    let typed =
        |line: &str| Typed::find(line).map(|typed| (typed.subcommands.join(" "), typed.flags.join(" ")));
    let some = |words: &str, flags: &str| Some((words.to_owned(), flags.to_owned()));
    assert_eq!(typed("podwire node rm NAME"), some("node rm", ""));
    assert_eq!(typed("sudo target/release/podwire install --standalone"), some("install", "--standalone"));
    assert_eq!(typed("podwire lab up --nodes 3   # --not-a-flag"), some("lab up", "--nodes"));
    assert_eq!(typed("podwire 0.1.0 on worker-1: ready"), None);
    assert_eq!(typed("  podwire agent, again"), None);
    let all = Typed::all(
        "x `podwire a\nb` y\n```\npodwire c && podwire lab exec n1 -- podwire d\n```\n`podwire e`",
    );
    let all: Vec<String> = all.iter().map(|typed| typed.subcommands.join(" ")).collect();
    assert_eq!(all, ["a b", "c", "d", "e", "lab exec"]);
}

/// Every command that the READMEs name exists, with the flags that they name.
#[test]
fn the_readmes_commands_are_the_tools() {
    let host = Host::new("commands");
    let typed: BTreeSet<Typed> = [README, DEPLOY].into_iter().flat_map(Typed::all).collect();
    assert!(typed.len() >= 20, "{typed:#?}");
    for Typed { subcommands, flags } in &typed {
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

/// The eleven variables that the README names are those that the agent knows, and with these values it would start.
#[test]
fn the_readmes_variables_are_the_agents() {
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

/// What the READMEs say to write into agent.toml is a configuration for many nodes.
#[test]
fn the_readmes_files_are_configurations() {
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
