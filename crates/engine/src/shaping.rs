//! Bandwidth limits. Traffic to the pod is shaped on the host end. Traffic from the pod is redirected to an ifb link and shaped
//! there, because ingress traffic of a link cannot be queued.

use std::time::Duration;

use cni::Bandwidth;
use netlink::{AddTbf, Link, LinkRef, Op, QdiscAt, RtSocket, SetLink, Tbf};
use types::AttachmentKey;

use crate::detach::delete_link;
use crate::state::Attachment;
use crate::sysctl::HostSettings;
use crate::{Error, alias};

/// Maximum queueing delay, as in the reference plugin.
const LATENCY: Duration = Duration::from_millis(25);
/// A burst below the size of a full packet would block all traffic.
const MIN_BURST: u64 = 16 * 1024;

/// Converts bits to a token bucket in bytes. None without a limit. The default burst is the traffic of 100 ms.
fn bucket(rate_bits: u64, burst_bits: u64) -> Option<Tbf> {
    if rate_bits == 0 {
        return None;
    }
    let rate = (rate_bits / 8).max(1);
    let burst = if burst_bits == 0 { rate / 10 } else { burst_bits / 8 };
    let burst = u32::try_from(burst.max(MIN_BURST)).unwrap_or(u32::MAX);
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
        remove_leftover(host, &attachment.key)?;
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
        let vanished = || Error::NotAvailable(format!("link {name} was removed while it was configured"));
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

/// Applies the limits again after some of them were removed.
pub(crate) fn renew(host: &mut RtSocket, attachment: &Attachment, host_index: u32) -> Result<(), Error> {
    // Without an egress limit, an ingress qdisc is not Podwire's.
    let is_managed = attachment.bandwidth.as_ref().and_then(egress).is_some();
    if is_managed && host.qdiscs(Some(host_index))?.iter().any(|q| q.at == QdiscAt::Ingress) {
        host.run(&Op::DelQdisc { link: host_index, at: QdiscAt::Ingress })?;
    }
    apply(host, attachment, host_index)
}

/// Removes a leftover ifb link of the same attachment. An unmanaged link with this name is an error: the following operations
/// address the link by name.
fn remove_leftover(host: &mut RtSocket, key: &AttachmentKey) -> Result<(), Error> {
    let Some(link) = host.link(&key.shaper_link())? else { return Ok(()) };
    if alias::is_of(&link, key) {
        return delete_link(host, link.index);
    }
    Err(Error::UnmanagedLink(key.shaper_link()))
}

/// Describes missing limits.
pub(crate) fn missing(
    host: &mut RtSocket,
    attachment: &Attachment,
    host_link: &Link,
) -> Result<Vec<String>, Error> {
    let mut missing = Vec::new();
    let Some(bandwidth) = &attachment.bandwidth else { return Ok(missing) };
    let has_tbf = |host: &mut RtSocket, link: u32, expected: Tbf| -> Result<bool, Error> {
        Ok(host
            .qdiscs(Some(link))?
            .iter()
            .any(|q| q.tbf.is_some_and(|tbf| tbf.rate_bytes == expected.rate_bytes)))
    };
    if let Some(tbf) = ingress(bandwidth)
        && !has_tbf(host, host_link.index, tbf)?
    {
        missing.push(format!("the limit of traffic to the pod (tbf on {})", host_link.name));
    }
    if let Some(tbf) = egress(bandwidth) {
        let name = attachment.key.shaper_link();
        let is_shaped = match host.link(&name)? {
            Some(ifb) => has_tbf(host, ifb.index, tbf)?,
            None => false,
        };
        let is_redirected = host.qdiscs(Some(host_link.index))?.iter().any(|q| q.at == QdiscAt::Ingress);
        if !is_shaped || !is_redirected {
            missing.push(format!("the limit of traffic from the pod (tbf on {name})"));
        }
    }
    Ok(missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e18_rates_are_bits_and_the_default_burst_passes_packets() {
        assert_eq!(bucket(0, 8), None);
        let tbf = bucket(8_000_000, 1_600_000).unwrap();
        assert_eq!((tbf.rate_bytes, tbf.burst_bytes, tbf.limit_bytes), (1_000_000, 200_000, 225_000));
        assert_eq!(bucket(8, 0).unwrap().burst_bytes, 16 * 1024);
        assert_eq!(bucket(u64::MAX, u64::MAX).unwrap().burst_bytes, u32::MAX);
    }
}
