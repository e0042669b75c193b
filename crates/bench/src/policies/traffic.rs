//! Traffic between two pods of one node, with the table of all policies and without. The node always tracks connections.

use std::net::IpAddr;

use anyhow::{Context as _, Result, ensure};
use model::objects::Direction;
use netlink::{Op, RtSocket};
use nft::desired::Table;
use nft::{Firewall, Surplus};
use policy::{PodEntry, PolicyElement, PolicyEngine, PolicyVerdict, ProfileId, World};
use policyproof::naive::{self, NaiveTier};
use policyproof::worlds::{all_changes, bench_world};
use policyproof::{Flow, JudgedFlow};
use testkit::{Lab, Node, Ns, Pod};
use types::IfName;

use super::compilation::{policy_table, size};
use crate::nodes::traffic::{NamespacePair, probe};
use crate::options::PolicyScale;

#[derive(Default)]
pub(crate) struct PolicyTraffic {
    pub(crate) policies: PolicyTrafficRounds,
    pub(crate) none: PolicyTrafficRounds,
}

#[derive(Default)]
pub(crate) struct PolicyTrafficRounds {
    /// Of an established connection, the median of each round.
    pub(crate) trip_us: Vec<f64>,
    pub(crate) connections_per_s: Vec<f64>,
}

/// Connections are tracked without policies, too: other parts of the firewall need it.
const TRACKING: &str = "table inet tracked { chain forward { type filter hook forward priority 0; ct state established accept; }; }";

pub(super) fn run(scale: &PolicyScale) -> Result<PolicyTraffic> {
    let world = bench_world(size(scale));
    let mut engine = PolicyEngine::new(world.local_node.clone());
    engine.apply(all_changes(&world));
    let elements: Vec<PolicyElement> = engine.elements().collect();
    let table = policy_table(&engine, &elements)?;
    let mut traffic = PolicyTraffic::default();
    // The memory layout of kernel tables differs between namespaces.
    for _ in 0..scale.traffic_sites {
        let site = TrafficPods::create(&world, &engine)?;
        for round in 0..scale.traffic_rounds {
            for has_policies in [round % 2 == 0, round % 2 != 0] {
                let rounds = if has_policies {
                    site.load(&table, &elements)?;
                    &mut traffic.policies
                } else {
                    site.remove()?;
                    &mut traffic.none
                };
                rounds.trip_us.push(probe::trips_on_one_core(&site.pair, scale.traffic)?);
                let connections = probe::connections_on_one_core(&site.pair, scale.traffic)?;
                rounds.connections_per_s.push(connections);
            }
        }
    }
    Ok(traffic)
}

/// Two pods of the world with real links.
struct TrafficPods {
    node: Node,
    pair: NamespacePair,
    _pods: [Pod; 2],
    _lab: Lab,
}

impl TrafficPods {
    fn create(world: &World, engine: &PolicyEngine) -> Result<Self> {
        let (from, to, port) = allowed_flow(world)?;
        let lab = Lab::new("policies")?;
        let node = lab.node("n1")?;
        let forwards = node.enter(|| std::fs::write("/proc/sys/net/ipv4/ip_forward", "1"))?;
        forwards.context("cannot turn on forwarding")?;
        node.sh(&["nft", TRACKING])?;
        let pods = [node.pod("from")?, node.pod("to")?];
        for (index, (pod, entry)) in pods.iter().zip([from, to]).enumerate() {
            let profile = engine.profile(&entry.uid).context("a pod has no profile")?;
            connect(&node, pod, &format!("pw{index}"), (v4(entry)?, profile))?;
        }
        let pair = NamespacePair { from: (*pods[0]).clone(), to: (*pods[1]).clone(), address: v4(to)?, port };
        Ok(Self { node, pair, _pods: pods, _lab: lab })
    }

    fn load(&self, table: &Table, elements: &[PolicyElement]) -> Result<()> {
        self.node
            .enter(|| Firewall::open()?.reconcile_policies(table, elements, Surplus::Remove).map(drop))??;
        Ok(())
    }

    fn remove(&self) -> Result<()> {
        self.node.enter(|| Firewall::open()?.remove_policies().map(drop))??;
        Ok(())
    }
}

fn v4(pod: &PodEntry) -> Result<IpAddr> {
    let mut all = pod.addresses.iter().flatten();
    all.find(|address| address.is_ipv4()).copied().context("a pod has no IPv4 address")
}

/// Two local pods and a port that a NetworkPolicy of the second one allows.
fn allowed_flow(world: &World) -> Result<(&PodEntry, &PodEntry, u16)> {
    let local: Vec<&PodEntry> = world.pods.values().filter(|pod| pod.node == world.local_node).collect();
    for to in &local {
        let port = to.identity.ports.first().context("a pod has no port")?.port;
        for from in local.iter().filter(|from| from.uid != to.uid) {
            let flow = Flow { source: v4(from)?, destination: v4(to)?, protocol: 6, port: Some(port) };
            let is_accepted = naive::verdict(world, &flow).verdict() == PolicyVerdict::Accept;
            let is_allowed = |end: &JudgedFlow| {
                end.direction == Direction::Ingress
                    && naive::judge(world, to, end.direction, &flow).tier == NaiveTier::NetworkPolicy
            };
            if is_accepted && JudgedFlow::of(world, &flow).iter().any(is_allowed) {
                return Ok((from, to, port));
            }
        }
    }
    anyhow::bail!("no NetworkPolicy allows a flow between two pods of the node")
}

fn ip(ns: &Ns, line: &str) -> Result<()> {
    let argv: Vec<&str> = ["ip"].into_iter().chain(line.split(' ')).collect();
    ns.sh(&argv).map(drop)
}

fn connect(node: &Node, pod: &Pod, link: &str, (address, profile): (IpAddr, ProfileId)) -> Result<()> {
    ip(node, &format!("link add {link} type veth peer name eth0 netns {}", pod.name()))?;
    ip(node, &format!("addr add 169.254.1.1/32 dev {link}"))?;
    ip(node, &format!("link set {link} up"))?;
    ip(pod, &format!("addr add {address}/32 dev eth0"))?;
    ip(pod, "link set eth0 up")?;
    ip(pod, "route add 169.254.1.1 dev eth0")?;
    ip(pod, "route add default via 169.254.1.1")?;
    ip(node, &format!("route add {address} dev {link}"))?;
    let name = IfName::try_from(link)?;
    node.enter(|| -> Result<()> {
        let mut socket = RtSocket::open()?;
        let index = socket.link(&name)?.context("the link does not exist")?.index;
        socket.run(&Op::SetLinkGroup { link: index, group: profile.0 })?;
        ensure!(
            socket.link(&name)?.is_some_and(|link| link.group == profile.0),
            "the link has another group"
        );
        Ok(())
    })?
}
