//! What the kernel's news ask for. Pure. News are reasons to look, never findings: our own work makes them too.

use std::collections::{BTreeSet, HashSet};

use engine::reconcile::Depth;
use ipnet::IpNet;
use netlink::{LinkEvent, Where};
use types::{IfName, PEER_PROTOCOL, ROUTE_PROTOCOL};

/// What is known when news come.
pub(super) struct HintContext<'a> {
    pub(super) bridges: &'a [IfName],
    /// Whether we deleted this link ourselves: then all that is told of it is no news.
    pub(super) deleted_here: &'a dyn Fn(u32) -> bool,
}

/// The looks that these news ask for. What goes on the node often goes inside a pod as well, and the quick look does not
/// wait for the deep one.
pub(super) fn depths(events: &[LinkEvent], known: &HintContext<'_>) -> BTreeSet<Depth> {
    // Of a link that is told several times the last word counts: a new one is told as down before it is up.
    let mut up = HashSet::new();
    let mut depths = BTreeSet::new();
    for one in events.iter().rev() {
        if let LinkEvent::Link { index, up: true, place, .. } = one {
            up.insert((*place, *index));
        }
        let settled = |place: Where, index: u32| up.contains(&(place, index));
        depths.extend(of_one(one, known, &settled));
    }
    depths
}

/// Whether another program may have added an address or a route in the subnets, or removed such a route.
pub(super) fn may_overlap(events: &[LinkEvent], subnets: &[IpNet]) -> bool {
    let is_within = |net: &IpNet| subnets.iter().any(|s| s.contains(net) || net.trunc().contains(s));
    let is_other = |protocol: u8| ![ROUTE_PROTOCOL, PEER_PROTOCOL].contains(&protocol);
    events.iter().any(|one| match one {
        LinkEvent::Lost => true,
        LinkEvent::AddressAdded { addr, protocol } => *protocol != Some(ROUTE_PROTOCOL) && is_within(addr),
        LinkEvent::RouteAdded { dst, protocol }
        | LinkEvent::RouteGone { dst, protocol, place: Where::Here, .. } => {
            is_other(*protocol) && dst.prefix_len() > 0 && is_within(dst)
        }
        _ => false,
    })
}

