//! The audit after the run: starts all agents, deletes all pods and checks that no object remains.

use std::collections::BTreeSet;
use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use ipnet::IpNet;
use serde_json::json;
use testkit::{inspect, wait_until};

use crate::Soak;
use crate::faults::is_guarded;
use crate::frames::name_of;
use crate::monitor::{self, AgentSizes};
use crate::records;
use crate::site::{LONG, PodRole, ServedBy, SoakNode, SoakSite, snapshot_lines};
use crate::victims::received;

/// An agent removes connections of freed addresses on its timer, which runs every 30 s.
const TIMER: Duration = Duration::from_secs(75);
/// Part of the names of quarantined tombstones.
const PUT_ASIDE: &str = "/tombstones/.unreadable-";
/// Timeout for planted objects, which are found immediately.
const SHORT: Duration = Duration::from_secs(5);
/// Allowed growth of an agent since the first minute.
const MORE_KIB: u64 = 12 << 10;
const MORE_FILES: usize = 48;

pub(crate) fn run(soak: &Soak, site: &SoakSite, watched: &AgentSizes) -> Result<()> {
    // Planted objects are not removed, so a short timeout is enough.
    let within = if soak.options.plant { SHORT } else { LONG };
    let all_up = start_all(site);
    soak.step("the nodes do not recover", all_up);
    soak.step("the store", records::audit(soak, site));
    for machine in &site.machines {
        let guarded =
            wait_until(&format!("the firewall of {}", machine.name), LONG, || is_guarded(site, machine));
        soak.step("a firewall is not restored", guarded);
    }
    soak.step("legal traffic", site.expect_reach());
    listeners(soak, site);
    soak.step("permanent pods cannot be deleted", delete_all(soak, site));
    let planted = if soak.options.plant { Some(plant(soak, site)?) } else { None };
    for network in &site.networks {
        let empty = wait_until(&format!("{} to be empty", network.name), within, || {
            expect_empty(&network.run_dir, &|_| false)
        });
        soak.step("records, claims or tombstones are left", empty);
    }
    let dir = site.hostile.node.dir();
    for run_dir in [dir.join("state"), dir.join("alone")] {
        let empty = wait_until("h1 to be empty", within, || {
            let problems = site.hostile_agent().get(api_status())?["conditions"].to_string();
            expect_empty(&run_dir, &|path| path.contains(PUT_ASIDE) || problems.contains(path))
        });
        soak.step("records, claims or tombstones are left on h1", empty);
    }
    soak.step("links are left on h1", wait_until("h1 to have no pods", within, || expect_no_pods(site)));
    for (node, before) in &site.before {
        let same = wait_until(&format!("{} to match its snapshot", node.name()), within, || {
            let after = snapshot_lines(node)?;
            let removed = before.difference(&after).map(|line| format!("- {line}"));
            let lines: Vec<String> =
                removed.chain(after.difference(before).map(|line| format!("+ {line}"))).collect();
            ensure!(lines.is_empty(), "{}", lines.join("\n"));
            Ok(true)
        });
        soak.step("links, addresses, routes, neighbours or firewall entries are left", same);
    }
    for machine in &site.machines {
        soak.step("neighbours", monitor::neighbours(soak, machine));
        let none =
            wait_until("removal of connections of freed addresses", TIMER, || expect_no_connections(machine));
        soak.step("connections of freed addresses are left", none);
    }
    status(soak, site)?;
    namespaces(soak, site)?;
    processes(soak, site);
    if let Some(mut planted) = planted {
        planted.kill().and_then(|()| planted.wait()).context("cannot stop the planted process")?;
    }
    growth(soak, watched);
    let (added, refused) = (soak.ledger.counted("ADDs"), soak.ledger.counted("ADDs refused with code 11"));
    if added < refused || added == 0 {
        soak.ledger
            .find("too few ADDs succeed", format!("{added} succeeded, {refused} were refused with code 11"));
    }
    if soak.options.keep && !soak.ledger.is_clean() {
        println!("kept: {}; stop this program to remove it", site.cluster().lab().dir().display());
        std::thread::sleep(Duration::from_secs(3600));
    }
    Ok(())
}

