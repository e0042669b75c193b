//! The agent under the restrictions of deploy/podwire.service, as far as they can be had without systemd: capabilities, no new
//! privileges, limits, umask, and the file system with what is read-only in it. The filter of system calls is compared with the
//! calls that are made.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::{Agent, Call, Cluster, Node, Plan, Pod, TransportMode, Verb, inspect, wait_until};

use crate::common::{Host, MODES, host_link, v4};
use crate::gate::Gate;

const UNIT: &str = include_str!("../../../../deploy/podwire.service");
/// A deadline for repairs on a busy machine, and under a tracer.
const REPAIRED: Duration = Duration::from_secs(60);

/// The words of all lines of this key.
fn words(key: &str) -> Vec<&'static str> {
    let values = UNIT.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    values.flat_map(str::split_whitespace).collect()
}

fn one(key: &str) -> &'static str {
    let [value] = words(key)[..] else { panic!("{key} is there {} times", words(key).len()) };
    value
}

/// A program that puts itself under the unit's restrictions and becomes the agent. Below the lab's directory, which stands for
/// those that the unit names, everything may be written.
fn sandboxed(node: &Node, dir: &Path, program: &Path) -> PathBuf {
    let capabilities: Vec<String> = words("CapabilityBoundingSet")
        .iter()
        .map(|name| format!("+{}", name.strip_prefix("CAP_").unwrap().to_lowercase()))
        .collect();
    assert!(one("LimitCORE") == "0" && one("NoNewPrivileges") == "yes" && one("ProtectSystem") == "strict");
    assert!(one("MountFlags") == "slave");
    let paths = |key: &str, what: &str| -> String {
        let of = |path: &&str| path.strip_prefix('-').unwrap_or(path).to_owned();
        let all: Vec<String> = words(key).iter().map(of).filter(|path| Path::new(path).exists()).collect();
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
        umask = one("UMask"),
        capabilities = capabilities.join(","),
        program = program.display(),
    );
    let path = dir.join("sandboxed");
    // By another process: one that is open for writing in a child of another test cannot be executed.
    let write = format!("cat >{0} && chmod 755 {0}", path.display());
    let outcome = node.run(&["sh", "-c", &write], script.as_bytes()).unwrap();
    assert!(outcome.success(), "{}", outcome.stderr);
    path
}

/// The process is where the script puts it.
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
    for (place, mode) in [("/", "ro"), ("/proc/sys", "ro"), ("/proc/sys/net", "rw"), ("/sys", "ro")] {
        // The last mount of a place is the one that counts.
        let last = mounts
            .lines()
            .rev()
            .map(|line| line.split(' ').collect::<Vec<_>>())
            .find(|line| line[4] == place);
        let options = last.unwrap_or_else(|| panic!("{place} in:\n{mounts}"))[5];
        assert!(options.split(',').next() == Some(mode), "{place}: {options}");
    }
}

/// Removes a pod's link and all rules, and waits until the agent has put them back. The kernel is asked at first: CHECKs without
/// a pause would take the processor from the thread that repairs.
fn break_and_wait(host: &Host, (pod, result): (&Pod, &Value), more: &Value) {
    host.node.sh(&["nft", "flush", "ruleset"]).unwrap();
    host.node.sh(&["ip", "link", "del", host_link(result)]).unwrap();
    let address = v4(result).to_string();
    let is_back = || {
        let pods = host.node.sh(&["nft", "list", "set", "inet", "podwire", "pods4"])?;
        Ok(inspect::link(pod, "eth0").is_ok() && pods.contains(&address))
    };
    wait_until("link and rules to be back", REPAIRED, is_back).unwrap();
    let is_whole = || Ok(host.plugin.check(pod, &host.config(more), result)?.success());
    wait_until("CHECK to find nothing missing", REPAIRED, is_whole).unwrap();
}

