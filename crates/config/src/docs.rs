//! The table of keys as people read it: reference, sample, effective configuration.

use std::fmt::Write;

use crate::{Config, DEFAULT_FILE, Fallback, KEYS, Key, ValueKind};

/// What the sample says aloud: who copies it wants a runtime to find the network.
const LIVE: (&str, &str) = ("install.enabled", "true");

/// All keys as a table in Markdown.
pub fn reference() -> String {
    let mut text =
        String::from("| key | type | default | variable | flag | meaning |\n|---|---|---|---|---|---|\n");
    for key in KEYS {
        let default = match key.fallback {
            Fallback::Is(value) => format!("`{value}`"),
            Fallback::Found(words) => words.to_owned(),
        };
        let mut variables = format!("`{}`", key.variable());
        for alias in key.aliases {
            variables.push_str(&format!(", `{alias}`"));
        }
        let Key { name, kind, flag, meaning, .. } = key;
        let kind = kind.name();
        line(&mut text, &format!("| `{name}` | {kind} | {default} | {variables} | `--{flag}` | {meaning} |"));
    }
    text
}

/// A file with every key and its default, commented out.
pub fn sample() -> String {
    let mut text = format!(
        "# Podwire's agent. Copy to {DEFAULT_FILE}; every key may be left out, and shows its default.\n\
         # A flag wins over a variable, a variable over this file.\n"
    );
    write_keys(&mut text, |key| {
        let (more, mark, value) = match key.fallback {
            _ if key.name == LIVE.0 => (String::new(), "", toml_value(key.kind, LIVE.1)),
            Fallback::Is(value) => (String::new(), "#", toml_value(key.kind, value)),
            Fallback::Found("none") => (String::new(), "#", quoted("none")),
            Fallback::Found(words) => (format!("; left out: {words}"), "#", quoted("…")),
        };
        Some(format!("\n# {}{more}\n{mark}{} = {value}", key.meaning, key.place().1))
    });
    text
}

/// What is in effect; an unset key is left out.
pub(super) fn effective(config: &Config) -> String {
    let mut text = String::new();
    write_keys(&mut text, |key| {
        let value = (key.show)(config)?;
        if key.kind == ValueKind::Secret {
            return Some(format!("# {} is given, and not shown", key.place().1));
        }
        Some(format!("{} = {}", key.place().1, toml_value(key.kind, &value)))
    });
    text
}

fn write_keys(text: &mut String, show: impl Fn(&'static Key) -> Option<String>) {
    let mut table = None;
    for key in KEYS {
        if key.place().0 != table {
            table = key.place().0;
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

/// A basic string of TOML. Control characters have passed no parser of ours, but a wrong file would be worse.
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
