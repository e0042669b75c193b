use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use types::Special;

use crate::error::{RangeError, RangeKey};
use crate::interval::{Interval, address, number};
use crate::window::{Span, Window};

/// Each address that is considered is compared with all of them, while the network is locked.
const MOST_EXCLUSIONS: usize = 16_384;

/// A range as it is configured: host-local's keys `subnet`, `rangeStart`, `rangeEnd`, `gateway`, and `exclude`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RangeSpec {
    pub subnet: IpNet,
    pub start: Option<IpAddr>,
    pub end: Option<IpAddr>,
    pub gateway: Option<IpAddr>,
    pub exclude: Vec<IpNet>,
}

/// A checked range with at least one address to hand out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Range {
    subnet: IpNet,
    start: IpAddr,
    end: IpAddr,
    gateway: IpAddr,
    /// Gateways of other ranges of the same pools that lie in this one: a pod must not get them either.
    other_gateways: Vec<IpAddr>,
    exclude: Vec<IpNet>,
    window: Window,
}

/// Why a range does not hand out an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RangeRefusal {
    Outside,
    Gateway,
    Excluded(IpNet),
    NetworkAddress,
    BroadcastAddress,
}

impl Range {
    /// Defaults as host-local: the first address of the subnet is the gateway and `start`; `end` is the last one, for
    /// IPv4 the one before broadcast. The gateway may lie outside of the subnet (an on-link route leads there).
    pub fn new(spec: RangeSpec) -> Result<Self, RangeError> {
        let RangeSpec { subnet, start, end, gateway, exclude } = spec;
        check_subnet(subnet)?;
        let (first, last) = hosts(subnet);
        let start = start.unwrap_or(first);
        let end = end.unwrap_or(last);
        let gateway = gateway.unwrap_or(first);
        check_inside(RangeKey::RangeStart, start, subnet)?;
        check_inside(RangeKey::RangeEnd, end, subnet)?;
        check_family(RangeKey::Gateway, gateway, subnet)?;
        check_gateway(gateway, subnet)?;
        if exclude.len() > MOST_EXCLUSIONS {
            return Err(RangeError::TooManyExclusions { given: exclude.len(), most: MOST_EXCLUSIONS });
        }
        for net in &exclude {
            check_family(RangeKey::Exclude, net.addr(), subnet)?;
        }
        if start > end {
            return Err(RangeError::StartAfterEnd { start, end });
        }
        let closed = closed(subnet, &exclude, &[gateway]);
        let window = window(start, end, closed).ok_or(RangeError::NothingLeft { subnet, start, end })?;
        Ok(Self { subnet, start, end, gateway, other_gateways: Vec::new(), exclude, window })
    }

    /// Two ranges may share a subnet and name different gateways: each must leave out the other's too.
    pub(crate) fn sparing(mut self, gateways: &[IpAddr]) -> Result<Self, RangeError> {
        let others = gateways.iter().copied().filter(|g| self.contains(*g) && *g != self.gateway);
        self.other_gateways = others.collect();
        let spared: Vec<_> = self.gateways().collect();
        let closed = closed(self.subnet, &self.exclude, &spared);
        let Self { subnet, start, end, .. } = self;
        self.window = window(start, end, closed).ok_or(RangeError::NothingLeft { subnet, start, end })?;
        Ok(self)
    }

    pub fn subnet(&self) -> IpNet {
        self.subnet
    }

    pub fn prefix_len(&self) -> u8 {
        self.subnet.prefix_len()
    }

    pub fn start(&self) -> IpAddr {
        self.start
    }

    pub fn end(&self) -> IpAddr {
        self.end
    }

    pub fn gateway(&self) -> IpAddr {
        self.gateway
    }

    pub fn is_ipv4(&self) -> bool {
        self.start.is_ipv4()
    }

    /// Is it between start and end? An address of the other family never is.
    pub fn contains(&self, ip: IpAddr) -> bool {
        self.start <= ip && ip <= self.end
    }

    /// May a pod have it?
    pub fn allocatable(&self, ip: IpAddr) -> bool {
        self.refusal(ip).is_none()
    }

    /// Why a pod may not have it. A reason that tells more comes before `Outside`.
    pub fn refusal(&self, ip: IpAddr) -> Option<RangeRefusal> {
        if self.gateways().any(|g| g == ip) {
            return Some(RangeRefusal::Gateway);
        }
        // In IPv6 the first address of a subnet means "any router here" (RFC 4291, section 2.6.1).
        if ip == self.subnet.network() {
            return Some(RangeRefusal::NetworkAddress);
        }
        if ip.is_ipv4() && ip == self.subnet.broadcast() {
            return Some(RangeRefusal::BroadcastAddress);
        }
        if !self.contains(ip) {
            return Some(RangeRefusal::Outside);
        }
        self.exclude.iter().find(|net| net.contains(&ip)).map(|net| RangeRefusal::Excluded(*net))
    }

