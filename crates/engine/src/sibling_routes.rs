//! Routes of a pod that loses one of several interfaces. If several interfaces want the same route, the first one has it (see
//! [`crate::veth`]), and the route is removed with that interface. The agent repairs this. Without an agent, the process that
//! removes the interface adds the route to a remaining one.

use std::path::Path;
use std::time::Duration;

use netlink::{NetNs, RtSocket};

use crate::Error;
use crate::reconcile::repair_routes;
use crate::state::{Attachment, HeldAttachment, NetworkState, RecordPhase};

/// How long to wait for a process that holds the record of another interface of the pod.
const LOCK_TIMEOUT: Duration = Duration::from_millis(500);

/// Called after the link of the attachment was removed, while its record is locked. If this process is killed, the next DEL
/// restores the routes.
pub(crate) fn restore_routes(network: &NetworkState, removed: &Attachment) -> Result<(), Error> {
    let Some(cookie) = removed.netns_cookie.filter(|_| !removed.wiring.routes.is_empty()) else {
        return Ok(());
    };
    // Usually the pod has no other interface, or no longer exists. If tunnel modules are loaded, every namespace has their
    // fallback devices, which are down.
    let Ok(netns) = NetNs::open(Path::new(&removed.netns)) else { return Ok(()) };
    let mut pod = RtSocket::open_in(&netns)?;
    let links = if pod.netns_cookie()? == cookie { pod.links()? } else { Vec::new() };
    if !links.iter().any(|link| link.up && link.peer.is_some()) {
        return Ok(());
    }
    let mut remaining = Vec::new();
    for network in network.siblings()? {
        for listed in network.list()? {
            let of_pod = |a: &Attachment| a.netns_cookie == Some(cookie) && a.key != removed.key;
            let Some(attachment) = listed.attachment.filter(of_pod) else { continue };
            let link = links.iter().find(|link| link.name == attachment.key.ifname.as_str());
            let age = (attachment.created, link.map(|link| link.index));
            remaining.push((age, network.clone(), listed.stem));
        }
    }
    // The oldest interface gets the route. If two were created in the same second, the one with the smaller index.
    remaining.sort_by_key(|(age, ..)| *age);
    let repaired = remaining.iter().map(|(_, network, stem)| repair(network, stem, removed));
    Error::collect(repaired.filter_map(Result::err).collect())
}

/// Two processes that remove interfaces of the same pod wait for each other, so the wait is short.
fn repair(network: &NetworkState, stem: &str, removed: &Attachment) -> Result<(), Error> {
    let held = network.find_within(stem, LOCK_TIMEOUT)?.filter(|held| held.phase() == RecordPhase::Ready);
    held.as_ref()
        .and_then(HeldAttachment::attachment)
        .map_or(Ok(()), |attachment| repair_routes(attachment, removed))
}
