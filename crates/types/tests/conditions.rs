//! The table in docs/reference/conditions.md is generated from `Code`. PODWIRE_RECORD=1 writes it.

use types::Code;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/conditions.md");
const BEGIN: &str = "| code | severity | meaning | fix |\n|---|---|---|---|\n";

#[test]
fn a1_recorded_conditions_have_severity_meaning_and_fix() {
    let page = std::fs::read_to_string(PAGE).unwrap();
    let (before, table) = page.split_once(BEGIN).unwrap();
    let row = |code: &Code| {
        format!("| `{code}` | {} | {} | {} |\n", code.severity().as_str(), code.meaning(), code.advice())
    };
    let expected: String = Code::ALL.iter().map(row).collect();
    if std::env::var_os("PODWIRE_RECORD").is_some() {
        std::fs::write(PAGE, format!("{before}{BEGIN}{expected}")).unwrap();
    } else {
        assert_eq!(table, expected, "PODWIRE_RECORD=1 cargo test -p types recorded");
    }
}
