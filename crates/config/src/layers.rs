//! File, environment and flags become one list of given values, the stronger ones last.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::keys::KeySetter;
use crate::secrets::{self, SecretFile};
use crate::{Flags, KEYS, Key, Origin, Problem, ValueKind, aliases};

/// Read where it exists.
pub const DEFAULT_FILE: &str = "/etc/podwire/agent.toml";
const FILE_VARIABLE: &str = "PODWIRE_CONFIG";
/// Names the plugin for `podwire lab` and `podwire demo`; no setting of the agent.
const PLUGIN_VARIABLE: &str = "PODWIRE_CNI";
/// `LAB/NODE`: set by `podwire lab exec` inside a node of a lab; no setting of the agent.
pub const LAB_VARIABLE: &str = "PODWIRE_LAB_NODE";
/// More than any configuration needs.
const MAX_FILE: u64 = 1 << 20;

/// A value of one key, as somebody wrote it.
pub(super) struct Given {
    pub(super) key: &'static Key,
    pub(super) text: String,
    pub(super) origin: Origin,
    /// How it is read.
    pub(super) set: KeySetter,
}

impl Given {
    pub(super) fn new(key: &'static Key, text: String, origin: Origin) -> Self {
        Self { key, text, origin, set: key.set }
    }
}

pub(super) fn collect(
    flags: &Flags,
    env: impl IntoIterator<Item = (OsString, OsString)>,
) -> (Vec<Given>, Vec<Problem>) {
    let mut problems = Vec::new();
    let (variables, named) = variables(env, &mut problems);
    let mut given = Vec::new();
    let file = flags.config.clone().map(|path| (path, "flag --config: ".to_owned()));
    let file = file.or(named.map(|path| (path, format!("variable {FILE_VARIABLE}: "))));
    match read(file.as_ref()) {
        Ok(None) => {}
        Ok(Some((path, SecretFile { text, exposure, tampering }))) => {
            FileLayer { path: path.clone(), text: &text, given: &mut given, problems: &mut problems }.read();
            let is_secret = |given: &&Given| given.key.kind == ValueKind::Secret && given.text != "none";
            let secret = given.iter().find(is_secret);
            match (tampering, secret.zip(exposure)) {
                (Some(reason), _) => problems.push(Problem::Tampering { path, reason }),
                (None, Some((secret, reason))) => {
                    problems.push(Problem::Exposed {
                        path,
                        key: secret.key.name,
                        reason: reason.to_string(),
                    });
                }
                (None, None) => {}
            }
        }
        Err(problem) => problems.push(problem),
    }
    given.extend(variables);
    given.extend(flags.values.iter().filter_map(|(name, text)| {
        let key = Key::find(name)?;
        Some(Given::new(key, text.clone(), Origin::Flag(key.flag)))
    }));
    (given, problems)
}

/// The values, those of other names before our own; and the config file's path.
fn variables(
    env: impl IntoIterator<Item = (OsString, OsString)>,
    problems: &mut Vec<Problem>,
) -> (Vec<Given>, Option<PathBuf>) {
    let (mut ours, mut others, mut file) = (Vec::new(), Vec::new(), None);
    for (name, value) in env {
        let Some(name) = name.to_str() else { continue };
        if name == FILE_VARIABLE {
            file = Some(PathBuf::from(value));
            continue;
        }
        let own = KEYS.iter().find(|key| key.variable() == name);
        let alias = KEYS.iter().find(|key| key.aliases.contains(&name));
        let Some(key) = own.or(alias) else {
            if name.starts_with("PODWIRE_") && ![PLUGIN_VARIABLE, LAB_VARIABLE].contains(&name) {
                problems.push(Problem::UnknownVariable { name: name.to_owned() });
            }
            continue;
        };
        match value.into_string() {
            Ok(text) => {
                let mut given = Given::new(key, text, Origin::Variable(name.to_owned()));
                if own.is_some() {
                    ours.push(given);
                } else {
                    given.set = aliases::reader(name, key);
                    others.push(given);
                }
            }
            Err(value) => problems
                .push(Problem::NotText { name: name.to_owned(), value: key.shown(&value.to_string_lossy()) }),
        }
    }
    others.append(&mut ours);
    (others, file)
}

