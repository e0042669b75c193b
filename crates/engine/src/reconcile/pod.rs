//! Interfaces of pods that were changed in a way that reconcile does not undo: the pod's own processes or its DHCP client may
//! have done it.

use netlink::Link;
use types::{AttachMode, Code, Finding, Fix};

use super::inside;
use crate::Error;
use crate::state::{Addressing, Attachment};

/// What restores the addresses and routes of a pod after its interface is back. The kernel removes them with a move, and the
/// routes when the link is set down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Restore {
    ByAgent,
    /// Without an agent only the pod's next start does.
    ByRestart,
}

/// The condition of a pod's interface, if it was moved or renamed, has another MAC, lost its lease or cannot be inspected.
/// `links` are those of the host.
pub(crate) fn pod_finding(
    attachment: &Attachment,
    links: &[Link],
    restore: Restore,
) -> Result<Option<Finding>, Error> {
    let Some(host) = links.iter().find(|link| link.name == attachment.host_link.as_str()) else {
        // Reconcile makes it anew, or the pod is gone.
        return Ok(None);
    };
    if attachment.netns_cookie.is_none() {
        return Ok(Some(not_inspected(attachment)));
    }
    let Some(mut pod) = inside::open(attachment)? else { return Ok(None) };
    match pod.link(&attachment.key.ifname)? {
        Some(link) => Ok(changed_mac(attachment, &link, restore).or_else(|| expired(attachment, &link))),
        None => Ok(Some(misplaced(attachment, host, (&pod.links()?, links), restore))),
    }
}

fn not_inspected(attachment: &Attachment) -> Finding {
    let Attachment { key, host_link, .. } = attachment;
    let message = format!(
        "the record was recovered from link {host_link}, which does not tell the pod's network namespace: changes inside the \
         pod are neither reported nor repaired until the pod is restarted"
    );
    Finding::new(Code::PodNotInspected, format_args!("attachment {key}"), message)
}

/// Without the guard a pod on a bridge may choose its MAC: others learn it. The kernel removes the link's neighbours with every
/// change of the MAC; a routed pod has permanent ones, which only the agent restores.
fn changed_mac(attachment: &Attachment, link: &Link, restore: Restore) -> Option<Finding> {
    let Attachment { key, pod_mac, .. } = attachment;
    let may_choose = attachment.mode == AttachMode::Bridge && !attachment.spoof_check;
    let mac = link.mac.filter(|mac| mac != pod_mac && !may_choose)?;
    let ifname = key.ifname.as_str();
    let message = format!("{ifname} has the MAC {mac} instead of {pod_mac}: the pod's packets are dropped");
    let object = format_args!("attachment {key}");
    Some(match (attachment.mode, restore) {
        (AttachMode::Bridge, _) | (AttachMode::Routed, Restore::ByAgent) => {
            let fix = set_inside(attachment, ifname, &["address", &pod_mac.to_string()]);
            Finding::new(Code::PodMacChanged, object, message).fix(fix)
        }
        (AttachMode::Routed, Restore::ByRestart) => {
            Finding::new(Code::PodMacChanged, object, format!("{message}; restart the pod"))
        }
    })
}

/// Changes a link inside the pod. Processes in the pod may have chosen its name.
fn set_inside(attachment: &Attachment, link: &str, change: &[&str]) -> Fix {
    let netns = format!("--net={}", attachment.netns);
    Fix::words([&["nsenter", &netns, "ip", "link", "set", "dev", link], change].concat())
}

/// Whether the DHCP client has set the interface down: it does so when the lease expires, and the server may have given the
/// address to another host since.
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

/// Where the other end of the host's link is, as far as pod and host tell.
fn misplaced(
    attachment: &Attachment,
    host: &Link,
    (pod, here): (&[Link], &[Link]),
    restore: Restore,
) -> Finding {
    let ifname = attachment.key.ifname.as_str();
    let is_end = |link: &&Link| Some(link.index) == host.peer && link.peer == Some(host.index);
    let (message, fix) = if let Some(Link { name, .. }) = pod.iter().find(is_end) {
        let set = |link: &str, change: &[&str]| set_inside(attachment, link, change);
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
