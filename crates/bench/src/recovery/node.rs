//! Faults of a single node.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use testkit::{Agent, CableEnd, DEADLINE, Lab, Node, Plugin, Pod, udp_echo};

use super::{Recovery, window};
use crate::firewall::{Timed, note};
use crate::options::Scale;

/// Additional pods; also the maximum number of measured DELs.
const OTHER_PODS: usize = 50;
/// Longer than a round trip to another namespace.
const ANSWER: Duration = Duration::from_millis(2);
const PORT: u16 = 8080;
/// Longer than the agent's pause after a repair, which is at most 0.4 s.
const REST: Duration = Duration::from_millis(600);

/// A node with an agent that reacts only to events, and an external host.
pub(super) struct Host {
    plugin: Plugin,
    agent: Agent,
    pub(super) node: Node,
    out: Node,
    /// The pod with the host port 8080/UDP.
    pub(super) victim: Attached,
    pub(super) attacker: Attached,
    other_pods: Vec<Pod>,
    _lab: Lab,
}

/// A pod and the result of its ADD.
pub(super) struct Attached {
    pub(super) pod: Pod,
    result: Value,
}

impl Attached {
    pub(super) fn address(&self, is_v4: bool) -> Result<IpAddr> {
        let all = self.result["ips"].as_array().into_iter().flatten();
        let mut ips = all.filter_map(|ip| ip["address"].as_str()?.split('/').next()?.parse::<IpAddr>().ok());
        ips.find(|ip| ip.is_ipv4() == is_v4).context("the pod has no address of the family")
    }

    /// The MACs of the host end and the pod end.
    pub(super) fn macs(&self) -> Result<(&str, &str)> {
        let all = self.result["interfaces"].as_array().context("the result has no interfaces")?;
        let mac = |in_pod: bool| {
            let mut ends = all.iter().filter(|end| {
                let is_end = end["name"].as_str().is_some_and(|name| in_pod || name.starts_with("pw"));
                is_end && end["sandbox"].as_str().is_some_and(|path| !path.is_empty()) == in_pod
            });
            ends.next().and_then(|end| end["mac"].as_str()).context("an interface has no MAC")
        };
        Ok((mac(false)?, mac(true)?))
    }
}

pub(super) fn run(mode: &str, scale: &Scale, recovery: &mut Recovery) -> Result<()> {
    let mut host = Host::new(mode, scale.running_pods.min(OTHER_PODS))?;
    let mut times = Timed::new();
    for is_v4 in [true, false] {
        let family = if is_v4 { "IPv4" } else { "IPv6" };
        host.host_port((is_v4, family), scale.faults, &mut times)?;
        let windows = window::measure(&host, mode == "bridge", is_v4, scale.faults)?;
        windows.report(&format!("{mode}, {family}"), &mut times, &mut recovery.remarks);
    }
    host.firewall(scale.faults, &mut times)?;
    host.socket(scale.faults, &mut times)?;
    host.del_without_agent(scale.faults, &mut times)?;
    let named = |(what, sample)| (format!("recovery, {mode}: {what}"), sample);
    recovery.times.extend(times.into_iter().map(named));
    Ok(())
}

impl Host {
    fn new(mode: &str, other_pods: usize) -> Result<Self> {
        let lab = Lab::new("recovery")?;
        let (node, out) = (lab.node("n1")?, lab.node("out")?);
        let here = CableEnd { ns: &node, dev: "up0", addresses: &["192.0.2.1/24", "2001:db8::1/64"] };
        let there = CableEnd { ns: &out, dev: "eth0", addresses: &["192.0.2.2/24", "2001:db8::2/64"] };
        lab.wire(&here, &there)?;
        // Only events trigger repairs; the periodic comparison would distort the times.
        let flags = ["--no-install", "--network-mode", mode, "--reconcile-seconds", "3600"];
        let agent = Agent::start(&node, &flags)?;
        let plugin = Plugin::podwire()?;
        let add = |name: &str, more: &Value| -> Result<Attached> {
            let pod = node.pod(name)?;
            let result = plugin.add(&pod, &agent.config(more))?.ok()?;
            Ok(Attached { pod, result })
        };
        let port = json!([{ "hostPort": PORT, "containerPort": PORT, "protocol": "udp" }]);
        let victim = add("victim", &json!({ "runtimeConfig": { "portMappings": port } }))?;
        let attacker = add("attacker", &json!({}))?;
        let other_pods = (0..other_pods).map(|number| Ok(add(&format!("p{number}"), &json!({}))?.pod));
        let other_pods = other_pods.collect::<Result<Vec<Pod>>>()?;
        Ok(Self { plugin, agent, node, out, victim, attacker, other_pods, _lab: lab })
    }

