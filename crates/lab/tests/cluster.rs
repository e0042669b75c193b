//! Clusters: underlay, faults, reachability and cleanup. Needs root.

#![expect(clippy::unwrap_used, reason = "a test stops at the first error, also in helper functions")]

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use lab::{
    Cluster, DEADLINE, Families, LabStore, Matrix, MatrixCell, Ns, Plan, PodPath, Reachability, Tls, inspect,
    ping, wait_until,
};

fn standalone(nodes: usize, subnets: usize) -> Plan {
    Plan { nodes, subnets, store: LabStore::Alone, ..Plan::default() }
}

/// The host's own links and addresses.
fn host_addresses() -> String {
    let out = Command::new("ip").args(["-br", "addr"]).output().unwrap();
    String::from_utf8(out.stdout).unwrap()
}

fn reaches(from: &Ns, cluster: &Cluster, to: &str) -> Vec<bool> {
    let to = cluster.addresses(to).unwrap();
    to.iter().map(|address| ping(from, *address, 1).unwrap().all()).collect()
}

fn is_local(cluster: &Cluster, cell: &MatrixCell) -> bool {
    let [from, to] = [&cell.from, &cell.to].map(|name| cluster.find_pod(name).unwrap().node.clone());
    from == to
}

/// Waits until all cells match. A probe with unreachable pods takes its whole timeout.
fn matrix_when(cluster: &Cluster, is_expected: impl Fn(&MatrixCell) -> bool) -> Matrix {
    let probe = || cluster.reach(Duration::from_millis(300)).unwrap();
    let mut matrix = probe();
    wait_until("pods to reach each other", DEADLINE, || {
        matrix = probe();
        Ok(matrix.cells.iter().all(&is_expected))
    })
    .unwrap_or_else(|error| panic!("{error}: {:?}", matrix.failures()));
    matrix
}

#[test]
fn nodes_are_on_link_in_a_subnet_and_routed_between_subnets() {
    let before = host_addresses();
    let cluster = Cluster::hosts("subnets", &standalone(3, 2)).unwrap();
    assert_eq!(host_addresses(), before, "the lab changed the host's network");
    let n1 = cluster.node("n1").unwrap();
    for to in ["n2", "n3"] {
        assert_eq!(reaches(n1, &cluster, to), [true, true], "{to}");
    }
    let via = |to: &str| {
        let address = cluster.addresses(to).unwrap()[0].to_string();
        n1.json(&["ip", "-j", "route", "get", &address]).unwrap()[0]["gateway"].as_str().map(str::to_owned)
    };
    assert_eq!((via("n2").as_deref(), via("n3")), (Some("10.199.1.254"), None));
    let prefix = cluster.lab().prefix().to_owned();
    drop(cluster);
    let left: Vec<_> = std::fs::read_dir("/run/netns").unwrap().flatten().map(|e| e.file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().starts_with(&prefix)), "{left:?}");
}

#[test]
fn the_underlay_supports_a_single_family_and_another_mtu() {
    let plan = Plan { underlay: Families::V6, mtu: 1400, ..standalone(2, 2) };
    let cluster = Cluster::hosts("v6", &plan).unwrap();
    let n1 = cluster.node("n1").unwrap();
    assert_eq!(reaches(n1, &cluster, "n2"), [true]);
    assert_eq!(inspect::link(n1, "eth0").unwrap().mtu, 1400);
    let to = cluster.addresses("n2").unwrap()[0].to_string();
    // The headers of IPv6 and ICMPv6 have 48 bytes.
    let fits = |size: &str| n1.run(&["ping", "-c1", "-W1", "-Mdo", "-s", size, &to], b"").unwrap().success();
    assert!(fits("1352") && !fits("1353"));
}