/// Plants one object of each kind where no agent removes it.
fn plant(soak: &Soak, site: &SoakSite) -> Result<Child> {
    let standalone =
        site.networks.iter().find(|network| network.through == ServedBy::Plugin).context("no network")?;
    let claims = standalone.run_dir.join("networks/alone/addresses");
    fs::write(claims.join("10.77.0.99"), "")
        .with_context(|| format!("cannot write to {}", claims.display()))?;
    let node = &site.machines[1].node;
    node.sh(&["ip", "link", "add", "planted", "type", "bridge"])?;
    node.sh(&["ip", "route", "add", "blackhole", "203.0.113.0/24"])?;
    site.hostile.node.sh(&["nft", "add element inet podwire pods4 { 10.66.0.9 }"])?;
    fs::write("/run/netns/planted", "").context("cannot write to /run/netns")?;
    for pod in ["one", "two"] {
        soak.ledger.enter("planted", pod, &[IpAddr::from([10, 0, 0, 1])]);
    }
    Command::new("sleep").arg("1000").spawn().context("cannot start sleep")
}

fn start_all(site: &SoakSite) -> Result<()> {
    let mut cluster = site.cluster();
    cluster.start_etcd()?;
    cluster.start_agents()?;
    drop(cluster);
    let mut agent = site.hostile_agent();
    if agent.has_ended()? {
        agent.launch()?;
    }
    agent.wait_ready()
}

/// A listener without legal datagrams proves nothing about hostile ones.
fn listeners(soak: &Soak, site: &SoakSite) {
    let victims = site.with_role(PodRole::Victim).map(|victim| name_of(site, victim));
    for name in victims.chain(site.machines.iter().map(|machine| machine.name.to_owned())) {
        if soak.ledger.counted(&received(&name)) == 0 {
            soak.ledger.find("a listener received nothing legal", name);
        }
    }
}

fn delete_all(soak: &Soak, site: &SoakSite) -> Result<()> {
    for permanent in &site.permanent_pods {
        let network = &site.networks[permanent.network];
        soak.ledger.leave(network.scope, &permanent.ips);
        site.plugin.del(&permanent.pod, &network.config)?.ok().with_context(|| name_of(site, permanent))?;
        network.unregister(permanent.pod.id());
        permanent.pod.destroy()?;
    }
    for network in &site.networks {
        network.collect(&site.plugin)?.ok().with_context(|| format!("GC of {}", network.name))?;
    }
    let config = site.hostile_agent().config(&json!({}));
    site.plugin.gc(&site.hostile.node, &config, &[])?.ok().context("GC of h1")?;
    Ok(())
}

/// Checks that a run directory has no records, claims and tombstones except `expected` ones. A DEL of a hostile config that can
/// never succeed is quarantined; it is reported while the agent may not run its IPAM plugin.
fn expect_empty(run_dir: &Path, expected: &dyn Fn(&str) -> bool) -> Result<bool> {
    let names = |dir: &Path| -> Vec<String> {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        entries.map(|entry| entry.path().display().to_string()).collect()
    };
    let mut held = names(&run_dir.join("tombstones"));
    held.retain(|path| !expected(path));
    for network in names(&run_dir.join("networks")) {
        for kind in ["attachments", "addresses"] {
            held.extend(names(&Path::new(&network).join(kind)));
        }
    }
    if held.is_empty() {
        return Ok(true);
    }
    held.truncate(10);
    bail!("{}", held.join(", "))
}

fn expect_no_pods(site: &SoakSite) -> Result<bool> {
    let node = &site.hostile.node;
    let links: Vec<String> = inspect::links(node)?.into_iter().map(|link| link.name).collect();
    let left: Vec<&String> = links.iter().filter(|name| name.starts_with("pw") && name.len() == 15).collect();
    ensure!(left.is_empty(), "{left:?}");
    for object in inspect::nft_json(node)? {
        for kind in ["set", "map"] {
            let name = object[kind]["name"].as_str().unwrap_or_default();
            if !["revision", "applied"].contains(&name) && !object[kind]["elem"].is_null() {
                bail!("elements in {kind} {name}: {}", object[kind]["elem"]);
            }
        }
    }
    Ok(true)
}

