//! A round without drift has no visible effect. A round with repairs reports them in log, status and metrics.

use std::fs;
use std::time::{Duration, Instant};

use testkit::{Ns, wait_until};

use crate::common::Host;
use crate::scene::{BRIDGE, BY_EVENTS, Scene, TIMEOUT, in_both_modes, run};

/// The kernel events within this time.
fn changes(node: &Ns, seconds: &str) -> String {
    let all = "(timeout $0 ip -o monitor link address route & timeout $0 nft monitor & wait) 2>/dev/null";
    node.run(&["sh", "-c", all, seconds], b"").unwrap().stdout
}

/// User and system time of a process and its waited-for children, in ticks of 10 ms.
fn ticks(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let after_name = stat.rsplit(')').next().unwrap();
    after_name.split_whitespace().skip(11).take(4).map(|word| word.parse::<u64>().unwrap()).sum()
}

#[test]
fn a_round_without_drift_changes_nothing() {
    in_both_modes(|mode| {
        let scene = Scene::with_flags("quiet", mode, &["--reconcile-seconds", "1"]);
        let status =
            |key: &str| scene.host.agent.get("/v1/status").unwrap()["reconcile"][key].as_u64().unwrap();
        let generation = || scene.node().sh(&["nft", "-j", "list", "ruleset"]).unwrap();
        // Wait for the rounds that the ADDs requested.
        wait_until("a first round", TIMEOUT, || Ok(status("rounds") > 2)).unwrap();
        let (rounds, repairs, rules) = (status("rounds"), status("repairs"), generation());
        let records: Vec<_> = files(&scene.host.agent.run_dir().join("networks"));
        let mut events = String::new();
        wait_until("two rounds", TIMEOUT, || {
            events += &changes(scene.node(), "2.4");
            Ok(status("rounds") >= rounds + 2)
        })
        .unwrap();
        assert_eq!(status("repairs"), repairs, "{mode}: {}", scene.host.agent.log().unwrap());
        assert_eq!(generation(), rules, "{mode}");
        assert_eq!(files(&scene.host.agent.run_dir().join("networks")), records, "{mode}: state was written");
        assert_eq!(events, "", "{mode}");
    });
}

/// Every file below a directory with the time of its last change.
fn files(dir: &std::path::Path) -> Vec<(std::path::PathBuf, std::time::SystemTime)> {
    let mut all = Vec::new();
    for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
        let meta = entry.metadata().unwrap();
        all.push((entry.path(), meta.modified().unwrap()));
        if meta.is_dir() {
            all.extend(files(&entry.path()));
        }
    }
    all.sort();
    all
}

#[test]
fn objects_created_on_a_new_node_are_not_repairs() {
    in_both_modes(|mode| {
        let host = Host::with_flags("fresh", &["--network-mode", mode, BY_EVENTS[0], BY_EVENTS[1]]);
        let status = || host.agent.get("/v1/status").unwrap()["reconcile"].clone();
        assert!(status()["rounds"].as_u64().unwrap() > 0, "{mode}: {}", status());
        assert_eq!(status()["repairs"], 0, "{mode}: {}", status());
        let log = host.agent.log().unwrap();
        assert!(log.contains(&format!("created bridge {BRIDGE}")), "{mode}: {log}");
        assert!(!log.contains("repaired: "), "{mode}: {log}");
        // Creating it again after a removal is a repair.
        run(&host.node, "nft delete table inet podwire");
        wait_until("the repair", TIMEOUT, || Ok(status()["repairs"] == 1)).unwrap();
        let what = &status()["recentRepairs"][0]["message"];
        assert_eq!(*what, "repaired the firewall: table inet podwire is missing", "{mode}");
    });
}

#[test]
fn an_idle_agent_uses_almost_no_cpu_time() {
    let scene = Scene::new("idle", "routed");
    let pid = scene.host.agent.pid().unwrap();
    let rounds = || scene.host.agent.get("/v1/status").unwrap()["reconcile"]["rounds"].as_u64().unwrap();
    // Wait for the rounds that the ADDs requested.
    wait_until("the rounds of the start", TIMEOUT, || {
        let before = rounds();
        std::thread::sleep(Duration::from_millis(700));
        Ok(rounds() == before)
    })
    .unwrap();
    let (before, started) = (ticks(pid), Instant::now());
    std::thread::sleep(Duration::from_secs(2));
    let used = ticks(pid) - before;
    println!("{used} ticks in {:?}", started.elapsed());
    assert!(used <= 2, "{used} ticks of 10 ms in {:?}", started.elapsed());
}

#[test]
fn a_repair_is_counted_shown_and_logged_once() {
    let scene = Scene::new("reported", "routed");
    let end = scene.host_end().to_owned();
    let counted = |kind: &str| {
        let line = format!("podwire_reconcile_repairs_total{{kind=\"{kind}\"}} ");
        let page = scene.host.agent.metrics().unwrap();
        page.lines().find_map(|l| l.strip_prefix(&line)?.parse::<u64>().ok()).unwrap_or(0)
    };
    let v4 = crate::common::v4(&scene.a.1);
    let what = format!("the host route to {v4} was missing");
    for number in 1..=2 {
        let before = counted("route");
        scene.repairs_after("a route", || scene.run(&format!("ip route del {v4} dev {end}")));
        assert_eq!(counted("route"), before + 1);
        let log = scene.host.agent.log().unwrap();
        assert_eq!(log.lines().filter(|line| line.contains(&what)).count(), number, "{log}");
        assert!(log.lines().any(|line| line.contains(&what) && line.contains("kind=\"route\"")), "{log}");
        let recent = scene.host.agent.get("/v1/status").unwrap()["reconcile"]["recentRepairs"].clone();
        let shown =
            recent.as_array().unwrap().iter().filter(|r| r["message"].as_str().unwrap().contains(&what));
        assert_eq!(shown.count(), number, "{recent}");
    }
}
