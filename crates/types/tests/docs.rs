//! The documents are true of the source tree: paths and names of code in them exist, docs/reference/files.md names what the code
//! defines, and the glossary is in order.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Crates and programs of other projects whose paths documents may name.
const EXTERNAL: [&str; 4] = ["std", "tokio", "hyper", "clap"];
const DEFINES: [&str; 9] = ["fn", "struct", "enum", "trait", "mod", "const", "static", "type", "union"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// All files below a directory, without hidden and build directories.
fn files_below(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        match path.is_dir() {
            true if name.starts_with('.') || name == "target" => {}
            true => found.extend(files_below(&path)),
            false => found.push(path),
        }
    }
    found
}

fn has_ending(path: &Path, ending: &str) -> bool {
    path.extension().is_some_and(|found| found == ending)
}

/// The texts between backticks outside of code blocks.
fn spans(text: &str) -> impl Iterator<Item = &str> {
    text.split("```").step_by(2).flat_map(|part| part.split('`').skip(1).step_by(2))
}

/// The identifiers of the source tree.
#[derive(Default)]
struct Names {
    /// Items, enum variants and modules, of all crates.
    defined: BTreeSet<String>,
    /// All words in the sources of a crate, because it may export an item that another crate defines.
    by_crate: BTreeMap<String, BTreeSet<String>>,
}

impl Names {
    fn of(root: &Path) -> Self {
        let mut names = Self::default();
        let crates = root.join("crates");
        for path in files_below(&crates).iter().filter(|path| has_ending(path, "rs")) {
            let mut parts = path.strip_prefix(&crates).unwrap().iter().map(|part| part.to_string_lossy());
            let name = parts.next().unwrap().into_owned();
            let modules: Vec<String> = parts.map(|part| part.replace(".rs", "")).collect();
            let known = names.by_crate.entry(name).or_default();
            known.extend(modules.iter().cloned());
            names.defined.extend(modules);
            for line in fs::read_to_string(path).unwrap().lines() {
                let words: Vec<&str> = line
                    .split(|c: char| !(c.is_alphanumeric() || c == '_'))
                    .filter(|word| !word.is_empty())
                    .collect();
                known.extend(words.iter().map(|word| (*word).to_owned()));
                let items = words.windows(2).filter(|pair| DEFINES.contains(&pair[0])).map(|pair| pair[1]);
                let variant = words.first().filter(|word| word.starts_with(char::is_uppercase));
                names.defined.extend(items.chain(variant.copied()).map(str::to_owned));
            }
        }
        names
    }

    /// The first part of `a::b::c` that no crate, or not the named one, has.
    fn missing<'a>(&self, path: &[&'a str]) -> Option<&'a str> {
        let (known, parts) = match self.by_crate.get(path[0]) {
            Some(known) => (Some(known), &path[1..]),
            None => (None, path),
        };
        let exists =
            |part: &str| self.defined.contains(part) && known.is_none_or(|known| known.contains(part));
        parts.iter().copied().find(|part| !exists(part))
    }
}

/// Why a word of a document names code that does not exist.
fn problem(word: &str, root: &Path, files: &[PathBuf], names: &Names) -> Option<String> {
    if word.contains([' ', '*', '…', '<', '\n', '"']) {
        return None;
    }
    if word.starts_with("crates/") {
        return (!root.join(word).exists()).then(|| format!("{word} does not exist"));
    }
    if word.ends_with(".rs") {
        let is_there = files.iter().any(|file| file.ends_with(word));
        return (!is_there).then(|| format!("no file ends in {word}"));
    }
    let parts: Vec<&str> = word.trim_end_matches("()").split("::").collect();
    let is_name =
        |part: &&str| !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if parts.len() < 2 || !parts.iter().all(is_name) || EXTERNAL.contains(&parts[0]) {
        return None;
    }
    names.missing(&parts).map(|part| format!("{part} of {word} is not defined"))
}

#[test]
fn documents_name_code_that_exists() {
    let root = root();
    let files = files_below(&root);
    let names = Names::of(&root);
    let mut problems = Vec::new();
    let mut checked = 0;
    for path in files.iter().filter(|path| has_ending(path, "md")) {
        let text = fs::read_to_string(path).unwrap();
        for word in spans(&text) {
            checked += usize::from(word.contains("::") || word.contains(".rs"));
            let found = problem(word, &root, &files, &names);
            problems.extend(
                found.map(|found| format!("{}: {found}", path.strip_prefix(&root).unwrap().display())),
            );
        }
    }
    assert!(checked > 100, "{checked}");
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// The last cell of a row has the crate, then texts that its sources contain.
#[test]
fn files_reference_matches_the_code() {
    let root = root();
    let page = fs::read_to_string(root.join("docs/reference/files.md")).unwrap();
    let rows: Vec<&str> =
        page.lines().filter(|line| line.starts_with("| ") && !line.ends_with("defined by |")).collect();
    assert!(rows.len() > 40, "{}", rows.len());
    for row in rows {
        let last = row.trim_end_matches(" |").rsplit(" | ").next().unwrap();
        let mut texts = spans(last);
        let name = texts.next().unwrap_or_else(|| panic!("no crate: {row}"));
        let sources: Vec<PathBuf> = files_below(&root.join("crates").join(name).join("src"));
        let code: String = sources.iter().map(|path| fs::read_to_string(path).unwrap()).collect();
        let mut checked = 0;
        for text in texts {
            assert!(code.contains(text), "crate {name} has no {text:?}: {row}");
            checked += 1;
        }
        assert!(checked > 0, "no text: {row}");
    }
}

#[test]
fn reference_index_lists_every_page() {
    let dir = root().join("docs/reference");
    let index = fs::read_to_string(dir.join("README.md")).unwrap();
    for entry in fs::read_dir(&dir).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(name == "README.md" || index.contains(&format!("({name}")), "{name} is not in README.md");
    }
}

#[test]
fn glossary_is_sorted_and_defines_no_replaced_word() {
    let page = fs::read_to_string(root().join("docs/reference/glossary.md")).unwrap();
    let (terms, replaced) = page.split_once("\n## Do not use\n").unwrap();
    let first_cells = |text: &str| -> Vec<String> {
        let rows = text.lines().filter(|line| line.starts_with("| ")).skip(1);
        rows.map(|row| row.split('|').nth(1).unwrap().trim().to_owned()).collect()
    };
    let (terms, replaced) = (first_cells(terms), first_cells(replaced));
    assert!(terms.len() > 40 && replaced.len() > 20);
    assert!(terms.is_sorted_by_key(|term| term.to_lowercase()), "{terms:?}");
    assert!(replaced.is_sorted(), "{replaced:?}");
    let words: BTreeSet<&str> = replaced.iter().flat_map(|row| row.split(", ")).collect();
    let both: Vec<_> = terms.iter().filter(|term| words.contains(term.as_str())).collect();
    assert!(both.is_empty(), "{both:?}");
}