fn of_one(
    events: &LinkEvent,
    known: &HintContext<'_>,
    settled: &dyn Fn(Where, u32) -> bool,
) -> Option<Depth> {
    let stays = |link: u32| !(known.deleted_here)(link);
    let (place, lost) = match events {
        LinkEvent::Lost => return Some(Depth::Pods),
        LinkEvent::AddressAdded { .. } | LinkEvent::RouteAdded { .. } => return None,
        LinkEvent::Link { index, name, up, gone, place } => {
            let ours = |name: &String| {
                let is_bridge = known.bridges.iter().any(|bridge| bridge.as_str() == name);
                is_bridge || name.starts_with("pw") || name.starts_with("pi")
            };
            let down = !up && !settled(*place, *index);
            // Inside a pod, a link that is gone is gone here as well.
            let lost = match place {
                Where::Here => (*gone || down) && name.as_ref().is_none_or(ours) && stays(*index),
                Where::Elsewhere => down && !gone,
            };
            (*place, lost)
        }
        LinkEvent::ForwardingOff { place } => (*place, *place == Where::Here),
        LinkEvent::PortLeft { index, place } => (*place, *place == Where::Here && stays(*index)),
        LinkEvent::AddressGone { link, place, .. } => (*place, *place == Where::Elsewhere || stays(*link)),
        LinkEvent::RouteGone { link, protocol, place, .. } => {
            let stays = *place == Where::Elsewhere || link.is_none_or(stays);
            (*place, *protocol == ROUTE_PROTOCOL && stays)
        }
        LinkEvent::NeighbourGone { link, protocol, place, .. } => {
            let stays = *place == Where::Elsewhere || stays(*link);
            (*place, *protocol == ROUTE_PROTOCOL && stays)
        }
    };
    lost.then_some(match place {
        Where::Here => Depth::Node,
        Where::Elsewhere => Depth::Pods,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A link that we deleted ourselves.
    const OURS: u32 = 99;

    fn look(events: LinkEvent) -> Option<Depth> {
        all(&[events]).pop_last()
    }

    fn all(events: &[LinkEvent]) -> BTreeSet<Depth> {
        let bridges = [IfName::try_from("podwire0").unwrap()];
        depths(events, &HintContext { bridges: &bridges, deleted_here: &|index| index == OURS })
    }

    fn link(name: &str, up: bool, gone: bool) -> LinkEvent {
        LinkEvent::Link { index: 7, name: Some(name.to_owned()), up, gone, place: Where::Here }
    }

    fn route(protocol: u8, place: Where) -> LinkEvent {
        LinkEvent::RouteGone { dst: "fd00:88::2/128".parse().unwrap(), link: Some(7), protocol, place }
    }

    #[test]
    fn ours_that_go_are_looked_at_and_others_are_not() {
        assert_eq!(look(link("pwabc", false, true)), Some(Depth::Node));
        assert_eq!(look(link("podwire0", false, false)), Some(Depth::Node));
        assert_eq!(look(link("eth0", false, true)), None);
        assert_eq!(look(link("pwabc", true, false)), None);
        assert_eq!(look(route(ROUTE_PROTOCOL, Where::Here)), Some(Depth::Node));
        assert_eq!(look(route(2, Where::Here)), None);
        assert_eq!(look(LinkEvent::Lost), Some(Depth::Pods));
    }

    #[test]
    fn our_own_add_and_del_are_no_news() {
        assert_eq!(all(&[link("pwabc", false, false), link("pwabc", true, false)]), BTreeSet::new());
        assert_eq!(all(&[link("pwabc", true, false), link("pwabc", false, false)]), [Depth::Node].into());
        let gone = LinkEvent::Link {
            index: OURS,
            name: Some("pwabc".to_owned()),
            up: false,
            gone: true,
            place: Where::Here,
        };
        let dst = "fd00:88::2/128".parse().unwrap();
        let route =
            LinkEvent::RouteGone { dst, link: Some(OURS), protocol: ROUTE_PROTOCOL, place: Where::Here };
        assert_eq!(all(&[gone, route]), BTreeSet::new());
    }

    #[test]
    fn the_quick_look_does_not_wait_for_the_deep_one() {
        let events = [link("pwabc", false, true), route(ROUTE_PROTOCOL, Where::Elsewhere)];
        assert_eq!(all(&events), [Depth::Node, Depth::Pods].into());
    }

    #[test]
    fn only_other_programs_in_the_subnets_may_overlap() {
        let subnets = ["10.83.0.0/16".parse().unwrap(), "fd00:88::/64".parse().unwrap()];
        let address =
            |addr: &str, protocol| LinkEvent::AddressAdded { addr: addr.parse().unwrap(), protocol };
        let added = |dst: &str, protocol| LinkEvent::RouteAdded { dst: dst.parse().unwrap(), protocol };
        let gone = |place| LinkEvent::RouteGone {
            dst: "10.83.7.0/24".parse().unwrap(),
            link: Some(7),
            protocol: 3,
            place,
        };
        for (events, want) in [
            (address("10.83.0.9/16", None), true),
            (address("fd00:88::9/128", Some(0)), true),
            (address("10.1.2.3/8", Some(0)), true),
            (address("10.83.0.1/24", Some(ROUTE_PROTOCOL)), false),
            (address("192.0.2.1/24", None), false),
            (added("10.83.7.0/24", 3), true),
            (added("fd00:88::/48", 2), true),
            (added("0.0.0.0/0", 3), false),
            (added("10.83.0.7/32", ROUTE_PROTOCOL), false),
            (added("10.83.9.0/24", PEER_PROTOCOL), false),
            (added("192.0.2.0/24", 3), false),
            (gone(Where::Here), true),
            (gone(Where::Elsewhere), false),
            (LinkEvent::Lost, true),
        ] {
            assert_eq!(may_overlap(std::slice::from_ref(&events), &subnets), want, "{events:?}");
        }
    }

    #[test]
    fn what_goes_in_a_pod_asks_for_a_look_into_pods() {
        let addr = "10.88.0.2/32".parse().unwrap();
        assert_eq!(
            look(LinkEvent::AddressGone { link: 2, addr, place: Where::Elsewhere }),
            Some(Depth::Pods)
        );
        assert_eq!(look(route(ROUTE_PROTOCOL, Where::Elsewhere)), Some(Depth::Pods));
        assert_eq!(look(route(2, Where::Elsewhere)), None);
    }
}
