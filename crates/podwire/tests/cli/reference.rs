//! The tables in docs/reference match a running agent.

use testkit::{DEADLINE, wait_until};

use crate::common::{Host, has, tenant_blue};
use crate::schemas::expect_valid;

const API: &str = include_str!("../../../../docs/reference/api.md");
const METRICS: &str = include_str!("../../../../docs/reference/metrics.md");

/// The rows of all tables whose first cell is code.
fn rows(page: &'static str) -> impl Iterator<Item = Vec<&'static str>> {
    let lines = page.lines().filter(|line| line.starts_with("| `"));
    lines.map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
}

#[test]
fn documented_metrics_are_served_by_an_agent() {
    let host = Host::new("metrics");
    let agent = host.agent(&["--no-install"]);
    let pod = host.node.pod("a").unwrap();
    host.plugin.add(&pod, &agent.config(&serde_json::json!({}))).unwrap().ok().unwrap();
    // The agent restores the table and counts a repair. A counter that was never incremented is not served.
    host.node.sh(&["nft", "delete", "table", "inet", "podwire"]).unwrap();
    let mut page = String::new();
    wait_until("request and repair to be counted", DEADLINE, || {
        page = agent.metrics()?;
        Ok(["podwire_requests_total{", "podwire_reconcile_repairs_total{"].iter().all(|it| page.contains(it)))
    })
    .unwrap();
    let mut names = 0;
    for row in rows(METRICS) {
        let name = row[0].trim_matches('`').trim_end_matches("_total").trim_end_matches("_info");
        let line = format!("# TYPE {name} {}", row[1]);
        assert!(page.lines().any(|served| served == line), "{line} in:\n{page}");
        names += 1;
    }
    assert_eq!(names, page.matches("# TYPE ").count(), "{page}");
}

#[test]
fn documented_responses_follow_their_schemas() {
    let host = Host::new("responses");
    let agent = host.agent(&["--no-install"]);
    let pod = host.node.pod("a").unwrap();
    host.plugin.add(&pod, &agent.config(&serde_json::json!({}))).unwrap().ok().unwrap();
    host.apply(&tenant_blue());
    let mut checked = 0;
    for row in rows(API) {
        let Some(path) = row[0].trim_matches('`').strip_prefix("GET ") else { continue };
        let Some(schema) = row[2].strip_prefix('[').and_then(|cell| cell.split(".json]").next()) else {
            continue;
        };
        if !row[2].contains("(schemas/") {
            continue;
        }
        let path = path.replace("CONTAINER", pod.id());
        expect_valid(schema, &agent.get(&path).unwrap().to_string());
        checked += 1;
    }
    assert!(checked >= 8, "only {checked} responses in api.md have a schema");
}

#[test]
fn the_agent_prints_its_configuration_reference_and_sample() {
    let host = Host::new("print");
    let config = host.node.dir().join("a.toml");
    std::fs::write(&config, "node = \"seven\"\n[network]\nmode = \"bridge\"\n").unwrap();
    let config = config.to_str().unwrap();
    let outcome = host.run(&["agent", "--config", config, "--workers", "3", "--print-config"]);
    assert!(outcome.success(), "{}", outcome.stderr);
    has(&outcome.stdout, &["node = \"seven\"", "workers = 3", "mode = \"bridge\"", "bridge = \"podwire0\""]);
    // The printed configuration is read with the same result.
    let again = host.node.dir().join("b.toml");
    std::fs::write(&again, &outcome.stdout).unwrap();
    let second = host.run(&["agent", "--config", again.to_str().unwrap(), "--print-config"]);
    assert_eq!(second.stdout, outcome.stdout, "{}", second.stderr);
    assert_eq!(host.run(&["agent", "--print-config-reference"]).stdout, config::reference());
    assert_eq!(host.run(&["agent", "--print-config-sample"]).stdout, config::sample());
    // An invalid setting is refused.
    let wrong = host.run(&["agent", "--workers", "0", "--print-config"]);
    assert!(!wrong.success());
    has(&wrong.stderr, &["workers", "256"]);
}
