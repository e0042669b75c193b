//! Layout of tables and text in [`width`] columns. Values are wrapped and never truncated, because users copy them. Paths
//! are not wrapped.

use super::colour::{is_mark, printable};
use super::terminal::width;

/// [`table`] or [`wide_table`].
pub(crate) type TableLayout = fn(&[&str], Vec<Vec<String>>) -> String;

/// Length of the longest IPv6 prefix in text form. Longer words are names or IDs, which can be broken.
const LONGEST_ADDRESS: usize = 43;
/// Spaces between two columns.
const GAP: usize = 2;

/// A table without borders, as of `kubectl`. Cells are wrapped until the table fits.
pub(crate) fn table(header: &[&str], mut rows: Vec<Vec<String>>) -> String {
    let titles: Vec<String> = header.iter().map(|title| (*title).to_owned()).collect();
    let widths = widths(&titles, &rows, width());
    for row in &mut rows {
        for (column, (cell, width)) in row.iter_mut().zip(&widths).enumerate() {
            // Continuation lines of the first column are indented; otherwise they look like another row.
            *cell = fit(cell, *width, if column == 0 { GAP } else { 0 });
        }
    }
    wide_table(header, rows)
}

/// The same without wrapping.
pub(crate) fn wide_table(header: &[&str], rows: Vec<Vec<String>>) -> String {
    let titles = header.iter().map(|title| (*title).to_owned()).collect();
    columns([titles].into_iter().chain(rows))
}

/// Names in the first column and values in the second. A value may have several lines.
pub(crate) fn key_values<'a>(rows: impl IntoIterator<Item = (&'a str, String)>) -> String {
    let rows: Vec<(&str, String)> = rows.into_iter().collect();
    let left = rows.iter().map(|(name, _)| length(name)).max().unwrap_or(0) + GAP;
    let fitted = rows.into_iter().map(|(name, value)| vec![name.to_owned(), fit(&value, width() - left, 0)]);
    columns(fitted)
}

/// Every column is as wide as its longest line.
fn columns(rows: impl IntoIterator<Item = Vec<String>>) -> String {
    // Escaped before the columns are measured.
    let printable = |row: Vec<String>| row.iter().map(|cell| printable(cell).into_owned()).collect();
    let rows: Vec<Vec<String>> = rows.into_iter().map(printable).collect();
    let lines = |row: &[String]| row.iter().map(|cell| cell.lines().count()).max().unwrap_or(0);
    let widest = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).flat_map(|cell| cell.lines());
        cells.map(length).max().unwrap_or(0)
    };
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..count).map(widest).collect();
    let line = |row: &[String], number: usize| {
        let mut text = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let part = cell.lines().nth(number).unwrap_or_default();
            text.push_str(part);
            text.push_str(&" ".repeat(width - length(part) + GAP));
        }
        text.trim_end().to_owned()
    };
    let all = rows.iter().flat_map(|row| (0..lines(row).max(1)).map(move |number| (row, number)));
    all.map(|(row, number)| line(row, number)).collect::<Vec<_>>().join("\n")
}

/// Shrinks the widest columns first. If possible, no column is narrower than its longest unbreakable part.
fn widths(header: &[String], rows: &[Vec<String>], width: usize) -> Vec<usize> {
    let available = (width + GAP).saturating_sub(GAP * header.len());
    let longest = |column: usize, measure: &dyn Fn(&str) -> usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).flat_map(|cell| cell.lines()).map(measure);
        cells.max().unwrap_or(0).max(length(&header[column]))
    };
    let columns = 0..header.len();
    let natural: Vec<usize> = columns.clone().map(|column| longest(column, &length)).collect();
    let unbroken: Vec<usize> = columns.map(|column| longest(column, &longest_part)).collect();
    let titles: Vec<usize> = header.iter().map(|title| length(title).max(1)).collect();
    for minimum in [&unbroken, &titles] {
        for limit in (1..=width).rev() {
            let widths: Vec<usize> = natural
                .iter()
                .zip(minimum)
                .map(|(natural, minimum)| *natural.min(&limit).max(minimum))
                .collect();
            if widths.iter().sum::<usize>() <= available {
                return widths;
            }
        }
    }
    titles
}

