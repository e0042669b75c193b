//! What a key of the configuration is; [`KEYS`] has them all.

use crate::draft::Draft;
use crate::{Config, KEYS, etcd};

/// Stands for what must not be read by others.
pub(super) const NOT_SHOWN: &str = "(not shown)";

/// What a value looks like in a file; variables and flags are text in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueKind {
    Text,
    Number,
    Bool,
    /// In a file a list of strings; elsewhere separated by commas.
    List,
    /// Text that is never shown.
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

/// What holds when nobody says anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fallback {
    /// This value, read like one that was given.
    Is(&'static str),
    /// Nothing, for which `none` can be written; or something that is found out, as the words say.
    Found(&'static str),
}

/// Reads a value; the error says what is allowed.
pub(super) type KeySetter = fn(&mut Draft, &str) -> Result<(), String>;

/// One key of the configuration.
pub struct Key {
    /// As in the file: `TABLE.KEY`.
    pub name: &'static str,
    pub kind: ValueKind,
    pub fallback: Fallback,
    pub meaning: &'static str,
    /// Other variables that mean the same. Our own name wins over them.
    pub aliases: &'static [&'static str],
    /// Without the dashes.
    pub flag: &'static str,
    pub(super) set: KeySetter,
    /// The value in effect, if there is one.
    pub(super) show: fn(&Config) -> Option<String>,
}

impl Key {
    pub fn variable(&self) -> String {
        format!("PODWIRE_{}", self.name.replace('.', "_").to_uppercase())
    }

    /// A value as it may be shown in messages and logs.
    pub(super) fn shown(&self, text: &str) -> String {
        match self.kind {
            ValueKind::Secret => NOT_SHOWN.to_owned(),
            ValueKind::List if self.name == "etcd.endpoints" => etcd::without_password(text),
            ValueKind::Text | ValueKind::Number | ValueKind::Bool | ValueKind::List => text.to_owned(),
        }
    }

    /// The table it stands in, and its name there.
    pub fn place(&self) -> (Option<&'static str>, &'static str) {
        match self.name.split_once('.') {
            Some((table, key)) => (Some(table), key),
            None => (None, self.name),
        }
    }

    pub(super) fn find(name: &str) -> Option<&'static Self> {
        KEYS.iter().find(|key| key.name == name)
    }
}
