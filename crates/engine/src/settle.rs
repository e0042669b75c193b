//! Waits for work that the kernel finishes asynchronously: a link gets carrier, an IPv6 address becomes usable. Kernel
//! workers do this and wait for RTNL. A pod that is reported ready earlier loses its first packets.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use netlink::RtSocket;
use types::{AttachMode, IfName};

use crate::Error;
use crate::state::Attachment;

/// After this time the pod is reported ready without further waiting. The kernel finishes later.
const TIMEOUT: Duration = Duration::from_secs(1);
/// First and longest pause between two lookups. Frequent polling for many pods would delay the kernel's workers.
const PAUSE: (Duration, Duration) = (Duration::from_micros(30), Duration::from_millis(2));

/// Waits until the pod is reachable and can reach its gateways. A pod that is ready costs a few lookups.
pub(crate) fn wait(host: &mut RtSocket, pod: &mut RtSocket, attachment: &Attachment) -> Result<(), Error> {
    let (port, bridge) = (&attachment.host_link, &attachment.bridge);
    match attachment.mode {
        // The port first: the bridge has carrier if one of its ports has it.
        AttachMode::Bridge => wait_for_carrier(host, &[port, bridge])?,
        AttachMode::Routed => wait_for_carrier(host, &[port])?,
    }
    wait_for_carrier(pod, &[&attachment.key.ifname])?;
    attachment.ips().filter(IpAddr::is_ipv6).try_for_each(|ip| wait_for_address(pod, ip))
}

/// Since Linux 6.9, reading a link updates its carrier state at once. Older kernels need polling.
fn wait_for_carrier(socket: &mut RtSocket, links: &[&IfName]) -> Result<(), Error> {
    until(|| Ok(socket.links_by_name(links)?.iter().flatten().all(|link| link.running)))
}

/// Even without duplicate address detection, a kernel worker makes the address usable.
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
