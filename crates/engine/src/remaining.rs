//! The other interfaces of a pod that loses one. Where several want one route, the first has it (see [`crate::wire`]), and
//! the route goes with that interface. An agent repairs this. Without one, the process that removes the interface gives the
//! route to a remaining one.

use std::path::Path;
use std::time::Duration;

use netlink::{NetNs, RtSocket};

use crate::Error;
use crate::reconcile::mend_routes;
use crate::state::{Attachment, HeldAttachment, NetworkState, RecordPhase};

/// How long a process that works on another interface of the pod is waited for.
const BUSY: Duration = Duration::from_millis(500);

/// Called when the link of the attachment is gone and its record is still held: if this process is killed, the next DEL
/// restores the routes.
pub(crate) fn restore_routes(network: &NetworkState, gone: &Attachment) -> Result<(), Error> {
    let Some(cookie) = gone.netns_cookie.filter(|_| !gone.wiring.routes.is_empty()) else { return Ok(()) };
    // Mostly the pod has no other interface, or is gone. Where tunnel modules are loaded, every namespace has their fallback
    // devices, which are down.
    let Ok(netns) = NetNs::open(Path::new(&gone.netns)) else { return Ok(()) };
    let mut pod = RtSocket::open_in(&netns)?;
    let links = if pod.netns_cookie()? == cookie { pod.links()? } else { Vec::new() };
    if !links.iter().any(|link| link.up && link.peer.is_some()) {
        return Ok(());
    }
    let mut remaining = Vec::new();
    for network in network.siblings()? {
        for listed in network.list()? {
            let of_pod = |a: &Attachment| a.netns_cookie == Some(cookie) && a.key != gone.key;
            let Some(attachment) = listed.attachment.filter(of_pod) else { continue };
            let link = links.iter().find(|link| link.name == attachment.key.ifname.as_str());
            let age = (attachment.created, link.map(|link| link.index));
            remaining.push((age, network.clone(), listed.stem));
        }
    }
    // The oldest would have had the route, had it been there first. Of one second, the one with the smaller index.
    remaining.sort_by_key(|(age, ..)| *age);
    let mended = remaining.iter().map(|(_, network, stem)| mend(network, stem, gone));
    Error::collect(mended.filter_map(Result::err).collect())
}

/// Two processes that remove interfaces of one pod wait for each other: only for a moment.
fn mend(network: &NetworkState, stem: &str, gone: &Attachment) -> Result<(), Error> {
    let held = network.find_within(stem, BUSY)?.filter(|held| held.phase() == RecordPhase::Ready);
    held.as_ref()
        .and_then(HeldAttachment::attachment)
        .map_or(Ok(()), |attachment| mend_routes(attachment, gone))
}
