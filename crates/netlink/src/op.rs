//! What can be asked of the kernel. Plain data; `encode` turns it into messages, `words` into sentences.

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::BorrowedFd;
use std::time::Duration;

use ipnet::IpNet;
use types::{IfName, Mac, ROUTE_PROTOCOL};

/// One change of the kernel's network configuration: one message, one answer.
#[derive(Debug, Clone, Copy)]
pub enum Op<'a> {
    AddVeth(Veth<'a>),
    AddBridge(AddBridge<'a>),
    /// An intermediate device, made up: what a pod sends is redirected to it to be shaped there.
    AddIfb {
        name: &'a IfName,
        mtu: u32,
    },
    AddVxlan(AddVxlan<'a>),
    SetLink(SetLink<'a>),
    /// Only for a link that is down; older kernels refuse others.
    RenameLink {
        link: u32,
        name: &'a IfName,
    },
    DelLink(u32),
    AddAddress(AddAddress),
    DelAddress {
        link: u32,
        addr: IpNet,
    },
    AddRoute {
        route: Route,
        mode: Mode,
    },
    /// Removes the route with this destination and with the gateway, link, priority, table and protocol that are given.
    DelRoute(Route),
    /// A permanent neighbour; one that is there is replaced.
    AddNeighbour(AddNeighbour),
    DelNeighbour {
        link: u32,
        addr: IpAddr,
    },
    /// What is sent to `mac` through the tunnel device goes to `dst`. A MAC has one such place: another is replaced.
    AddFdb(Fdb),
    /// Only where the entry leads to this very place; where it leads elsewhere nothing happens, and that is no error.
    DelFdb(Fdb),
    /// A token bucket as root qdisc; whatever is there is replaced.
    AddTbf(AddTbf),
    /// The hook for filters on what a link receives.
    AddIngress {
        link: u32,
    },
    /// Everything that `from` receives leaves through `to` instead. Needs `AddIngress` on `from` before.
    RedirectIngress {
        from: u32,
        to: u32,
    },
    DelQdisc {
        link: u32,
        at: QdiscAt,
    },
}

/// What happens when the thing is already there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The kernel refuses (`Error::is_exists`).
    Exclusive,
    Replace,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkRef<'a> {
    Index(u32),
    Name(&'a IfName),
}

/// A pair of links, the peer born inside another namespace under its final name. The host end neither answers nor learns
/// by ARP: its neighbours are permanent, or it is a bridge port.
/// Alias, port flags and link-local mode are ignored by the kernel here: they need a `SetLink` afterwards. One by name
/// in the same `run_all` is for names that nobody else has: where the name is taken, creation is refused and the
/// `SetLink` changes the other's link.
/// The peer must be set up from inside: asked for here, the kernel answers ENOTCONN.
#[derive(Debug, Clone, Copy)]
pub struct Veth<'a> {
    pub host: &'a IfName,
    pub host_mac: Mac,
    pub mtu: u32,
    pub master: Option<u32>,
    pub peer: &'a IfName,
    pub peer_mac: Mac,
    pub peer_ns: BorrowedFd<'a>,
    /// Whether the host end comes up at once. Each later change of a link that is up costs more: the kernel calls every
    /// subscriber of link events for it.
    pub up: bool,
}

/// A bridge with a MAC of its own, which never changes with its ports.
/// Its MTU does: the kernel lets a bridge follow its smallest port until the MTU has been *changed* once on the living
/// bridge. To pin it, create with another value and `SetLink` the right one.
/// It does not listen for who wants which multicast: whoever is on it could pose as the one who asks, and the bridge would
/// keep others' neighbour solicitations back. Where nobody asks, the kernel gives multicast to every port in any case.
#[derive(Debug, Clone, Copy)]
pub struct AddBridge<'a> {
    pub name: &'a IfName,
    pub mac: Mac,
    pub mtu: u32,
    pub up: bool,
}

/// A tunnel device that sends only where its forwarding entries lead: it learns nothing and has no multicast group.
/// It is of the family of `local`; over IPv6 its outer packets have checksums, as RFC 2460 wants. It is born down, because
/// the kernel takes the link-local mode only afterwards, and makes the address when a link comes up: `make_vxlan` does all.
#[derive(Debug, Clone, Copy)]
pub struct AddVxlan<'a> {
    pub name: &'a IfName,
    pub mac: Mac,
    pub mtu: u32,
    pub vni: u32,
    pub port: u16,
    /// Outer packets come from here.
    pub local: IpAddr,
    /// The lower link. With it, the tunnel goes when that link goes, and the MTU must fit it.
    pub link: Option<u32>,
}