    /// Waits until the agent's pause after the last repair is over.
    pub(super) fn flush(&self) -> Result<()> {
        std::thread::sleep(REST);
        self.node.sh(&["nft", "flush", "ruleset"]).map(drop)
    }

    /// All rules and elements, independent of their order.
    pub(super) fn ruleset(&self) -> Result<BTreeSet<String>> {
        let text = self.node.sh(&["nft", "--stateless", "list", "ruleset"])?;
        Ok(text.split([',', '\n', '{', '}']).map(|part| part.trim().to_owned()).collect())
    }

    /// Waits until the listed rules equal the earlier ones, and returns that time.
    pub(super) fn wait_until_restored(&self, before: &BTreeSet<String>) -> Result<Instant> {
        let end = Instant::now() + DEADLINE;
        loop {
            let asked = Instant::now();
            if self.ruleset()? == *before {
                return Ok(asked);
            }
            ensure!(asked < end, "the firewall is not restored {DEADLINE:?} after the flush");
        }
    }

    fn firewall(&self, rounds: usize, times: &mut Timed) -> Result<()> {
        let before = self.ruleset()?;
        for _ in 0..rounds {
            self.flush()?;
            let flushed = Instant::now();
            let whole = self.wait_until_restored(&before)?;
            let what = format!("flush to whole firewall, {} pods", self.other_pods.len() + 2);
            note(times, &what, whole.saturating_duration_since(flushed));
        }
        Ok(())
    }

    fn host_port(&self, (is_v4, family): (bool, &str), rounds: usize, times: &mut Timed) -> Result<()> {
        let _echo = udp_echo(&self.victim.pod, (self.victim.address(is_v4)?, PORT).into())?;
        let node: IpAddr = if is_v4 {
            Ipv4Addr::new(192, 0, 2, 1).into()
        } else {
            Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into()
        };
        let published = SocketAddr::from((node, PORT));
        self.out.enter(|| first_answer(published))??;
        let before = self.ruleset()?;
        for _ in 0..rounds {
            self.flush()?;
            let flushed = Instant::now();
            let answered = self.out.enter(|| first_answer(published))??;
            let what = format!("flush to answer of a hostPort, {family}");
            note(times, &what, answered.saturating_duration_since(flushed));
            self.wait_until_restored(&before)?;
        }
        Ok(())
    }

    fn socket(&self, rounds: usize, times: &mut Timed) -> Result<()> {
        for _ in 0..rounds {
            fs::remove_file(self.agent.socket()).context("cannot remove the agent's socket")?;
            let removed = Instant::now();
            while self.agent.client().get(api::HEALTH, DEADLINE).is_err() {
                ensure!(removed.elapsed() < DEADLINE, "the socket is not restored after {DEADLINE:?}");
                std::thread::sleep(Duration::from_millis(1));
            }
            note(times, "removed socket to answer", removed.elapsed());
        }
        Ok(())
    }

    /// Kills the agent. The plugin leaves a tombstone, and the restarted agent processes it.
    fn del_without_agent(&mut self, rounds: usize, times: &mut Timed) -> Result<()> {
        for pod in self.other_pods.iter().take(rounds) {
            self.agent.kill()?;
            let outcome = self.plugin.del(pod, &self.agent.config(&json!({})))?;
            outcome.ok()?;
            note(times, "DEL without the agent", outcome.elapsed);
            let begun = Instant::now();
            self.agent.launch()?;
            self.agent.wait_ready()?;
            note(times, "start of the agent to ready", begun.elapsed());
        }
        Ok(())
    }
}

/// The send time of the first datagram with a reply. Each datagram has another source port, because conntrack keeps flows that
/// were not translated.
fn first_answer(to: SocketAddr) -> Result<Instant> {
    let any: IpAddr = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let end = Instant::now() + DEADLINE;
    loop {
        let socket = UdpSocket::bind((any, 0)).context("cannot bind a socket")?;
        socket.connect(to)?;
        socket.set_read_timeout(Some(ANSWER))?;
        let sent = Instant::now();
        match socket.send(b"?").and_then(|_| socket.recv(&mut [0; 64])) {
            Ok(_) => return Ok(sent),
            Err(error)
                if [ErrorKind::WouldBlock, ErrorKind::TimedOut, ErrorKind::ConnectionRefused]
                    .contains(&error.kind()) => {}
            Err(error) => return Err(error).with_context(|| format!("cannot receive from {to}")),
        }
        ensure!(sent < end, "{to} did not reply within {DEADLINE:?}");
    }
}
