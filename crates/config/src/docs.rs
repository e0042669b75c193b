//! Renders the keys as text: reference, sample file and effective configuration.

use std::fmt::Write;

use crate::{Config, DEFAULT_FILE, DefaultValue, KEYS, Key, ValueKind};

/// The only key that is not commented out in the sample: an operator who copies the file wants the CNI config to be installed.
const UNCOMMENTED: (&str, &str) = ("install.enabled", "true");

/// All keys as a Markdown table.
pub fn reference() -> String {
    let mut text =
        String::from("| key | type | default | variable | flag | description |\n|---|---|---|---|---|---|\n");
    for key in KEYS {
        let default = match key.default {
            DefaultValue::Value(value) => format!("`{value}`"),
            DefaultValue::Described(text) => text.to_owned(),
        };
        let mut variables = format!("`{}`", key.variable());
        for alias in key.aliases {
            variables.push_str(&format!(", `{alias}`"));
        }
        let Key { name, kind, flag, description, .. } = key;
        let kind = kind.name();
        line(
            &mut text,
            &format!("| `{name}` | {kind} | {default} | {variables} | `--{flag}` | {description} |"),
        );
    }
    text
}

/// A file with all keys and their defaults, commented out.
pub fn sample() -> String {
    let mut text = format!(
        "# Configuration of the Podwire agent. Copy it to {DEFAULT_FILE}. All keys are optional; defaults are shown.\n\
         # Flags override environment variables, and variables override this file.\n"
    );
    write_keys(&mut text, |key| {
        let (suffix, comment, value) = match key.default {
            _ if key.name == UNCOMMENTED.0 => (String::new(), "", toml_value(key.kind, UNCOMMENTED.1)),
            DefaultValue::Value(value) => (String::new(), "#", toml_value(key.kind, value)),
            DefaultValue::Described("none") => (String::new(), "#", quoted("none")),
            DefaultValue::Described(text) => (format!("; default: {text}"), "#", quoted("…")),
        };
        Some(format!("\n# {}{suffix}\n{comment}{} = {value}", key.description, key.split_name().1))
    });
    text
}

/// The effective configuration, without unset keys.
pub(super) fn effective(config: &Config) -> String {
    let mut text = String::new();
    write_keys(&mut text, |key| {
        let value = (key.show)(config)?;
        if key.kind == ValueKind::Secret {
            return Some(format!("# {} is set (not shown)", key.split_name().1));
        }
        Some(format!("{} = {}", key.split_name().1, toml_value(key.kind, &value)))
    });
    text
}

fn write_keys(text: &mut String, show: impl Fn(&'static Key) -> Option<String>) {
    let mut table = None;
    for key in KEYS {
        if key.split_name().0 != table {
            table = key.split_name().0;
            line(text, &format!("\n[{}]", table.unwrap_or_default()));
        }
        if let Some(shown) = show(key) {
            line(text, &shown);
        }
    }
}

fn line(text: &mut String, line: &str) {
    text.push_str(line);
    text.push('\n');
}

fn toml_value(kind: ValueKind, text: &str) -> String {
    match kind {
        ValueKind::Number | ValueKind::Bool => text.to_owned(),
        ValueKind::Text | ValueKind::Secret => quoted(text),
        ValueKind::List => {
            format!("[{}]", text.split(',').map(|item| quoted(item.trim())).collect::<Vec<_>>().join(", "))
        }
    }
}

/// A TOML basic string. The parsers of this crate accept no control characters; escaping them keeps the file valid in any case.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => write!(out, "\\u{:04X}", u32::from(c)).unwrap_or_default(),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