/// Wraps the lines of a cell that are too long. Continuation lines are indented by `extra_indent` spaces.
fn fit(cell: &str, width: usize, extra_indent: usize) -> String {
    let line = |line: &str| {
        if length(line) <= width {
            return line.to_owned();
        }
        let indent = line.len() - line.trim_start().len();
        let wrapped = wrap(line, width.saturating_sub(indent + extra_indent));
        format!("{}{}", " ".repeat(indent), hanging(&wrapped, indent + extra_indent))
    };
    printable(cell).lines().map(line).collect::<Vec<_>>().join("\n")
}

/// Breaks at spaces, and inside of words that are longer than a line. Paths are not broken.
pub(crate) fn wrap(text: &str, width: usize) -> String {
    wrap_with(text, width, |word| match is_path(word) {
        true => vec![word.to_owned()],
        false => break_word(word, width.max(1)),
    })
}

/// An absolute path or a URL, also with quotes or brackets around it or a setting's name before it.
pub(super) fn is_path(word: &str) -> bool {
    word.trim_start_matches(['`', '\'', '"', '(']).starts_with('/')
        || word.contains("=/")
        || word.contains("://")
}

/// A message for a terminal. Continuation lines are indented. Words are not broken, because they may be paths and commands.
pub(crate) fn message(text: &str) -> String {
    let line = |line: &str| match length(line) > width() {
        true => hanging(&wrap_with(line, width() - GAP, |word| vec![word.to_owned()]), GAP),
        false => line.to_owned(),
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

fn wrap_with(text: &str, width: usize, break_word: impl Fn(&str) -> Vec<String>) -> String {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if length(line) + 1 + length(word) <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.extend(break_word(word)),
        }
    }
    lines.join("\n")
}

