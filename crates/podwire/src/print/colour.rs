//! Colours of states. A coloured word carries marks until it is written, because layout must measure the text without escape
//! sequences, and control characters from records and answers are escaped last.

use std::borrow::Cow;

use super::terminal::has_colours;

/// Private-use characters. `types::printable` escapes them in text from outside.
const GREEN: char = '\u{e000}';
const YELLOW: char = '\u{e001}';
const RED: char = '\u{e002}';
const END: char = '\u{e003}';

/// A state that needs no action.
pub(crate) fn good(state: &str) -> String {
    coloured(state, GREEN)
}

/// A state that works with a limitation, or that is not known.
pub(crate) fn degraded(state: &str) -> String {
    coloured(state, YELLOW)
}

/// A state that needs action.
pub(crate) fn bad(state: &str) -> String {
    coloured(state, RED)
}

fn coloured(state: &str, colour: char) -> String {
    if has_colours() { marked(state, colour) } else { state.to_owned() }
}

/// Each word has its own marks: the text may be wrapped between them.
fn marked(state: &str, colour: char) -> String {
    let words: Vec<String> = state.split(' ').map(|word| format!("{colour}{word}{END}")).collect();
    words.join(" ")
}

pub(super) fn is_mark(c: char) -> bool {
    (GREEN..=END).contains(&c)
}

/// The text as it is written to stdout: control characters are escaped, then marks become colours.
pub(super) fn rendered(text: &str) -> Cow<'_, str> {
    if has_colours() { Cow::Owned(with_escapes(&printable(text))) } else { types::printable(text) }
}

/// Like [`types::printable`]; marks stay.
pub(super) fn printable(text: &str) -> Cow<'_, str> {
    if !has_colours() {
        return types::printable(text);
    }
    let part = |part: &str| match part.chars().last().filter(|last| is_mark(*last)) {
        Some(mark) => format!("{}{mark}", types::printable(part.trim_end_matches(mark))),
        None => types::printable(part).into_owned(),
    };
    Cow::Owned(text.split_inclusive(is_mark).map(part).collect())
}

fn with_escapes(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            GREEN => out.push_str("\x1b[32m"),
            YELLOW => out.push_str("\x1b[33m"),
            RED => out.push_str("\x1b[31m"),
            END => out.push_str("\x1b[0m"),
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_of_a_state_is_coloured() {
        let shown = with_escapes(&format!("on n1: {}", marked("not ready", RED)));
        assert_eq!(shown, "on n1: \x1b[31mnot\x1b[0m \x1b[31mready\x1b[0m");
    }

    #[test]
    fn output_without_a_terminal_has_no_colours() {
        assert_eq!([good("ready"), degraded("stale"), bad("missing")], ["ready", "stale", "missing"]);
        assert_eq!(rendered(&marked("x", RED)), r"\u{e002}x\u{e003}", "marks from outside are escaped");
    }
}