#[test]
fn a_sandboxed_agent_serves_and_repairs_pods() {
    let mut host = Host::new("sandbox");
    host.agent.stop().unwrap();
    let program = host.agent.program().to_owned();
    host.agent.set_program(&sandboxed(&host.node, host.lab.dir(), &program));
    // The tables of the run before are gone: nft makes them again, inside.
    host.node.sh(&["nft", "flush", "ruleset"]).unwrap();
    host.agent.launch().unwrap();
    host.agent.wait_ready().unwrap();
    expect_restricted(&host.agent);
    for mode in MODES {
        // Made after the agent started: its mount namespace must still see them.
        let more = json!({"mode": mode, "runtimeConfig": {"portMappings": [
            {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}], "bandwidth": {
            "ingressRate": 1_000_000_000u64, "ingressBurst": 1_000_000_000u64}}});
        let (a, b) = (host.pod(&format!("{mode}-a")), host.pod(&format!("{mode}-b")));
        let result = host.add_with(&a, &more);
        let other = host.add_with(&b, &json!({"mode": mode}));
        host.expect_talk((&a, &result), (&b, &other));
        host.plugin.check(&a, &host.config(&more), &result).unwrap().ok().unwrap();
        break_and_wait(&host, (&a, &result), &more);
        host.expect_talk((&a, &result), (&b, &other));
        host.del(&a);
        host.del(&b);
    }
    // Another program, as its child.
    let (gate, pod) = (Gate::new(&host), host.pod("delegated"));
    gate.open();
    gate.call(&host, Verb::Add, &pod).ok().unwrap();
    gate.call(&host, Verb::Del, &pod).ok().unwrap();
    assert_eq!(gate.dels(), 1);
    // A namespace that is named by a process of another user.
    let pod = host.pod("process");
    let mut process = Command::new("nsenter")
        .arg(format!("--net={}", pod.netns_path().display()))
        .args(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "sleep", "600"])
        .spawn()
        .unwrap();
    let path = format!("/proc/{}/ns/net", process.id());
    let is_another = || Ok(fs::read_to_string(format!("/proc/{}/comm", process.id()))?.trim() == "sleep");
    wait_until("the process to be there", REPAIRED, is_another).unwrap();
    let call = |verb| Call { netns: Some(path.clone()), ..Call::pod(verb, &pod, &host.config(&json!({}))) };
    let added = host.plugin.call(&host.node, &call(Verb::Add)).unwrap();
    let deleted = host.plugin.call(&host.node, &call(Verb::Del)).unwrap();
    process.kill().unwrap();
    process.wait().unwrap();
    added.ok().unwrap();
    deleted.ok().unwrap();
    assert!(host.held().is_empty(), "{:?}", host.held());
    let log = host.agent.log().unwrap();
    assert!(!log.contains("not permitted") && !log.contains("Read-only file system"), "{log}");
}

#[test]
fn sandboxed_agents_make_tunnels_and_routes() {
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
    let matrix = cluster.reach(REPAIRED).unwrap();
    assert!(matrix.all(), "{:#?}", matrix.complaints());
    for name in cluster.node_names() {
        let log = cluster.agent(&name).unwrap().log().unwrap();
        assert!(!log.contains("not permitted") && !log.contains("Read-only file system"), "{log}");
    }
}

/// What a program prints, or None where it is not installed.
fn output_of(program: &str, args: &[&str]) -> Option<String> {
    match Command::new(program).args(args).output() {
        Ok(output) => Some(String::from_utf8(output.stdout).unwrap()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            eprintln!("{program} is not installed: the filter of system calls is not checked");
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
    assert!(!names.is_empty(), "systemd knows no {name}");
    names.into_iter().flat_map(|name| members(listed, name)).collect()
}

/// What the unit's lines allow, from the first to the last.
fn allowed_calls(listed: &str) -> BTreeSet<String> {
    let mut allowed = BTreeSet::new();
    for line in UNIT.lines().filter_map(|line| line.strip_prefix("SystemCallFilter=")) {
        let (is_denied, names) = line.strip_prefix('~').map_or((false, line), |rest| (true, rest));
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
fn the_units_filter_has_every_system_call_of_the_agent() {
    let Some(listed) = output_of("systemd-analyze", &["syscall-filter", "--no-pager"]) else { return };
    if output_of("strace", &["-V"]).is_none() {
        return;
    }
    let mut host = Host::new("syscalls");
    host.agent.stop().unwrap();
    let (dir, program) = (host.lab.dir().to_owned(), host.agent.program().to_owned());
    let (traced, calls) = (dir.join("traced"), dir.join("calls"));
    // -D: the agent stays the child of this process, and the tracer is another one.
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
        break_and_wait(&host, (&pod, &result), &more);
        host.del(&pod);
    }
    let (gate, pod) = (Gate::new(&host), host.pod("delegated"));
    gate.open();
    gate.call(&host, Verb::Add, &pod).ok().unwrap();
    gate.call(&host, Verb::Del, &pod).ok().unwrap();
    // strace pads short process ids with spaces.
    let pid = host.agent.pid().unwrap().to_string();
    let end = [pid.as_str(), "+++", "exited", "with", "0", "+++"];
    assert!(host.agent.stop().unwrap().success());
    let is_complete = || Ok(fs::read_to_string(&calls)?.lines().any(|line| line.split_whitespace().eq(end)));
    wait_until("the tracer to write all", REPAIRED, is_complete).unwrap();
    let text = fs::read_to_string(&calls).unwrap();
    // `4711 openat(…`; what goes on after another thread's call begins with `<`.
    let made = text.lines().filter_map(|line| line.split_once(' ')?.1.trim_start().split_once('('));
    let is_name = |name: &str| {
        !name.is_empty() && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
    };
    let made: BTreeSet<String> = made.map(|(name, _)| name.to_owned()).filter(|name| is_name(name)).collect();
    assert!(made.contains("setns") && made.contains("execve"), "{made:?}");
    let allowed = allowed_calls(&listed);
    let refused: Vec<_> = made.difference(&allowed).collect();
    assert!(refused.is_empty(), "the unit's SystemCallFilter refuses {refused:?}");
}
