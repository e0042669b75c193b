//! The commands in docs/reference/cli.md are generated from the clap definition. PODWIRE_RECORD=1 writes them.

use clap::{Arg, Command, CommandFactory as _, Parser as _};

use crate::cli::Cli;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/cli.md");
/// The text before this heading is written by hand.
const BEGIN: &str = "\n## podwire";

/// One example for each command without examples in its help.
const EXAMPLES: &[&str] = &[
    "podwire demo",
    "podwire agent --config /etc/podwire/agent.toml",
    "podwire status -o json",
    "podwire doctor --repair",
    "podwire pods -o wide",
    "podwire nodes",
    "podwire node rm n3",
    "podwire routes",
    "podwire blocks",
    "podwire attachment show 0f2c5a9be1d7",
    "podwire install --standalone --subnet 10.85.0.0/16 --subnet fd00:85::/64",
    "podwire cleanup",
    "podwire lab up --nodes 4 --subnets 2",
    "podwire lab status",
    "podwire lab pod add n1 web",
    "podwire lab pod rm web",
    "podwire lab exec n1 -- podwire routes",
    "podwire lab test",
    "podwire lab cut n3",
    "podwire lab heal n3",
    "podwire lab kill agent n1",
    "podwire lab kill etcd",
    "podwire lab kill node n2",
    "podwire lab start agent n1",
    "podwire lab start etcd",
    "podwire lab start node n2",
    "podwire lab restart agent n1",
    "podwire lab logs n1 --lines 20",
    "podwire lab down --all",
];

/// The commands that a command line names: all words that are names of commands, one below the other.
fn path_of(line: &str) -> Vec<String> {
    let mut command = Cli::command();
    let mut path = vec!["podwire".to_owned()];
    for word in line.split_whitespace().skip(1) {
        let Some(inner) = command.find_subcommand(word).cloned() else { break };
        path.push(inner.get_name().to_owned());
        command = inner;
    }
    path
}

/// The lines of the long help that are command lines, else those of the table.
fn examples(command: &Command, path: &[String]) -> Vec<String> {
    let help = command.get_after_long_help().or(command.get_after_help()).map(ToString::to_string);
    let in_help = help.unwrap_or_default();
    let lines = in_help.lines().map(str::trim).filter(|line| line.starts_with("podwire "));
    let found: Vec<String> = lines.map(str::to_owned).collect();
    if !found.is_empty() {
        return found;
    }
    EXAMPLES.iter().filter(|line| path_of(line) == path).map(|line| (*line).to_owned()).collect()
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

fn sentence(text: Option<String>) -> String {
    text.map(|text| text.trim().to_owned()).filter(|text| !text.is_empty()).unwrap_or_default()
}

/// Name, values, default and meaning of an option or argument.
fn row(arg: &Arg) -> String {
    let names: Vec<String> =
        [arg.get_short().map(|c| format!("`-{c}`")), arg.get_long().map(|l| format!("`--{l}`"))]
            .into_iter()
            .flatten()
            .collect();
    let values: Vec<String> =
        arg.get_value_names().unwrap_or_default().iter().map(ToString::to_string).collect();
    let possible: Vec<_> =
        arg.get_possible_values().into_iter().filter(|value| !value.is_hide_set()).collect();
    let name = if names.is_empty() { format!("`{}`", values.join(" ")) } else { names.join(", ") };
    let takes_value = arg.get_action().takes_values();
    let value = match (takes_value, possible.is_empty(), names.is_empty()) {
        (false, _, _) | (_, true, true) => String::new(),
        (_, false, _) => {
            possible.iter().map(|value| format!("`{}`", value.get_name())).collect::<Vec<_>>().join(", ")
        }
        (_, true, false) => format!("`{}`", values.join(" ")),
    };
    let defaults: Vec<String> = match takes_value {
        true => {
            arg.get_default_values().iter().map(|value| format!("`{}`", value.to_string_lossy())).collect()
        }
        false => Vec::new(),
    };
    let mut meaning = vec![sentence(arg.get_long_help().or(arg.get_help()).map(ToString::to_string))];
    for value in possible {
        if let Some(help) = value.get_help() {
            meaning.push(format!("`{}`: {help}", value.get_name()));
        }
    }
    meaning.retain(|part| !part.is_empty());
    format!(
        "| {} | {} | {} | {} |\n",
        cell(&name),
        cell(&value),
        cell(&defaults.join(", ")),
        cell(&meaning.join("; "))
    )
}

fn write(command: &mut Command, path: &[String], page: &mut String) {
    let title = path.join(" ");
    page.push_str(&format!("\n## {title}\n\n"));
    let about = sentence(command.get_long_about().or(command.get_about()).map(ToString::to_string));
    let usage = command.render_usage().to_string();
    let usage = usage.trim().trim_start_matches("Usage: ");
    let usage: Vec<&str> = usage.lines().map(str::trim).collect();
    page.push_str(&format!("{about}\n\n```text\n{}\n```\n", usage.join("\n")));
    let is_agent = path == ["podwire", "agent"];
    let is_key = |arg: &Arg| is_agent && config::KEYS.iter().any(|key| key.name == arg.get_id().as_str());
    let is_inherited = |arg: &Arg| arg.is_global_set() && path.len() > 2;
    let args: Vec<&Arg> = command
        .get_arguments()
        .filter(|arg| !arg.is_hide_set() && !["help", "version"].contains(&arg.get_id().as_str()))
        .collect();
    let shown: Vec<&&Arg> = args.iter().filter(|arg| !is_key(arg) && !is_inherited(arg)).collect();
    if !shown.is_empty() {
        page.push_str("\n| option | value | default | meaning |\n|---|---|---|---|\n");
        page.extend(shown.into_iter().map(|arg| row(arg)));
    }
    if is_agent {
        page.push_str("\nEach key of the [agent's configuration](agent-config.md#keys) has a flag.\n");
    }
    let inner: Vec<String> = names(command);
    let examples = examples(command, path);
    assert!(!inner.is_empty() || !examples.is_empty(), "{title} has no example");
    if !examples.is_empty() {
        page.push_str(&format!("\nExample:\n\n```\n{}\n```\n", examples.join("\n")));
    }
    for line in &examples {
        let parsed = Cli::try_parse_from(line.split_whitespace());
        assert!(parsed.is_ok() && path_of(line) == path, "{line}: {:?}", parsed.err());
    }
    for name in inner {
        let path = [path, &[name.clone()]].concat();
        if let Some(command) = command.find_subcommand_mut(&name) {
            write(command, &path, page);
        }
    }
}

/// The commands below one, without `help`.
fn names(command: &Command) -> Vec<String> {
    let shown = command.get_subcommands().filter(|inner| !inner.is_hide_set() && inner.get_name() != "help");
    shown.map(|inner| inner.get_name().to_owned()).collect()
}

#[test]
fn recorded_commands_match_the_definition() {
    let page = std::fs::read_to_string(PAGE).unwrap();
    let mut command = Cli::command().term_width(1000);
    command.build();
    let mut wanted = String::new();
    for name in names(&command) {
        let path = ["podwire".to_owned(), name.clone()];
        write(command.find_subcommand_mut(&name).unwrap(), &path, &mut wanted);
    }
    let begin = page.find(BEGIN).unwrap_or(page.len());
    let (before, found) = page.split_at(begin);
    if std::env::var_os("PODWIRE_RECORD").is_some() {
        std::fs::write(PAGE, format!("{before}{wanted}")).unwrap();
    } else {
        assert_eq!(found, wanted, "PODWIRE_RECORD=1 cargo test -p podwire --bin podwire recorded");
    }
}
