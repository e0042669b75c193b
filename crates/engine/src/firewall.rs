//! The attachment as the firewall sees it.

use std::net::IpAddr;

use nft::conntrack::{self, Family};
use nft::{Firewall, Guard, HostPort, NetworkChain, Pod, Stray};
use types::IfName;

use crate::Error;
use crate::state::{Attachment, StateError};

/// Does the attachment have anything in the firewall? One that asks for nothing needs no nftables at all.
fn is_needed(attachment: &Attachment) -> bool {
    attachment.spoof_check || attachment.masquerade_outside.is_some() || !attachment.ports.is_empty()
}

fn with_pod<T>(attachment: &Attachment, f: impl FnOnce(&Pod<'_>) -> T) -> T {
    let addresses: Vec<IpAddr> = attachment.ips().collect();
    let chain =
        attachment.masquerade_outside.as_ref().map(|cidrs| NetworkChain::new(&attachment.key.network, cidrs));
    let ports: Vec<HostPort> = host_ports(attachment).collect();
    f(&Pod {
        link: &attachment.host_link,
        mac: attachment.pod_mac,
        mode: attachment.mode,
        addresses: &addresses,
        masquerade: chain.as_ref(),
        guard: if attachment.spoof_check { Guard::On } else { Guard::Off },
        ports: &ports,
    })
}

/// A port without a host address is published in every family that the pod has.
fn host_ports(attachment: &Attachment) -> impl Iterator<Item = HostPort> {
    attachment.ports.iter().flat_map(|port| {
        let same_family = move |pod: &IpAddr| port.host_ip.is_none_or(|host| host.is_ipv4() == pod.is_ipv4());
        attachment.ips().filter(same_family).map(move |pod| HostPort {
            host_ip: port.host_ip,
            host_port: port.host_port,
            protocol: port.protocol,
            pod,
            pod_port: port.container_port,
        })
    })
}

pub(crate) fn admit(attachment: &Attachment) -> Result<(), Error> {
    if !is_needed(attachment) {
        return Ok(());
    }
    Ok(with_pod(attachment, |pod| {
        Firewall::open()?.admit(pod)?;
        // Datagrams that kept coming while nobody had the port would go on to nowhere.
        if pod.ports.is_empty() { Ok(()) } else { conntrack::flush_ports(pod.ports) }
    })?)
}

pub(crate) fn expel(attachment: &Attachment) -> Result<(), Error> {
    if !is_needed(attachment) {
        return Ok(());
    }
    Ok(with_pod(attachment, |pod| Firewall::open()?.expel(pod))?)
}

/// Removes what a pod has in the firewall of which only link and addresses are known.
pub(crate) fn sweep(link: &IfName, addresses: &[IpAddr]) -> Result<(), Error> {
    Ok(Firewall::open()?.sweep(&Stray { link, addresses })?)
}

/// Removes the connections of all addresses of a range that nobody has now.
pub(crate) fn forget_flows(range: &ipam::Range, is_used: &dyn Fn(IpAddr) -> bool) -> Result<(), StateError> {
    let family = if range.is_ipv4() { Family::V4 } else { Family::V6 };
    conntrack::sweep(family, &|ip| range.contains(ip) && !is_used(ip))
        .map_err(|e| StateError::Clean { range: range.to_string(), reason: e.to_string() })
}

pub(crate) fn missing(attachment: &Attachment) -> Result<Vec<String>, Error> {
    if !is_needed(attachment) {
        return Ok(Vec::new());
    }
    let missing = with_pod(attachment, |pod| Firewall::open()?.missing(pod))?;
    Ok(missing.into_iter().map(|what| format!("firewall {what}")).collect())
}
