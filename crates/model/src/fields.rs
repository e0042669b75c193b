//! Reads objects from JSON values field by field. An error names the field, its value and what is allowed.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;

use ipnet::IpNet;
use serde_json::{Map, Value};
use types::{closest, one_line};

use crate::object::bounded;

/// The number of characters of a value that a message quotes.
const MAX_QUOTED: usize = 60;

/// A field with an invalid value.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
#[error("{field}: {reason}")]
pub struct FieldError {
    /// For example `spec.rules[2].priority`.
    pub field: String,
    pub reason: String,
}

impl FieldError {
    /// The parts may quote external text, so they are made short and printable.
    pub fn new(field: impl AsRef<str>, reason: impl AsRef<str>) -> Self {
        Self { field: bounded(field.as_ref()), reason: bounded(reason.as_ref()) }
    }

    pub(crate) fn missing(field: &str) -> Self {
        Self::new(field, "is missing")
    }

    /// `allowed` completes the sentence "… is not allowed: ".
    pub(crate) fn refused(field: &str, value: impl fmt::Display, allowed: impl fmt::Display) -> Self {
        Self::new(field, format!("{value} is not allowed: {allowed}"))
    }
}

/// A value in a message: short and printable.
pub(crate) fn quoted(value: &Value) -> String {
    let text = value.to_string();
    let mut short: String = text.chars().take(MAX_QUOTED).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    one_line(&short).into_owned()
}

/// One step on the way from an object's body to a field.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Segment {
    Field(String),
    /// The element of a list whose `id` has this number. Its position may change.
    Id(u64),
}

/// Fields of a stored object that this version does not know. They are kept when the object is written again, so that versions can
/// run side by side after a field was added.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UnknownFields(BTreeMap<Vec<Segment>, Value>);

impl UnknownFields {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds the fields to an object's body. Fields of list elements that no longer exist are dropped. Known fields are not replaced.
    pub(crate) fn restore(&self, body: &mut Value) {
        for (path, value) in &self.0 {
            let Some((Segment::Field(name), parents)) = path.split_last() else { continue };
            let parent = parents.iter().try_fold(&mut *body, |at, segment| match segment {
                Segment::Field(name) => at.get_mut(name),
                Segment::Id(id) => {
                    let items = at.as_array_mut()?;
                    items.iter_mut().find(|item| item.get("id").and_then(Value::as_u64) == Some(*id))
                }
            });
            if let Some(Value::Object(map)) = parent {
                map.entry(name.clone()).or_insert_with(|| value.clone());
            }
        }
    }
}

/// What happens to fields that this version does not know.
#[derive(Debug)]
pub(crate) enum UnknownPolicy {
    /// In files: they are errors, because they are probably misspelt.
    Refuse,
    /// In the store: they are kept.
    Keep(UnknownFields),
}

/// The fields of one JSON object. `None` and `null` are the same.
pub(crate) struct Fields {
    path: String,
    segments: Vec<Segment>,
    map: Map<String, Value>,
    known: Vec<&'static str>,
}

impl Fields {
    /// `path` is empty for the document itself.
    pub(crate) fn new(path: &str, value: Value) -> Result<Self, FieldError> {
        match value {
            Value::Object(map) => {
                Ok(Self { path: path.to_owned(), segments: Vec::new(), map, known: Vec::new() })
            }
            other => {
                let path = if path.is_empty() { "document" } else { path };
                Err(FieldError::refused(path, quoted(&other), "expected a mapping of fields"))
            }
        }
    }

