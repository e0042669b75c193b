//! Describes operations, to follow "cannot …" in an error.

use std::fmt;

use crate::op::{Fdb, LinkRef, Op, QdiscAt, Route, RouteKind, SetLink};

impl fmt::Display for Op<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AddVeth(veth) => write!(f, "create veth {} with peer {}", veth.host, veth.peer),
            Self::AddBridge(bridge) => write!(f, "create bridge {}", bridge.name),
            Self::AddIfb { name, .. } => write!(f, "create ifb {name}"),
            Self::AddVxlan(add) => write!(f, "create vxlan {} from {}", add.name, add.local),
            Self::SetLink(set) => write!(f, "{set}"),
            Self::RenameLink { link, name } => write!(f, "rename link {link} to {name}"),
            Self::SetLinkGroup { link, group } => write!(f, "set the group of link {link} to {group:#x}"),
            Self::DelLink(link) => write!(f, "delete link {link}"),
            Self::AddAddress(add) => write!(f, "add address {} to link {}", add.addr, add.link),
            Self::DelAddress { link, addr } => write!(f, "remove address {addr} from link {link}"),
            Self::AddRoute { route, .. } => write!(f, "add {route}"),
            Self::DelRoute(route) => write!(f, "delete {route}"),
            Self::AddNeighbour(n) => write!(f, "add neighbour {} at {} to link {}", n.addr, n.mac, n.link),
            Self::DelNeighbour { link, addr } => write!(f, "remove neighbour {addr} from link {link}"),
            Self::AddFdb(entry) => write!(f, "add {entry}"),
            Self::DelFdb(entry) => write!(f, "delete {entry}"),
            Self::AddTbf(add) => write!(f, "limit link {} to {} bytes/s", add.link, add.tbf.rate_bytes),
            Self::AddIngress { link } => write!(f, "add an ingress qdisc to link {link}"),
            Self::RedirectIngress { from, to } => {
                write!(f, "redirect ingress traffic of link {from} to link {to}")
            }
            Self::DelQdisc { link, at } => write!(f, "delete the {at} qdisc of link {link}"),
        }
    }
}

impl fmt::Display for LinkRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Index(index) => write!(f, "{index}"),
            Self::Name(name) => write!(f, "{name}"),
        }
    }
}

impl fmt::Display for SetLink<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "change link {}", self.link)?;
        let parts = [
            (self.up.is_some(), "state"),
            (self.mtu.is_some(), "mtu"),
            (self.mac.is_some(), "mac"),
            (self.alias.is_some(), "alias"),
            (self.master.is_some(), "bridge"),
            (self.promisc.is_some(), "promiscuous mode"),
            (self.no_arp, "ARP"),
            (self.no_link_local, "link-local mode"),
            (self.hairpin.is_some(), "hairpin"),
            (self.no_snooping, "multicast snooping"),
        ];
        for (i, (_, part)) in parts.iter().filter(|(set, _)| *set).enumerate() {
            write!(f, "{}{part}", if i == 0 { ": " } else { ", " })?;
        }
        Ok(())
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            RouteKind::Unicast => "",
            RouteKind::Unreachable => "unreachable ",
        };
        write!(f, "{kind}route {}", self.dst)?;
        if let Some(gateway) = self.gateway {
            write!(f, " via {gateway}")?;
        }
        if let Some(link) = self.link {
            write!(f, " on link {link}")?;
        }
        if let Some(table) = self.table {
            write!(f, " in table {table}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Fdb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "forwarding entry {} to {} on link {}", self.mac, self.dst, self.link)
    }
}

impl fmt::Display for QdiscAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Root => "root",
            Self::Ingress => "ingress",
        })
    }
}

#[cfg(test)]
mod tests {
    use types::IfName;

    use super::*;
    use crate::op::Mode;

    #[test]
    fn operations_are_described() {
        let name = IfName::try_from("pwabc").unwrap();
        let set = SetLink { alias: Some("x"), hairpin: Some(true), ..SetLink::of(LinkRef::Name(&name)) };
        assert_eq!(Op::SetLink(set).to_string(), "change link pwabc: alias, hairpin");
        let route = Route { link: Some(7), ..Route::to("fd00::5/128".parse().unwrap()) };
        assert_eq!(
            Op::AddRoute { route, mode: Mode::Replace }.to_string(),
            "add route fd00::5/128 on link 7"
        );
        assert_eq!(
            Op::DelQdisc { link: 3, at: QdiscAt::Ingress }.to_string(),
            "delete the ingress qdisc of link 3"
        );
    }
}
