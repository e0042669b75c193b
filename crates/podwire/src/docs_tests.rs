//! The pages name only commands, flags, condition codes, configuration keys and make targets that exist.

use std::collections::BTreeSet;

use clap::Parser as _;
use clap::error::ErrorKind;
use testkit::docs::{self, Page};
use types::Code;

use crate::cli::Cli;

/// Aliases of links in code spans: `podwire bridge`, `podwire tunnel NETWORK`.
const LINK_ALIASES: [&str; 2] = ["bridge", "tunnel"];

/// A command without its arguments, such as `podwire lab`, is a mention. Help and version are printed.
fn is_known(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::MissingSubcommand
            | ErrorKind::MissingRequiredArgument
            | ErrorKind::DisplayHelp
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
            | ErrorKind::DisplayVersion
    )
}

fn parse(arguments: &[String]) -> Result<(), clap::Error> {
    let argv = ["podwire"].into_iter().chain(arguments.iter().map(String::as_str));
    match Cli::try_parse_from(argv) {
        Err(error) if !is_known(error.kind()) => Err(error),
        Ok(_) | Err(_) => Ok(()),
    }
}

#[test]
fn every_podwire_command_in_the_pages_parses() {
    let mut count = 0;
    let mut wrong = Vec::new();
    // Commands of earlier versions may be in the changelog.
    for page in docs::pages().unwrap().into_iter().filter(|page| !page.path.ends_with("CHANGELOG.md")) {
        for arguments in page.podwire_commands() {
            if LINK_ALIASES.contains(&arguments[0].as_str()) {
                continue;
            }
            count += 1;
            if let Err(error) = parse(&arguments) {
                let reason = error.to_string();
                let reason = reason.lines().next().unwrap_or_default();
                wrong.push(format!("{}: podwire {}: {reason}", page.path.display(), arguments.join(" ")));
            }
        }
    }
    assert!(count >= 100, "only {count} commands found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn commands_and_flags_that_do_not_exist_are_refused() {
    let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
    for known in ["status", "lab", "node rm", "lab up --nodes 2", "agent --check-config", "--version"] {
        assert!(parse(&words(known)).is_ok(), "{known}");
    }
    for unknown in ["state", "lab up --node 2", "status --all", "lab up --nodes many", "lab fly"] {
        assert!(parse(&words(unknown)).is_err(), "{unknown}");
    }
}

/// All code spans of the user pages with the path of their page.
fn spans() -> Vec<(Page, String)> {
    let pages = docs::user_pages().unwrap();
    pages
        .into_iter()
        .flat_map(|page| page.spans().into_iter().map(move |span| (page.clone(), span)))
        .collect()
}

/// Two capital letters at least, no other punctuation: `PeerAway`.
fn is_code_like(span: &str) -> bool {
    span.starts_with(|c: char| c.is_ascii_uppercase())
        && span.chars().all(|c| c.is_ascii_alphanumeric())
        && span.chars().any(|c| c.is_ascii_lowercase())
        && span.chars().filter(char::is_ascii_uppercase).count() >= 2
}

#[test]
fn every_condition_code_in_the_user_pages_exists() {
    let known: BTreeSet<&str> = Code::ALL.iter().map(|code| code.as_str()).collect();
    let named: Vec<(Page, String)> = spans().into_iter().filter(|(_, span)| is_code_like(span)).collect();
    assert!(named.len() > 40, "only {} codes found", named.len());
    for (page, span) in named {
        assert!(known.contains(span.as_str()), "{}: `{span}` is no condition", page.path.display());
    }
}

#[test]
fn every_configuration_key_in_the_user_pages_exists() {
    let known: BTreeSet<&str> = config::KEYS.iter().map(|key| key.name).collect();
    let tables: BTreeSet<&str> =
        known.iter().filter_map(|key| key.split_once('.')).map(|(table, _)| table).collect();
    let mut count = 0;
    for (page, span) in spans() {
        let key = span.split(" = ").next().unwrap_or_default();
        let is_key = |(table, rest): (&str, &str)| {
            tables.contains(table)
                && !rest.is_empty()
                && rest.chars().all(|c| c.is_ascii_lowercase() || c == '_')
        };
        // Names of files have a dot, too.
        let is_file = [".md", ".rs", ".toml", ".json"].iter().any(|extension| key.ends_with(extension));
        if key.split_once('.').is_some_and(is_key) && !is_file {
            count += 1;
            assert!(known.contains(key), "{}: `{span}` is no key of the agent", page.path.display());
        }
    }
    assert!(count > 20, "only {count} keys found");
}

#[test]
fn every_make_target_in_the_pages_exists() {
    let makefile = std::fs::read_to_string(docs::root().join("Makefile")).unwrap();
    let targets: BTreeSet<&str> = makefile
        .lines()
        .filter(|line| line.starts_with(|c: char| c.is_ascii_lowercase()))
        .filter_map(|line| line.split_once(':'))
        .map(|(target, _)| target)
        .collect();
    let mut count = 0;
    for page in docs::pages().unwrap() {
        for line in page.command_lines() {
            let Some(rest) = line.strip_prefix("make ") else { continue };
            let Some(target) = rest.split_whitespace().next() else { continue };
            count += 1;
            assert!(targets.contains(target), "{}: make {target}", page.path.display());
        }
    }
    assert!(count > 10, "only {count} targets found");
}
