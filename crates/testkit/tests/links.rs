//! Every relative link in a Markdown page of the project has a file, and every anchor a heading.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use testkit::docs::{self, Page};

/// `docs/../README.md` is `README.md`.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => assert!(normal.pop(), "{} leaves the project", path.display()),
            Component::CurDir => (),
            Component::Normal(_) | Component::RootDir | Component::Prefix(_) => normal.push(part),
        }
    }
    normal
}

#[test]
fn every_relative_link_and_anchor_exists() {
    let pages = docs::pages().unwrap();
    let anchors: BTreeMap<&Path, Vec<String>> =
        pages.iter().map(|page| (page.path.as_path(), page.anchors())).collect();
    let mut checked = 0;
    let mut broken = Vec::new();
    for page in &pages {
        let path = &page.path;
        for (line, target) in page.links() {
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            checked += 1;
            let (file, anchor) = target.split_once('#').unwrap_or((&target, ""));
            let file = match file {
                "" => path.clone(),
                file => normal(&path.parent().unwrap().join(file)),
            };
            let has_anchor = anchor.is_empty()
                || anchors.get(file.as_path()).is_some_and(|known| known.iter().any(|one| one == anchor));
            if !docs::root().join(&file).exists() || !has_anchor {
                broken.push(format!("{}:{line}: {target}", path.display()));
            }
        }
    }
    assert!(checked > 50, "only {checked} links found");
    assert!(broken.is_empty(), "links without a target:\n{}", broken.join("\n"));
}

#[test]
fn the_index_lists_every_page_for_users() {
    let index = Page::read("docs/README.md").unwrap();
    let listed: Vec<PathBuf> =
        index.links().into_iter().map(|(_, target)| normal(&Path::new("docs").join(target))).collect();
    for page in docs::user_pages().unwrap() {
        let is_index = page.path.ends_with("README.md");
        assert!(is_index || listed.contains(&page.path), "{} is not in docs/README.md", page.path.display());
    }
}

#[test]
fn the_readme_is_at_most_150_lines_long() {
    let lines = Page::read("README.md").unwrap().text.lines().count();
    assert!(lines <= 150, "{lines} lines");
}
