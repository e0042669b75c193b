//! `podwire agent --check-config`: reports all problems that prevent a start, without changing anything.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use testkit::{Outcome, Snapshot};

use crate::common::{Host, has};

fn check(host: &Host, flags: &[&str]) -> Outcome {
    host.ask(&[&["agent", "--check-config", "--node", "n"], flags].concat())
}

/// One string for each problem.
fn problems(outcome: &Outcome) -> Vec<String> {
    assert_eq!(outcome.status.code(), Some(1), "{outcome:?}");
    let text = outcome.stdout.replace("\n  ", " ");
    text.lines().filter_map(|line| line.strip_prefix("- ")).map(str::to_owned).collect()
}

fn tree(dir: &Path) -> Vec<String> {
    let mut all = vec![];
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        all.push(entry.path().display().to_string());
        all.extend(tree(&entry.path()));
    }
    all.sort();
    all
}

#[test]
fn a8_a_valid_configuration_has_no_problems() {
    for mode in ["routed", "bridge"] {
        let host = Host::new("valid");
        let (before, files) = (Snapshot::of(&host.node).unwrap(), tree(host.node.dir()));
        let flags = ["--install", "--network-mode", mode, "--metrics", "127.0.0.1:9100"];
        let outcome = check(&host, &flags);
        assert_eq!((outcome.status.code(), outcome.stderr.as_str()), (Some(0), ""), "{outcome:?}");
        has(&outcome.stdout, &["the agent can start with it"]);
        before.expect_same(&host.node).unwrap();
        assert_eq!(tree(host.node.dir()), files, "no file is created");
        let runtime = host.runtime();
        let _agent = host.agent(&[&runtime.agent_flags()[..], &flags[1..]].concat());
    }
}

/// F11: a single node may use the smallest subnets.
#[test]
fn f11_the_smallest_subnet_is_valid_and_has_a_pod_address() {
    let host = Host::new("smallest");
    let flags = ["--no-install", "--network-subnet", "10.90.0.0/30", "--network-subnet", "fd00:90::/126"];
    let outcome = check(&host, &flags);
    assert_eq!(outcome.status.code(), Some(0), "{outcome:?}");
    let agent = host.agent(&flags);
    let pod = host.node.pod("a").unwrap();
    host.plugin.add(&pod, &agent.config(&serde_json::json!({}))).unwrap().ok().unwrap();
    has(&host.ask(&["pods"]).stdout, &["10.90.0.2", "fd00:90::2"]);
    let smaller = check(&host, &["--network-subnet", "10.90.0.0/31"]);
    has(&problems(&smaller).join(" "), &["network.subnets", "use a /30 or larger"]);
}

