//! Bandwidth. What the pod receives is shaped on the host end; what it sends is redirected to a link of its own (ifb)
//! and shaped there, because a link cannot queue what comes in.

use std::time::Duration;

use cni::Bandwidth;
use netlink::{AddTbf, Link, LinkRef, Op, QdiscAt, RtSocket, SetLink, Tbf};
use types::AttachmentKey;

use crate::detach::delete_link;
use crate::state::Attachment;
use crate::sysctl::HostSettings;
use crate::{Error, alias};

/// How long a packet may wait, as in the reference plugin.
const LATENCY: Duration = Duration::from_millis(25);
/// A burst below one full packet would let nothing through at all.
const SMALLEST_BURST: u64 = 16 * 1024;

/// Bits to a bucket of bytes; None where nothing is limited. A burst that nobody asked for is what 100 ms bring.
fn bucket(rate_bits: u64, burst_bits: u64) -> Option<Tbf> {
    if rate_bits == 0 {
        return None;
    }
    let rate = (rate_bits / 8).max(1);
    let burst = if burst_bits == 0 { rate / 10 } else { burst_bits / 8 };
    let burst = u32::try_from(burst.max(SMALLEST_BURST)).unwrap_or(u32::MAX);
    Some(Tbf::with_latency(rate, burst, LATENCY))
}

pub(crate) fn ingress(bandwidth: &Bandwidth) -> Option<Tbf> {
    bucket(bandwidth.ingress_rate, bandwidth.ingress_burst)
}

pub(crate) fn egress(bandwidth: &Bandwidth) -> Option<Tbf> {
    bucket(bandwidth.egress_rate, bandwidth.egress_burst)
}

pub(crate) fn apply(host: &mut RtSocket, attachment: &Attachment, host_index: u32) -> Result<(), Error> {
    let Some(bandwidth) = &attachment.bandwidth else { return Ok(()) };
    if let Some(tbf) = ingress(bandwidth) {
        host.run(&Op::AddTbf(AddTbf { link: host_index, tbf }))?;
    }
    if let Some(tbf) = egress(bandwidth) {
        let name = attachment.key.shaper_link();
        let alias = attachment.key.alias();
        clear_the_way(host, &attachment.key)?;
        for answer in host.run_all(&[
            Op::AddIfb { name: &name, mtu: attachment.mtu },
            Op::SetLink(SetLink {
                alias: Some(&alias),
                no_link_local: HostSettings::open(None)?.has_ipv6(attachment.mtu),
                ..SetLink::of(LinkRef::Name(&name))
            }),
        ])? {
            answer?;
        }
        let vanished = || Error::NotAvailable(format!("link {name} vanished while it was set up"));
        let ifb = host.link(&name)?.ok_or_else(vanished)?.index;
        for answer in host.run_all(&[
            Op::AddTbf(AddTbf { link: ifb, tbf }),
            Op::AddIngress { link: host_index },
            Op::RedirectIngress { from: host_index, to: ifb },
        ])? {
            answer?;
        }
    }
    Ok(())
}

/// Makes the limits anew where some of them were removed.
pub(crate) fn renew(host: &mut RtSocket, attachment: &Attachment, host_index: u32) -> Result<(), Error> {
    // Where what the pod sends is not limited, the hook is somebody else's.
    let is_ours = attachment.bandwidth.as_ref().and_then(egress).is_some();
    if is_ours && host.qdiscs(Some(host_index))?.iter().any(|q| q.at == QdiscAt::Ingress) {
        host.run(&Op::DelQdisc { link: host_index, at: QdiscAt::Ingress })?;
    }
    apply(host, attachment, host_index)
}

/// Setting up goes by name, and must not touch a link that is somebody else's. One of ours was left behind.
fn clear_the_way(host: &mut RtSocket, key: &AttachmentKey) -> Result<(), Error> {
    let Some(link) = host.link(&key.shaper_link())? else { return Ok(()) };
    if alias::is_of(&link, key) {
        return delete_link(host, link.index);
    }
    Err(Error::ForeignLink(key.shaper_link()))
}

/// What is missing of the shaping, in words.
pub(crate) fn missing(
    host: &mut RtSocket,
    attachment: &Attachment,
    host_link: &Link,
) -> Result<Vec<String>, Error> {
    let mut missing = Vec::new();
    let Some(bandwidth) = &attachment.bandwidth else { return Ok(missing) };
    let has_tbf = |host: &mut RtSocket, link: u32, want: Tbf| -> Result<bool, Error> {
        Ok(host
            .qdiscs(Some(link))?
            .iter()
            .any(|q| q.tbf.is_some_and(|tbf| tbf.rate_bytes == want.rate_bytes)))
    };
    if let Some(tbf) = ingress(bandwidth)
        && !has_tbf(host, host_link.index, tbf)?
    {
        missing.push(format!("the limit on what the pod receives (tbf on {})", host_link.name));
    }
    if let Some(tbf) = egress(bandwidth) {
        let name = attachment.key.shaper_link();
        let shaped = match host.link(&name)? {
            Some(ifb) => has_tbf(host, ifb.index, tbf)?,
            None => false,
        };
        let redirected = host.qdiscs(Some(host_link.index))?.iter().any(|q| q.at == QdiscAt::Ingress);
        if !shaped || !redirected {
            missing.push(format!("the limit on what the pod sends (tbf on {name})"));
        }
    }
    Ok(missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e18_rates_are_bits_and_a_missing_burst_still_lets_packets_through() {
        assert_eq!(bucket(0, 8), None);
        let tbf = bucket(8_000_000, 1_600_000).unwrap();
        assert_eq!((tbf.rate_bytes, tbf.burst_bytes, tbf.limit_bytes), (1_000_000, 200_000, 225_000));
        assert_eq!(bucket(8, 0).unwrap().burst_bytes, 16 * 1024);
        assert_eq!(bucket(u64::MAX, u64::MAX).unwrap().burst_bytes, u32::MAX);
    }
}
