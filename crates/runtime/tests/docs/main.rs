//! Compares the pages for users with real output: the commands of their `console` blocks run on a machine made of namespaces, and
//! must print what the page shows. PODWIRE_RECORD=1 writes the real output into the pages and draws docs/images/lab.svg again. If one
//! output differs, all outputs of its page are written, so that a page shows one run.
//!
//! - A line `$ COMMAND` runs; the lines below it are its output. A line with only `…` stands for any further lines.
//! - A block marked `console n1` runs inside node n1 of the lab.
//! - `<!-- run: COMMAND -->` runs a command that the page does not show. It must succeed. Commands that a reader needs to follow the
//!   page are in `console` blocks.
//!
//! Needs root and etcd.
#![expect(clippy::unwrap_used, reason = "a test stops at the first error, also in helper functions")]

mod compare;
mod picture;
mod session;

use testkit::docs::{self, Page};

use session::{Programs, Session, is_recording};

const PICTURE: &str = "docs/images/lab.svg";

fn check(path: &str, label: &str, programs: Programs) -> Page {
    let mut session = Session::new(label, programs);
    session.check(Page::read(path).unwrap())
}

#[test]
fn recorded_output_and_picture_of_the_lab_page_are_right() {
    let page = check("docs/lab.md", "docs-lab", Programs::Installed);
    let block = page.fences().into_iter().find(|fence| fence.language() == "console").unwrap();
    let drawn = picture::draw(&block.lines);
    let file = docs::root().join(PICTURE);
    if is_recording() {
        std::fs::write(&file, &drawn).unwrap();
    }
    let picture = std::fs::read_to_string(&file).unwrap();
    assert!(picture == drawn, "{PICTURE} is not drawn from docs/lab.md: {}", session::HOW_TO_RECORD);
}

#[test]
fn recorded_output_of_the_install_page_is_right() {
    check("docs/install.md", "docs-install", Programs::Built);
}

#[test]
fn recorded_output_of_the_operate_page_is_right() {
    check("docs/operate.md", "docs-operate", Programs::Installed);
}

#[test]
fn recorded_output_of_the_policies_page_is_right() {
    check("docs/policies.md", "docs-policies", Programs::Installed);
}

#[test]
fn recorded_output_of_the_troubleshoot_page_is_right() {
    check("docs/troubleshoot.md", "docs-trouble", Programs::Installed);
}

/// A page with a `console` block that no test above runs would not be checked.
#[test]
fn every_page_with_console_blocks_is_checked() {
    const CHECKED: [&str; 5] =
        ["docs/install.md", "docs/lab.md", "docs/operate.md", "docs/policies.md", "docs/troubleshoot.md"];
    let has_console_block = |page: &Page| page.fences().iter().any(|fence| fence.language() == "console");
    let pages: Vec<Page> = docs::pages().unwrap().into_iter().filter(has_console_block).collect();
    let paths: Vec<_> = pages.iter().map(|page| page.path.to_str().unwrap()).collect();
    assert_eq!(paths, CHECKED);
}
