use std::fmt;
use std::path::PathBuf;

use types::closest;

use crate::KEYS;

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    Flag(&'static str),
    Variable(String),
    File {
        path: PathBuf,
        line: usize,
    },
    /// Nobody said anything.
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(name) => write!(f, "flag --{name}"),
            Self::Variable(name) => write!(f, "variable {name}"),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Default => f.write_str("default"),
        }
    }
}

/// One mistake in the configuration.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    #[error("{origin}: {key} {value:?} {allowed}")]
    Value { origin: Origin, key: &'static str, value: String, allowed: String },
    #[error("{origin}: unknown key {name:?}; {}", key_hint(name))]
    UnknownKey { origin: Origin, name: String },
    #[error("unknown variable {name}; {}", variable_hint(name))]
    UnknownVariable { name: String },
    #[error("variable {name}: {value:?} must be UTF-8 text")]
    NotText { name: String, value: String },
    #[error("{origin}: this is not TOML: {message}")]
    Syntax { origin: Origin, message: String },
    #[error("{from}cannot read the config file {}: {source}", path.display())]
    Unreadable { from: String, path: PathBuf, source: std::io::Error },
    #[error("the config file {} holds {key} and {reason}", path.display())]
    Exposed { path: PathBuf, key: &'static str, reason: String },
    #[error("the config file {} {reason}", path.display())]
    Tampering { path: PathBuf, reason: String },
    #[error("cannot find my own program file, beside which the plugin lies: {0}; set --install-plugin")]
    OwnProgram(std::io::Error),
}

/// A key may be misspelt, or stand in the wrong table.
fn key_hint(name: &str) -> String {
    let last = |name: &str| name.rsplit('.').next().unwrap_or_default().to_owned();
    let tables = KEYS.iter().filter_map(|key| key.place().0);
    let misplaced = KEYS.iter().find(|key| last(key.name) == last(name)).map(|key| key.name);
    match misplaced.or_else(|| closest(name, KEYS.iter().map(|key| key.name).chain(tables))) {
        Some(meant) => format!("did you mean {meant:?}?"),
        None => "`podwire agent --print-config-sample` lists all keys".to_owned(),
    }
}

fn variable_hint(name: &str) -> String {
    let variables: Vec<String> = KEYS.iter().map(super::Key::variable).collect();
    let own = variables.iter().map(String::as_str).chain(["PODWIRE_CONFIG"]);
    match closest(name, own) {
        Some(meant) => format!("did you mean {meant}?"),
        None => "`podwire agent --print-config-reference` lists all variables".to_owned(),
    }
}

/// All mistakes of a configuration.
#[derive(Debug)]
pub struct ConfigError {
    pub problems: Vec<Problem>,
}

impl ConfigError {
    /// Whether only the rights of this process are missing.
    pub fn is_denied(&self) -> bool {
        let denied = |problem: &Problem| match problem {
            Problem::Unreadable { source, .. } => source.kind() == std::io::ErrorKind::PermissionDenied,
            Problem::Value { .. }
            | Problem::UnknownKey { .. }
            | Problem::UnknownVariable { .. }
            | Problem::NotText { .. }
            | Problem::Syntax { .. }
            | Problem::Exposed { .. }
            | Problem::Tampering { .. }
            | Problem::OwnProgram(_) => false,
        };
        self.problems.iter().any(denied)
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.problems.as_slice() {
            [one] => write!(f, "the configuration cannot be used: {one}"),
            all => {
                write!(f, "the configuration cannot be used, {} mistakes:", all.len())?;
                all.iter().try_for_each(|problem| write!(f, "\n  {problem}"))
            }
        }
    }
}

impl std::error::Error for ConfigError {}