/// Only the default file may be missing.
fn read(named: Option<&(PathBuf, String)>) -> Result<Option<(PathBuf, SecretFile)>, Problem> {
    let (path, from) = match named {
        Some((path, from)) => (path.as_path(), from.as_str()),
        None => (Path::new(DEFAULT_FILE), ""),
    };
    match read_text(path) {
        Ok(content) => Ok(Some((path.to_owned(), content))),
        Err(error) if error.kind() == io::ErrorKind::NotFound && named.is_none() => Ok(None),
        Err(source) => Err(Problem::Unreadable { from: from.to_owned(), path: path.to_owned(), source }),
    }
}

fn read_text(path: &Path) -> io::Result<SecretFile> {
    let content = secrets::read(path, MAX_FILE + 1)?;
    if content.text.len() as u64 > MAX_FILE {
        return Err(io::Error::other(format!("it is larger than {MAX_FILE} bytes")));
    }
    Ok(content)
}

struct FileLayer<'a> {
    path: PathBuf,
    text: &'a str,
    given: &'a mut Vec<Given>,
    problems: &'a mut Vec<Problem>,
}

impl FileLayer<'_> {
    fn read(mut self) {
        let (table, errors) = DeTable::parse_recoverable(self.text);
        for error in errors {
            let origin = self.origin(error.span().map_or(0, |span| span.start));
            // A message may have several lines; a problem has one.
            let message = error.message().replace('\n', ", ");
            self.problems.push(Problem::Syntax { origin, message });
        }
        self.walk(None, table.get_ref());
    }

    fn walk(&mut self, parent: Option<&str>, table: &DeTable<'_>) {
        for (name, value) in table {
            let full = match parent {
                Some(parent) => format!("{parent}.{}", name.get_ref()),
                None => name.get_ref().to_string(),
            };
            let is_table = parent.is_none() && KEYS.iter().any(|key| key.place().0 == Some(full.as_str()));
            match (Key::find(&full), value.get_ref()) {
                (Some(key), _) => self.take(key, value),
                (None, DeValue::Table(inner)) if is_table => self.walk(Some(&full), inner),
                (None, _) => {
                    let origin = self.origin(name.span().start);
                    self.problems.push(Problem::UnknownKey { origin, name: full });
                }
            }
        }
    }

    fn take(&mut self, key: &'static Key, value: &Spanned<DeValue<'_>>) {
        let origin = self.origin(value.span().start);
        match text_of(key.kind, value.get_ref()) {
            Some(text) => self.given.push(Given::new(key, text, origin)),
            None => {
                let value = key.shown(self.text.get(value.span()).unwrap_or_default());
                let allowed = format!("must be {}", in_toml(key.kind));
                self.problems.push(Problem::Value { origin, key: key.name, value, allowed });
            }
        }
    }

    fn origin(&self, offset: usize) -> Origin {
        let line = 1 + self.text.bytes().take(offset).filter(|byte| *byte == b'\n').count();
        Origin::File { path: self.path.clone(), line }
    }
}

/// A string is taken for anything, and read as a flag would be.
fn text_of(kind: ValueKind, value: &DeValue<'_>) -> Option<String> {
    match (kind, value) {
        (_, DeValue::String(text)) => Some(text.to_string()),
        (ValueKind::Number, DeValue::Integer(number)) => {
            i64::from_str_radix(number.as_str(), number.radix()).ok().map(|number| number.to_string())
        }
        (ValueKind::Bool, DeValue::Boolean(value)) => Some(value.to_string()),
        (ValueKind::List, DeValue::Array(items)) => {
            let items: Option<Vec<&str>> = items.iter().map(|item| item.get_ref().as_str()).collect();
            items.map(|items| items.join(","))
        }
        (ValueKind::Text | ValueKind::Number | ValueKind::Bool | ValueKind::List | ValueKind::Secret, _) => {
            None
        }
    }
}

fn in_toml(kind: ValueKind) -> &'static str {
    match kind {
        ValueKind::Text | ValueKind::Secret => "a string",
        ValueKind::Number => "a whole number",
        ValueKind::Bool => "true or false",
        ValueKind::List => "a list of strings",
    }
}
