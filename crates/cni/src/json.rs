//! Access to JSON values with their path, so that every error names the full path of the key.
//!
//! Like Go's `encoding/json`, which the reference plugins use, keys are case-insensitive and null is absent. A value of the
//! wrong type is CNI error 6. An invalid value of the right type, such as a number out of range, is CNI error 7.

use std::str::FromStr;

use serde_json::{Map, Value};

use crate::Error;

/// Longer strings are truncated in messages.
const SHOWN_CHARS: usize = 60;

/// A JSON object and its path in the config.
#[derive(Debug, Clone)]
pub struct Obj<'a> {
    map: &'a Map<String, Value>,
    path: String,
}

/// A JSON value and its path in the config.
#[derive(Debug, Clone)]
pub struct Item<'a> {
    value: &'a Value,
    path: String,
}

impl<'a> Obj<'a> {
    pub fn root(map: &'a Map<String, Value>) -> Self {
        Self { map, path: String::new() }
    }

    /// Empty for the root.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// All keys in their original case, without those of null values.
    pub fn keys(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.map.iter().filter(|(_, value)| !value.is_null()).map(|(key, _)| key.as_str())
    }

    /// All values of `key` in any case, nulls included.
    pub(crate) fn spellings(&self, key: &'static str) -> impl Iterator<Item = Item<'a>> {
        self.map
            .iter()
            .filter(move |(k, _)| k.eq_ignore_ascii_case(key))
            .map(|(k, value)| Item { value, path: self.path_of(k) })
    }

    pub fn get(&self, key: &str) -> Option<Item<'a>> {
        let exact = self.map.get(key).filter(|value| !value.is_null());
        let value = exact.or_else(|| {
            let mut spellings = self.map.iter().filter(|(k, v)| k.eq_ignore_ascii_case(key) && !v.is_null());
            spellings.next().map(|(_, value)| value)
        })?;
        Some(Item { value, path: self.path_of(key) })
    }

    pub fn str(&self, key: &str) -> Result<Option<&'a str>, Error> {
        self.get(key).map(|item| item.str()).transpose()
    }

    /// A string. Empty is absent, as in Go.
    pub fn nonempty(&self, key: &str) -> Result<Option<&'a str>, Error> {
        Ok(self.str(key)?.filter(|text| !text.is_empty()))
    }

    pub fn bool(&self, key: &str) -> Result<Option<bool>, Error> {
        self.get(key).map(|item| item.bool()).transpose()
    }

    pub fn u64(&self, key: &str) -> Result<Option<u64>, Error> {
        self.get(key).map(|item| item.u64()).transpose()
    }

    pub fn u32(&self, key: &str) -> Result<Option<u32>, Error> {
        self.get(key).map(|item| item.u32()).transpose()
    }

    pub fn u16(&self, key: &str) -> Result<Option<u16>, Error> {
        self.get(key).map(|item| item.u16()).transpose()
    }

    pub fn obj(&self, key: &str) -> Result<Option<Obj<'a>>, Error> {
        self.get(key).map(|item| item.obj()).transpose()
    }

    pub fn array(&self, key: &str) -> Result<Option<Vec<Item<'a>>>, Error> {
        self.get(key).map(|item| item.array()).transpose()
    }

    /// A list of strings without null elements. Empty if absent.
    pub fn strings(&self, key: &str) -> Result<Vec<String>, Error> {
        let items = self.array(key)?.unwrap_or_default();
        items.iter().filter(|item| !item.is_null()).map(|item| item.str().map(str::to_owned)).collect()
    }

    /// A string that is parsed, such as an address. Empty is absent. See [`Item::parse`].
    pub fn parse<T: FromStr>(&self, key: &str, expected: &str) -> Result<Option<T>, Error> {
        match self.get(key) {
            Some(item) if item.str()?.is_empty() => Ok(None),
            Some(item) => item.parse(expected).map(Some),
            None => Ok(None),
        }
    }

    fn path_of(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }
}

impl<'a> Item<'a> {
    pub fn root(value: &'a Value) -> Self {
        Self { value, path: String::new() }
    }

    pub fn value(&self) -> &'a Value {
        self.value
    }

    pub fn path(&self) -> &str {
        &self.path
    }

    pub fn is_null(&self) -> bool {
        self.value.is_null()
    }

    pub fn str(&self) -> Result<&'a str, Error> {
        self.value.as_str().ok_or_else(|| self.wrong_type("a string"))
    }

    pub fn bool(&self) -> Result<bool, Error> {
        self.value.as_bool().ok_or_else(|| self.wrong_type("true or false"))
    }

    pub fn u64(&self) -> Result<u64, Error> {
        self.uint(u64::MAX)
    }

    pub fn u32(&self) -> Result<u32, Error> {
        let number = self.uint(u32::MAX.into())?;
        u32::try_from(number).map_err(|_| self.out_of_range(u32::MAX.into()))
    }

    pub fn u16(&self) -> Result<u16, Error> {
        let number = self.uint(u16::MAX.into())?;
        u16::try_from(number).map_err(|_| self.out_of_range(u16::MAX.into()))
    }

    pub fn obj(&self) -> Result<Obj<'a>, Error> {
        let map = self.value.as_object().ok_or_else(|| self.wrong_type("an object"))?;
        Ok(Obj { map, path: self.path.clone() })
    }

    pub fn array(&self) -> Result<Vec<Item<'a>>, Error> {
        let values = self.value.as_array().ok_or_else(|| self.wrong_type("a list"))?;
        let item = |(i, value)| Item { value, path: format!("{}[{i}]", self.path) };
        Ok(values.iter().enumerate().map(item).collect())
    }

    /// A string that is parsed. `expected` describes it for the error: `an IP address such as 10.1.0.5`.
    pub fn parse<T: FromStr>(&self, expected: &str) -> Result<T, Error> {
        self.str()?.parse().map_err(|_| self.invalid(expected))
    }

    /// CNI error 7 for an invalid value of the right type: `path: expected …, found …`.
    pub fn invalid(&self, expected: &str) -> Error {
        Error::config(self.mismatch(expected))
    }

    fn uint(&self, max: u64) -> Result<u64, Error> {
        match self.value {
            Value::Number(n) => n.as_u64().filter(|n| *n <= max).ok_or_else(|| self.out_of_range(max)),
            Value::Null | Value::Bool(_) | Value::String(_) | Value::Array(_) | Value::Object(_) => {
                Err(self.wrong_type("a whole number"))
            }
        }
    }

    fn out_of_range(&self, max: u64) -> Error {
        self.invalid(&format!("a whole number from 0 to {max}"))
    }

    fn wrong_type(&self, expected: &str) -> Error {
        Error::decode(self.mismatch(expected))
    }

    fn mismatch(&self, expected: &str) -> String {
        let found = describe(self.value);
        if self.path.is_empty() {
            format!("expected {expected}, found {found}")
        } else {
            format!("{}: expected {expected}, found {found}", self.path)
        }
    }
}

/// A value for a message. Long strings are truncated; lists and objects are not printed.
pub(crate) fn describe(value: &Value) -> String {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(text) => {
            let mut shown: String = text.chars().take(SHOWN_CHARS).collect();
            if shown.len() < text.len() {
                shown.push('…');
            }
            Value::String(shown).to_string()
        }
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    }
}
