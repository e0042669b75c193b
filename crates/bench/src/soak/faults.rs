//! Fault injection: kills agents, stops etcd, flushes firewalls, deletes links and routes.

use std::thread::Scope;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use testkit::{Random, inspect, wait_until};

use crate::Soak;
use crate::options::Attack;
use crate::site::{LONG, NEVER_KILLED, ServedBy, SoakNode, SoakSite, snapshot_lines};

/// Time until all frames in flight have arrived.
const IN_FLIGHT: Duration = Duration::from_millis(100);

pub(crate) fn start<'scope>(scope: &'scope Scope<'scope, '_>, soak: &'scope Soak, site: &'scope SoakSite) {
    if soak.has(Attack::AgentKills) {
        for (number, machine) in
            site.machines.iter().enumerate().filter(|(_, machine)| machine.name != NEVER_KILLED)
        {
            let random = soak.random(300 + number as u64);
            scope.spawn(move || kill_agents(soak, site, machine.name, random));
        }
        scope.spawn(move || kill_hostile(soak, site));
    }
    if soak.has(Attack::Etcd) {
        scope.spawn(move || stop_etcd(soak, site));
    }
    if soak.has(Attack::Flush) {
        scope.spawn(move || flush(soak, site));
    }
    if soak.has(Attack::Drift) {
        scope.spawn(move || drift(soak, site));
    }
}

fn kill_agents(soak: &Soak, site: &SoakSite, name: &str, mut random: Random) {
    while !soak.is_over() {
        soak.pause(&mut random, 500, 6000);
        let killed = kill_agent(soak, site, name, &mut random);
        soak.step("an agent cannot be killed and started", killed);
    }
}

fn kill_agent(soak: &Soak, site: &SoakSite, name: &str, random: &mut Random) -> Result<()> {
    {
        let mut cluster = site.cluster();
        let agent = cluster.agent_mut(name)?;
        if agent.has_ended()? {
            let log = agent.log()?;
            let tail: Vec<&str> = log.lines().rev().take(5).collect();
            soak.ledger.find("an agent exited unexpectedly", format!("{name}: {}", tail.join(" | ")));
        } else {
            agent.kill()?;
            soak.ledger.count("agents killed");
        }
    }
    std::thread::sleep(Duration::from_millis(random.below(1500)));
    site.cluster().agent_mut(name)?.launch()?;
    // Every third agent is killed before or as soon as it is ready.
    if random.below(3) > 0 {
        wait_until(&format!("agent {name} to be ready"), LONG, || {
            Ok(site.cluster().agent(name)?.is_ready())
        })?;
    }
    Ok(())
}

fn kill_hostile(soak: &Soak, site: &SoakSite) {
    let mut random = soak.random(310);
    while !soak.is_over() {
        soak.pause(&mut random, 3000, 12_000);
        let restarted = site.hostile_agent().restart();
        soak.step("the agent of h1 does not restart", restarted);
        soak.ledger.count("agents killed");
    }
}

fn stop_etcd(soak: &Soak, site: &SoakSite) {
    let mut random = soak.random(320);
    while !soak.is_over() {
        soak.pause(&mut random, 6000, 20_000);
        let is_killed = random.coin();
        let stopped = {
            let mut cluster = site.cluster();
            let member = &mut cluster.etcd.members[0];
            if is_killed { member.kill() } else { member.stop() }
        };
        soak.step("etcd cannot be stopped", stopped);
        soak.ledger.count("etcd outages");
        soak.pause(&mut random, 500, 5000);
        let started = site.cluster().etcd.members[0].start();
        soak.step("etcd cannot be started", started);
    }
}

