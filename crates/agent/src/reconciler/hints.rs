//! What the kernel's news ask for. Pure. News are reasons to look, never findings: our own work makes them too.

use std::collections::{BTreeSet, HashSet};

use engine::reconcile::Depth;
use ipnet::IpNet;
use netlink::{EventNamespace, LinkEvent};
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
        if let LinkEvent::Link { index, up: true, namespace, .. } = one {
            up.insert((*namespace, *index));
        }
        let settled = |namespace: EventNamespace, index: u32| up.contains(&(namespace, index));
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
        | LinkEvent::RouteRemoved { dst, protocol, namespace: EventNamespace::Own, .. } => {
            is_other(*protocol) && dst.prefix_len() > 0 && is_within(dst)
        }
        _ => false,
    })
}

fn of_one(
    events: &LinkEvent,
    known: &HintContext<'_>,
    settled: &dyn Fn(EventNamespace, u32) -> bool,
) -> Option<Depth> {
    let stays = |link: u32| !(known.deleted_here)(link);
    let (namespace, lost) = match events {
        LinkEvent::Lost => return Some(Depth::Pods),
        LinkEvent::AddressAdded { .. } | LinkEvent::RouteAdded { .. } => return None,
        LinkEvent::Link { index, name, up, removed, namespace } => {
            let ours = |name: &String| {
                let is_bridge = known.bridges.iter().any(|bridge| bridge.as_str() == name);
                is_bridge || name.starts_with("pw") || name.starts_with("pi")
            };
            let down = !up && !settled(*namespace, *index);
            // Inside a pod, a link that is gone is gone here as well.
            let lost = match namespace {
                EventNamespace::Own => (*removed || down) && name.as_ref().is_none_or(ours) && stays(*index),
                EventNamespace::Pod => down && !removed,
            };
            (*namespace, lost)
        }
        LinkEvent::ForwardingOff { namespace } => (*namespace, *namespace == EventNamespace::Own),
        LinkEvent::PortLeft { index, namespace } => {
            (*namespace, *namespace == EventNamespace::Own && stays(*index))
        }
        LinkEvent::AddressRemoved { link, namespace, .. } => {
            (*namespace, *namespace == EventNamespace::Pod || stays(*link))
        }
        LinkEvent::RouteRemoved { link, protocol, namespace, .. } => {
            let stays = *namespace == EventNamespace::Pod || link.is_none_or(stays);
            (*namespace, *protocol == ROUTE_PROTOCOL && stays)
        }
        LinkEvent::NeighbourRemoved { link, protocol, namespace, .. } => {
            let stays = *namespace == EventNamespace::Pod || stays(*link);
            (*namespace, *protocol == ROUTE_PROTOCOL && stays)
        }
    };
    lost.then_some(match namespace {
        EventNamespace::Own => Depth::Node,
        EventNamespace::Pod => Depth::Pods,
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

    fn link(name: &str, up: bool, removed: bool) -> LinkEvent {
        LinkEvent::Link { index: 7, name: Some(name.to_owned()), up, removed, namespace: EventNamespace::Own }
    }

    fn route(protocol: u8, namespace: EventNamespace) -> LinkEvent {
        LinkEvent::RouteRemoved { dst: "fd00:88::2/128".parse().unwrap(), link: Some(7), protocol, namespace }
    }

    #[test]
    fn ours_that_go_are_looked_at_and_others_are_not() {
        assert_eq!(look(link("pwabc", false, true)), Some(Depth::Node));
        assert_eq!(look(link("podwire0", false, false)), Some(Depth::Node));
        assert_eq!(look(link("eth0", false, true)), None);
        assert_eq!(look(link("pwabc", true, false)), None);
        assert_eq!(look(route(ROUTE_PROTOCOL, EventNamespace::Own)), Some(Depth::Node));
        assert_eq!(look(route(2, EventNamespace::Own)), None);
        assert_eq!(look(LinkEvent::Lost), Some(Depth::Pods));
    }

    #[test]
    fn our_own_add_and_del_are_no_news() {
        assert_eq!(all(&[link("pwabc", false, false), link("pwabc", true, false)]), BTreeSet::new());
        assert_eq!(all(&[link("pwabc", true, false), link("pwabc", false, false)]), [Depth::Node].into());
        let removed = LinkEvent::Link {
            index: OURS,
            name: Some("pwabc".to_owned()),
            up: false,
            removed: true,
            namespace: EventNamespace::Own,
        };
        let dst = "fd00:88::2/128".parse().unwrap();
        let route = LinkEvent::RouteRemoved {
            dst,
            link: Some(OURS),
            protocol: ROUTE_PROTOCOL,
            namespace: EventNamespace::Own,
        };
        assert_eq!(all(&[removed, route]), BTreeSet::new());
    }

    #[test]
    fn the_quick_look_does_not_wait_for_the_deep_one() {
        let events = [link("pwabc", false, true), route(ROUTE_PROTOCOL, EventNamespace::Pod)];
        assert_eq!(all(&events), [Depth::Node, Depth::Pods].into());
    }

    #[test]
    fn only_other_programs_in_the_subnets_may_overlap() {
        let subnets = ["10.83.0.0/16".parse().unwrap(), "fd00:88::/64".parse().unwrap()];
        let address =
            |addr: &str, protocol| LinkEvent::AddressAdded { addr: addr.parse().unwrap(), protocol };
        let added = |dst: &str, protocol| LinkEvent::RouteAdded { dst: dst.parse().unwrap(), protocol };
        let removed = |namespace| LinkEvent::RouteRemoved {
            dst: "10.83.7.0/24".parse().unwrap(),
            link: Some(7),
            protocol: 3,
            namespace,
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
            (removed(EventNamespace::Own), true),
            (removed(EventNamespace::Pod), false),
            (LinkEvent::Lost, true),
        ] {
            assert_eq!(may_overlap(std::slice::from_ref(&events), &subnets), want, "{events:?}");
        }
    }

    #[test]
    fn what_goes_in_a_pod_asks_for_a_look_into_pods() {
        let addr = "10.88.0.2/32".parse().unwrap();
        assert_eq!(
            look(LinkEvent::AddressRemoved { link: 2, addr, namespace: EventNamespace::Pod }),
            Some(Depth::Pods)
        );
        assert_eq!(look(route(ROUTE_PROTOCOL, EventNamespace::Pod)), Some(Depth::Pods));
        assert_eq!(look(route(2, EventNamespace::Pod)), None);
    }
}
