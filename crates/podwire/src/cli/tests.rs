use clap::error::ErrorKind;
use clap::{Command, CommandFactory as _, Parser as _};

use super::Cli;

/// All commands with the arguments that select them, without the generated `help`.
fn commands() -> Vec<(Vec<String>, Command)> {
    fn collect(command: &Command, path: &[String], all: &mut Vec<(Vec<String>, Command)>) {
        all.push((path.to_vec(), command.clone()));
        for inner in command.get_subcommands().filter(|inner| inner.get_name() != "help") {
            collect(inner, &[path, &[inner.get_name().to_owned()]].concat(), all);
        }
    }
    let mut all = Vec::new();
    collect(&Cli::command(), &["podwire".to_owned()], &mut all);
    assert!(all.len() > 30, "{}", all.len());
    all
}

fn help(path: &[String], flag: &str) -> String {
    let error = Cli::try_parse_from(path.iter().map(String::as_str).chain([flag])).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DisplayHelp, "{path:?} {flag}");
    error.to_string()
}

#[test]
fn help_of_every_command_fits_into_80_columns() {
    for (path, _) in commands() {
        for flag in ["-h", "--help"] {
            let text = help(&path, flag);
            for line in text.lines() {
                assert!(line.chars().count() <= 80, "{path:?} {flag}: {line:?}");
            }
        }
    }
}

#[test]
fn summaries_of_commands_have_at_most_60_characters() {
    for (path, command) in commands() {
        let summary = command.get_about().unwrap_or_else(|| panic!("{path:?}")).to_string();
        assert!((1..=60).contains(&summary.chars().count()), "{path:?}: {summary}");
        assert!(!summary.ends_with('.'), "{path:?}: {summary}");
    }
}

#[test]
fn every_argument_has_a_help_text() {
    for (path, command) in commands() {
        for argument in command.get_arguments() {
            assert!(argument.get_help().is_some(), "{path:?} {}", argument.get_id());
        }
    }
}

#[test]
fn examples_in_the_help_of_every_command_are_valid() {
    for (path, command) in commands() {
        let text = command.get_after_long_help().unwrap_or_else(|| panic!("{path:?}")).to_string();
        let mut lines = text.lines();
        assert_eq!(lines.next(), Some("Examples:"), "{path:?}");
        let lines: Vec<&str> = lines.map(|line| line.strip_prefix("  ").unwrap_or(line)).collect();
        let examples: Vec<Vec<&str>> = (lines.iter())
            .filter(|line| !line.starts_with("# "))
            .map(|line| line.split(' ').collect())
            .collect();
        for words in &examples {
            Cli::try_parse_from(words).unwrap_or_else(|error| panic!("{words:?}: {error}"));
        }
        // A global argument may precede the subcommand, as in `podwire lab --name one up`.
        let is_of_command = |words: &Vec<&str>| path.iter().all(|name| words.contains(&name.as_str()));
        assert!(examples.iter().any(is_of_command), "{path:?}: {text}");
        assert!(help(&path, "--help").contains("\nExamples:\n  "), "{path:?}");
    }
}
