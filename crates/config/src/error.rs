use std::fmt;
use std::path::PathBuf;

use types::{cause, closest};

use crate::KEYS;

/// The source of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    Flag(&'static str),
    Variable(String),
    File { path: PathBuf, line: usize },
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

/// One problem of the configuration.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    #[error("{origin}: {key} {value:?} {reason}")]
    Value { origin: Origin, key: &'static str, value: String, reason: String },
    #[error("{origin}: unknown key {name:?}; {}", key_hint(name))]
    UnknownKey { origin: Origin, name: String },
    #[error("unknown variable {name}; {}", variable_hint(name))]
    UnknownVariable { name: String },
    #[error("variable {name}: {value:?} must be valid UTF-8")]
    NotText { name: String, value: String },
    #[error("{origin}: invalid TOML: {message}")]
    Syntax { origin: Origin, message: String },
    #[error("{from}cannot read config file {}: {}", path.display(), cause(source))]
    Unreadable { from: String, path: PathBuf, source: std::io::Error },
    #[error("config file {} contains {key} and {reason}", path.display())]
    Exposed { path: PathBuf, key: &'static str, reason: String },
    #[error("config file {} {reason}", path.display())]
    Tampering { path: PathBuf, reason: String },
    #[error(
        "cannot determine the path of the podwire executable, the default location of the plugin: {0}; set --install-plugin"
    )]
    OwnExecutable(std::io::Error),
}

/// The key may be misspelt, in the wrong table, or both.
fn key_hint(name: &str) -> String {
    let tables = KEYS.iter().filter_map(|key| key.split_name().0);
    let in_any_table = |wanted: &str| KEYS.iter().map(|key| key.name).find(|name| last(name) == wanted);
    let meant = in_any_table(last(name))
        .or_else(|| closest(name, KEYS.iter().map(|key| key.name).chain(tables)))
        .or_else(|| closest(last(name), KEYS.iter().map(|key| last(key.name))).and_then(in_any_table));
    match meant {
        Some(meant) => format!("did you mean {meant:?}?"),
        None => "`podwire agent --print-config-sample` lists all keys".to_owned(),
    }
}

/// The name without its table.
fn last(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or_default()
}

fn variable_hint(name: &str) -> String {
    let variables: Vec<String> = KEYS.iter().map(super::Key::variable).collect();
    let own = variables.iter().map(String::as_str).chain(["PODWIRE_CONFIG"]);
    match closest(name, own) {
        Some(meant) => format!("did you mean {meant}?"),
        None => "`podwire agent --print-config-reference` lists all variables".to_owned(),
    }
}

/// All problems of a configuration.
#[derive(Debug)]
pub struct ConfigError {
    pub problems: Vec<Problem>,
}

impl ConfigError {
    /// Whether the process lacks permission to read a file.
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
            | Problem::OwnExecutable(_) => false,
        };
        self.problems.iter().any(denied)
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.problems.as_slice() {
            [one] => write!(f, "invalid configuration: {one}"),
            all => {
                write!(f, "invalid configuration, {} problems:", all.len())?;
                all.iter().try_for_each(|problem| write!(f, "\n  {problem}"))
            }
        }
    }
}

impl std::error::Error for ConfigError {}
