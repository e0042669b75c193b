//! Suggestions for misspelt words.

/// A longer word is no misspelling, and would take long to compare.
const LONGEST: usize = 100;

/// The candidate that is most likely meant: at most a quarter of the letters differs, and at most two. Case, `-`, `_` and `.`
/// do not count.
pub fn closest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = letters(word);
    if word.len() > LONGEST {
        return None;
    }
    let most = (word.len() / 4).min(2);
    let rated = candidates.into_iter().map(|candidate| (distance(&word, &letters(candidate)), candidate));
    rated
        .filter(|(distance, _)| *distance <= most)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, best)| best)
}

fn letters(word: &str) -> Vec<char> {
    word.chars().filter(|c| !matches!(c, '-' | '_' | '.')).flat_map(char::to_lowercase).collect()
}

/// How many letters are inserted, removed, replaced, or exchanged with their neighbour.
fn distance(a: &[char], b: &[char]) -> usize {
    let mut rows = vec![(0..=b.len()).collect::<Vec<usize>>()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let replaced = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = replaced.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORDS: [&str; 4] = ["workers", "network.subnets", "network.vni", "etcd.endpoints"];

    #[test]
    fn a8_a_misspelt_word_has_a_suggestion_and_another_word_has_none() {
        for (word, wanted) in [
            ("wrokers", Some("workers")),
            ("network.subnet", Some("network.subnets")),
            ("netwrok.vni", Some("network.vni")),
            ("etcd.endPoints", Some("etcd.endpoints")),
            ("etcd_endpoints", Some("etcd.endpoints")),
            ("network.vlan", None),
            ("x", None),
            ("", None),
        ] {
            assert_eq!(closest(word, WORDS), wanted, "{word}");
        }
    }
}
