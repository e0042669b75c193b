//! The agent under the restrictions of deploy/podwire.service that do not need systemd: capabilities, no new privileges, limits,
//! umask and read-only parts of the file system. The system call filter is compared with the calls that the agent makes.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::{Agent, Call, Cluster, Node, Plan, Pod, TransportMode, Verb, inspect, wait_until};

use crate::blocking_ipam::BlockingIpam;
use crate::common::{Host, MODES, host_link, v4};

const UNIT: &str = include_str!("../../../../deploy/podwire.service");
/// A deadline for repairs on a busy host and under strace.
const REPAIR_DEADLINE: Duration = Duration::from_secs(60);

/// The words of all lines with this key.
fn words(key: &str) -> Vec<&'static str> {
    let values = UNIT.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    values.flat_map(str::split_whitespace).collect()
}

fn single_value(key: &str) -> &'static str {
    let [value] = words(key)[..] else { panic!("{key} occurs {} times", words(key).len()) };
    value
}

/// A script that applies the unit's restrictions and executes the agent. The lab's directory is writable and stands for the
/// directories that the unit names.
fn sandboxed(node: &Node, dir: &Path, program: &Path) -> PathBuf {
    let capabilities: Vec<String> = words("CapabilityBoundingSet")
        .iter()
        .map(|name| format!("+{}", name.strip_prefix("CAP_").unwrap().to_lowercase()))
        .collect();
    assert!(
        single_value("LimitCORE") == "0"
            && single_value("NoNewPrivileges") == "yes"
            && single_value("ProtectSystem") == "strict"
    );
    assert!(single_value("MountFlags") == "slave");
    let paths = |key: &str, what: &str| -> String {
        let plain_path = |path: &&str| path.strip_prefix('-').unwrap_or(path).to_owned();
        let all: Vec<String> =
            words(key).iter().map(plain_path).filter(|path| Path::new(path).exists()).collect();
        all.iter().map(|path| format!("{what} {path}\n")).collect()
    };
    let script = format!(
        r#"#!/bin/sh
exec unshare --mount --propagation slave /bin/sh -ec '
bind() {{ mount --rbind "$2" "$2"; mount -o "remount,bind,$1" "$2"; }}
rw() {{ bind rw "$1"; }}
ro() {{ bind ro "$1"; }}
rw {dir}
{writable}
mount -o remount,bind,ro /
{read_only}
rw /proc/sys/net
umask {umask}
ulimit -c 0
exec setpriv --no-new-privs --inh-caps=-all --bounding-set=-all,{capabilities} "$@"
' sandbox {program} "$@"
"#,
        dir = dir.display(),
        writable = paths("ReadWritePaths", "rw").replace("rw /proc/sys/net\n", ""),
        read_only = paths("ReadOnlyPaths", "ro"),
        umask = single_value("UMask"),
        capabilities = capabilities.join(","),
        program = program.display(),
    );
    let path = dir.join("sandboxed");
    // Not written by this process: a child process of another test could inherit the descriptor, which blocks execution.
    let write = format!("cat >{0} && chmod 755 {0}", path.display());
    let outcome = node.run(&["sh", "-c", &write], script.as_bytes()).unwrap();
    assert!(outcome.success(), "{}", outcome.stderr);
    path
}

/// Checks that the restrictions are in force.
fn expect_restricted(agent: &Agent) {
    let process = |file: &str| fs::read_to_string(format!("/proc/{}/{file}", agent.pid().unwrap())).unwrap();
    let status = process("status");
    let field =
        |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
    assert_eq!(field("NoNewPrivs:"), "1");
    let bounding = u64::from_str_radix(&field("CapBnd:"), 16).unwrap();
    assert_eq!(bounding.count_ones() as usize, words("CapabilityBoundingSet").len(), "{bounding:x}");
    let limits = process("limits");
    assert!(limits.lines().any(|line| line.starts_with("Max core file size        0 ")), "{limits}");
    let mounts = process("mountinfo");
    for (path, mode) in [("/", "ro"), ("/proc/sys", "ro"), ("/proc/sys/net", "rw"), ("/sys", "ro")] {
        // The last mount of a path is in force.
        let last =
            mounts.lines().rev().map(|line| line.split(' ').collect::<Vec<_>>()).find(|line| line[4] == path);
        let options = last.unwrap_or_else(|| panic!("{path} in:\n{mounts}"))[5];
        assert!(options.split(',').next() == Some(mode), "{path}: {options}");
    }
}

