use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;

use crate::Error;

/// The variables that the protocol passes a request in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Var {
    Command,
    ContainerId,
    Netns,
    IfName,
    Args,
    Path,
    NetnsOverride,
    /// Set for every plugin that Podwire runs, and so for everything that such a plugin runs.
    Delegated,
}

impl Var {
    pub const ALL: [Var; 8] = [
        Var::Command,
        Var::ContainerId,
        Var::Netns,
        Var::IfName,
        Var::Args,
        Var::Path,
        Var::NetnsOverride,
        Var::Delegated,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Var::Command => "CNI_COMMAND",
            Var::ContainerId => "CNI_CONTAINERID",
            Var::Netns => "CNI_NETNS",
            Var::IfName => "CNI_IFNAME",
            Var::Args => "CNI_ARGS",
            Var::Path => "CNI_PATH",
            Var::NetnsOverride => "CNI_NETNS_OVERRIDE",
            // With the prefix that plugins pass on to the agent, so that the agent sees it, too.
            Var::Delegated => "CNI_PODWIRE_DELEGATED",
        }
    }
}

impl fmt::Display for Var {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The CNI variables of one call, not yet judged: which of them matter depends on the command.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Env {
    values: BTreeMap<Var, OsString>,
}

impl Env {
    pub fn from_vars(vars: impl IntoIterator<Item = (OsString, OsString)>) -> Self {
        let mut values = BTreeMap::new();
        for (name, value) in vars {
            if let Some(var) = Var::ALL.into_iter().find(|var| name == var.name()) {
                // A variable that is there twice: getenv(3) sees the first, and so do Go plugins.
                values.entry(var).or_insert(value);
            }
        }
        Self { values }
    }

    /// All of them, as they came.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, &OsStr)> {
        self.values.iter().map(|(var, value)| (var.name(), value.as_os_str()))
    }

    /// The variable's value; empty is missing, as everywhere in the protocol.
    pub fn get(&self, var: Var) -> Result<Option<&str>, Error> {
        match self.values.get(&var).filter(|value| !value.is_empty()) {
            Some(value) => match value.to_str() {
                Some(text) => Ok(Some(text)),
                None => Err(Error::environment(format!("{var} is invalid: it is not UTF-8"))),
            },
            None => Ok(None),
        }
    }

    pub(crate) fn required(&self, var: Var) -> Result<&str, Error> {
        self.get(var)?.ok_or_else(|| Error::environment(format!("{var} is missing")))
    }

    /// Whether anybody asks for anything; without a command a plugin says what it is (about line) and ends well.
    pub fn has_command(&self) -> bool {
        self.values.get(&Var::Command).is_some_and(|value| !value.is_empty())
    }

    /// The directories where delegates are looked for.
    pub fn path(&self) -> Result<Vec<String>, Error> {
        let list = self.get(Var::Path)?.unwrap_or_default();
        Ok(list.split(':').filter(|dir| !dir.is_empty()).map(str::to_owned).collect())
    }

    /// Whether the request comes from a plugin that Podwire itself runs.
    pub fn is_delegated(&self) -> bool {
        self.values.get(&Var::Delegated).is_some_and(|value| !value.is_empty())
    }

    pub fn netns_override(&self) -> bool {
        let value = self.get(Var::NetnsOverride).ok().flatten().unwrap_or_default();
        value == "1" || value.eq_ignore_ascii_case("true")
    }
}

/// What a runtime wants done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Command {
    Add,
    Del,
    Check,
    Gc,
    Status,
    Version,
}

impl Command {
    pub const ALL: [Command; 6] =
        [Command::Add, Command::Del, Command::Check, Command::Gc, Command::Status, Command::Version];

    pub fn as_str(self) -> &'static str {
        match self {
            Command::Add => "ADD",
            Command::Del => "DEL",
            Command::Check => "CHECK",
            Command::Gc => "GC",
            Command::Status => "STATUS",
            Command::Version => "VERSION",
        }
    }

    pub fn parse(text: &str) -> Result<Self, Error> {
        let known = Self::ALL.into_iter().find(|command| command.as_str() == text);
        known.ok_or_else(|| Error::environment(format!("unknown CNI_COMMAND: {text}")))
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
