//! The definition of a configuration key; [`KEYS`] lists all keys.

use crate::draft::Draft;
use crate::{Config, KEYS, etcd};

/// Replaces secrets in output.
pub(super) const NOT_SHOWN: &str = "(not shown)";

/// The TOML type of a value. Variables and flags are always text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueKind {
    Text,
    Number,
    Bool,
    /// A list of strings in a file, comma-separated text elsewhere.
    List,
    /// Text that is never printed.
    Secret,
}

impl ValueKind {
    /// As the reference names it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Text => "string",
            Self::Number => "number",
            Self::Bool => "boolean",
            Self::List => "list",
            Self::Secret => "secret",
        }
    }
}

/// The default of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DefaultValue {
    /// This value, parsed like a given one.
    Value(&'static str),
    /// Unset (`none`), or a value that is derived as the text describes.
    Described(&'static str),
}

/// Parses a value. The error says which values are allowed.
pub(super) type KeySetter = fn(&mut Draft, &str) -> Result<(), String>;

/// One key of the configuration.
pub struct Key {
    /// As in the file: `TABLE.KEY`, or `KEY` at the top level.
    pub name: &'static str,
    pub kind: ValueKind,
    pub default: DefaultValue,
    pub description: &'static str,
    /// Legacy variables for the same key. The PODWIRE_ variable overrides them.
    pub aliases: &'static [&'static str],
    /// Without the dashes.
    pub flag: &'static str,
    pub(super) set: KeySetter,
    /// The effective value, if the key is set.
    pub(super) show: fn(&Config) -> Option<String>,
}

impl Key {
    pub fn variable(&self) -> String {
        format!("PODWIRE_{}", self.name.replace('.', "_").to_uppercase())
    }

    /// The value for messages and logs, without secrets.
    pub(super) fn shown(&self, text: &str) -> String {
        match self.kind {
            ValueKind::Secret => NOT_SHOWN.to_owned(),
            ValueKind::List if self.name == "etcd.endpoints" => etcd::without_password(text),
            ValueKind::Text | ValueKind::Number | ValueKind::Bool | ValueKind::List => text.to_owned(),
        }
    }

    /// The table of the key, and its name in that table.
    pub fn split_name(&self) -> (Option<&'static str>, &'static str) {
        match self.name.split_once('.') {
            Some((table, key)) => (Some(table), key),
            None => (None, self.name),
        }
    }

    pub(super) fn find(name: &str) -> Option<&'static Self> {
        KEYS.iter().find(|key| key.name == name)
    }
}
