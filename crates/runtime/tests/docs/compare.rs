//! Compares a recorded output of a command with an actual one. Values that differ between runs are ignored: times, process ids,
//! memory, ids, MACs, and addresses of the lab's pods, because the nodes claim their blocks at the same moment. Line breaks and
//! the order of rows depend on these values, so they are ignored, too.

/// A line in a recorded output that stands for any further output.
pub(crate) const ANY: &str = "…";
/// A number before one of these words is a measured value.
const UNITS: [&str; 10] = ["ms", "s", "µs", "KiB", "MiB", "GiB", "round", "rounds", "repair", "repairs"];
const PUNCTUATION: [char; 9] = ['(', ')', '[', ']', ',', ';', '`', '"', '\''];

pub(crate) fn is_same(expected: &str, actual: &str) -> bool {
    let allows_more = expected.lines().any(|line| line.trim() == ANY);
    let (mut expected, mut actual) = (words(expected), words(actual));
    expected.retain(|word| word != ANY);
    if !allows_more {
        expected.sort();
        actual.sort();
        return expected == actual;
    }
    expected.iter().all(|word| match actual.iter().position(|candidate| candidate == word) {
        Some(at) => {
            actual.swap_remove(at);
            true
        }
        None => false,
    })
}

/// Replaces the name of this machine, so that recorded outputs do not contain it.
pub(crate) fn with_fixed_names(output: &str) -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    output
        .replace(&format!(" on {}: ", name.trim()), " on worker-1: ")
        .replace(&format!("{} (here)", name.trim()), "worker-1 (here)")
}

/// Words with a placeholder for values that differ between runs.
fn words(text: &str) -> Vec<String> {
    let all: Vec<&str> = text.split_whitespace().collect();
    let core =
        |n: usize| all.get(n).map_or("", |word| word.trim_matches(PUNCTUATION).trim_end_matches(['.', ':']));
    let mut words: Vec<String> = Vec::new();
    for (n, word) in all.iter().enumerate() {
        let value = core(n);
        let before = n.checked_sub(1).map_or("", core);
        let is_measured = is_number(value) && UNITS.contains(&core(n + 1));
        let masked = if is_measured || (is_number(value) && before == "process") {
            Some("#")
        } else {
            placeholder(value)
        };
        let next = masked.map_or((*word).to_owned(), |mask| word.replacen(value, mask, 1));
        // `2m 5s` is one duration, as `3m` is.
        if masked != Some("<time>") || words.last() != Some(&next) {
            words.push(next);
        }
    }
    words
}

fn is_number(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_digit()) && word.chars().all(|c| c.is_ascii_digit() || c == '.')
}

/// The placeholder for a word that differs between runs.
fn placeholder(word: &str) -> Option<&'static str> {
    let digits = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_digit());
    let hex = |text: &str| text.chars().all(|c| c.is_ascii_hexdigit());
    let is_duration = word.ends_with(['s', 'm', 'h', 'd'])
        && word.starts_with(|c: char| c.is_ascii_digit())
        && word.chars().all(|c| c.is_ascii_digit() || ".smhdµ".contains(c));
    let is_date = word.len() == 10 && word.split('-').all(digits) && word.contains('-');
    let is_time = word.len() == 8 && word.split(':').all(digits) && word.contains(':');
    let is_stamp = word.len() >= 20 && word.contains('T') && word.ends_with('Z');
    let is_mac = word.len() == 17
        && word.split(':').count() == 6
        && word.split(':').all(|part| part.len() == 2 && hex(part));
    let is_link = word.starts_with("pw") && word.len() == 15;
    // The id of a container of the lab has a number that depends on the order of the ADDs.
    let is_container = word.contains("pwlab-") && word.ends_with("/eth0");
    if is_duration || is_date || is_time || is_stamp {
        Some("<time>")
    } else if is_mac {
        Some("<mac>")
    } else if (word.len() >= 12 && hex(word)) || is_link || is_container {
        Some("<id>")
    } else if word.starts_with("10.42.") {
        Some(if word.contains('/') { "<block4>" } else { "<pod4>" })
    } else if word.starts_with("fd42:") {
        Some(if word.contains('/') { "<block6>" } else { "<pod6>" })
    } else if word.starts_with("fe80:") {
        Some("<link-local>")
    } else if word.starts_with("eth0@if") {
        Some("eth0@")
    } else {
        None
    }
}

#[test]
fn values_that_differ_between_runs_do_not_count() {
    let same = [
        ("up 60m since 2026-11-15 21:13:04 UTC", "up 2m 5s since 2026-11-16 01:02:03 UTC"),
        ("process 4711,\n6.1 MiB", "process 12, 7.2\nMiB"),
        ("6 of 6 (15 ms)", "6 of 6 (1 ms)"),
        ("10.42.1.0/24 n1\n10.42.2.0/24 n2", "10.42.0.0/24 n2\n10.42.9.0/24 n1"),
        ("a\n…", "a b c"),
        ("via fe80::1 on pwvx4", "via fe80::2 on pwvx4"),
        ("podwire/pwlab-default-n1-p1-0/eth0: gone", "podwire/pwlab-default-n1-p1-1/eth0: gone"),
    ];
    for (a, b) in same {
        assert!(is_same(a, b), "{a:?} {b:?}");
    }
    let other = [
        ("6 of 6 (15 ms)", "5 of 6 (15 ms)"),
        ("n1 ready", "n1 not ready"),
        ("a\n…", "b c"),
        ("10.42.1.0/24", "10.43.1.0/24"),
        ("process 1", "process one"),
    ];
    for (a, b) in other {
        assert!(!is_same(a, b), "{a:?} {b:?}");
    }
}
