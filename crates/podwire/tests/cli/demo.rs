use crate::common::{Host, has};

#[test]
fn the_demo_succeeds_and_removes_everything() {
    let host = Host::new("demo");
    let outcome = host.run(&["demo"]);
    assert!(outcome.success(), "{}{}", outcome.stdout, outcome.stderr);
    has(
        &outcome.stdout,
        &[
            "ADD pod a",
            "ping pod a → pod b",
            "ping node → pod a",
            "ping pod a → node",
            "fd00:88::3",
            "kill -9",
            "none lost",
            "restored",
            "no reply",
            "share web of tenant blue created",
            "connected",
            "verdict: drop",
            "verdict: accept",
            ": ready",
            "demo/b",
            "bridge podwire0 removed",
            "Everything was removed",
        ],
    );
    let removal = "10-podwire.conflist removed";
    assert!(outcome.stdout.lines().any(|line| line.ends_with(removal)), "{}", outcome.stdout);
    let repaired = outcome.stdout.split("REPAIRED").nth(1).unwrap_or_default();
    has(repaired, &["host route to 10.83.0.3", "host route to fd00:88::3", "firewall"]);
    assert_eq!(outcome.stdout.matches("none lost").count(), 2, "both families: {}", outcome.stdout);
}
