//! Tables that a person can read, and the way out. Everything that a command says goes through here, and leaves without
//! control characters: records, pod names and answers may hold any.

mod colour;
mod layout;
mod terminal;

use std::fmt::Display;
use std::io::{self, ErrorKind, IsTerminal as _, Write};

use anyhow::{Context, Result};
pub(crate) use types::count;

pub(crate) use colour::{bad, degraded, good};
use layout::is_path;
pub(crate) use layout::{LayOut, hang, key_values, list, table, unlimited, wrap};
pub(crate) use terminal::{detect_terminal, width};

const BAR: usize = 20;

/// A line, or several, on stdout. A reader that has gone (`| head`) has seen enough, and that is no failure; what cannot be
/// written for any other reason is one.
pub(crate) fn say(text: impl Display) -> Result<()> {
    write(io::stdout().lock(), format_args!("{text}\n"))
}

/// A sentence on stdout, in as many lines as it needs.
pub(crate) fn say_wrapped(text: impl Display) -> Result<()> {
    say(hang(&wrap(&text.to_string(), width() - 2), 2))
}

/// The same without an end of line: the text has its own.
pub(crate) fn say_text(text: &str) -> Result<()> {
    write(io::stdout().lock(), text)
}

/// For programs, and still readable.
pub(crate) fn say_json(value: &impl serde::Serialize) -> Result<()> {
    say(types::printable_json(&serde_json::to_string_pretty(value)?))
}

fn write(mut out: impl Write, text: impl Display) -> Result<()> {
    let text = text.to_string();
    match out.write_all(colour::rendered(&text).as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.context("cannot write to stdout"),
    }
}

/// A message on stderr: in a log one line, on a terminal as many as it needs. Where that cannot be written, there is nobody left
/// to tell.
pub(crate) fn warn(text: impl Display) {
    let (text, mut stderr) = (text.to_string(), io::stderr().lock());
    let text = if stderr.is_terminal() { layout::message(&text) } else { text };
    let _ = writeln!(stderr, "{}", types::printable(&text));
}

/// A value from outside that is shown as it is. Without this a line break in it would begin another line or row.
pub(crate) fn value(text: &str) -> String {
    types::one_line(text).into_owned()
}

/// What went wrong, and why. Many errors have their cause in their own sentence: it is not told twice.
pub(crate) fn causes(error: &anyhow::Error) -> String {
    let mut told = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !told.contains(&cause) {
            told.push_str(": ");
            told.push_str(&cause);
        }
    }
    told
}

/// The line below a problem that has no command of its own. None if the message says the same.
pub(crate) fn advice(text: &str, message: &str) -> Option<String> {
    (!message.contains(text)).then(|| format!("advice: {text}"))
}

/// A bar, and the share in percent. What is used at all shows, and what is not full is not shown as full.
pub(crate) fn bar(used: u64, total: u64) -> String {
    let share = |of: usize| {
        let of = of as u128;
        let exact = u128::from(used) * of / u128::from(total.max(1));
        let least = u128::from(used > 0);
        let most = if used < total { of.saturating_sub(1) } else { of };
        usize::try_from(exact.clamp(least.min(most), most)).unwrap_or(0)
    };
    let full = share(BAR);
    let percent = match share(100) {
        1 if u128::from(used) * 100 < u128::from(total) => "<1".to_owned(),
        percent => percent.to_string(),
    };
    format!("{}{} {percent:>3} %", "█".repeat(full), "░".repeat(BAR - full))
}

/// Runtimes make ids of 64 hex digits, of which people use the first twelve. Other ids may differ at their end only. Paths
/// stay as they are: a shortened one leads nowhere.
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

/// `10 Mbit`, in the largest unit that needs no fraction: no digit of a limit is lost.
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
    fn bars_show_the_first_and_the_last() {
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

    /// Says no to everything, in this way.
    struct Closed(ErrorKind);

    impl Write for Closed {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Err(self.0.into())
        }
    }

    #[test]
    fn a_reader_that_has_gone_is_no_failure_and_a_full_disk_is() {
        assert!(write(Closed(ErrorKind::BrokenPipe), "x").is_ok());
        let error = write(Closed(ErrorKind::StorageFull), "x").unwrap_err();
        assert!(causes(&error).starts_with("cannot write to stdout: "), "{error:#}");
    }

    /// A line break that forges a row, and sequences that a terminal would obey.
    const HOSTILE: &str = "a\nb\r\u{1b}[2J\u{9b}2J\u{202e}\u{7f}";

    #[test]
    fn output_has_no_control_characters_from_outside() {
        let written = |text: String| {
            let mut out = Vec::new();
            write(&mut out, text).unwrap();
            String::from_utf8(out).unwrap()
        };
        let bad = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
        let table =
            table(&["NAME", "NEXT"], vec![vec![value(HOSTILE), "x".to_owned()], vec![HOSTILE.to_owned()]]);
        for text in
            [HOSTILE.to_owned(), table.clone(), key_values([("k", HOSTILE.to_owned())]), wrap(HOSTILE, 40)]
        {
            let shown = written(text);
            assert!(!shown.contains(bad) && shown.contains("[2J"), "{shown:?}");
        }
        // Columns stay in line, because what is shown was measured.
        let shown = written(table.clone());
        assert_eq!(shown, table);
        assert!(shown.starts_with("NAME ") && shown.lines().nth(1).unwrap().ends_with("  x"), "{shown}");
        assert_eq!(value("a\nb"), "a\\nb");
    }

    #[test]
    fn a_cause_is_told_once() {
        let inner = || anyhow::Error::from(io::Error::other("no such thing"));
        assert_eq!(causes(&inner().context("cannot open a")), "cannot open a: no such thing");
        let told = inner().context("cannot open a (no such thing): make it").context("b");
        assert_eq!(causes(&told), "b: cannot open a (no such thing): make it");
    }

    #[test]
    fn f13_advice_is_not_repeated() {
        assert_eq!(advice("restart the pod", "its link is gone").unwrap(), "advice: restart the pod");
        assert_eq!(advice("restart the pod", "its link is gone; restart the pod"), None);
    }

    #[test]
    fn only_hashes_are_shortened() {
        let id = "0123456789abcdef".repeat(4);
        assert_eq!(short_ids(&format!("net/{id}/eth0: gone")), "net/0123456789ab/eth0: gone");
        let path = format!("/run/podwire/networks/pods/attachments/{id}@eth0.ready");
        for file in [path.clone(), format!("`{path}`"), format!("({path})")] {
            assert_eq!(short_ids(&format!("file {file} of {id}")), format!("file {file} of 0123456789ab"));
        }
        for other in ["abcdef", "pod-web-1", "fd00:88::2 on 10.83.0.2", ""] {
            assert_eq!(short_ids(other), other);
        }
    }
}
