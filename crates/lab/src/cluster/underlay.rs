//! The network between the nodes: one namespace with a bridge for each subnet, which is also the router between them.
//! Every link has both ends inside namespaces of the lab; nothing touches the machine's own network.

use std::fs;
use std::net::IpAddr;

use anyhow::{Context as _, Result};

use super::plan::{Plan, UnderlayHost};
use crate::lab::{ip, ip_batch};
use crate::{DEADLINE, Lab, Node, Ns, inspect, wait_until};

pub(super) const NAME: &str = "underlay";
/// A host's one link.
pub(super) const UPLINK: &str = "eth0";
const FORWARDING: [&str; 2] = ["/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv6/conf/all/forwarding"];

/// A host's link, as it is on the router's side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Port {
    /// Frames are dropped both ways; the host's link is up as before, as when a switch in between dies.
    Cut,
    Whole,
}

pub(super) fn make(lab: &Lab, plan: &Plan) -> Result<Node> {
    let underlay = lab.node(NAME)?;
    let switched = underlay.enter(|| FORWARDING.iter().try_for_each(|path| fs::write(path, "1")))?;
    switched.with_context(|| format!("cannot turn on forwarding in {}", underlay.name()))?;
    let mut lines = Vec::new();
    for subnet in plan.underlay_subnets() {
        let (dev, place) = (bridge(subnet), plan.router_place(subnet));
        // Snooping needs somebody who asks for members of groups, and there is nobody. Without a MAC of its own a bridge takes
        // that of a port, and another one when that port goes: hosts would know the router by the wrong one.
        let (mtu, mac) = (plan.mtu, &place.mac);
        lines.push(format!("link add {dev} mtu {mtu} address {mac} type bridge mcast_snooping 0"));
        lines.extend(configured(&dev, &place));
    }
    ip_batch(&underlay, &lines)?;
    Ok(underlay)
}

/// Gives a host its link, addresses and default routes; when this returns the link carries.
pub(super) fn plug_in(underlay: &Ns, host: (&Node, &str), place: &UnderlayHost, plan: &Plan) -> Result<()> {
    let (node, name) = host;
    let (peer, mtu, mac, dev) = (node.name(), plan.mtu, &place.mac, bridge(place.subnet));
    ip_batch(
        underlay,
        &[
            format!(
                "link add {name} mtu {mtu} type veth peer name {UPLINK} mtu {mtu} address {mac} netns {peer}"
            ),
            format!("link set dev {name} addrgenmode none"),
            format!("link set dev {name} master {dev} up"),
        ],
    )?;
    let mut lines = configured(UPLINK, place);
    let router = plan.router_place(place.subnet);
    lines.extend(
        router.addresses.iter().map(|at| format!("route add default via {} dev {UPLINK}", at.addr())),
    );
    ip_batch(node, &lines)?;
    let what = format!("link {UPLINK} in {} to carry", node.name());
    wait_until(&what, DEADLINE, || Ok(inspect::link(node, UPLINK)?.operstate == "UP"))
}

/// Takes a host's link away at once; the kernel would do it some time after its namespace. One that is gone is fine.
pub(super) fn pull_out(underlay: &Ns, name: &str) -> Result<()> {
    let removed = ip(&["-n", underlay.name(), "link", "del", "dev", name]).map(drop);
    removed.or_else(|error| {
        let is_there = inspect::links(underlay)?.iter().any(|link| link.name == name);
        if is_there { Err(error) } else { Ok(()) }
    })
}

pub(super) fn set_port(underlay: &Ns, name: &str, port: Port) -> Result<()> {
    let state = match port {
        Port::Cut => "disabled",
        Port::Whole => "forwarding",
    };
    // `ip link set … type bridge_slave state` is taken and does nothing.
    underlay.sh(&["bridge", "link", "set", "dev", name, "state", state]).map(drop)
}

/// A host that forwards asks for neighbours from its link-local address, so there is one at once, and none that the
/// kernel makes at a time of its own choosing.
fn configured(dev: &str, place: &UnderlayHost) -> Vec<String> {
    let mut lines = vec![format!("link set dev {dev} addrgenmode none")];
    for net in place.addresses.iter().chain([&place.link_local]) {
        let nodad = if matches!(net.addr(), IpAddr::V6(_)) { " nodad" } else { "" };
        lines.push(format!("addr add {net} dev {dev}{nodad}"));
    }
    lines.push(format!("link set dev {dev} up"));
    lines
}

fn bridge(subnet: usize) -> String {
    format!("net{subnet}")
}
