//! Converts an attachment to a CNI result.

use cni::{CniResult, Dns, Interface, IpConfig, PodRoute};

use crate::bridge::Bridge;
use crate::state::Attachment;
use crate::veth::gateway_of;

/// The result of an ADD, appended to the result of earlier plugins in the chain.
pub(crate) fn of_attachment(
    attachment: &Attachment,
    bridge: &Bridge,
    routes: &[PodRoute],
    before: Option<&CniResult>,
) -> CniResult {
    let mut result = before.cloned().unwrap_or_default();
    let first = result.interfaces.len();
    let link = |name: &str, mac: Option<String>, sandbox: Option<String>| Interface {
        name: name.to_owned(),
        mac,
        mtu: Some(attachment.mtu),
        sandbox,
        socket_path: None,
        pci_id: None,
    };
    result.interfaces.extend([
        link(bridge.name.as_str(), bridge.mac.map(|m| m.to_string()), None),
        link(attachment.host_link.as_str(), Some(attachment.host_mac.to_string()), None),
        link(
            attachment.key.ifname.as_str(),
            Some(attachment.pod_mac.to_string()),
            Some(attachment.netns.clone()),
        ),
    ]);
    result.ips.extend(attachment.addresses.iter().map(|a| IpConfig {
        address: a.address,
        gateway: a.gateway,
        interface: Some(first + 2),
    }));
    result.routes.extend(routes.iter().map(|r| PodRoute { gw: gateway_of(attachment, r), ..r.clone() }));
    result
}

/// DNS from the config. If the config has none, DNS from a delegated IPAM plugin, else from the chain.
pub(crate) fn with_dns(mut result: CniResult, dns: &Dns, delegated: &Dns) -> CniResult {
    if let Some(dns) = [dns, delegated].into_iter().find(|dns| !dns.is_empty()) {
        result.dns = dns.clone();
    }
    result
}
