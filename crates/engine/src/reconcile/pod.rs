//! Changes of pod interfaces that reconcile does not undo, because the pod's processes or its DHCP client may have made them.

use netlink::Link;
use types::{AttachMode, Code, Finding, Fix};

use super::pod_drift;
use crate::Error;
use crate::state::{Addressing, Attachment};

/// How addresses and routes of a pod are restored after its interface was repaired. The kernel removes both if the interface is
/// moved, and the routes if it is set down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Restore {
    ByAgent,
    /// Without an agent the pod has to be restarted.
    ByRestart,
}

/// The condition of a pod's interface that was moved or renamed, has another MAC, lost its lease or cannot be inspected.
/// `links` are the links of the host.
pub(crate) fn pod_finding(
    attachment: &Attachment,
    links: &[Link],
    restore: Restore,
) -> Result<Option<Finding>, Error> {
    let Some(host) = links.iter().find(|link| link.name == attachment.host_link.as_str()) else {
        // Reconcile creates it again, or the pod was removed.
        return Ok(None);
    };
    if attachment.netns_cookie.is_none() {
        return Ok(Some(not_inspected(attachment)));
    }
    let Some(mut pod) = pod_drift::open(attachment)? else { return Ok(None) };
    match pod.link(&attachment.key.ifname)? {
        Some(link) => Ok(changed_mac(attachment, &link, restore).or_else(|| expired(attachment, &link))),
        None => Ok(Some(moved(attachment, host, (&pod.links()?, links), restore))),
    }
}

fn not_inspected(attachment: &Attachment) -> Finding {
    let Attachment { key, host_link, .. } = attachment;
    let message = format!(
        "the record was recovered from link {host_link}, which does not name the pod's network namespace: changes inside the \
         pod are neither reported nor repaired until the pod is restarted"
    );
    Finding::new(Code::PodNotInspected, format_args!("attachment {key}"), message)
}

/// A bridged pod without the anti-spoofing filter may change its MAC, and neighbours learn it. The kernel removes the link's
/// neighbours when its MAC changes. A routed pod has permanent neighbours, which only the agent restores.
fn changed_mac(attachment: &Attachment, link: &Link, restore: Restore) -> Option<Finding> {
    let Attachment { key, pod_mac, .. } = attachment;
    let may_change = attachment.mode == AttachMode::Bridge && !attachment.spoof_check;
    let mac = link.mac.filter(|mac| mac != pod_mac && !may_change)?;
    let ifname = key.ifname.as_str();
    let message = format!("{ifname} has the MAC {mac} instead of {pod_mac}: the pod's packets are dropped");
    let object = format_args!("attachment {key}");
    Some(match (attachment.mode, restore) {
        (AttachMode::Bridge, _) | (AttachMode::Routed, Restore::ByAgent) => {
            let fix = set_link_command(attachment, ifname, &["address", &pod_mac.to_string()]);
            Finding::new(Code::PodMacChanged, object, message).fix(fix)
        }
        (AttachMode::Routed, Restore::ByRestart) => {
            Finding::new(Code::PodMacChanged, object, format!("{message}; restart the pod"))
        }
    })
}

/// The command that changes a link inside the pod. Processes in the pod may have chosen the link's name.
fn set_link_command(attachment: &Attachment, link: &str, change: &[&str]) -> Fix {
    let netns = format!("--net={}", attachment.netns);
    Fix::words([&["nsenter", &netns, "ip", "link", "set", "dev", link], change].concat())
}

/// Whether the DHCP client has set the interface down. It does so when the lease expires, and the server may assign the address
/// to another host.
pub(super) fn is_expired(attachment: &Attachment, link: &Link) -> bool {
    attachment.addressing == Addressing::Dhcp && !link.up
}

fn expired(attachment: &Attachment, link: &Link) -> Option<Finding> {
    let Attachment { key, .. } = attachment;
    let ips: Vec<String> = attachment.ips().map(|ip| ip.to_string()).collect();
    let message = format!(
        "{} is down inside the pod, probably because the DHCP lease of {} expired",
        key.ifname,
        ips.join(", ")
    );
    is_expired(attachment, link)
        .then(|| Finding::new(Code::DhcpLeaseExpired, format_args!("attachment {key}"), message))
}

/// Reports where the other end of the host's link is, if it is in the pod or on the host.
fn moved(attachment: &Attachment, host: &Link, (pod, here): (&[Link], &[Link]), restore: Restore) -> Finding {
    let ifname = attachment.key.ifname.as_str();
    let is_end = |link: &&Link| Some(link.index) == host.peer && link.peer == Some(host.index);
    let (message, fix) = if let Some(Link { name, .. }) = pod.iter().find(is_end) {
        let set = |link: &str, change: &[&str]| set_link_command(attachment, link, change);
        let fix = set(name, &["down"]).and(set(name, &["name", ifname])).and(set(ifname, &["up"]));
        (format!("{ifname} was renamed to {name} inside the pod"), Some(fix))
    } else if let Some(Link { name, .. }) = here.iter().find(is_end) {
        let netns = attachment.netns.as_str();
        let fix = Fix::words(["ip", "link", "set", "dev", name, "netns", netns, "name", ifname]);
        (format!("{ifname} was moved out of the pod and is {name} on the node now"), Some(fix))
    } else {
        (format!("{ifname} was moved out of the pod, into another network namespace"), None)
    };
    let object = format_args!("attachment {}", attachment.key);
    match (fix, restore) {
        (Some(fix), Restore::ByAgent) => Finding::new(Code::PodLinkMoved, object, message).fix(fix),
        (None, _) | (Some(_), Restore::ByRestart) => {
            Finding::new(Code::PodLinkMoved, object, format!("{message}: restart the pod"))
        }
    }
}
