use crate::header::TcHeader;
use crate::kernel::{
    TC_ACT_STOLEN, TC_H_INGRESS, TC_H_ROOT, TC_LINKLAYER_ETHERNET, TC_U32_TERMINAL, TCA_ACT_KIND,
    TCA_ACT_OPTIONS, TCA_EGRESS_REDIR, TCA_MIRRED_PARMS, TCA_TBF_BURST, TCA_TBF_PARMS, TCA_TBF_RATE64,
    TCA_U32_ACT, TCA_U32_SEL,
};
use crate::op::{AddTbf, QdiscAt, Tbf};
use crate::wire::Body;

/// The handle of every ingress qdisc.
pub(crate) const INGRESS_QDISC: u32 = 0xffff_0000;

pub(crate) fn header(link: u32, parent: u32) -> TcHeader {
    TcHeader { link, parent, ..TcHeader::default() }
}

pub(super) fn tbf(body: &mut Body<'_>, add: &AddTbf) {
    body.header(&TcHeader { handle: add.handle, ..header(add.link, TC_H_ROOT) });
    body.str(libc::TCA_KIND, "tbf");
    body.nest(libc::TCA_OPTIONS, |options| {
        options.bytes(TCA_TBF_PARMS, &tbf_parms(&add.tbf));
        if add.tbf.rate_bytes > u64::from(u32::MAX) {
            options.u64(TCA_TBF_RATE64, add.tbf.rate_bytes);
        }
        // In bytes instead of ticks: needs no clock rate and no rounding.
        options.u32(TCA_TBF_BURST, add.tbf.burst_bytes);
    });
}

/// `struct tc_tbf_qopt`: rate and peak rate (`struct tc_ratespec`, 12 bytes each), limit, buffer, mtu.
fn tbf_parms(tbf: &Tbf) -> [u8; 36] {
    let mut parms = [0; 36];
    // With a known link layer the kernel computes the rate table.
    parms[1] = TC_LINKLAYER_ETHERNET;
    let rate = u32::try_from(tbf.rate_bytes).unwrap_or(u32::MAX);
    parms[8..12].copy_from_slice(&rate.to_ne_bytes());
    parms[24..28].copy_from_slice(&tbf.limit_bytes.to_ne_bytes());
    parms
}

pub(super) fn ingress(body: &mut Body<'_>, link: u32) {
    body.header(&TcHeader { handle: INGRESS_QDISC, ..header(link, TC_H_INGRESS) });
    body.str(libc::TCA_KIND, "ingress");
}

/// A u32 filter with one key that matches all packets of all protocols. More kernels have u32 than matchall.
pub(super) fn redirect(body: &mut Body<'_>, from: u32, to: u32) {
    let every_protocol = u32::from((libc::ETH_P_ALL as u16).to_be());
    let first_priority = 1 << 16;
    body.header(&TcHeader { info: first_priority | every_protocol, ..header(from, INGRESS_QDISC) });
    body.str(libc::TCA_KIND, "u32");
    body.nest(libc::TCA_OPTIONS, |options| {
        // struct tc_u32_sel with one zero tc_u32_key: (packet & 0) == 0.
        let mut selector = [0; 32];
        selector[0] = TC_U32_TERMINAL;
        selector[2] = 1;
        options.bytes(TCA_U32_SEL, &selector);
        options.nest(TCA_U32_ACT, |actions| {
            actions.nest(1, |action| {
                action.str(TCA_ACT_KIND, "mirred");
                action.nest(TCA_ACT_OPTIONS, |mirred| mirred.bytes(TCA_MIRRED_PARMS, &mirred_parms(to)));
            });
        });
    });
}

/// `struct tc_mirred`: index, capabilities, action, two counters, mirred action, link.
fn mirred_parms(to: u32) -> [u8; 28] {
    let mut parms = [0; 28];
    parms[8..12].copy_from_slice(&TC_ACT_STOLEN.to_ne_bytes());
    parms[20..24].copy_from_slice(&TCA_EGRESS_REDIR.to_ne_bytes());
    parms[24..28].copy_from_slice(&to.to_ne_bytes());
    parms
}

pub(super) fn del_qdisc(body: &mut Body<'_>, link: u32, at: QdiscAt) {
    let parent = match at {
        QdiscAt::Root => TC_H_ROOT,
        QdiscAt::Ingress => TC_H_INGRESS,
    };
    body.header(&header(link, parent));
}