/// One item on each line, or a dash if there is none.
pub(crate) fn list<T: ToString>(items: &[T]) -> String {
    if items.is_empty() {
        return "-".to_owned();
    }
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

/// Indents every line except for the first.
pub(crate) fn hanging(text: &str, indent: usize) -> String {
    text.replace('\n', &format!("\n{}", " ".repeat(indent)))
}

fn length(text: &str) -> usize {
    text.chars().filter(|c| !is_mark(*c)).count()
}

/// The parts of a word that are not broken. Addresses and prefixes are one part.
fn parts(word: &str) -> Vec<&str> {
    let (mut parts, mut start) = (Vec::new(), 0);
    for (at, c) in word.char_indices().filter(|(_, c)| ['-', '/', '.', ',', '_'].contains(c)) {
        let end = at + c.len_utf8();
        if word[end..].starts_with(char::is_alphabetic) {
            parts.push(&word[start..end]);
            start = end;
        }
    }
    parts.push(&word[start..]);
    parts
}

/// The length of the longest part that should not be broken.
fn longest_part(line: &str) -> usize {
    let lengths = line.split_whitespace().flat_map(parts).map(length);
    lengths.filter(|length| *length <= LONGEST_ADDRESS).max().unwrap_or(0)
}

/// Breaks a word into lines, between its parts if possible.
fn break_word(word: &str, width: usize) -> Vec<String> {
    if length(word) <= width {
        return vec![word.to_owned()];
    }
    let (mut lines, mut line) = (Vec::new(), String::new());
    for part in parts(word) {
        if !line.is_empty() && length(&line) + length(part) > width {
            lines.push(std::mem::take(&mut line));
        }
        for c in part.chars() {
            if length(&line) == width {
                lines.push(std::mem::take(&mut line));
            }
            line.push(c);
        }
    }
    lines.push(line);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_break_at_spaces_and_in_long_words() {
        assert_eq!(wrap("one two three", 7), "one two\nthree");
        assert_eq!(wrap("a ns/very/long/name b", 10), "a\nns/very/\nlong/name\nb");
        assert_eq!(wrap(&"x".repeat(7), 3), "xxx\nxxx\nx");
        assert_eq!(hanging("a\nb", 2), "a\n  b");
    }

    /// F13: a part of a path cannot be pasted.
    #[test]
    fn f13_paths_are_never_broken() {
        for path in ["/very/long/path", "`/very/long/path`:", "('/very/long/path')", "runDir=/very/long/path"]
        {
            assert_eq!(wrap(&format!("a {path} b"), 10), format!("a\n{path}\nb"));
            let shown = key_values([("directory", format!("{}{path}", "x ".repeat(40)))]);
            assert!(shown.lines().any(|line| line.ends_with(path)), "{shown}");
        }
        let record =
            format!("/run/podwire/networks/pods/attachments/{}@eth0.ready", "0123456789abcdef".repeat(4));
        let row = vec!["3 s ago".to_owned(), format!("file {record} is missing")];
        assert!(table(&["REPAIRED", ""], vec![row]).contains(&record));
    }

    #[test]
    fn f13_terminal_messages_are_wrapped_without_breaking_paths() {
        let path = format!("/run/{}", "directory/".repeat(9));
        let text = format!("podwire: {} {path} end\n  second line", "word ".repeat(20).trim_end());
        let shown = message(&text);
        let wide: Vec<&str> = shown.lines().filter(|line| length(line) > width()).collect();
        assert_eq!(wide, [format!("  {path}")], "{shown}");
        assert!(shown.ends_with("\n  end\n  second line"), "{shown}");
        assert_eq!(message("short\n  unchanged"), "short\n  unchanged");
    }

    #[test]
    fn addresses_and_prefixes_are_not_broken() {
        for whole in ["10.42.0.0/16", "fd42::100:0:0:0/72", "192.0.2.1", "0123456789ab"] {
            assert_eq!(parts(whole), [whole]);
        }
        assert_eq!(parts("shop/web-1"), ["shop/", "web-1"]);
        assert_eq!(parts("n1.example.org"), ["n1.", "example.", "org"]);
    }

    fn widest(text: &str) -> usize {
        text.lines().map(length).max().unwrap_or(0)
    }

    #[test]
    fn tables_fit_and_addresses_are_not_broken_if_possible() {
        let address = "fd42:1234:5678:9abc::1234";
        let name = "a-namespace-of-some-length/a-pod-of-a-deployment-5f7c9d-abcde";
        let row = vec![name.to_owned(), address.to_owned(), "ready".to_owned()];
        let shown = table(&["POD", "ADDRESSES", "PHASE"], vec![row]);
        assert!(widest(&shown) <= width() && shown.contains(address), "{shown}");
        assert!(shown.lines().skip(2).all(|line| line.starts_with("  ")), "{shown}");
        let row: Vec<String> = (0..4).map(|digit| digit.to_string().repeat(64)).collect();
        let shown = table(&["A", "B", "C", "D"], vec![row]);
        assert!(widest(&shown) <= width() && shown.matches('3').count() == 64, "{shown}");
        let shown = key_values([("name", "x".repeat(200))]);
        assert!(widest(&shown) == width() && shown.matches('x').count() == 200, "{shown}");
    }

    #[test]
    fn columns_shrink_to_narrow_terminals() {
        let titles = ["POD", "ADDRESSES", "PHASE", "AGE"].map(str::to_owned);
        let row =
            ["a-namespace/a-pod-of-a-deployment-5f7c9d-abcde", "fd42:1234:5678:9abc::1234", "ready", "4m"];
        for width in [40, 60, 80] {
            let widths = widths(&titles, &[row.map(str::to_owned).to_vec()], width);
            assert!(widths.iter().sum::<usize>() + GAP * 3 <= width, "{width}: {widths:?}");
        }
    }

    #[test]
    fn a_table_that_fits_is_not_wrapped() {
        let row = || vec!["a  b".to_owned(), "c\n  d".to_owned()];
        assert_eq!(table(&["X", "Y"], vec![row()]), wide_table(&["X", "Y"], vec![row()]));
    }

    #[test]
    fn values_with_several_lines_stay_in_their_column() {
        assert_eq!(
            key_values([("a", "1\n2".to_owned()), ("long", "3".to_owned())]),
            "a     1\n      2\nlong  3"
        );
    }
}
