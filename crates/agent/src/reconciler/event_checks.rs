//! The checks that netlink events cause. Pure. An event is a reason for a check and never a finding, because the agent's own
//! work causes the same events.

use std::collections::HashSet;

use engine::policy::LinkGroup;
use ipnet::IpNet;
use netlink::{EventNamespace, LinkEvent};
use types::{IfName, PEER_PROTOCOL, ROUTE_PROTOCOL};

pub(super) struct EventContext<'a> {
    pub(super) bridges: &'a [IfName],
    /// Whether this process deleted the link. Then all events about it are ignored.
    pub(super) deleted_here: &'a dyn Fn(u32) -> bool,
    /// The group that the host end of a pod should have, by name. None if it is not the host end of a known pod.
    pub(super) group_of: &'a dyn Fn(&str) -> Option<LinkGroup>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Checks {
    /// A round of the node.
    pub(super) node: bool,
    /// An inspection of all pods.
    pub(super) pods: bool,
}

impl Checks {
    const NODE: Self = Self { node: true, pods: false };
    const PODS: Self = Self { node: false, pods: true };

    fn and(self, other: Self) -> Self {
        Self { node: self.node || other.node, pods: self.pods || other.pods }
    }
}

pub(super) fn checks(events: &[LinkEvent], known: &EventContext<'_>) -> Checks {
    // If a link appears in several events, the last state wins: a new link is reported as down before it is up.
    let mut up = HashSet::new();
    let mut checks = Checks::default();
    for event in events.iter().rev() {
        if let LinkEvent::Link { index, up: true, namespace, .. } = event {
            up.insert((*namespace, *index));
        }
        let is_up = |namespace: EventNamespace, index: u32| up.contains(&(namespace, index));
        checks = checks.and(of_event(event, known, &is_up));
    }
    checks
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

fn of_event(
    event: &LinkEvent,
    known: &EventContext<'_>,
    is_up: &dyn Fn(EventNamespace, u32) -> bool,
) -> Checks {
    let stays = |link: u32| !(known.deleted_here)(link);
    let (namespace, is_lost) = match event {
        LinkEvent::Lost => return Checks::NODE.and(Checks::PODS),
        LinkEvent::AddressAdded { .. } | LinkEvent::RouteAdded { .. } => return Checks::default(),
        LinkEvent::Link { index, name, up, group, removed, namespace } => {
            let is_managed = |name: &String| {
                let is_bridge = known.bridges.iter().any(|bridge| bridge.as_str() == name);
                is_bridge || name.starts_with("pw") || name.starts_with("pi")
            };
            let is_down = !up && !is_up(*namespace, *index);
            // A link that was removed inside a pod was removed on the host, too.
            let is_lost = match namespace {
                EventNamespace::Own => {
                    let group_of = |name: &String| (known.group_of)(name);
                    let has_other_group = name.as_ref().and_then(group_of).is_some_and(|it| it.0 != *group);
                    (*removed || is_down || has_other_group)
                        && name.as_ref().is_none_or(is_managed)
                        && stays(*index)
                }
                EventNamespace::Pod => is_down && !removed,
            };
            (*namespace, is_lost)
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
    match namespace {
        _ if !is_lost => Checks::default(),
        EventNamespace::Own => Checks::NODE,
        EventNamespace::Pod => Checks::PODS,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Checks = Checks { node: false, pods: false };
    /// A link that this process deleted.
    const DELETED: u32 = 99;

    fn of(event: LinkEvent) -> Checks {
        all(&[event])
    }

    fn all(events: &[LinkEvent]) -> Checks {
        let bridges = [IfName::try_from("podwire0").unwrap()];
        checks(
            events,
            &EventContext {
                bridges: &bridges,
                deleted_here: &|index| index == DELETED,
                group_of: &|name| (name == "pwjudged").then_some(LinkGroup(8)),
            },
        )
    }

    fn link(name: &str, up: bool, removed: bool) -> LinkEvent {
        let namespace = EventNamespace::Own;
        LinkEvent::Link { index: 7, name: Some(name.to_owned()), up, group: 0, removed, namespace }
    }

    fn route(protocol: u8, namespace: EventNamespace) -> LinkEvent {
        LinkEvent::RouteRemoved { dst: "fd00:88::2/128".parse().unwrap(), link: Some(7), protocol, namespace }
    }

    #[test]
    fn removed_managed_objects_are_checked_and_others_are_not() {
        assert_eq!(of(link("pwabc", false, true)), Checks::NODE);
        assert_eq!(of(link("podwire0", false, false)), Checks::NODE);
        assert_eq!(of(link("eth0", false, true)), NONE);
        assert_eq!(of(link("pwabc", true, false)), NONE);
        assert_eq!(of(link("pwjudged", true, false)), Checks::NODE, "its group is 0");
        assert_eq!(of(route(ROUTE_PROTOCOL, EventNamespace::Own)), Checks::NODE);
        assert_eq!(of(route(2, EventNamespace::Own)), NONE);
        assert_eq!(of(LinkEvent::Lost), Checks { node: true, pods: true });
    }

    #[test]
    fn own_add_and_del_cause_no_checks() {
        assert_eq!(all(&[link("pwabc", false, false), link("pwabc", true, false)]), NONE);
        assert_eq!(all(&[link("pwabc", true, false), link("pwabc", false, false)]), Checks::NODE);
        let removed = LinkEvent::Link {
            index: DELETED,
            name: Some("pwabc".to_owned()),
            up: false,
            group: 0,
            removed: true,
            namespace: EventNamespace::Own,
        };
        let dst = "fd00:88::2/128".parse().unwrap();
        let route = LinkEvent::RouteRemoved {
            dst,
            link: Some(DELETED),
            protocol: ROUTE_PROTOCOL,
            namespace: EventNamespace::Own,
        };
        assert_eq!(all(&[removed, route]), NONE);
    }

    #[test]
    fn events_on_the_node_and_in_pods_cause_both_checks() {
        let events = [link("pwabc", false, true), route(ROUTE_PROTOCOL, EventNamespace::Pod)];
        assert_eq!(all(&events), Checks { node: true, pods: true });
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
    fn removals_inside_a_pod_cause_an_inspection() {
        let addr = "10.88.0.2/32".parse().unwrap();
        assert_eq!(
            of(LinkEvent::AddressRemoved { link: 2, addr, namespace: EventNamespace::Pod }),
            Checks::PODS
        );
        assert_eq!(of(route(ROUTE_PROTOCOL, EventNamespace::Pod)), Checks::PODS);
        assert_eq!(of(route(2, EventNamespace::Pod)), NONE);
    }
}