/// An entry of a tunnel device's forwarding table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fdb {
    pub link: u32,
    pub mac: Mac,
    pub dst: IpAddr,
}

/// Changes to an existing link; `None` and `false` leave alone.
#[derive(Debug, Clone, Copy)]
pub struct SetLink<'a> {
    pub link: LinkRef<'a>,
    pub up: Option<bool>,
    pub mtu: Option<u32>,
    pub mac: Option<Mac>,
    /// At most 255 bytes; empty removes it.
    pub alias: Option<&'a str>,
    /// `Some(0)` takes the link out of its bridge.
    pub master: Option<u32>,
    pub promisc: Option<bool>,
    /// The link neither answers nor learns by ARP. The kernel then removes all neighbour entries of the link, also
    /// permanent ones.
    pub no_arp: bool,
    /// The kernel makes no link-local IPv6 address when the link comes up.
    pub no_link_local: bool,
    /// Only for a link that is a bridge port already: the kernel looks at it before `master` of the same message.
    pub hairpin: Option<bool>,
    /// A bridge that does not listen for who wants which multicast: see [`AddBridge`].
    pub no_snooping: bool,
}

impl<'a> SetLink<'a> {
    /// No change yet: for `SetLink { mtu: Some(1400), ..SetLink::of(link) }`.
    pub fn of(link: LinkRef<'a>) -> Self {
        Self {
            link,
            up: None,
            mtu: None,
            mac: None,
            alias: None,
            master: None,
            promisc: None,
            no_arp: false,
            no_link_local: false,
            hairpin: None,
            no_snooping: false,
        }
    }
}

/// Marked as ours (`Address::protocol`) where the kernel can do that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddAddress {
    pub link: u32,
    /// The address itself with its network's prefix length; host bits count.
    pub addr: IpNet,
    /// No duplicate address detection, so that it can be used at once. IPv6 only, ignored for IPv4.
    pub nodad: bool,
    pub broadcast: Option<Ipv4Addr>,
    /// The kernel makes no route to the address's subnet.
    pub no_subnet_route: bool,
    pub mode: Mode,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RouteScope {
    /// Behind a gateway.
    Universe,
    /// On the link itself.
    Link,
    Host,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RouteKind {
    Unicast,
    /// Packets to it are refused with an ICMP error.
    Unreachable,
}

/// A route. `routes` gives unicast ones back in the same form, with table and priority filled in by the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Route {
    /// Host bits are ignored.
    pub dst: IpNet,
    pub gateway: Option<IpAddr>,
    pub link: Option<u32>,
    /// The gateway is on the link, whatever the addresses say.
    pub onlink: bool,
    /// IPv6 has no scopes and ignores it.
    pub scope: RouteScope,
    pub src: Option<IpAddr>,
    pub mtu: Option<u32>,
    pub advmss: Option<u32>,
    /// `None` is 0 for IPv4 and 1024 for IPv6.
    pub priority: Option<u32>,
    /// `None` is main.
    pub table: Option<u32>,
    pub protocol: u8,
    pub kind: RouteKind,
}

impl Route {
    /// A route of ours: for `Route { gateway: Some(gw), ..Route::to(dst) }`.
    pub fn to(dst: IpNet) -> Self {
        Self {
            dst,
            gateway: None,
            link: None,
            onlink: false,
            scope: RouteScope::Universe,
            src: None,
            mtu: None,
            advmss: None,
            priority: None,
            table: None,
            protocol: ROUTE_PROTOCOL,
            kind: RouteKind::Unicast,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddNeighbour {
    pub link: u32,
    pub addr: IpAddr,
    pub mac: Mac,
    pub protocol: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddTbf {
    pub link: u32,
    pub tbf: Tbf,
}

/// A token bucket: so many bytes per second, so many at once, and so many that may wait before the rest is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tbf {
    pub rate_bytes: u64,
    /// As read back it is rounded, because the kernel keeps it as a time.
    pub burst_bytes: u32,
    pub limit_bytes: u32,
}

impl Tbf {
    /// A queue as long as what the rate carries away within `latency`, beside the burst.
    pub fn with_latency(rate_bytes: u64, burst_bytes: u32, latency: Duration) -> Self {
        let queued = u128::from(rate_bytes) * latency.as_micros() / 1_000_000;
        let limit_bytes = u32::try_from(queued + u128::from(burst_bytes)).unwrap_or(u32::MAX);
        Self { rate_bytes, burst_bytes, limit_bytes }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QdiscAt {
    Root,
    Ingress,
}
