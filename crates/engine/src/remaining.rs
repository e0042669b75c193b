//! The other interfaces of a pod that loses one. Where several want one route, the first has it (see [`crate::wire`]), and
//! the route goes with that interface. An agent notices this; without one, the process that removes the interface puts the
//! route of a remaining one back.

use std::path::Path;

use netlink::{NetNs, RtSocket};

use crate::Error;
use crate::reconcile::mend_routes;
use crate::state::{Attachment, Network, Phase};

/// Called when the attachment's link is gone and no record is held.
pub(crate) fn restore_routes(network: &Network, gone: &Attachment) -> Result<(), Error> {
    let Some(cookie) = gone.netns_cookie.filter(|_| !gone.wiring.routes.is_empty()) else { return Ok(()) };
    // Mostly the pod has no other interface, or is gone.
    let Ok(netns) = NetNs::open(Path::new(&gone.netns)) else { return Ok(()) };
    let mut pod = RtSocket::open_in(&netns)?;
    if pod.netns_cookie()? != cookie || pod.links()?.iter().all(|link| link.name == "lo") {
        return Ok(());
    }
    let mut remaining = Vec::new();
    for network in network.siblings()? {
        for listed in network.list()? {
            let of_pod = |a: &Attachment| a.netns_cookie == Some(cookie);
            let attachment = listed.attachment.filter(of_pod);
            remaining.extend(attachment.map(|a| (a.created, network.clone(), listed.stem)));
        }
    }
    // The oldest would have had the route, had it been there first.
    remaining.sort_by_key(|(created, ..)| *created);
    for (_, network, stem) in remaining {
        // Waits for an ADD that is under way.
        let held = network.find_stem(&stem)?.filter(|held| held.phase() == Phase::Ready);
        if let Some(attachment) = held.as_ref().and_then(|held| held.attachment()) {
            mend_routes(attachment)?;
        }
    }
    Ok(())
}