#[test]
fn a_cut_drops_traffic_with_the_link_up_and_heals() {
    let mut cluster = Cluster::hosts("cut", &standalone(2, 1)).unwrap();
    assert_eq!(reaches(cluster.node("n1").unwrap(), &cluster, "n2"), [true, true]);
    cluster.cut("n2").unwrap();
    assert_eq!(reaches(cluster.node("n1").unwrap(), &cluster, "n2"), [false, false]);
    let router = "10.199.1.254".parse().unwrap();
    assert!(!ping(cluster.node("n2").unwrap(), router, 1).unwrap().any());
    assert_eq!(inspect::link(cluster.node("n2").unwrap(), "eth0").unwrap().operstate, "UP");
    cluster.heal("n2").unwrap();
    wait_until("n2 to be reachable", DEADLINE, || {
        Ok(reaches(cluster.node("n1").unwrap(), &cluster, "n2") == [true, true])
    })
    .unwrap();
    // The kernel removes routes and IPv6 addresses of a link that is down.
    let n2 = cluster.node("n2").unwrap().clone();
    n2.sh(&["ip", "link", "set", "dev", "eth0", "down"]).unwrap();
    n2.sh(&["ip", "address", "flush", "dev", "eth0"]).unwrap();
    cluster.heal("n2").unwrap();
    assert!(ping(&n2, router, 1).unwrap().any());
    wait_until("n2 to be reachable", DEADLINE, || {
        Ok(reaches(cluster.node("n1").unwrap(), &cluster, "n2") == [true, true])
    })
    .unwrap();
}

#[test]
fn the_matrix_matches_reachability_through_faults() {
    let mut cluster = Cluster::up("agents", &standalone(2, 1)).unwrap();
    cluster.pods_everywhere(2).unwrap();
    let names: Vec<String> = cluster.pods().iter().map(|pod| pod.name.clone()).collect();
    assert_eq!(names, ["p1", "p2", "p3", "p4"]);
    // Standalone agents do not know each other, so pods reach only pods of the same node.
    let matrix = matrix_when(&cluster, |cell| !is_local(&cluster, cell) || cell.is_ok());
    assert_eq!(matrix.cells.len(), 12);
    for cell in &matrix.cells {
        assert_eq!(cell.is_ok(), is_local(&cluster, cell), "{cell:?}");
        assert_eq!(cell.path, if is_local(&cluster, cell) { PodPath::Local } else { PodPath::None });
    }
    assert_eq!(matrix.failures().len(), 8);
    cluster.remove_pod("p2").unwrap();
    assert!(cluster.remove_pod("p2").unwrap_err().to_string().contains("existing pods are p1, p3, p4"));
    assert!(cluster.pod("n1", "p3").is_err(), "a duplicate pod name was accepted");

    cluster.kill_agent("n1").unwrap();
    assert!(cluster.agent("n1").unwrap().has_ended().unwrap() && cluster.kill_agent("n1").is_err());
    cluster.start_agent("n1").unwrap();
    cluster.pod("n1", "late").unwrap();

    cluster.kill_node("n2").unwrap();
    assert_eq!(cluster.pods().len(), 2);
    assert!(cluster.node("n2").unwrap().enter(|| ()).is_err());
    cluster.start_node("n2").unwrap();
    matrix_when(&cluster, |cell| (cell.from.as_str(), cell.to.as_str()) != ("p3", "p4") || cell.is_ok());
}

