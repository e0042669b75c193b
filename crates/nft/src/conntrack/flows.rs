//! Flows that a change of policies forbids. A bit of their mark lets the table of policies drop their packets.
//!
//! Deleting their entries would not stop them: the kernel accepts a TCP connection again in the middle.

use std::net::IpAddr;

use netlink::Refusal;
use netlink::wire::{Body, attribute, attribute_at};
use rustix::io::Errno;
use types::Family;

use super::{Side, destination_kind, is_empty, source_kind, unreadable, verb};
use crate::desired::policy::MarkBit;
use crate::error::Error;
use crate::number;
use crate::socket::{MessageHeader, NftRequest, NftSocket};

/// `AF_UNSPEC`
const ANY_FAMILY: u8 = 0;
const MARK: &str = "change the mark of a flow";
/// Changes that are collected before they are sent.
const CHANGES: usize = 1024;

/// A tracked flow, also one that is not a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrackedFlow {
    /// The IP protocol number.
    pub protocol: u8,
    /// As its first packet arrived.
    pub original: FlowTuple,
    /// As replies arrive: after changes of destination and source.
    pub reply: FlowTuple,
    pub mark: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowTuple {
    pub source: IpAddr,
    pub destination: IpAddr,
    /// Source and destination. None if the protocol has no ports.
    pub ports: Option<(u16, u16)>,
}

impl TrackedFlow {
    /// The source as policies see it: before the source is changed.
    pub fn origin(&self) -> IpAddr {
        self.original.source
    }

    /// The destination as policies see it: after the destination was changed.
    pub fn target(&self) -> IpAddr {
        self.reply.source
    }

    /// The port of [`Self::target`].
    pub fn target_port(&self) -> Option<u16> {
        self.reply.ports.map(|(source, _)| source)
    }

    fn read(entry: &[u8]) -> Option<Self> {
        let v6 = is_v6(entry);
        let protocol = [Side::Original.tuple(), number::CTA_TUPLE_PROTO, number::CTA_PROTO_NUM];
        let mark = attribute(entry, number::CTA_MARK).and_then(|mark| mark.first_chunk());
        Some(Self {
            protocol: *attribute_at(entry, &protocol)?.first()?,
            original: FlowTuple::read(attribute(entry, Side::Original.tuple())?, v6)?,
            reply: FlowTuple::read(attribute(entry, Side::Reply.tuple())?, v6)?,
            mark: mark.copied().map_or(0, u32::from_be_bytes),
        })
    }
}

impl FlowTuple {
    fn read(tuple: &[u8], v6: bool) -> Option<Self> {
        let address = |kind| -> Option<IpAddr> {
            let octets = attribute_at(tuple, &[number::CTA_TUPLE_IP, kind])?;
            match v6 {
                true => octets.first_chunk::<16>().map(|octets| IpAddr::from(*octets)),
                false => octets.first_chunk::<4>().map(|octets| IpAddr::from(*octets)),
            }
        };
        let port = |kind| -> Option<u16> {
            let port = attribute_at(tuple, &[number::CTA_TUPLE_PROTO, kind])?;
            port.first_chunk().copied().map(u16::from_be_bytes)
        };
        Some(Self {
            source: address(source_kind(v6))?,
            destination: address(destination_kind(v6))?,
            ports: port(number::CTA_PROTO_SRC_PORT).zip(port(number::CTA_PROTO_DST_PORT)),
        })
    }
}

fn is_v6(entry: &[u8]) -> bool {
    let source = [Side::Original.tuple(), number::CTA_TUPLE_IP, source_kind(true)];
    attribute_at(entry, &source).is_some()
}

/// What happens with the bit of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlowAction {
    Keep,
    Forbid,
    Clear,
}

/// Which flows are listed. The kernel selects them, because it takes much longer to describe a flow than to skip it. It may list
/// further ones: kernels before Linux 5.8 ignore the protocol and port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FlowSelection {
    All,
    /// Those with the bit. Sufficient after a change that only allows more.
    Forbidden,
    /// Those of an IP protocol.
    Protocol(u8),
    /// Those of an IP protocol to a port of [`TrackedFlow::target`].
    Port(u8, u16),
}

impl FlowSelection {
    fn write(self, body: &mut Body<'_>, bit: MarkBit) {
        match self {
            Self::All => {}
            Self::Forbidden => {
                body.bytes(number::CTA_MARK, &bit.mask().to_be_bytes());
                body.bytes(number::CTA_MARK_MASK, &bit.mask().to_be_bytes());
            }
            Self::Protocol(protocol) => select_target(body, protocol, None),
            Self::Port(protocol, port) => select_target(body, protocol, Some(port)),
        }
    }
}

