//! Escapes external text for output. A record, a pod name or an answer may contain terminal escape sequences, line breaks that
//! forge a line, and bidirectional control characters.

use std::borrow::Cow;
use std::fmt::Display;

/// One word of a shell command, quoted if necessary.
pub(crate) fn shell_word(text: &str) -> Cow<'_, str> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,@+%".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(format!("'{}'", text.replace('\'', r"'\''")))
}

/// Escapes line breaks and characters that a terminal would interpret, as `\n` or `\u{1b}`. For a value inside a line: a table
/// cell or a field of a log line.
pub fn one_line(text: &str) -> Cow<'_, str> {
    escaped(text, is_printable, |out, c| out.extend(c.escape_debug()))
}

/// The same for text of several lines. Line feeds and tabs are not escaped.
pub fn printable(text: &str) -> Cow<'_, str> {
    let is_allowed = |c| matches!(c, '\n' | '\t') || is_printable(c);
    escaped(text, is_allowed, |out, c| out.extend(c.escape_debug()))
}

/// The same for JSON: the result is JSON with the same content. Encoders escape only characters below U+0020, but terminals
/// also interpret DEL, U+009B or U+202E. Valid JSON contains such characters only inside strings.
pub fn printable_json(json: &str) -> Cow<'_, str> {
    let is_allowed = |c| matches!(c, '\n' | '\t') || is_printable(c);
    escaped(json, is_allowed, |out, c| {
        for unit in c.encode_utf16(&mut [0; 2]) {
            out.push_str(&format!("\\u{unit:04x}"));
        }
    })
}

/// False for C0 and C1 control characters, format characters such as bidirectional overrides, separators other than the space,
/// and combining marks.
fn is_printable(c: char) -> bool {
    matches!(c, '"' | '\'' | '\\') || c.escape_debug().len() == 1
}

fn escaped(
    text: &str,
    is_allowed: impl Fn(char) -> bool,
    escape: impl Fn(&mut String, char),
) -> Cow<'_, str> {
    if text.chars().all(&is_allowed) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_allowed(c) {
            out.push(c);
        } else {
            escape(&mut out, c);
        }
    }
    Cow::Owned(out)
}

/// The text of an error without `(os error 2)`, which the standard library and rustix append to errors of the kernel.
pub fn cause(error: impl Display) -> String {
    let text = error.to_string();
    let mut parts = text.split(" (os error ");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |all, part| {
        let rest = part.trim_start_matches(|c: char| c.is_ascii_digit());
        match rest.strip_prefix(')') {
            Some(rest) => all + rest,
            None => all + " (os error " + part,
        }
    })
}

/// `1 attachment`, `2 attachments`.
pub fn count(number: u64, word: &str) -> String {
    format!("{number} {word}{}", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a3_shell_words_are_quoted_only_if_necessary() {
        for (text, word) in [
            ("/run/podwire/a-1.json", "/run/podwire/a-1.json"),
            ("/run/pod wire", "'/run/pod wire'"),
            ("a;reboot", "'a;reboot'"),
            ("$(reboot)[x]*~", "'$(reboot)[x]*~'"),
            ("it's", r"'it'\''s'"),
            ("", "''"),
        ] {
            assert_eq!(shell_word(text), word);
        }
    }

    #[test]
    fn a_cause_has_no_number_of_the_kernel() {
        for (error, expected) in [
            ("No such file or directory (os error 2)", "No such file or directory"),
            ("refused (os error 111)): is it running (os error 4)?", "refused): is it running?"),
            ("no such pod (os error x)", "no such pod (os error x)"),
            ("", ""),
        ] {
            assert_eq!(cause(error), expected);
        }
        assert_eq!(cause(std::io::Error::from_raw_os_error(13)), "Permission denied");
    }

    /// Characters that terminals and pagers interpret.
    fn is_dangerous(c: char) -> bool {
        matches!(c, '\0'..='\x1f' | '\x7f'..='\u{9f}' | '\u{61c}' | '\u{200e}' | '\u{200f}')
            || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    }

    #[test]
    fn control_and_bidirectional_characters_are_escaped() {
        for c in ('\0'..=char::MAX).filter(|c| is_dangerous(*c)) {
            let text = format!("a{c}b");
            let shown = one_line(&text);
            assert!(shown.starts_with("a\\") && shown.ends_with('b') && shown.len() > 3, "{shown:?}");
            assert!(!one_line(&text).contains(is_dangerous));
            assert!(!printable(&text).replace(['\n', '\t'], "").contains(is_dangerous));
        }
    }

    #[test]
    fn ordinary_text_is_not_escaped() {
        let text = "default/web-1 \"q\" 'x' C:\\y: ██░ 10 % … — über 漢字";
        assert!(matches!(one_line(text), Cow::Borrowed(same) if same == text));
        assert!(matches!(printable("a\n\tb"), Cow::Borrowed("a\n\tb")));
        assert_eq!(one_line("a\nb\x1b[2J\u{202e}"), "a\\nb\\u{1b}[2J\\u{202e}");
    }

    proptest! {
        #[test]
        fn escaped_json_is_printable_and_has_the_same_content(text in any::<String>(), more in "[\u{7f}-\u{a0}\u{2028}-\u{202e}\u{2066}-\u{2069}😀\u{e0001}]{0,8}") {
            let value = serde_json::json!({ format!("k{more}"): [text, more] });
            let json = serde_json::to_string_pretty(&value).unwrap();
            let shown = printable_json(&json);
            prop_assert!(!shown.replace('\n', "").contains(is_dangerous), "{shown:?}");
            prop_assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap(), value);
        }
    }
}
