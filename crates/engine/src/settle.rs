//! What the kernel finishes by itself after it said yes, in workers that wait for the same lock as everybody: a link begins
//! to carry, an IPv6 address becomes local. A pod that is answered for before that loses its first packets.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use netlink::RtSocket;
use types::{AttachMode, IfName};

use crate::Error;
use crate::state::Attachment;

/// What takes longer will come all the same: no reason to refuse the pod, none to wait for ever.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Between two lookups, at first and at most: many pods at once must not keep the kernel's workers from their processor.
const PAUSE: (Duration, Duration) = (Duration::from_micros(30), Duration::from_millis(2));

/// Waits until the pod can be reached and can reach its gateways. Costs a few lookups where it is so already.
pub(crate) fn wait(host: &mut RtSocket, pod: &mut RtSocket, attachment: &Attachment) -> Result<(), Error> {
    let (port, bridge) = (&attachment.host_link, &attachment.bridge);
    match attachment.mode {
        // The port first: the bridge follows it.
        AttachMode::Bridge => wait_for_carrier(host, &[port, bridge])?,
        AttachMode::Routed => wait_for_carrier(host, &[port])?,
    }
    wait_for_carrier(pod, &[&attachment.key.ifname])?;
    attachment.ips().filter(IpAddr::is_ipv6).try_for_each(|ip| wait_for_address(pod, ip))
}

/// Reading a link lets it carry at once since Linux 6.9; before, there is only waiting.
fn wait_for_carrier(socket: &mut RtSocket, links: &[&IfName]) -> Result<(), Error> {
    until(|| Ok(socket.links_by_name(links)?.iter().flatten().all(|link| link.running)))
}

/// Also without duplicate address detection the kernel makes an address its own in the worker for it.
pub(crate) fn wait_for_address(socket: &mut RtSocket, address: IpAddr) -> Result<(), Error> {
    until(|| match socket.route_to(address) {
        Ok(route) => Ok(route.local),
        Err(e) if e.is_unreachable() => Ok(false),
        Err(e) => Err(e.into()),
    })
}

fn until(mut condition: impl FnMut() -> Result<bool, Error>) -> Result<(), Error> {
    let (end, mut pause) = (Instant::now() + TIMEOUT, PAUSE.0);
    while !condition()? && Instant::now() < end {
        std::thread::sleep(pause);
        pause = (pause * 2).min(PAUSE.1);
    }
    Ok(())
}
