//! The table in docs/reference/metrics.md is generated from a rendered page. PODWIRE_RECORD=1 writes it.

use super::*;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/metrics.md");
const BEGIN: &str = "| metric | type | labels | meaning |\n|---|---|---|---|\n";

/// A page on which every family has a series.
fn page() -> String {
    let metrics = Metrics::new();
    metrics.request("ADD", "ok", Duration::ZERO);
    metrics.repaired("route", 1);
    metrics.set_peers(&PeerCounts::default());
    let tier = "tenant".to_owned();
    metrics.sampled_denial(&SampledDenial { direction: "ingress", tier, policy: "tenant blue".to_owned() });
    let block = BlockUse { block: "10.9.0.0/24".parse().unwrap(), used: Some(1), free: Some(1) };
    let snapshot = MetricsSnapshot {
        blocks: vec![block],
        attachments: Some(Counts::default()),
        ..MetricsSnapshot::default()
    };
    metrics.render(&snapshot).unwrap()
}

/// The label names of the first series whose name begins so, in alphabetical order. Buckets are part of the type.
fn labels(page: &str, name: &str) -> String {
    let series =
        page.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name} has no series"));
    let Some((_, labels)) = series.split_once('{') else { return String::new() };
    let mut names: Vec<&str> = labels
        .split(',')
        .filter_map(|label| Some(label.split_once('=')?.0))
        .filter(|label| *label != "le")
        .collect();
    names.sort_unstable();
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

fn table(page: &str) -> String {
    let mut rows = String::new();
    for line in page.lines() {
        let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) else {
            continue;
        };
        let help =
            page.lines().find_map(|line| line.strip_prefix("# HELP ")?.strip_prefix(name)?.strip_prefix(' '));
        let (suffix, first) = match kind {
            "counter" => ("_total", "_total"),
            "info" => ("_info", "_info"),
            "histogram" => ("", "_bucket"),
            _ => ("", ""),
        };
        let labels = labels(page, &format!("{name}{first}"));
        rows.push_str(&format!("| `{name}{suffix}` | {kind} | {labels} | {} |\n", help.unwrap()));
    }
    rows
}

#[test]
fn recorded_metrics_match_a_rendered_page() {
    let text = fs::read_to_string(PAGE).unwrap();
    let (before, found) = text.split_once(BEGIN).unwrap();
    let wanted = table(&page());
    if std::env::var_os("PODWIRE_RECORD").is_some() {
        fs::write(PAGE, format!("{before}{BEGIN}{wanted}")).unwrap();
    } else {
        assert_eq!(found, wanted, "PODWIRE_RECORD=1 cargo test -p agent --lib recorded");
    }
}