#[test]
#[ignore = "helper of processes_are_killed_with_a_killed_test"]
fn child_that_waits() {
    let mut cluster = Cluster::hosts("child", &Plan { nodes: 1, ..Plan::default() }).unwrap();
    cluster.start_etcd().unwrap();
    println!("lab is {}", cluster.lab().dir().display());
    // Returns when the parent exits.
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

#[test]
fn processes_are_killed_with_a_killed_test() {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_that_waits", "--ignored", "--nocapture"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let dir =
        lines.find_map(|line| line.unwrap().split_once("lab is ").map(|(_, dir)| dir.to_owned())).unwrap();
    let running = || {
        let entries = std::fs::read_dir("/proc").unwrap().flatten();
        let lines = entries.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
        lines.filter(|line| String::from_utf8_lossy(line).contains(&format!("{dir}/"))).count()
    };
    assert_eq!(running(), 1, "etcd");
    child.kill().unwrap();
    child.wait().unwrap();
    wait_until("the exit of etcd", DEADLINE, || Ok(running() == 0)).unwrap();
}

/// The test adds routes. Standalone agents masquerade traffic between the nodes.
#[test]
fn direct_paths_and_rewritten_sources_are_reported() {
    let cluster = Cluster::up("paths", &standalone(2, 1)).unwrap();
    cluster.pods_everywhere(1).unwrap();
    for (here, there) in [("n1", 2), ("n2", 1)] {
        let node = cluster.node(here).unwrap();
        let (v4, v6) = (format!("10.42.{}.0/24", there - 1), format!("fd42::{:x}:0:0:0/80", there - 1));
        node.sh(&["ip", "route", "add", &v4, "via", &format!("10.199.1.{there}")]).unwrap();
        node.sh(&["ip", "route", "add", &v6, "via", &format!("fd99:1::{there}")]).unwrap();
    }
    let matrix = cluster.reach(DEADLINE).unwrap();
    assert!(matrix.cells.iter().all(|cell| cell.path == PodPath::Direct), "{matrix:?}");
    let source = "10.199.1.1".parse().unwrap();
    // Standalone agents masquerade all traffic that leaves their own block.
    let cell = matrix.cell("p1", "p2").unwrap();
    assert_eq!(cell.v4, Some(Reachability::Rewritten { source }), "{matrix:?}");
    assert!(!matrix.all());
}

#[test]
fn etcd_with_three_members_survives_the_loss_of_its_leader() {
    let plan = Plan { nodes: 1, store: LabStore::Etcd { members: 3 }, ..Plan::default() };
    let mut cluster = Cluster::hosts("etcd", &plan).unwrap();
    cluster.start_etcd().unwrap();
    let endpoints = cluster.etcd.endpoints().join(",");
    let etcdctl = |cluster: &Cluster, args: &[&str]| {
        let argv = [&["env", "ETCDCTL_API=3", "etcdctl", "--endpoints", &endpoints], args].concat();
        cluster.node("n1").unwrap().sh(&argv)
    };
    etcdctl(&cluster, &["put", "key", "value"]).unwrap();
    let leader = cluster.etcd.leader().unwrap();
    cluster.etcd.members[leader].kill().unwrap();
    wait_until("the key", DEADLINE, || Ok(etcdctl(&cluster, &["get", "key"])?.contains("value"))).unwrap();
    wait_until("another leader", DEADLINE, || Ok(cluster.etcd.leader()? != leader)).unwrap();
    cluster.start_etcd().unwrap();
    cluster.cut("n1").unwrap();
    let result = etcdctl(&cluster, &["--dial-timeout=200ms", "--command-timeout=500ms", "get", "key"]);
    assert!(result.is_err(), "a disconnected node reaches etcd: {result:?}");
}

#[test]
fn etcd_with_tls_rejects_clients_without_a_certificate() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name);
    let plan = Plan {
        nodes: 1,
        store: LabStore::Etcd { members: 3 },
        etcd_tls: Some(Tls { ca: file("cert"), cert: file("cert"), key: file("key") }),
        ..Plan::default()
    };
    let names: Vec<String> = plan.etcd_addresses().iter().map(|address| format!("IP:{address}")).collect();
    let names = format!("subjectAltName={}", names.join(","));
    // etcd and etcdctl accept a self-signed certificate.
    let out = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"])
        .args(["-days", "2", "-subj", "/CN=lab", "-addext", &names, "-keyout"])
        .arg(file("key"))
        .arg("-out")
        .arg(file("cert"))
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let mut cluster = Cluster::hosts("tls", &plan).unwrap();
    cluster.start_etcd().unwrap();
    let (cert, key) = (file("cert").display().to_string(), file("key").display().to_string());
    let get = |extra: &[&str]| {
        let endpoints = cluster.etcd.endpoints().join(",");
        let argv = ["env", "ETCDCTL_API=3", "etcdctl", "--endpoints", &endpoints, "--cacert", &cert];
        let quick = ["--dial-timeout=1s", "--command-timeout=2s", "get", "key"];
        cluster.node("n1").unwrap().sh(&[&argv, extra, &quick].concat())
    };
    get(&["--cert", &cert, "--key", &key]).unwrap();
    assert!(get(&[]).is_err());
}