#[test]
fn a8_all_problems_are_reported_together() {
    let host = Host::new("refused");
    let run_dir = host.node.run_dir();
    fs::create_dir_all(&run_dir).unwrap();
    fs::set_permissions(&run_dir, PermissionsExt::from_mode(0o777)).unwrap();
    let file = host.node.dir().join("file");
    fs::write(&file, "not a socket").unwrap();
    let template = host.node.dir().join("template");
    fs::write(&template, r#"{ "name": "{{ NAMME }}" }"#).unwrap();
    let (before, files) = (Snapshot::of(&host.node).unwrap(), tree(host.node.dir()));
    let (file, template) = (file.to_str().unwrap(), template.to_str().unwrap());
    let below = format!("{file}/store");
    let outcome = check(
        &host,
        &[
            "--install",
            "--install-template",
            template,
            "--socket",
            file,
            "--store-dir",
            &below,
            "--metrics",
            "192.0.2.7:9100",
            "--node-interface",
            "nolink0",
            "--node-addresses",
            "192.0.2.8,2001:db8::8",
            "--etcd-endpoints",
            "127.0.0.1:1",
        ],
    );
    let found = problems(&outcome);
    for words in [
        &["chmod go-w", run_dir.to_str().unwrap()][..],
        &["is not a socket", file],
        &["cannot write to", file, "not a directory"],
        &["cannot listen on 192.0.2.7:9100"],
        &["node_interface is nolink0"],
        &["192.0.2.8", "no link of this node has that address"],
        &["2001:db8::8", "no link of this node has that address"],
        &["NAMME", "did you mean NAME?"],
        &["127.0.0.1:1"],
    ] {
        let is_reported =
            |line: &&String| words.iter().all(|word| line.to_lowercase().contains(&word.to_lowercase()));
        assert_eq!(found.iter().filter(is_reported).count(), 1, "{words:?} in {found:#?}");
    }
    before.expect_same(&host.node).unwrap();
    assert_eq!(tree(host.node.dir()), files, "no file is created");
}

/// An operator checks an edited config before a restart of the agent.
#[test]
fn a8_the_running_agent_and_its_port_are_not_a_problem() {
    for address in ["127.0.0.1:9100", "[::1]:9100"] {
        let host = Host::new("edited");
        let agent = host.agent(&["--no-install", "--metrics", address]);
        let note = format!("note: an agent (process {}) is running", agent.pid().unwrap());
        let outcome = check(&host, &["--metrics", address]);
        assert_eq!(outcome.status.code(), Some(0), "{outcome:?}");
        has(&outcome.stdout, &[&note, "restart it", "the agent can start with it"]);
        assert!(!outcome.stdout.contains("warning"), "{}", outcome.stdout);
        // The port of another program is a warning, because the agent starts without metrics.
        let other = address.replace("9100", "9200");
        let _listener = host.node.enter(|| std::net::TcpListener::bind(&other).unwrap()).unwrap();
        let outcome = check(&host, &["--metrics", &other]);
        assert_eq!(outcome.status.code(), Some(0), "{outcome:?}");
        has(&outcome.stdout, &[&note, &format!("warning: another program listens on {other}")]);
        // Other problems are reported, too.
        has(&problems(&check(&host, &["--node-interface", "nolink0"])).join("\n"), &["nolink0"]);
    }
}

#[test]
fn a8_a_network_of_another_agent_is_a_problem() {
    let host = Host::new("locked");
    let agent = host.agent(&["--no-install"]);
    let pid = agent.pid().unwrap().to_string();
    let elsewhere = host.node.dir().join("elsewhere");
    let outcome = host.run(&["agent", "--check-config", "--run-dir", elsewhere.to_str().unwrap()]);
    let found = problems(&outcome);
    assert_eq!(found.len(), 1, "{found:?}");
    has(&found[0], &["another agent", &pid, "--network-name"]);
    assert!(!elsewhere.exists());
    let other = ["--run-dir", elsewhere.to_str().unwrap(), "--network-name", "other"];
    assert_eq!(host.run(&[&["agent", "--check-config"], &other[..]].concat()).status.code(), Some(0));
}

#[test]
fn a8_all_invalid_values_are_reported_with_suggestions() {
    let host = Host::new("values");
    let file = host.node.dir().join("a.toml");
    let text = "wrokers = 3\nmode = \"routed\"\n[network]\nsubnet = \"10.1.0.0/16\"\nmtu = 5\n[etdc]\n";
    fs::write(&file, text).unwrap();
    let found = problems(&check(&host, &["--config", file.to_str().unwrap()]));
    for (line, suggestion) in
        [(1, "\"workers\""), (2, "\"network.mode\""), (4, "\"network.subnets\""), (6, "\"etcd\"")]
    {
        let wanted = format!("did you mean {suggestion}?");
        let matches =
            |problem: &String| problem.contains(&format!("a.toml:{line}:")) && problem.ends_with(&wanted);
        assert!(found.iter().any(matches), "{line} {suggestion} in {found:#?}");
    }
    assert!(found.iter().any(|problem| problem.contains("network.mtu")), "{found:#?}");
}

#[test]
fn a8_conditions_that_prevent_readiness_are_reported() {
    let host = Host::new("unready");
    host.node.sh(&["ip", "link", "add", "taken", "type", "veth", "peer", "name", "peer0"]).unwrap();
    let add = "ip link add other type bridge; ip link set other up; ip addr add 10.83.0.9/24 dev other";
    host.node.sh(&["sh", "-c", add]).unwrap();
    let found = problems(&check(&host, &["--network-bridge", "taken"]));
    assert_eq!(found.len(), 2, "{found:?}");
    has(&found.join("\n"), &["BridgeNameTaken: taken exists but is a veth", "SubnetOverlap: ", "10.83.0.9"]);
    let fix = r"printf '\n%s\n' PODWIRE_NETWORK_SUBNETS=";
    has(&check(&host, &[]).stdout, &[fix]);
    // A flag has precedence over a variable.
    let by_flag = check(&host, &["--network-subnet", "10.83.0.0/16"]).stdout;
    assert!(!by_flag.contains(fix) && by_flag.contains("--network-subnet"), "{by_flag}");
    host.node.sh(&["ip", "link", "del", "other"]).unwrap();
    let run_dir = host.node.run_dir();
    let weak = ["setpriv", "--bounding-set", "-net_admin", host.tool.to_str().unwrap(), "agent"];
    let flags = ["--check-config", "--node", "n", "--run-dir", run_dir.to_str().unwrap()];
    let outcome = host.node.run(&[&weak[..], &flags].concat(), b"").unwrap();
    has(&problems(&outcome).join("\n"), &["PermissionDenied", "CAP_NET_ADMIN"]);
}