/// Removes a pod's link and all rules, and waits for the repair. Polls the kernel first, because CHECKs without a pause would
/// compete with the reconciler for the processor.
fn cause_drift_and_wait(host: &Host, (pod, result): (&Pod, &Value), more: &Value) {
    host.node.sh(&["nft", "flush", "ruleset"]).unwrap();
    host.node.sh(&["ip", "link", "del", host_link(result)]).unwrap();
    let address = v4(result).to_string();
    let is_restored = || {
        let pods = host.node.sh(&["nft", "list", "set", "inet", "podwire", "pods4"])?;
        Ok(inspect::link(pod, "eth0").is_ok() && pods.contains(&address))
    };
    wait_until("link and rules to be restored", REPAIR_DEADLINE, is_restored).unwrap();
    let is_complete = || Ok(host.plugin.check(pod, &host.config(more), result)?.success());
    wait_until("CHECK to succeed", REPAIR_DEADLINE, is_complete).unwrap();
}

#[test]
fn a_sandboxed_agent_serves_and_repairs_pods() {
    let mut host = Host::new("sandbox");
    host.agent.stop().unwrap();
    let program = host.agent.program().to_owned();
    host.agent.set_program(&sandboxed(&host.node, host.lab.dir(), &program));
    // Without the tables of the previous run, the sandboxed agent has to create them with nft.
    host.node.sh(&["nft", "flush", "ruleset"]).unwrap();
    host.agent.launch().unwrap();
    host.agent.wait_ready().unwrap();
    expect_restricted(&host.agent);
    for mode in MODES {
        // Created after the start of the agent, so its mount namespace must receive the new mounts.
        let more = json!({"mode": mode, "runtimeConfig": {"portMappings": [
            {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}], "bandwidth": {
            "ingressRate": 1_000_000_000u64, "ingressBurst": 1_000_000_000u64}}});
        let (a, b) = (host.pod(&format!("{mode}-a")), host.pod(&format!("{mode}-b")));
        let result = host.add_with(&a, &more);
        let other = host.add_with(&b, &json!({"mode": mode}));
        host.expect_connectivity((&a, &result), (&b, &other));
        host.plugin.check(&a, &host.config(&more), &result).unwrap().ok().unwrap();
        cause_drift_and_wait(&host, (&a, &result), &more);
        host.expect_connectivity((&a, &result), (&b, &other));
        host.del(&a);
        host.del(&b);
    }
    // Another program as a child of the agent.
    let (ipam, pod) = (BlockingIpam::new(&host), host.pod("delegated"));
    ipam.unblock();
    ipam.call(&host, Verb::Add, &pod).ok().unwrap();
    ipam.call(&host, Verb::Del, &pod).ok().unwrap();
    assert_eq!(ipam.dels(), 1);
    // A namespace that is named by a process of another user.
    let pod = host.pod("process");
    let mut process = Command::new("nsenter")
        .arg(format!("--net={}", pod.netns_path().display()))
        .args(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "sleep", "600"])
        .spawn()
        .unwrap();
    let path = format!("/proc/{}/ns/net", process.id());
    let is_sleeping = || Ok(fs::read_to_string(format!("/proc/{}/comm", process.id()))?.trim() == "sleep");
    wait_until("the process to start", REPAIR_DEADLINE, is_sleeping).unwrap();
    let call = |verb| Call { netns: Some(path.clone()), ..Call::pod(verb, &pod, &host.config(&json!({}))) };
    let added = host.plugin.call(&host.node, &call(Verb::Add)).unwrap();
    let deleted = host.plugin.call(&host.node, &call(Verb::Del)).unwrap();
    process.kill().unwrap();
    process.wait().unwrap();
    added.ok().unwrap();
    deleted.ok().unwrap();
    assert!(host.state_entries().is_empty(), "{:?}", host.state_entries());
    let log = host.agent.log().unwrap();
    assert!(!log.contains("not permitted") && !log.contains("Read-only file system"), "{log}");
}

#[test]
fn sandboxed_agents_create_tunnels_and_routes() {
    let plan = Plan { nodes: 2, transport: TransportMode::Vxlan, ..Plan::default() };
    let mut cluster = Cluster::hosts("sandboxes", &plan).unwrap();
    let dir = cluster.lab().dir().to_owned();
    for name in cluster.node_names() {
        let program = cluster.agent(&name).unwrap().program().to_owned();
        let script = sandboxed(cluster.node(&name).unwrap(), &dir, &program);
        cluster.agent_mut(&name).unwrap().set_program(&script);
    }
    cluster.start_etcd().unwrap();
    cluster.start_agents().unwrap();
    for name in cluster.node_names() {
        expect_restricted(cluster.agent(&name).unwrap());
    }
    cluster.pods_everywhere(1).unwrap();
    let matrix = cluster.reach(REPAIR_DEADLINE).unwrap();
    assert!(matrix.all(), "{:#?}", matrix.failures());
    for name in cluster.node_names() {
        let log = cluster.agent(&name).unwrap().log().unwrap();
        assert!(!log.contains("not permitted") && !log.contains("Read-only file system"), "{log}");
    }
}