    /// How many addresses can be handed out automatically.
    pub fn capacity(&self) -> u64 {
        self.window.capacity()
    }

    /// The name of the range's stored index. It says where offset 0 is: equal names, equal offsets. Safe as a file name
    /// and at most 79 bytes.
    pub fn name(&self) -> String {
        format!("{}-{}", self.address(0), self.end)
    }

    /// How many addresses the index covers, allocatable or not; at least 1, at most `WINDOW`.
    pub fn window_len(&self) -> u32 {
        self.window.len
    }

    /// How many 64-bit words the index has.
    pub fn window_words(&self) -> u32 {
        self.window.len.div_ceil(u64::BITS)
    }

    /// The address's place in the index, if the index covers it.
    pub fn offset(&self, ip: IpAddr) -> Option<u32> {
        if ip.is_ipv4() == self.is_ipv4() { self.window.offset(number(ip)) } else { None }
    }

    /// The inverse of `offset`, for offsets below `window_len`.
    pub fn address(&self, offset: u32) -> IpAddr {
        address(self.window.origin.wrapping_add(offset.into()), self.start)
    }

    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        self.start <= other.end && other.start <= self.end
    }

    pub(crate) fn gateways(&self) -> impl Iterator<Item = IpAddr> + '_ {
        std::iter::once(self.gateway).chain(self.other_gateways.iter().copied())
    }

    pub(crate) fn open_within(&self, within: Span) -> impl Iterator<Item = Span> + '_ {
        self.window.open_within(within)
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{} (subnet {})", self.start, self.end, self.subnet)
    }
}

/// The first and the last address that a host may have.
pub(crate) fn hosts(subnet: IpNet) -> (IpAddr, IpAddr) {
    let Interval { first, last } = Interval::of_net(subnet);
    let like = subnet.addr();
    let last = if like.is_ipv4() { last - 1 } else { last };
    (address(first + 1, like), address(last, like))
}

fn check_subnet(subnet: IpNet) -> Result<(), RangeError> {
    let masked = subnet.trunc();
    if subnet.prefix_len() + 2 > subnet.max_prefix_len() {
        return Err(RangeError::TooSmall(masked));
    }
    if subnet != masked {
        return Err(RangeError::HostBits { given: subnet, masked });
    }
    match Special::of(subnet) {
        Some(kind) => Err(RangeError::Special { subnet, kind }),
        None => Ok(()),
    }
}

/// A link-local gateway is of use: pods reach it by an on-link route.
fn check_gateway(gateway: IpAddr, subnet: IpNet) -> Result<(), RangeError> {
    match Special::of(gateway.into()) {
        Some(kind) if kind != Special::LinkLocal => Err(RangeError::SpecialGateway { gateway, subnet, kind }),
        Some(_) | None => Ok(()),
    }
}

fn check_family(key: RangeKey, value: IpAddr, subnet: IpNet) -> Result<(), RangeError> {
    if value.is_ipv4() == subnet.addr().is_ipv4() {
        Ok(())
    } else {
        Err(RangeError::Family { key, value, subnet })
    }
}

fn check_inside(key: RangeKey, value: IpAddr, subnet: IpNet) -> Result<(), RangeError> {
    check_family(key, value, subnet)?;
    if subnet.contains(&value) {
        return Ok(());
    }
    let (first, last) = hosts(subnet);
    Err(RangeError::Outside { key, value, subnet, first, last })
}

/// What is never handed out: what `Range::refusal` refuses, as intervals.
fn closed(subnet: IpNet, exclude: &[IpNet], gateways: &[IpAddr]) -> Vec<Interval> {
    let broadcast = subnet.addr().is_ipv4().then(|| subnet.broadcast());
    let single = std::iter::once(subnet.network()).chain(broadcast).chain(gateways.iter().copied());
    single.map(Interval::of_address).chain(exclude.iter().copied().map(Interval::of_net)).collect()
}

fn window(start: IpAddr, end: IpAddr, closed: Vec<Interval>) -> Option<Window> {
    let range = Interval { first: number(start), last: number(end) };
    Window::choose(range, &range.without(closed))
}

/// The address of a block that its node's bridge carries: the first.
pub fn block_gateway(block: &IpNet) -> Option<IpAddr> {
    let spec = RangeSpec { subnet: *block, start: None, end: None, gateway: None, exclude: Vec::new() };
    Range::new(spec).ok().map(|range| range.gateway())
}
