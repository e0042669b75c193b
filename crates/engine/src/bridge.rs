//! The bridge: found or made, repaired, with the gateway's addresses. In mode `routed` it has no ports and still carries
//! the gateway.

use std::net::IpAddr;

use ipnet::IpNet;
use netconf::NetConf;
use netlink::{AddAddress, AddBridge, Link, LinkRef, Mode, Op, RtSocket, SetLink};
use types::{Digest, IfName, Mac};

use crate::{Error, sysctl};

/// Marks a bridge as made by us. One that was there before has no such mark, and stays when we leave.
pub(crate) const BRIDGE_ALIAS: &str = "podwire bridge";
/// What a veth and a new bridge have where nobody says otherwise.
const DEFAULT_MTU: u32 = 1500;

/// The bridge as the pod path found it: enough to attach to it and to report it.
#[derive(Debug, Clone)]
pub(crate) struct Bridge {
    pub(crate) name: IfName,
    pub(crate) index: u32,
    pub(crate) mac: Option<Mac>,
    pub(crate) mtu: u32,
    maker: Maker,
}

/// A bridge of ours has had a MAC of its own from the start. Another one takes that of a port until it is given one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Maker {
    Us,
    SomebodyElse,
}

/// Makes of the link that was found (or not) the bridge that the config asks for. Costs nothing when all is right.
pub(crate) fn ensure(host: &mut RtSocket, conf: &NetConf, found: Option<Link>) -> Result<Bridge, Error> {
    let link = match found {
        Some(link) => link,
        None => create(host, conf)?,
    };
    if link.kind.as_deref() != Some("bridge") {
        let kind = link.kind.unwrap_or_else(|| "physical link".to_owned());
        return Err(Error::NotABridge(conf.bridge.clone(), kind));
    }
    let mtu = conf.mtu.unwrap_or(link.mtu);
    let wrong_promisc = conf.promisc && !link.promisc;
    if !link.up || link.mtu != mtu || wrong_promisc {
        host.run(&Op::SetLink(SetLink {
            up: Some(true),
            mtu: Some(mtu),
            promisc: wrong_promisc.then_some(true),
            ..SetLink::of(LinkRef::Index(link.index))
        }))?;
    }
    let maker = if link.alias.as_deref() == Some(BRIDGE_ALIAS) { Maker::Us } else { Maker::SomebodyElse };
    Ok(Bridge { name: conf.bridge.clone(), index: link.index, mac: link.mac, mtu, maker })
}

fn create(host: &mut RtSocket, conf: &NetConf) -> Result<Link, Error> {
    let name = &conf.bridge;
    let mtu = conf.mtu.unwrap_or(DEFAULT_MTU);
    // The kernel lets a bridge's MTU follow its smallest port until it was changed once: made with another value and
    // then set, it stays (F8).
    let other = if mtu == types::MIN_MTU_V6 { DEFAULT_MTU } else { types::MIN_MTU_V6 };
    // A MAC of its own does not change when ports come and go; a random one is not needed, the name is unique here.
    let mac =
        Mac::local(Digest::of(&["bridge mac", name.as_str(), &std::process::id().to_string()]).first5());
    let answers = host.run_all(&[
        Op::AddBridge(AddBridge { name, mac, mtu: other, up: false }),
        Op::SetLink(SetLink {
            mtu: Some(mtu),
            up: Some(true),
            alias: Some(BRIDGE_ALIAS),
            ..SetLink::of(LinkRef::Name(name))
        }),
    ])?;
    for answer in answers {
        match answer {
            // Somebody else made it at the same moment.
            Err(e) if e.is_exists() => {}
            other => other?,
        }
    }
    sysctl::refuse_advertisements(name)?;
    // Gone again already: whoever removes it wants something else than we do.
    host.link(name)?
        .ok_or_else(|| Error::NotAvailable(format!("bridge {name} was removed while it was set up")))
}

/// The ops that put the gateways on the bridge; those that are there already answer "exists".
pub(crate) fn gateway_ops(bridge: u32, gateways: &[IpNet]) -> Vec<Op<'static>> {
    gateways
        .iter()
        .map(|gateway| Op::AddAddress(gateway_address(bridge, *gateway, Mode::Exclusive)))
        .collect()
}

fn gateway_address(bridge: u32, gateway: IpNet, mode: Mode) -> AddAddress {
    let broadcast = match gateway {
        IpNet::V4(v4) => Some(v4.broadcast()),
        IpNet::V6(_) => None,
    };
    AddAddress { link: bridge, addr: gateway, nodad: true, broadcast, mode }
}

/// The first time that we put a gateway on somebody else's bridge: it gets what one of ours has had from the start. Its
/// MAC would otherwise follow its ports, and pods would send to one that is gone.
pub(crate) fn adopt(host: &mut RtSocket, bridge: &Bridge) -> Result<(), Error> {
    match bridge.maker {
        Maker::Us => Ok(()),
        Maker::SomebodyElse => {
            let mac = mac_of(host, bridge);
            host.run(&Op::SetLink(SetLink { mac, ..SetLink::of(LinkRef::Index(bridge.index)) }))?;
            sysctl::refuse_advertisements(&bridge.name)
        }
    }
}

/// The bridge as it is now, for the result.
pub(crate) fn as_it_is(host: &mut RtSocket, bridge: &Bridge) -> Bridge {
    Bridge { mac: mac_of(host, bridge), ..bridge.clone() }
}

fn mac_of(host: &mut RtSocket, bridge: &Bridge) -> Option<Mac> {
    match bridge.maker {
        Maker::Us => bridge.mac,
        // Not worth failing a pod that is ready.
        Maker::SomebodyElse => {
            host.link_at(bridge.index).ok().flatten().and_then(|link| link.mac).or(bridge.mac)
        }
    }
}

/// After a gateway was put on the bridge for the first time: is there an address in the way? The reference refuses
/// that too, unless `forceAddress` says to replace it.
pub(crate) fn resolve_conflicts(
    host: &mut RtSocket,
    bridge: &Bridge,
    conf: &NetConf,
    gateway: IpNet,
) -> Result<(), Error> {
    let overlaps = |other: IpNet| other.contains(&gateway.trunc()) || gateway.contains(&other.trunc());
    for address in host.addresses(Some(bridge.index))? {
        let found = address.addr;
        if found.addr() == gateway.addr() || !overlaps(found) || is_link_local(found.addr()) {
            continue;
        }
        if !conf.force_address {
            host.run(&Op::DelAddress { link: bridge.index, addr: gateway })?;
            return Err(Error::ForeignAddress { bridge: bridge.name.clone(), found, wanted: gateway });
        }
        host.run(&Op::DelAddress { link: bridge.index, addr: found })?;
        // The kernel removes an address together with the one before it of the same subnet.
        host.run(&Op::AddAddress(gateway_address(bridge.index, gateway, Mode::Replace)))?;
    }
    Ok(())
}

fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(_) => false,
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}
