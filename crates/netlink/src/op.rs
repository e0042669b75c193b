//! Operations of the kernel as plain data. `encode` turns them into messages, `display` into text.

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::BorrowedFd;
use std::time::Duration;

use ipnet::IpNet;
use types::{IfName, Mac, ROUTE_PROTOCOL};

/// One change of the kernel's network configuration: one message with one answer.
#[derive(Debug, Clone, Copy)]
pub enum Op<'a> {
    AddVeth(Veth<'a>),
    AddBridge(AddBridge<'a>),
    /// An intermediate functional block device, which shapes the pod's egress traffic.
    AddIfb {
        name: &'a IfName,
        mtu: u32,
    },
    AddVxlan(AddVxlan<'a>),
    SetLink(SetLink<'a>),
    /// The link must be down: older kernels refuse to rename a link that is up.
    RenameLink {
        link: u32,
        name: &'a IfName,
    },
    /// By index only: if a message has a group but neither index nor name, the kernel changes all links of that group.
    SetLinkGroup {
        link: u32,
        group: u32,
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
    /// Removes the route with this destination and with the given gateway, link, priority, table and protocol.
    DelRoute(Route),
    /// Adds or replaces a permanent neighbour.
    AddNeighbour(AddNeighbour),
    DelNeighbour {
        link: u32,
        addr: IpAddr,
    },
    /// Sends frames for `mac` through the tunnel device to `dst`. A MAC has one entry: an existing one is replaced.
    AddFdb(Fdb),
    /// Removes the entry only if it has this `dst`. With a different `dst` nothing happens, without an error.
    DelFdb(Fdb),
    /// Sets a token bucket filter as root qdisc, replacing an existing qdisc.
    AddTbf(AddTbf),
    /// Adds the hook for ingress filters of a link.
    AddIngress {
        link: u32,
    },
    /// Redirects all ingress traffic of `from` to `to`. Requires `AddIngress` on `from`.
    RedirectIngress {
        from: u32,
        to: u32,
    },
    DelQdisc {
        link: u32,
        at: QdiscAt,
    },
}

/// What to do if the object exists.
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

/// A veth pair with the peer created inside another namespace under its final name. ARP is disabled on the host end: its
/// neighbours are permanent, or it is a bridge port.
/// The kernel ignores alias, port flags and link-local mode here, so they need a `SetLink` afterwards. A `SetLink` by name
/// in the same `run_all` requires a unique name: if the name exists, creation fails and the `SetLink` changes the existing
/// link.
/// The peer must be set up from inside: the kernel answers ENOTCONN to a request from here.
#[derive(Debug, Clone, Copy)]
pub struct Veth<'a> {
    pub host: &'a IfName,
    pub host_mac: Mac,
    pub mtu: u32,
    pub master: Option<u32>,
    /// The group of the host end, in force before its first packet. 0 is the kernel's default.
    pub group: u32,
    pub peer: &'a IfName,
    pub peer_mac: Mac,
    pub peer_ns: BorrowedFd<'a>,
    /// Whether the host end is created up. Each later change of a link that is up costs more, because the kernel calls all
    /// subscribers of link events.
    pub up: bool,
}

/// A bridge with a fixed MAC that does not depend on its ports.
/// Its MTU does: the kernel sets it to the smallest MTU of all ports until it was *changed* once on an existing bridge. To
/// pin it, create the bridge with a different value and then set the right one with `SetLink`.
/// Multicast snooping is disabled: a pod could act as the querier, and the bridge would hold back neighbour solicitations
/// of other pods. Without a querier the kernel floods multicast to all ports anyway.
#[derive(Debug, Clone, Copy)]
pub struct AddBridge<'a> {
    pub name: &'a IfName,
    pub mac: Mac,
    pub mtu: u32,
    pub up: bool,
}

/// A tunnel device that sends to its FDB entries only: it learns nothing and has no multicast group. Its outer family is
/// the family of `local`. Over IPv6 outer packets have checksums, as RFC 2460 requires. It is created down, because the
/// kernel accepts the link-local mode only later and adds the address when the link goes up: `create_vxlan` does all steps.
#[derive(Debug, Clone, Copy)]
pub struct AddVxlan<'a> {
    pub name: &'a IfName,
    pub mac: Mac,
    pub mtu: u32,
    pub vni: u32,
    pub port: u16,
    /// The source address of outer packets.
    pub local: IpAddr,
    /// The lower link. If set, the tunnel is removed with that link, and its MTU must fit.
    pub link: Option<u32>,
}

/// An entry of a tunnel device's forwarding table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fdb {
    pub link: u32,
    pub mac: Mac,
    pub dst: IpAddr,
}

/// Changes of an existing link. `None` and `false` change nothing.
#[derive(Debug, Clone, Copy)]
pub struct SetLink<'a> {
    pub link: LinkRef<'a>,
    pub up: Option<bool>,
    pub mtu: Option<u32>,
    pub mac: Option<Mac>,
    /// At most 255 bytes. An empty alias removes it.
    pub alias: Option<&'a str>,
    /// `Some(0)` removes the link from its bridge.
    pub master: Option<u32>,
    pub promisc: Option<bool>,
    /// Disables ARP. The kernel then removes all neighbour entries of the link, including permanent ones.
    pub no_arp: bool,
    /// The kernel adds no link-local IPv6 address when the link goes up.
    pub no_link_local: bool,
    /// Only for a link that is a bridge port already: the kernel applies it before `master` of the same message.
    pub hairpin: Option<bool>,
    /// Disables multicast snooping of a bridge; see [`AddBridge`].
    pub no_snooping: bool,
}

impl<'a> SetLink<'a> {
    /// No changes, for `SetLink { mtu: Some(1400), ..SetLink::of(link) }`.
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

/// An address with Podwire's protocol number (`Address::protocol`), if the kernel supports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddAddress {
    pub link: u32,
    /// The address with the prefix length of its network, including host bits.
    pub addr: IpNet,
    /// Disables duplicate address detection, so that the address is usable immediately. IPv6 only.
    pub nodad: bool,
    pub broadcast: Option<Ipv4Addr>,
    /// The kernel adds no route to the subnet of the address.
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
    /// The kernel rejects packets with an ICMP error.
    Unreachable,
}

/// A route. `routes` returns unicast routes in the same form, with table and priority set by the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Route {
    /// Host bits are ignored.
    pub dst: IpNet,
    pub gateway: Option<IpAddr>,
    pub link: Option<u32>,
    /// The gateway is directly reachable on the link, regardless of the addresses of the link.
    pub onlink: bool,
    /// Ignored for IPv6, which has no scopes.
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
    /// A route with Podwire's protocol number, for `Route { gateway: Some(gw), ..Route::to(dst) }`.
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
    /// Identifies the qdisc. A qdisc with the same handle is changed in place, and any other root qdisc is replaced. 0: the kernel
    /// selects one.
    pub handle: u32,
    pub tbf: Tbf,
}

/// A token bucket: rate in bytes per second, burst, and maximum queue length. Packets beyond it are dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tbf {
    pub rate_bytes: u64,
    /// Rounded when read back, because the kernel stores it as a time.
    pub burst_bytes: u32,
    pub limit_bytes: u32,
}

impl Tbf {
    /// A queue that holds the burst and the data of `latency` at this rate.
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
