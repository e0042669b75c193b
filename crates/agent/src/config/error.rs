use std::fmt;
use std::path::PathBuf;

use crate::config::KEYS;

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
    #[error("{origin}: unknown key {name:?}; the keys are {}", keys())]
    UnknownKey { origin: Origin, name: String },
    #[error("unknown variable {name}; the variables are PODWIRE_CONFIG, {}", variables())]
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

fn keys() -> String {
    KEYS.iter().map(|key| key.name).collect::<Vec<_>>().join(", ")
}

fn variables() -> String {
    KEYS.iter().map(super::Key::variable).collect::<Vec<_>>().join(", ")
}

/// All mistakes of a configuration.
#[derive(Debug)]
pub struct ConfigError {
    pub problems: Vec<Problem>,
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
