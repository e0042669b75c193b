//! Suggestions for misspelt words.

/// Longer words get no suggestion: comparing them is slow.
const MAX_WORD: usize = 100;

/// The most similar candidate. At most a quarter of the letters may differ, and at most two. Case, `-`, `_` and `.` are
/// ignored.
pub fn closest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = letters(word);
    if word.len() > MAX_WORD {
        return None;
    }
    let max_distance = (word.len() / 4).min(2);
    let rated = candidates.into_iter().map(|candidate| (distance(&word, &letters(candidate)), candidate));
    rated
        .filter(|(distance, _)| *distance <= max_distance)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, best)| best)
}

fn letters(word: &str) -> Vec<char> {
    word.chars().filter(|c| !matches!(c, '-' | '_' | '.')).flat_map(char::to_lowercase).collect()
}

/// Edit distance. Swapping two adjacent letters counts as one edit.
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
    fn a8_only_misspelt_words_get_a_suggestion() {
        for (word, expected) in [
            ("wrokers", Some("workers")),
            ("network.subnet", Some("network.subnets")),
            ("netwrok.vni", Some("network.vni")),
            ("etcd.endPoints", Some("etcd.endpoints")),
            ("etcd_endpoints", Some("etcd.endpoints")),
            ("network.vlan", None),
            ("x", None),
            ("", None),
        ] {
            assert_eq!(closest(word, WORDS), expected, "{word}");
        }
    }
}
