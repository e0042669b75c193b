//! What the kernel's news ask for. Pure. News are reasons to look, never findings: our own work makes them too.

use std::collections::BTreeSet;

use engine::reconcile::Depth;
use netlink::{News, Where};
use types::{IfName, ROUTE_PROTOCOL};

/// The looks that these news ask for. What goes on the node often goes inside a pod as well, and the quick look does not
/// wait for the deep one.
pub(super) fn depths(news: &[News], bridges: &[IfName]) -> BTreeSet<Depth> {
    news.iter().filter_map(|one| of_one(one, bridges)).collect()
}

fn of_one(news: &News, bridges: &[IfName]) -> Option<Depth> {
    let (place, lost) = match news {
        News::Lost => return Some(Depth::Pods),
        News::Link { name, up, gone, place, .. } => {
            let ours = |name: &String| {
                name.starts_with("pw") || name.starts_with("pi") || bridges.iter().any(|b| b.as_str() == name)
            };
            // Inside a pod, a link that is gone is gone here as well.
            let lost = match place {
                Where::Here => (*gone || !up) && name.as_ref().is_none_or(ours),
                Where::Elsewhere => !up && !gone,
            };
            (*place, lost)
        }
        News::PortLeft { place, .. } => (*place, *place == Where::Here),
        News::AddressGone { place, .. } => (*place, true),
        News::RouteGone { protocol, place, .. } | News::NeighbourGone { protocol, place, .. } => {
            (*place, *protocol == ROUTE_PROTOCOL)
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

    fn look(news: News) -> Option<Depth> {
        all(&[news]).pop_last()
    }

    fn all(news: &[News]) -> BTreeSet<Depth> {
        depths(news, &[IfName::try_from("podwire0").unwrap()])
    }

    fn link(name: &str, up: bool, gone: bool) -> News {
        News::Link { index: 7, name: Some(name.to_owned()), up, gone, place: Where::Here }
    }

    fn route(protocol: u8, place: Where) -> News {
        News::RouteGone { dst: "fd00:88::2/128".parse().unwrap(), protocol, place }
    }

    #[test]
    fn ours_that_go_are_looked_at_and_others_are_not() {
        assert_eq!(look(link("pwabc", false, true)), Some(Depth::Node));
        assert_eq!(look(link("podwire0", false, false)), Some(Depth::Node));
        assert_eq!(look(link("eth0", false, true)), None);
        assert_eq!(look(link("pwabc", true, false)), None);
        assert_eq!(look(route(ROUTE_PROTOCOL, Where::Here)), Some(Depth::Node));
        assert_eq!(look(route(2, Where::Here)), None);
        assert_eq!(look(News::Lost), Some(Depth::Pods));
    }

    #[test]
    fn the_quick_look_does_not_wait_for_the_deep_one() {
        let news = [link("pwabc", false, true), route(ROUTE_PROTOCOL, Where::Elsewhere)];
        assert_eq!(all(&news), [Depth::Node, Depth::Pods].into());
    }

    #[test]
    fn what_goes_in_a_pod_asks_for_a_look_into_pods() {
        let addr = "10.88.0.2/32".parse().unwrap();
        assert_eq!(look(News::AddressGone { link: 2, addr, place: Where::Elsewhere }), Some(Depth::Pods));
        assert_eq!(look(route(ROUTE_PROTOCOL, Where::Elsewhere)), Some(Depth::Pods));
        assert_eq!(look(route(2, Where::Elsewhere)), None);
    }
}