/// Standalone, the kernel selects IPv4 connections only; IPv6 addresses are cleaned before they are reused.
fn expect_no_connections(machine: &SoakNode) -> Result<bool> {
    let table = machine.node.run(&["cat", "/proc/net/nf_conntrack"], b"")?;
    let freed: Vec<IpNet> =
        ["10.42.0.0/16", "fd42::/64", "10.77.0.0/24"].iter().filter_map(|net| net.parse().ok()).collect();
    let gateways = |ip: &IpAddr| match ip {
        IpAddr::V4(ip) => matches!(ip.octets()[3], 0 | 1),
        IpAddr::V6(ip) => matches!(ip.octets()[15], 0 | 1),
    };
    let is_freed = |ip: IpAddr| freed.iter().any(|net| net.contains(&ip)) && !gateways(&ip);
    let source = |line: &str| {
        line.split_whitespace()
            .filter_map(|word| word.strip_prefix("src=")?.parse::<IpAddr>().ok())
            .any(is_freed)
    };
    let left: Vec<&str> = table.stdout.lines().filter(|line| source(line)).take(5).collect();
    ensure!(left.is_empty(), "{}: {}", machine.name, left.join("\n"));
    Ok(true)
}

fn status(soak: &Soak, site: &SoakSite) -> Result<()> {
    for machine in &site.machines {
        let fine = wait_until(&format!("{} to report no problems", machine.name), LONG, || {
            let status = site.cluster().agent(machine.name)?.get(api_status())?;
            ensure!(status["conditions"] == json!([]), "{}", status["conditions"]);
            ensure!(
                status["attachments"] == json!({"ready": 0, "pending": 0, "unreadable": 0}),
                "{}",
                status["attachments"]
            );
            Ok(true)
        });
        soak.step("status reports problems", fine);
        let socket = site.cluster().agent(machine.name)?.socket().display().to_string();
        for question in ["nodes", "routes", "blocks"] {
            let answered = wait_until(&format!("podwire {question} on {}", machine.name), LONG, || {
                let cluster = site.cluster();
                let outcome = cluster.agent(machine.name)?.podwire(&[question, "--socket", &socket])?;
                ensure!(outcome.success(), "{}{}", outcome.stdout, outcome.stderr);
                Ok(true)
            });
            soak.step("a command reports an inconsistency", answered);
        }
    }
    Ok(())
}

fn api_status() -> &'static str {
    "/v1/status"
}

/// All names belong to this run, because /run/netns is a private mount.
fn namespaces(soak: &Soak, site: &SoakSite) -> Result<()> {
    let cluster = site.cluster();
    let prefix = cluster.lab().prefix().to_owned();
    let expected: BTreeSet<String> = ["n1", "n2", "n3", "h1", "external", "underlay", "etcd1"]
        .map(|name| format!("{prefix}-{name}"))
        .into();
    let found = fs::read_dir("/run/netns").context("cannot list /run/netns")?.flatten();
    let found: BTreeSet<String> =
        found.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    for name in found.symmetric_difference(&expected) {
        soak.ledger.find("a namespace is left or lost", name.clone());
    }
    Ok(())
}

/// The pid namespace is private: only its init process, this program and the lab's services may run.
fn processes(soak: &Soak, site: &SoakSite) {
    let cluster = site.cluster();
    let mut expected: BTreeSet<u32> = [1, std::process::id()].into();
    expected.extend(site.machines.iter().filter_map(|machine| cluster.agent(machine.name).ok()?.pid()));
    expected.extend(site.hostile_agent().pid());
    expected.extend(cluster.etcd.members.iter().filter_map(testkit::EtcdMember::pid));
    for (pid, name) in monitor::processes() {
        // The shell that stops the lab's services with this program.
        if !expected.contains(&pid) && name != "sh" {
            soak.ledger.find("a process is left", name);
        }
    }
}

fn growth(soak: &Soak, watched: &AgentSizes) {
    for (name, first) in &watched.first {
        let Some(last) = watched.last.get(name) else { continue };
        let text = format!("{name}: first minute {first:?}, last minute {last:?}");
        println!("{text}");
        // In a shorter run, allocators and caches are still growing.
        let is_long = soak.options.lasting() >= LONG;
        if is_long && (last.rss_kib > first.rss_kib + MORE_KIB || last.files > first.files + MORE_FILES) {
            soak.ledger.find("an agent grew", text);
        }
    }
}
