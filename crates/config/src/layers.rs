//! Collects the values of file, environment and flags in order of increasing precedence.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::keys::KeySetter;
use crate::secrets::{self, SecretFile};
use crate::{Flags, KEYS, Key, Origin, Problem, ValueKind, aliases};

/// Read if it exists.
pub const DEFAULT_FILE: &str = "/etc/podwire/agent.toml";
/// Selects the config file.
pub const FILE_VARIABLE: &str = "PODWIRE_CONFIG";
/// The plugin for `podwire lab` and `podwire demo`; not a setting of the agent.
const PLUGIN_VARIABLE: &str = "PODWIRE_CNI";
/// `LAB/NODE`, set by `podwire lab exec` inside a lab node; not a setting of the agent.
pub const LAB_VARIABLE: &str = "PODWIRE_LAB_NODE";
/// An arbitrary limit.
const MAX_FILE: u64 = 1 << 20;

/// A value of one key, as given in one layer.
pub(super) struct ConfigValue {
    pub(super) key: &'static Key,
    pub(super) text: String,
    pub(super) origin: Origin,
    pub(super) set: KeySetter,
}

impl ConfigValue {
    pub(super) fn new(key: &'static Key, text: String, origin: Origin) -> Self {
        Self { key, text, origin, set: key.set }
    }
}

/// The values of all layers, and the config file.
pub(super) struct Collected {
    pub(super) values: Vec<ConfigValue>,
    pub(super) problems: Vec<Problem>,
    pub(super) file: PathBuf,
}

pub(super) fn collect(flags: &Flags, env: impl IntoIterator<Item = (OsString, OsString)>) -> Collected {
    let mut problems = Vec::new();
    let (variables, variable_path) = variables(env, &mut problems);
    let mut values = Vec::new();
    let file = flags.config.clone().map(|path| (path, "flag --config: ".to_owned()));
    let file = file.or(variable_path.map(|path| (path, format!("variable {FILE_VARIABLE}: "))));
    match read(file.as_ref()) {
        Ok(None) => {}
        Ok(Some((path, SecretFile { text, exposure, tampering }))) => {
            FileLayer { path: path.clone(), text: &text, values: &mut values, problems: &mut problems }
                .read();
            let is_secret =
                |value: &&ConfigValue| value.key.kind == ValueKind::Secret && value.text != "none";
            let secret = values.iter().find(is_secret);
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
    values.extend(variables);
    values.extend(flags.values.iter().filter_map(|(name, text)| {
        let key = Key::find(name)?;
        Some(ConfigValue::new(key, text.clone(), Origin::Flag(key.flag)))
    }));
    let file = file.map_or_else(|| DEFAULT_FILE.into(), |(path, _)| path);
    Collected { values, problems, file }
}

/// The values of all variables, legacy names first, and the path of the config file.
fn variables(
    env: impl IntoIterator<Item = (OsString, OsString)>,
    problems: &mut Vec<Problem>,
) -> (Vec<ConfigValue>, Option<PathBuf>) {
    let (mut own_values, mut legacy_values, mut file) = (Vec::new(), Vec::new(), None);
    for (name, value) in env {
        let Some(name) = name.to_str() else { continue };
        if name == FILE_VARIABLE {
            file = Some(PathBuf::from(value));
            continue;
        }
        let own_key = KEYS.iter().find(|key| key.variable() == name);
        let alias_key = KEYS.iter().find(|key| key.aliases.contains(&name));
        let Some(key) = own_key.or(alias_key) else {
            if name.starts_with("PODWIRE_") && ![PLUGIN_VARIABLE, LAB_VARIABLE].contains(&name) {
                problems.push(Problem::UnknownVariable { name: name.to_owned() });
            }
            continue;
        };
        match value.into_string() {
            Ok(text) => {
                let mut value = ConfigValue::new(key, text, Origin::Variable(name.to_owned()));
                if own_key.is_some() {
                    own_values.push(value);
                } else {
                    value.set = aliases::parser(name, key);
                    legacy_values.push(value);
                }
            }
            Err(value) => problems
                .push(Problem::NotText { name: name.to_owned(), value: key.shown(&value.to_string_lossy()) }),
        }
    }
    legacy_values.append(&mut own_values);
    (legacy_values, file)
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
        return Err(io::Error::other(format!("file is larger than {MAX_FILE} bytes")));
    }
    Ok(content)
}

struct FileLayer<'a> {
    path: PathBuf,
    text: &'a str,
    values: &'a mut Vec<ConfigValue>,
    problems: &'a mut Vec<Problem>,
}

impl FileLayer<'_> {
    fn read(mut self) {
        let (table, errors) = DeTable::parse_recoverable(self.text);
        for error in errors {
            let origin = self.origin(error.span().map_or(0, |span| span.start));
            // The parser's messages can have several lines.
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
            let is_table =
                parent.is_none() && KEYS.iter().any(|key| key.split_name().0 == Some(full.as_str()));
            match (Key::find(&full), value.get_ref()) {
                (Some(key), _) => self.set(key, value),
                (None, DeValue::Table(inner)) if is_table => self.walk(Some(&full), inner),
                (None, _) => {
                    let origin = self.origin(name.span().start);
                    self.problems.push(Problem::UnknownKey { origin, name: full });
                }
            }
        }
    }

    fn set(&mut self, key: &'static Key, value: &Spanned<DeValue<'_>>) {
        let origin = self.origin(value.span().start);
        match text_of(key.kind, value.get_ref()) {
            Some(text) => self.values.push(ConfigValue::new(key, text, origin)),
            None => {
                let value = key.shown(self.text.get(value.span()).unwrap_or_default());
                let reason = format!("must be {}", toml_type(key.kind));
                self.problems.push(Problem::Value { origin, key: key.name, value, reason });
            }
        }
    }

    fn origin(&self, offset: usize) -> Origin {
        let line = 1 + self.text.bytes().take(offset).filter(|byte| *byte == b'\n').count();
        Origin::File { path: self.path.clone(), line }
    }
}

/// A string is accepted for every kind and parsed like a flag.
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

fn toml_type(kind: ValueKind) -> &'static str {
    match kind {
        ValueKind::Text | ValueKind::Secret => "a string",
        ValueKind::Number => "a whole number",
        ValueKind::Bool => "true or false",
        ValueKind::List => "a list of strings",
    }
}
