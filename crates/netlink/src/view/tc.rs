use crate::header::{Header as _, TcHeader};
use crate::kernel::{
    NS_PER_TICK, TC_H_INGRESS, TC_H_ROOT, TCA_ACT_KIND, TCA_ACT_OPTIONS, TCA_EGRESS_REDIR, TCA_MIRRED_PARMS,
    TCA_TBF_PARMS, TCA_TBF_RATE64, TCA_U32_ACT,
};
use crate::op::{QdiscAt, Tbf};
use crate::wire::{attribute, attribute_at, attributes, read_text, read_u32, read_u64};

/// A root or ingress qdisc of a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Qdisc {
    pub link: u32,
    pub at: QdiscAt,
    pub handle: u32,
    pub kind: String,
    pub tbf: Option<Tbf>,
}

impl Qdisc {
    /// Child qdiscs are `None`.
    pub(crate) fn parse(message: &[u8]) -> Option<Self> {
        let header = TcHeader::parse(message)?;
        let at = match header.parent {
            TC_H_ROOT => QdiscAt::Root,
            TC_H_INGRESS => QdiscAt::Ingress,
            _ => return None,
        };
        let list = TcHeader::attributes(message);
        let kind = attribute(list, libc::TCA_KIND).map(read_text)?;
        let options = attribute(list, libc::TCA_OPTIONS).filter(|_| kind == "tbf");
        Some(Self { link: header.link, at, handle: header.handle, kind, tbf: options.and_then(read_tbf) })
    }
}

/// `struct tc_tbf_qopt`, which stores the burst as the time that it takes at this rate.
fn read_tbf(options: &[u8]) -> Option<Tbf> {
    let parms = attribute(options, TCA_TBF_PARMS)?;
    let rate = match attribute(options, TCA_TBF_RATE64) {
        Some(rate) => read_u64(rate)?,
        None => u64::from(read_u32(parms.get(8..)?)?),
    };
    let ticks = read_u32(parms.get(28..)?)?;
    let burst = u128::from(rate) * u128::from(ticks) * u128::from(NS_PER_TICK) / 1_000_000_000;
    Some(Tbf {
        rate_bytes: rate,
        burst_bytes: u32::try_from(burst).unwrap_or(u32::MAX),
        limit_bytes: read_u32(parms.get(24..)?)?,
    })
}

/// The link to which a u32 filter redirects packets.
pub(crate) fn redirect_target(message: &[u8]) -> Option<u32> {
    let list = TcHeader::attributes(message);
    if attribute(list, libc::TCA_KIND).map(read_text)? != "u32" {
        return None;
    }
    let actions = attribute_at(list, &[libc::TCA_OPTIONS, TCA_U32_ACT])?;
    attributes(actions).find_map(|(_, action)| {
        if attribute(action, TCA_ACT_KIND).map(read_text)? != "mirred" {
            return None;
        }
        let parms = attribute_at(action, &[TCA_ACT_OPTIONS, TCA_MIRRED_PARMS])?;
        let redirects = read_u32(parms.get(20..)?)? == TCA_EGRESS_REDIR;
        read_u32(parms.get(24..)?).filter(|_| redirects)
    })
}
