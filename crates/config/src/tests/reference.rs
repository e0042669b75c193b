//! The table in docs/reference/agent-config.md is generated from `KEYS`. PODWIRE_RECORD=1 writes it.

use crate::reference;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/agent-config.md");

#[test]
fn recorded_agent_config_matches_the_keys() {
    let page = std::fs::read_to_string(PAGE).unwrap();
    let wanted = reference();
    let header = wanted.lines().next().unwrap();
    let begin = page.find(header).unwrap();
    let (before, table) = page.split_at(begin);
    if std::env::var_os("PODWIRE_RECORD").is_some() {
        std::fs::write(PAGE, format!("{before}{wanted}")).unwrap();
    } else {
        assert_eq!(table, wanted, "PODWIRE_RECORD=1 cargo test -p config recorded");
    }
}