fn flush(soak: &Soak, site: &SoakSite) {
    let mut random = soak.random(330);
    while !soak.is_over() {
        soak.pause(&mut random, 4000, 12_000);
        let machine = &site.machines[random.below(site.machines.len() as u64) as usize];
        // Hostile frames are paused until the firewall is restored.
        let _changed = soak.while_firewall_is_changed();
        std::thread::sleep(IN_FLIGHT);
        let flushed = machine.node.sh(&["nft", "flush", "ruleset"]).map(drop);
        soak.step("a firewall cannot be flushed", flushed);
        soak.ledger.count("firewalls flushed");
        let restored =
            wait_until(&format!("the firewall of {}", machine.name), LONG, || is_guarded(site, machine));
        soak.step("a firewall is not restored", restored);
    }
}

/// True if the node's firewall has all base rules, and the sets contain all permanent pods of the node.
pub(crate) fn is_guarded(site: &SoakSite, machine: &SoakNode) -> Result<bool> {
    for network in
        site.networks.iter().filter(|n| n.node_name == machine.name && n.through == ServedBy::Plugin)
    {
        // STATUS restores missing rules and reports this once.
        site.plugin.status(&network.node, &network.config)?.ok().context("STATUS")?;
    }
    let now = snapshot_lines(&machine.node)?;
    let before = site.before.iter().find(|(node, _)| node.name() == machine.node.name());
    let (_, before) = before.context("the node has no snapshot")?;
    for line in before.iter().filter(|line| line.starts_with("nft ")) {
        ensure!(now.contains(line), "missing: {line}");
    }
    let elements: Vec<&String> = now.iter().filter(|line| line.starts_with("nft element ")).collect();
    for permanent in site.permanent_pods.iter().filter(|a| site.networks[a.network].node_name == machine.name)
    {
        for ip in &permanent.ips {
            let (link, ip) = (format!("\"{}\"", permanent.host_link), format!("\"{ip}\""));
            ensure!(
                elements.iter().any(|line| line.contains(&link) && line.contains(&ip)),
                "no element of {ip}"
            );
        }
    }
    Ok(true)
}

/// Deletes one object at a time. It is restored, or its pod is deleted later.
fn drift(soak: &Soak, site: &SoakSite) {
    let mut random = soak.random(340);
    while !soak.is_over() {
        soak.pause(&mut random, 500, 3000);
        let machine = &site.machines[random.below(site.machines.len() as u64) as usize];
        let deleted = delete_something(site, machine, &mut random);
        match deleted {
            Ok(what) => soak.ledger.count(&format!("deleted: {what}")),
            Err(error) => soak.ledger.find("an object cannot be deleted", format!("{error:#}")),
        }
    }
}

/// A missing object is not an error.
fn delete_something(site: &SoakSite, machine: &SoakNode, random: &mut Random) -> Result<&'static str> {
    let node = &machine.node;
    let run = |line: &str| -> Result<()> {
        let argv: Vec<&str> = line.split(' ').collect();
        node.run(&argv, b"").map(drop)
    };
    let family = random.pick(&["-4", "-6"]);
    Ok(match random.below(5) {
        0 => {
            run(&format!("ip {family} route flush proto 113"))?;
            "routes to other nodes"
        }
        1 => {
            run(&format!("ip {family} route flush proto 112"))?;
            "routes to pods"
        }
        2 => {
            run(&format!("ip link del {}", random.pick(&["pwvx4", "pwvx6"])))?;
            "a tunnel"
        }
        3 => {
            let permanent_pods: Vec<&str> =
                site.permanent_pods.iter().map(|permanent| permanent.host_link.as_str()).collect();
            let links = inspect::links(node)?.into_iter().map(|link| link.name);
            let pods: Vec<String> = links
                .filter(|name| {
                    name.starts_with("pw") && name.len() == 15 && !permanent_pods.contains(&name.as_str())
                })
                .collect();
            if pods.is_empty() {
                return Ok("nothing: no pod");
            }
            run(&format!("ip link del {}", pods[random.below(pods.len() as u64) as usize]))?;
            "the link of a pod"
        }
        _ => {
            run(&format!("ip {family} neigh flush nud permanent all"))?;
            "permanent neighbours"
        }
    })
}
