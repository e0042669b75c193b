//! Interfaces of pods that were changed in a way that reconcile does not undo: the pod's own processes or its DHCP client may
//! have done it.

use netlink::Link;
use types::{AttachMode, Code, Finding, shell_word};

use super::inside;
use crate::Error;
use crate::state::{Addressing, Attachment};

/// The condition of a pod's interface, if it was moved or renamed, has another MAC or lost its lease. `links` are those of
/// the host.
pub(crate) fn pod_finding(attachment: &Attachment, links: &[Link]) -> Result<Option<Finding>, Error> {
    let Some(mut pod) = inside::open(attachment)? else { return Ok(None) };
    let Some(host) = links.iter().find(|link| link.name == attachment.host_link.as_str()) else {
        // Reconcile makes it anew, or the pod is gone.
        return Ok(None);
    };
    match pod.link(&attachment.key.ifname)? {
        Some(link) => Ok(changed_mac(attachment, &link).or_else(|| expired(attachment, &link))),
        None => Ok(Some(misplaced(attachment, host, (&pod.links()?, links)))),
    }
}

/// Without the guard a pod on a bridge may choose its MAC: others learn it.
fn changed_mac(attachment: &Attachment, link: &Link) -> Option<Finding> {
    let Attachment { key, pod_mac, netns, .. } = attachment;
    let may_choose = attachment.mode == AttachMode::Bridge && !attachment.spoof_check;
    let mac = link.mac.filter(|mac| mac != pod_mac && !may_choose)?;
    let (ifname, netns) = (&key.ifname, shell_word(netns));
    let message = format!("{ifname} has the MAC {mac} instead of {pod_mac}: the pod's packets are dropped");
    let found = Finding::new(Code::PodMacChanged, format_args!("attachment {key}"), message);
    Some(found.fix(format!("nsenter --net={netns} ip link set dev {ifname} address {pod_mac}")))
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
fn misplaced(attachment: &Attachment, host: &Link, (pod, here): (&[Link], &[Link])) -> Finding {
    let Attachment { key, netns, .. } = attachment;
    let (ifname, netns) = (&key.ifname, shell_word(netns));
    let is_end = |link: &&Link| Some(link.index) == host.peer && link.peer == Some(host.index);
    let found = |message| Finding::new(Code::PodLinkMoved, format_args!("attachment {key}"), message);
    if let Some(Link { name, .. }) = pod.iter().find(is_end) {
        let inside = format!("nsenter --net={netns} ip link set dev");
        let fix = format!("{inside} {name} down && {inside} {name} name {ifname} && {inside} {ifname} up");
        found(format!("{ifname} was renamed to {name} inside the pod")).fix(fix)
    } else if let Some(Link { name, .. }) = here.iter().find(is_end) {
        found(format!("{ifname} was moved out of the pod and is {name} on the node now"))
            .fix(format!("ip link set dev {name} netns {netns} name {ifname}"))
    } else {
        found(format!("{ifname} was moved out of the pod, into another network namespace"))
    }
}
