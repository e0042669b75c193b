//! The tables of clauses in docs/internals/policy-proof.md against the code.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use policyproof::cases;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The names in the second column of the tables of section Clauses.
fn documented() -> BTreeSet<String> {
    let page = fs::read_to_string(repository().join("docs/internals/policy-proof.md")).unwrap();
    let (_, section) = page.split_once("\n## Clauses\n").unwrap();
    let section = section.split("\n## ").next().unwrap();
    let rows = section.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| clause "));
    let mut names = BTreeSet::new();
    for row in rows {
        let tests = row.split('|').nth(2).unwrap();
        let of_row: Vec<&str> = tests.split('`').skip(1).step_by(2).collect();
        assert!(!of_row.is_empty(), "no test: {row}");
        names.extend(of_row.into_iter().map(str::to_owned));
    }
    names
}

/// The functions that follow the attribute `test`.
fn add_tests(directory: &Path, names: &mut BTreeSet<String>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            add_tests(&path, names);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(path).unwrap();
            let functions = text.split("#[test]").skip(1).filter_map(|rest| rest.split_once("fn "));
            names.extend(
                functions.filter_map(|(_, rest)| rest.split_once('(')).map(|(name, _)| name.to_owned()),
            );
        }
    }
}

#[test]
fn np_cnp_every_documented_clause_has_tests_and_every_case_a_clause() {
    let documented = documented();
    let cases: BTreeSet<String> = cases::all().iter().map(|case| case.name.to_owned()).collect();
    let mut existing = cases.clone();
    for krate in fs::read_dir(repository().join("crates")).unwrap() {
        for part in ["src", "tests"].map(|part| krate.as_ref().unwrap().path().join(part)) {
            if part.is_dir() {
                add_tests(&part, &mut existing);
            }
        }
    }
    let missing: Vec<_> = documented.difference(&existing).collect();
    assert!(missing.is_empty(), "tests that do not exist: {missing:?}");
    let of_clauses = cases.iter().filter(|name| name.starts_with("np_") || name.starts_with("cnp_"));
    let undocumented: Vec<_> = of_clauses.filter(|name| !documented.contains(*name)).collect();
    assert!(undocumented.is_empty(), "cases without a clause: {undocumented:?}");
}