    pub(crate) fn path_of(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    pub(crate) fn take(&mut self, name: &'static str) -> Option<Value> {
        self.known.push(name);
        self.map.remove(name).filter(|value| !value.is_null())
    }

    /// Puts a value back that decides how the field is read.
    pub(crate) fn put_back(&mut self, name: &'static str, value: Value) {
        self.map.insert(name.to_owned(), value);
    }

    pub(crate) fn missing(&self, name: &str) -> FieldError {
        FieldError::missing(&self.path_of(name))
    }

    /// The fields of a mapping. A missing mapping has no fields.
    pub(crate) fn object(&mut self, name: &'static str) -> Result<Self, FieldError> {
        let value = self.take(name).unwrap_or_else(|| Value::Object(Map::new()));
        let mut fields = Self::new(&self.path_of(name), value)?;
        fields.segments = self.segments.clone();
        fields.segments.push(Segment::Field(name.to_owned()));
        Ok(fields)
    }

    pub(crate) fn string(&mut self, name: &'static str) -> Result<Option<String>, FieldError> {
        let path = self.path_of(name);
        self.take(name).map(|value| string(&path, value)).transpose()
    }

    /// A string that `parse` turns into a value or a reason.
    pub(crate) fn parsed<T, E: fmt::Display>(
        &mut self,
        name: &'static str,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Result<Option<T>, FieldError> {
        let path = self.path_of(name);
        let Some(text) = self.string(name)? else { return Ok(None) };
        parse(&text).map(Some).map_err(|reason| FieldError::new(path, reason.to_string()))
    }

    /// One of the words.
    pub(crate) fn word<T: Copy>(
        &mut self,
        name: &'static str,
        words: &[(&'static str, T)],
    ) -> Result<Option<T>, FieldError> {
        let path = self.path_of(name);
        let Some(value) = self.take(name) else { return Ok(None) };
        let found = words.iter().find(|(word, _)| value.as_str() == Some(word));
        let allowed = || words.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(" or ");
        found
            .map(|(_, result)| Some(*result))
            .ok_or_else(|| FieldError::refused(&path, quoted(&value), allowed()))
    }

    pub(crate) fn boolean(&mut self, name: &'static str) -> Result<Option<bool>, FieldError> {
        let path = self.path_of(name);
        let Some(value) = self.take(name) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| FieldError::refused(&path, quoted(&value), "true or false"))
    }

    pub(crate) fn number(
        &mut self,
        name: &'static str,
        range: RangeInclusive<u64>,
    ) -> Result<Option<u64>, FieldError> {
        let path = self.path_of(name);
        self.take(name).map(|value| number(&path, &value, range)).transpose()
    }

    /// The elements of a list with their paths. A missing list is empty.
    pub(crate) fn list<T>(
        &mut self,
        name: &'static str,
        mut read: impl FnMut(&str, Value) -> Result<T, FieldError>,
    ) -> Result<Vec<T>, FieldError> {
        let path = self.path_of(name);
        let items = match self.take(name) {
            None => return Ok(Vec::new()),
            Some(Value::Array(items)) => items,
            Some(other) => return Err(FieldError::refused(&path, quoted(&other), "expected a list")),
        };
        let with_paths = items.into_iter().enumerate();
        with_paths.map(|(i, item)| read(&format!("{path}[{i}]"), item)).collect()
    }

    /// A list of mappings.
    pub(crate) fn objects<T>(
        &mut self,
        name: &'static str,
        mut read: impl FnMut(Fields) -> Result<T, FieldError>,
    ) -> Result<Vec<T>, FieldError> {
        let mut segments = self.segments.clone();
        segments.push(Segment::Field(name.to_owned()));
        self.list(name, |path, item| {
            let id = item.get("id").and_then(Value::as_u64);
            let mut fields = Self::new(path, item)?;
            fields.segments = segments.clone();
            fields.segments.extend(id.map(Segment::Id));
            read(fields)
        })
    }

    /// Handles the fields that were not read.
    pub(crate) fn finish(self, policy: &mut UnknownPolicy) -> Result<(), FieldError> {
        for (name, value) in self.map {
            match policy {
                UnknownPolicy::Refuse => {
                    let hint = match closest(&name, self.known.iter().copied()) {
                        Some(word) => format!("did you mean {word:?}?"),
                        None => format!("the known fields are {}", self.known.join(", ")),
                    };
                    let name = one_line(&name).into_owned();
                    let field = if self.path.is_empty() { name } else { format!("{}.{name}", self.path) };
                    return Err(FieldError::new(field, format!("unknown field; {hint}")));
                }
                UnknownPolicy::Keep(unknown) => {
                    let mut segments = self.segments.clone();
                    segments.push(Segment::Field(name));
                    unknown.0.insert(segments, value);
                }
            }
        }
        Ok(())
    }
}

pub(crate) fn string(path: &str, value: Value) -> Result<String, FieldError> {
    match value {
        Value::String(text) => Ok(text),
        other => Err(FieldError::refused(path, quoted(&other), "expected a string; write it in quotes")),
    }
}

pub(crate) fn number(path: &str, value: &Value, range: RangeInclusive<u64>) -> Result<u64, FieldError> {
    value.as_u64().filter(|number| range.contains(number)).ok_or_else(|| {
        FieldError::refused(path, quoted(value), format!("{} to {}", range.start(), range.end()))
    })
}

/// A CIDR without bits behind the prefix.
pub(crate) fn cidr(path: &str, value: Value) -> Result<IpNet, FieldError> {
    let text = string(path, value)?;
    let parsed: Result<IpNet, _> = text.parse();
    let Ok(net) = parsed else {
        let text = quoted(&Value::String(text));
        return Err(FieldError::refused(path, text, "expected a CIDR such as 10.1.0.0/16 or fd00:1::/64"));
    };
    if net.trunc() != net {
        let reason = format!("{net} has bits behind the prefix; write {}", net.trunc());
        return Err(FieldError::new(path, reason));
    }
    Ok(net)
}

/// A name of an object. RFC 1123: Kubernetes allows the same names.
pub(crate) fn dns_label(path: &str, name: &str) -> Result<(), FieldError> {
    let is_inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let has_valid_ends = !name.starts_with('-') && !name.ends_with('-');
    if (1..=63).contains(&name.len()) && name.bytes().all(is_inner) && has_valid_ends {
        return Ok(());
    }
    let allowed = "1 to 63 lower-case letters, digits and '-', not at the start or end";
    Err(FieldError::refused(path, quoted(&Value::String(name.to_owned())), allowed))
}
