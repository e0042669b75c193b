//! Encodes operations as messages, with attributes in the order of iproute2.

mod ip;
mod link;
mod tc;

pub(crate) use ip::{family_of, put_ip};
pub(crate) use tc::{INGRESS_QDISC, header as tc_header};

use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, NLM_F_REQUEST};

use crate::error::Error;
use crate::op::{Mode, Op};
use crate::wire::{Batch, Head, Oversize};

const CHANGE: u16 = NLM_F_REQUEST | NLM_F_ACK;
const EXCLUSIVE: u16 = CHANGE | NLM_F_CREATE | NLM_F_EXCL;
const REPLACE: u16 = CHANGE | NLM_F_CREATE | NLM_F_REPLACE;

fn flags_of(mode: Mode) -> u16 {
    match mode {
        Mode::Exclusive => EXCLUSIVE,
        Mode::Replace => REPLACE,
    }
}

/// Appends the message that carries out `op`. On an error the batch is unchanged.
pub(crate) fn encode(batch: &mut Batch, op: &Op<'_>, sequence: u32) -> Result<(), Error> {
    let head = |kind: u16, flags: u16| Head { kind, flags, sequence };
    let written = match op {
        Op::AddVeth(veth) => batch.message(head(libc::RTM_NEWLINK, EXCLUSIVE), |b| link::veth(b, veth)),
        Op::AddBridge(add) => batch.message(head(libc::RTM_NEWLINK, EXCLUSIVE), |b| link::bridge(b, add)),
        Op::AddIfb { name, mtu } => {
            batch.message(head(libc::RTM_NEWLINK, EXCLUSIVE), |b| link::ifb(b, name, *mtu))
        }
        Op::AddVxlan(add) => batch.message(head(libc::RTM_NEWLINK, EXCLUSIVE), |b| link::vxlan(b, add)),
        Op::SetLink(set) => {
            link::check(set)?;
            // NEWLINK without CREATE: unlike SETLINK it also accepts the flags of a bridge port.
            batch.message(head(libc::RTM_NEWLINK, CHANGE), |b| link::set(b, set))
        }
        Op::RenameLink { link, name } => {
            batch.message(head(libc::RTM_NEWLINK, CHANGE), |b| link::rename(b, *link, name))
        }
        Op::SetLinkGroup { link, group } => {
            // Unlike NEWLINK, SETLINK never selects links by their group. The kernel refuses index 0.
            batch.message(head(libc::RTM_SETLINK, CHANGE), |b| link::set_group(b, *link, *group))
        }
        Op::DelLink(index) => batch.message(head(libc::RTM_DELLINK, CHANGE), |b| link::delete(b, *index)),
        Op::AddAddress(add) => {
            batch.message(head(libc::RTM_NEWADDR, flags_of(add.mode)), |b| ip::add_address(b, add))
        }
        Op::DelAddress { link, addr } => {
            batch.message(head(libc::RTM_DELADDR, CHANGE), |b| ip::del_address(b, *link, *addr))
        }
        Op::AddRoute { route, mode } => {
            batch.message(head(libc::RTM_NEWROUTE, flags_of(*mode)), |b| ip::add_route(b, route))
        }
        Op::DelRoute(route) => batch.message(head(libc::RTM_DELROUTE, CHANGE), |b| ip::del_route(b, route)),
        Op::AddNeighbour(add) => {
            batch.message(head(libc::RTM_NEWNEIGH, REPLACE), |b| ip::add_neighbour(b, add))
        }
        Op::DelNeighbour { link, addr } => {
            batch.message(head(libc::RTM_DELNEIGH, CHANGE), |b| ip::del_neighbour(b, *link, *addr))
        }
        Op::AddFdb(entry) => batch.message(head(libc::RTM_NEWNEIGH, REPLACE), |b| ip::fdb(b, entry)),
        Op::DelFdb(entry) => batch.message(head(libc::RTM_DELNEIGH, CHANGE), |b| ip::fdb(b, entry)),
        Op::AddTbf(add) => batch.message(head(libc::RTM_NEWQDISC, REPLACE), |b| tc::tbf(b, add)),
        Op::AddIngress { link } => {
            batch.message(head(libc::RTM_NEWQDISC, EXCLUSIVE), |b| tc::ingress(b, *link))
        }
        Op::RedirectIngress { from, to } => {
            batch.message(head(libc::RTM_NEWTFILTER, EXCLUSIVE), |b| tc::redirect(b, *from, *to))
        }
        Op::DelQdisc { link, at } => {
            batch.message(head(libc::RTM_DELQDISC, CHANGE), |b| tc::del_qdisc(b, *link, *at))
        }
    };
    written.map_err(|e: Oversize| Error::Invalid { operation: op.to_string(), reason: e.to_string() })
}
