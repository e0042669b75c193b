//! The network between the nodes: one namespace with a bridge per subnet, which also routes between the subnets.
//! Both ends of every link are inside the lab's namespaces; the host's own network is not changed.

use std::fs;
use std::net::IpAddr;

use anyhow::{Context as _, Result};

use super::plan::{Plan, UnderlayHost};
use crate::lab::{ip, ip_batch};
use crate::{DEADLINE, Lab, Node, Ns, inspect, wait_until};

pub(super) const NAME: &str = "underlay";
/// The only link of a host.
pub(super) const UPLINK: &str = "eth0";
const FORWARDING: [&str; 2] = ["/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv6/conf/all/forwarding"];

/// State of a host's bridge port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Port {
    /// Frames are dropped in both directions and the host's link stays up, as when a switch between the hosts fails.
    Cut,
    Forwarding,
}

pub(super) fn create(lab: &Lab, plan: &Plan) -> Result<Node> {
    let underlay = lab.node(NAME)?;
    let written = underlay.enter(|| FORWARDING.iter().try_for_each(|path| fs::write(path, "1")))?;
    written.with_context(|| format!("cannot turn on forwarding in {}", underlay.name()))?;
    let mut lines = Vec::new();
    for subnet in plan.underlay_subnets() {
        let (dev, underlay_host) = (bridge(subnet), plan.router_host(subnet));
        // Multicast snooping needs a querier, and the lab has none. A bridge without a fixed MAC uses that of a port and changes
        // it when the port is removed; the hosts' neighbour entries for the router would then be stale.
        let (mtu, mac) = (plan.mtu, &underlay_host.mac);
        lines.push(format!("link add {dev} mtu {mtu} address {mac} type bridge mcast_snooping 0"));
        lines.extend(address_commands(&dev, &underlay_host));
    }
    ip_batch(&underlay, &lines)?;
    Ok(underlay)
}

/// Creates a host's link, addresses and default routes, and waits until the link is operational.
pub(super) fn plug_in(
    underlay: &Ns,
    host: (&Node, &str),
    underlay_host: &UnderlayHost,
    plan: &Plan,
) -> Result<()> {
    let (node, name) = host;
    let (peer, mtu, mac, dev) = (node.name(), plan.mtu, &underlay_host.mac, bridge(underlay_host.subnet));
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
    restore(node, underlay_host, plan)
}

/// Sets a host's link up, adds the addresses and default routes that it lacks, and waits until the link is operational.
pub(super) fn restore(node: &Node, underlay_host: &UnderlayHost, plan: &Plan) -> Result<()> {
    let mut lines = address_commands(UPLINK, underlay_host);
    let router = plan.router_host(underlay_host.subnet);
    lines.extend(
        router.addresses.iter().map(|net| format!("route replace default via {} dev {UPLINK}", net.addr())),
    );
    ip_batch(node, &lines)?;
    let what = format!("link {UPLINK} in {} to be up", node.name());
    wait_until(&what, DEADLINE, || Ok(inspect::link(node, UPLINK)?.operstate == "UP"))
}

/// Removes a host's link immediately. The kernel would remove it some time after the namespace. A missing link is not an
/// error.
pub(super) fn unplug(underlay: &Ns, name: &str) -> Result<()> {
    let removed = ip(&["-n", underlay.name(), "link", "del", "dev", name]).map(drop);
    removed.or_else(|error| {
        let exists = inspect::links(underlay)?.iter().any(|link| link.name == name);
        if exists { Err(error) } else { Ok(()) }
    })
}

pub(super) fn set_port(underlay: &Ns, name: &str, port: Port) -> Result<()> {
    let state = match port {
        Port::Cut => "disabled",
        Port::Forwarding => "forwarding",
    };
    // `ip link set … type bridge_slave state` succeeds but has no effect.
    underlay.sh(&["bridge", "link", "set", "dev", name, "state", state]).map(drop)
}

/// A forwarding host sends neighbour solicitations from its link-local address. The lab sets a fixed one, because the kernel
/// would generate it later.
fn address_commands(dev: &str, underlay_host: &UnderlayHost) -> Vec<String> {
    let mut lines = vec![format!("link set dev {dev} addrgenmode none")];
    for net in underlay_host.addresses.iter().chain([&underlay_host.link_local]) {
        let nodad = if matches!(net.addr(), IpAddr::V6(_)) { " nodad" } else { "" };
        lines.push(format!("addr replace {net} dev {dev}{nodad}"));
    }
    lines.push(format!("link set dev {dev} up"));
    lines
}

fn bridge(subnet: usize) -> String {
    format!("net{subnet}")
}