/// The source of the reply tuple.
fn select_target(body: &mut Body<'_>, protocol: u8, port: Option<u16>) {
    body.nest(Side::Reply.tuple(), |tuple| {
        tuple.nest(number::CTA_TUPLE_PROTO, |part| {
            part.u8(number::CTA_PROTO_NUM, protocol);
            if let Some(port) = port {
                part.bytes(number::CTA_PROTO_SRC_PORT, &port.to_be_bytes());
            }
        });
    });
    let ports = port.map_or(0, |_| number::FILTER_PROTO_SRC_PORT);
    body.nest(number::CTA_FILTER, |filter| filter.u32(Side::Reply.flags(), number::FILTER_PROTO_NUM | ports));
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FlowScan {
    pub listed: usize,
    /// Flows whose bit was set or cleared.
    pub forbidden: usize,
    pub cleared: usize,
}

/// Lists the flows of one family or of both, and sets or clears their bit as `judge` decides. All other bits of the mark stay. Flows whose
/// first packet is not yet confirmed (it is still on its way through this node) are not listed: a second pass finds them. A flow may
/// be listed twice. Memory does not grow with the number of flows.
pub fn judge_flows(
    family: Option<Family>,
    bit: MarkBit,
    selection: FlowSelection,
    judge: &mut dyn FnMut(&TrackedFlow) -> FlowAction,
) -> Result<FlowScan, Error> {
    let mut scan = FlowScan::default();
    if is_empty() {
        return Ok(scan);
    }
    let (mut listing, mut marks) = (NftSocket::open()?, Marks::open()?);
    for header in headers(family, selection) {
        let selected = NftRequest::new(header, |body| selection.write(body, bit));
        let mut sent = Ok(());
        let listed = listing.dump(&selected, |entry| {
            let Some(flow) = TrackedFlow::read(entry).filter(|_| sent.is_ok()) else { return };
            scan.listed += 1;
            let is_forbidden = flow.mark & bit.mask() != 0;
            let mark = match (judge(&flow), is_forbidden) {
                (FlowAction::Forbid, false) => bit.mask(),
                (FlowAction::Clear, true) => 0,
                (FlowAction::Keep, _) | (FlowAction::Forbid, true) | (FlowAction::Clear, false) => return,
            };
            *(if mark == 0 { &mut scan.cleared } else { &mut scan.forbidden }) += 1;
            marks.changes.extend(change(entry, mark, bit));
            if marks.changes.len() >= CHANGES {
                sent = marks.send();
            }
        })?;
        sent?;
        marks.send()?;
        listed.map_err(unreadable)?;
    }
    Ok(scan)
}

/// The kernel selects targets within one family only.
fn headers(family: Option<Family>, selection: FlowSelection) -> Vec<MessageHeader> {
    let of = |family| verb(number::CT_GET, family == Family::V6);
    match (family, selection) {
        (Some(family), _) => vec![of(family)],
        (None, FlowSelection::All | FlowSelection::Forbidden) => {
            vec![MessageHeader { family: ANY_FAMILY, ..of(Family::V4) }]
        }
        (None, FlowSelection::Protocol(_) | FlowSelection::Port(..)) => vec![of(Family::V4), of(Family::V6)],
    }
}

/// Changes of marks that are not sent yet. A second socket sends them while the first one lists.
struct Marks {
    socket: NftSocket,
    changes: Vec<NftRequest<'static>>,
}

impl Marks {
    fn open() -> Result<Self, Error> {
        Ok(Self { socket: NftSocket::open()?, changes: Vec::new() })
    }

    fn send(&mut self) -> Result<(), Error> {
        let answers = self.socket.ask(&self.changes)?;
        self.changes.clear();
        for answer in answers {
            match answer {
                // It may have ended.
                Ok(_) | Err(Refusal { errno: Errno::NOENT, .. }) => {}
                Err(refusal) => return Err(Error::refused(MARK, "an entry".to_owned(), refusal)),
            }
        }
        Ok(())
    }
}

/// The kernel changes the bits of the mask only.
fn change(entry: &[u8], mark: u32, bit: MarkBit) -> Option<NftRequest<'static>> {
    let original = attribute(entry, Side::Original.tuple())?.to_vec();
    let zone = attribute(entry, number::CTA_ZONE).map(<[u8]>::to_vec);
    Some(NftRequest::new(verb(number::CT_NEW, is_v6(entry)), move |body| {
        body.nest(Side::Original.tuple(), |tuple| tuple.raw(&original));
        if let Some(zone) = &zone {
            body.bytes(number::CTA_ZONE, zone);
        }
        body.bytes(number::CTA_MARK, &mark.to_be_bytes());
        body.bytes(number::CTA_MARK_MASK, &bit.mask().to_be_bytes());
    }))
}