/// The output of a program. None if it is not installed.
fn output_of(program: &str, args: &[&str]) -> Option<String> {
    match Command::new(program).args(args).output() {
        Ok(output) => Some(String::from_utf8(output.stdout).unwrap()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            eprintln!("{program} is not installed; skipping the check of the system call filter");
            None
        }
        Err(error) => panic!("{program}: {error}"),
    }
}

/// The members of a group of system calls, or the call itself.
fn members(listed: &str, name: &str) -> BTreeSet<String> {
    if !name.starts_with('@') {
        return BTreeSet::from([name.to_owned()]);
    }
    let group =
        listed.lines().skip_while(|line| *line != name).skip(1).take_while(|line| line.starts_with("    "));
    let names: Vec<&str> = group.map(str::trim).filter(|line| !line.starts_with('#')).collect();
    assert!(!names.is_empty(), "systemd does not know {name}");
    names.into_iter().flat_map(|name| members(listed, name)).collect()
}

/// The calls that the unit's lines allow, evaluated in order.
fn allowed_calls(listed: &str) -> BTreeSet<String> {
    let mut allowed = BTreeSet::new();
    for line in UNIT.lines().filter_map(|line| line.strip_prefix("SystemCallFilter=")) {
        let (is_denied, names) = line.strip_prefix('~').map_or((false, line), |names| (true, names));
        for call in names.split_whitespace().flat_map(|name| members(listed, name)) {
            if is_denied {
                allowed.remove(&call);
            } else {
                allowed.insert(call);
            }
        }
    }
    allowed
}

#[test]
fn the_units_filter_allows_all_system_calls_of_the_agent() {
    let Some(listed) = output_of("systemd-analyze", &["syscall-filter", "--no-pager"]) else { return };
    if output_of("strace", &["-V"]).is_none() {
        return;
    }
    let mut host = Host::new("syscalls");
    host.agent.stop().unwrap();
    let (dir, program) = (host.lab.dir().to_owned(), host.agent.program().to_owned());
    let (traced, calls) = (dir.join("traced"), dir.join("calls"));
    // -D: the agent stays a child of this process, and strace runs detached.
    let script =
        format!("#!/bin/sh\nexec strace -D -f -o {} {} \"$@\"\n", calls.display(), program.display());
    let write = format!("cat >{0} && chmod 755 {0}", traced.display());
    assert!(host.node.run(&["sh", "-c", &write], script.as_bytes()).unwrap().success());
    host.agent.set_program(&sandboxed(&host.node, &dir, &traced));
    host.node.sh(&["nft", "flush", "ruleset"]).unwrap();
    host.agent.launch().unwrap();
    host.agent.wait_ready().unwrap();
    for mode in MODES {
        let (pod, more) = (host.pod(mode), json!({ "mode": mode }));
        let result = host.add_with(&pod, &more);
        cause_drift_and_wait(&host, (&pod, &result), &more);
        host.del(&pod);
    }
    let (ipam, pod) = (BlockingIpam::new(&host), host.pod("delegated"));
    ipam.unblock();
    ipam.call(&host, Verb::Add, &pod).ok().unwrap();
    ipam.call(&host, Verb::Del, &pod).ok().unwrap();
    // strace pads short process IDs with spaces.
    let pid = host.agent.pid().unwrap().to_string();
    let end = [pid.as_str(), "+++", "exited", "with", "0", "+++"];
    assert!(host.agent.stop().unwrap().success());
    let is_complete = || Ok(fs::read_to_string(&calls)?.lines().any(|line| line.split_whitespace().eq(end)));
    wait_until("strace to write all calls", REPAIR_DEADLINE, is_complete).unwrap();
    let text = fs::read_to_string(&calls).unwrap();
    // `4711 openat(…`. A resumed call of another thread starts with `<`.
    let used = text.lines().filter_map(|line| line.split_once(' ')?.1.trim_start().split_once('('));
    let is_name = |name: &str| {
        !name.is_empty() && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
    };
    let used: BTreeSet<String> = used.map(|(name, _)| name.to_owned()).filter(|name| is_name(name)).collect();
    assert!(used.contains("setns") && used.contains("execve"), "{used:?}");
    let allowed = allowed_calls(&listed);
    let refused: Vec<_> = used.difference(&allowed).collect();
    assert!(refused.is_empty(), "the unit's SystemCallFilter denies {refused:?}");
}
