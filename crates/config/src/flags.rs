//! Command-line flags: one for each key of the table.

use std::fmt;
use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Args, Command, Error, FromArgMatches, value_parser};

use crate::{DEFAULT_FILE, DefaultValue, KEYS, Key, ValueKind};

const NO_INSTALL: &str = "no-install";

/// The given flags. They are flattened into a clap command.
#[derive(Clone, Default)]
pub struct Flags {
    /// Must exist if given.
    pub config: Option<PathBuf>,
    /// Key names and values as typed.
    pub(super) values: Vec<(&'static str, String)>,
}

/// Omits the values: one of them may be a password.
impl fmt::Debug for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.values.iter().map(|(name, _)| *name).collect();
        f.debug_struct("Flags").field("config", &self.config).field("given", &names).finish()
    }
}

fn arg(key: &Key) -> Arg {
    let default = match key.default {
        DefaultValue::Value(text) | DefaultValue::Described(text) => text,
    };
    let arg = Arg::new(key.name).long(key.flag).help(format!("{} [default: {default}]", key.description));
    match key.kind {
        ValueKind::Text | ValueKind::Secret => arg.value_name("VALUE"),
        ValueKind::Number => arg.value_name("NUMBER"),
        // `--install` means `--install=true`; `--install=false` is also accepted.
        ValueKind::Bool => {
            arg.value_name("BOOL").num_args(0..=1).require_equals(true).default_missing_value("true")
        }
        ValueKind::List => arg.value_name("LIST").action(ArgAction::Append),
    }
}

impl Args for Flags {
    fn augment_args(command: Command) -> Command {
        let file = Arg::new("config")
            .long("config")
            .value_name("FILE")
            .value_parser(value_parser!(PathBuf))
            .help(format!("config file; must exist if given [default: {DEFAULT_FILE}]"));
        let no_install = Arg::new(NO_INSTALL)
            .long(NO_INSTALL)
            .action(ArgAction::SetTrue)
            .conflicts_with("install.enabled")
            .help("same as --install=false");
        command.arg(file).args(KEYS.iter().map(arg)).arg(no_install)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Flags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let config = matches.get_one::<PathBuf>("config").cloned();
        let mut values = Vec::new();
        for key in KEYS {
            if let Some(all) = matches.get_many::<String>(key.name) {
                values.push((key.name, all.cloned().collect::<Vec<_>>().join(",")));
            }
        }
        if matches.get_flag(NO_INSTALL) {
            values.push(("install.enabled", "false".to_owned()));
        }
        Ok(Self { config, values })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
