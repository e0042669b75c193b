//! Output of all commands. Control characters are escaped, because records, pod names and answers may contain any character.

mod colour;
mod layout;
mod terminal;

use std::fmt::Display;
use std::io::{self, ErrorKind, IsTerminal as _, Write};

use anyhow::{Context, Result};
pub(crate) use types::count;

pub(crate) use colour::{bad, degraded, good};
use layout::is_path;
pub(crate) use layout::{TableLayout, hanging, key_values, list, table, wide_table, wrap};
pub(crate) use terminal::{detect_terminal, width};

const BAR_WIDTH: usize = 20;

/// Prints one or more lines. A closed pipe (`| head`) is not an error.
pub(crate) fn line(text: impl Display) -> Result<()> {
    write(io::stdout().lock(), format_args!("{text}\n"))
}

/// Prints a sentence, wrapped to the width of the output.
pub(crate) fn sentence(text: impl Display) -> Result<()> {
    line(hanging(&wrap(&text.to_string(), width() - 2), 2))
}

/// Prints text that ends with a line break.
pub(crate) fn text(text: &str) -> Result<()> {
    write(io::stdout().lock(), text)
}

/// Prints indented JSON.
pub(crate) fn json(value: &impl serde::Serialize) -> Result<()> {
    line(types::printable_json(&serde_json::to_string_pretty(value)?))
}

/// No process reads the output any more.
#[derive(Debug, thiserror::Error)]
#[error("stdout is closed")]
pub(crate) struct OutputClosed;

/// Prints lines of an output without end. Unlike for other output, a closed pipe is an error: it ends the command.
pub(crate) fn stream_line(text: impl Display) -> Result<()> {
    let (text, mut out) = (format!("{text}\n"), io::stdout().lock());
    match out.write_all(colour::rendered(&text).as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(OutputClosed.into()),
        written => written.context("cannot write to stdout"),
    }
}

fn write(mut out: impl Write, text: impl Display) -> Result<()> {
    let text = text.to_string();
    match out.write_all(colour::rendered(&text).as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.context("cannot write to stdout"),
    }
}

/// Prints a message on stderr: one line, or wrapped on a terminal. A write error is ignored, because it cannot be reported.
pub(crate) fn warn(text: impl Display) {
    let (text, mut stderr) = (text.to_string(), io::stderr().lock());
    let text = if stderr.is_terminal() { layout::message(&text) } else { text };
    let _ = writeln!(stderr, "{}", types::printable(&text));
}

/// A value from outside, on one line. A line break in it is escaped; otherwise it could forge a row of a table.
pub(crate) fn one_line(text: &str) -> String {
    types::one_line(text).into_owned()
}

/// The error and its causes. A cause that the message already contains is not repeated.
pub(crate) fn causes(error: &anyhow::Error) -> String {
    let mut message = types::cause(error);
    for cause in error.chain().skip(1).map(types::cause) {
        if !message.contains(&cause) {
            message.push_str(": ");
            message.push_str(&cause);
        }
    }
    message
}

/// The line below a problem without a fix. None if the message contains the advice.
pub(crate) fn advice(text: &str, message: &str) -> Option<String> {
    (!message.contains(text)).then(|| format!("advice: {text}"))
}

/// A bar and a percentage. Any use fills at least one cell, and only full use fills all cells.
pub(crate) fn bar(used: u64, total: u64) -> String {
    let share = |of: usize| {
        let of = of as u128;
        let exact = u128::from(used) * of / u128::from(total.max(1));
        let least = u128::from(used > 0);
        let most = if used < total { of.saturating_sub(1) } else { of };
        usize::try_from(exact.clamp(least.min(most), most)).unwrap_or(0)
    };
    let full = share(BAR_WIDTH);
    let percent = match share(100) {
        1 if u128::from(used) * 100 < u128::from(total) => "<1".to_owned(),
        percent => percent.to_string(),
    };
    format!("{}{} {percent:>3} %", "█".repeat(full), "░".repeat(BAR_WIDTH - full))
}

/// Shortens container IDs of 64 hex digits to the usual 12. Other IDs may differ in their last characters only, and a shortened
/// path would be wrong, so both stay unchanged.
pub(crate) fn short_ids(text: &str) -> String {
    text.split_inclusive(char::is_whitespace)
        .map(|word| if is_path(word) { word.to_owned() } else { short_ids_in(word) })
        .collect()
}

fn short_ids_in(text: &str) -> String {
    let is_hash = |word: &str| word.len() >= 32 && word.bytes().all(|b| b.is_ascii_hexdigit());
    let words = text.split_inclusive(|c: char| !c.is_ascii_hexdigit()).map(|word| {
        let (hex, end) = word.split_at(word.trim_end_matches(|c: char| !c.is_ascii_hexdigit()).len());
        if is_hash(hex) { format!("{}{end}", &hex[..12]) } else { word.to_owned() }
    });
    words.collect()
}

