//! The commands in docs/reference/cli.md are generated from the clap definition. PODWIRE_RECORD=1 writes them.

use clap::builder::StyledStr;
use clap::{Arg, Command, CommandFactory as _};

use crate::cli::Cli;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/cli.md");
/// The text before this heading is written by hand.
const BEGIN: &str = "\n## podwire";

/// The examples of the long help, without their heading.
fn examples(command: &Command) -> Vec<String> {
    let help = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
    help.lines().skip(1).map(|line| line.trim().to_owned()).collect()
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

fn trimmed(text: Option<&StyledStr>) -> String {
    text.map(|text| text.to_string().trim().to_owned()).unwrap_or_default()
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
    let mut meaning = vec![trimmed(arg.get_long_help().or(arg.get_help()))];
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
    let about = trimmed(command.get_long_about().or(command.get_about()));
    let summary = trimmed(command.get_about());
    let about = about.replacen(&summary, &format!("{summary}."), 1);
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
    let examples = examples(command);
    assert!(!inner.is_empty() || !examples.is_empty(), "{title} has no example");
    if !examples.is_empty() {
        page.push_str(&format!("\nExamples:\n\n```\n{}\n```\n", examples.join("\n")));
    }
    for name in inner {
        let path = [path, std::slice::from_ref(&name)].concat();
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
