use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use types::Special;

use crate::error::{RangeError, RangeKey};
use crate::interval::{Interval, address, number};
use crate::window::{Span, Window};

/// Limit, because addresses are compared with all exclusions while the network is locked.
const MAX_EXCLUSIONS: usize = 16_384;

/// A configured range: the keys `subnet`, `rangeStart`, `rangeEnd` and `gateway` of host-local, and `exclude`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RangeSpec {
    pub subnet: IpNet,
    pub start: Option<IpAddr>,
    pub end: Option<IpAddr>,
    pub gateway: Option<IpAddr>,
    pub exclude: Vec<IpNet>,
}

/// A validated range with at least one allocatable address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Range {
    subnet: IpNet,
    start: IpAddr,
    end: IpAddr,
    gateway: IpAddr,
    /// Gateways of other ranges of the same pools that are inside this range. They are not allocated to pods either.
    other_gateways: Vec<IpAddr>,
    exclude: Vec<IpNet>,
    window: Window,
}

/// The reason why an address of a range is not allocatable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RangeRefusal {
    Outside,
    Gateway,
    Excluded(IpNet),
    NetworkAddress,
    BroadcastAddress,
}

impl Range {
    /// Defaults as in host-local: `start` and the gateway are the first host address, `end` is the last one. The gateway may be
    /// outside the subnet: pods reach it through an on-link route.
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
        if exclude.len() > MAX_EXCLUSIONS {
            return Err(RangeError::TooManyExclusions { given: exclude.len(), max: MAX_EXCLUSIONS });
        }
        for net in &exclude {
            check_family(RangeKey::Exclude, net.addr(), subnet)?;
        }
        if start > end {
            return Err(RangeError::StartAfterEnd { start, end });
        }
        let reserved = reserved(subnet, &exclude, &[gateway]);
        let window = window(start, end, reserved).ok_or(RangeError::NothingLeft { subnet, start, end })?;
        Ok(Self { subnet, start, end, gateway, other_gateways: Vec::new(), exclude, window })
    }

    /// Ranges of the same subnet may have different gateways. Each range must reserve the gateways of all of them.
    pub(crate) fn reserving_gateways(mut self, gateways: &[IpAddr]) -> Result<Self, RangeError> {
        let other_gateways = gateways.iter().copied().filter(|g| self.contains(*g) && *g != self.gateway);
        self.other_gateways = other_gateways.collect();
        let gateways: Vec<_> = self.gateways().collect();
        let reserved = reserved(self.subnet, &self.exclude, &gateways);
        let Self { subnet, start, end, .. } = self;
        self.window = window(start, end, reserved).ok_or(RangeError::NothingLeft { subnet, start, end })?;
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

    /// Whether an address is between start and end. Always false for the other family.
    pub fn contains(&self, ip: IpAddr) -> bool {
        self.start <= ip && ip <= self.end
    }

    /// Whether a pod may have this address.
    pub fn allocatable(&self, ip: IpAddr) -> bool {
        self.refusal(ip).is_none()
    }

    /// The reason why a pod may not have this address. More specific reasons have precedence over `Outside`.
    pub fn refusal(&self, ip: IpAddr) -> Option<RangeRefusal> {
        if self.gateways().any(|g| g == ip) {
            return Some(RangeRefusal::Gateway);
        }
        // In IPv6 this is the subnet-router anycast address (RFC 4291, section 2.6.1).
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

    /// The number of addresses for automatic allocation.
    pub fn capacity(&self) -> u64 {
        self.window.capacity()
    }

    /// The name of the range's stored index. Indexes with equal names have equal offsets. A valid file name of at most 79 bytes.
    pub fn name(&self) -> String {
        format!("{}-{}", self.address(0), self.end)
    }

    /// The number of addresses that the index covers, allocatable or not: 1 to `WINDOW`.
    pub fn window_len(&self) -> u32 {
        self.window.len
    }

    /// The number of 64-bit words of the index.
    pub fn window_words(&self) -> u32 {
        self.window.len.div_ceil(u64::BITS)
    }

    /// The offset of an address in the index, if the index covers it.
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

    pub(crate) fn allocatable_within(&self, within: Span) -> impl Iterator<Item = Span> + '_ {
        self.window.allocatable_within(within)
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

/// Link-local gateways are allowed: pods reach them through an on-link route.
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

/// All addresses that are not allocatable, as in `Range::refusal`.
fn reserved(subnet: IpNet, exclude: &[IpNet], gateways: &[IpAddr]) -> Vec<Interval> {
    let broadcast = subnet.addr().is_ipv4().then(|| subnet.broadcast());
    let single = std::iter::once(subnet.network()).chain(broadcast).chain(gateways.iter().copied());
    single.map(Interval::of_address).chain(exclude.iter().copied().map(Interval::of_net)).collect()
}

fn window(start: IpAddr, end: IpAddr, reserved: Vec<Interval>) -> Option<Window> {
    let range = Interval { first: number(start), last: number(end) };
    Window::choose(range, &range.without(reserved))
}

/// The gateway address of a node's block: the first host address.
pub fn block_gateway(block: &IpNet) -> Option<IpAddr> {
    let spec = RangeSpec { subnet: *block, start: None, end: None, gateway: None, exclude: Vec::new() };
    Range::new(spec).ok().map(|range| range.gateway())
}