/// `10 Mbit`: in the largest unit that needs no fraction.
pub(crate) fn bits(number: u64) -> String {
    let units = [(1_000_000_000, "Gbit"), (1_000_000, "Mbit"), (1000, "kbit")];
    match units.iter().find(|(unit, _)| number >= *unit && number.is_multiple_of(*unit)) {
        Some((unit, name)) => format!("{} {name}", number / unit),
        None => format!("{number} bit"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_show_the_first_and_the_last_address() {
        let cells = |used, total| bar(used, total).matches('█').count();
        assert_eq!((cells(0, 10), cells(1, 1 << 40), cells(5, 10)), (0, 1, 10));
        assert_eq!((cells((1 << 40) - 1, 1 << 40), cells(7, 7), cells(0, 0)), (19, 20, 0));
        assert!(bar(1, 65_531).ends_with(" <1 %") && bar(0, 9).ends_with("   0 %"), "{}", bar(1, 65_531));
        assert!(bar(u64::MAX - 1, u64::MAX).ends_with("  99 %") && bar(7, 7).ends_with(" 100 %"));
    }

    #[test]
    fn bits_are_exact() {
        let cases =
            [(8_000_000_000, "8 Gbit"), (10_000_000, "10 Mbit"), (1500, "1500 bit"), (2000, "2 kbit")];
        for (number, text) in cases {
            assert_eq!(bits(number), text);
        }
    }

    /// Fails every write with this error.
    struct FailingWriter(ErrorKind);

    impl Write for FailingWriter {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Err(self.0.into())
        }
    }

    #[test]
    fn a_closed_pipe_is_ignored_and_a_full_disk_is_an_error() {
        assert!(write(FailingWriter(ErrorKind::BrokenPipe), "x").is_ok());
        let error = write(FailingWriter(ErrorKind::StorageFull), "x").unwrap_err();
        assert!(causes(&error).starts_with("cannot write to stdout: "), "{error:#}");
    }

    /// A line break that forges a row, and escape sequences for a terminal.
    const HOSTILE: &str = "a\nb\r\u{1b}[2J\u{9b}2J\u{202e}\u{7f}";

    #[test]
    fn control_characters_from_outside_are_escaped() {
        let written = |text: String| {
            let mut out = Vec::new();
            write(&mut out, text).unwrap();
            String::from_utf8(out).unwrap()
        };
        let bad = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
        let table =
            table(&["NAME", "NEXT"], vec![vec![one_line(HOSTILE), "x".to_owned()], vec![HOSTILE.to_owned()]]);
        for text in
            [HOSTILE.to_owned(), table.clone(), key_values([("k", HOSTILE.to_owned())]), wrap(HOSTILE, 40)]
        {
            let shown = written(text);
            assert!(!shown.contains(bad) && shown.contains("[2J"), "{shown:?}");
        }
        // Columns are aligned, because cells are measured after escaping.
        let shown = written(table.clone());
        assert_eq!(shown, table);
        assert!(shown.starts_with("NAME ") && shown.lines().nth(1).unwrap().ends_with("  x"), "{shown}");
        assert_eq!(one_line("a\nb"), "a\\nb");
    }

    #[test]
    fn a_cause_is_not_repeated() {
        let inner = || anyhow::Error::from(io::Error::other("no such file"));
        assert_eq!(causes(&inner().context("cannot open a")), "cannot open a: no such file");
        let repeated = inner().context("cannot open a (no such file): create it").context("b");
        assert_eq!(causes(&repeated), "b: cannot open a (no such file): create it");
    }

    #[test]
    fn f13_advice_is_not_repeated() {
        assert_eq!(advice("restart the pod", "its link is missing").unwrap(), "advice: restart the pod");
        assert_eq!(advice("restart the pod", "its link is missing; restart the pod"), None);
    }

    #[test]
    fn only_container_ids_are_shortened() {
        let id = "0123456789abcdef".repeat(4);
        assert_eq!(short_ids(&format!("net/{id}/eth0: missing")), "net/0123456789ab/eth0: missing");
        let path = format!("/run/podwire/networks/pods/attachments/{id}@eth0.ready");
        for file in [path.clone(), format!("`{path}`"), format!("({path})")] {
            assert_eq!(short_ids(&format!("file {file} of {id}")), format!("file {file} of 0123456789ab"));
        }
        for other in ["abcdef", "pod-web-1", "fd00:88::2 on 10.83.0.2", ""] {
            assert_eq!(short_ids(other), other);
        }
    }
}
