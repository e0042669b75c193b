//! Repairs of changes by other processes, as `podwire status` shows them.

use std::fmt::Display;

use super::changes::PeerChanges;

/// The number of objects that a sentence names. It counts the others, because a flush can affect thousands of routes.
const MAX_NAMED: usize = 5;

/// Objects of one kind that were repaired.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repaired {
    /// The label in metrics.
    pub kind: &'static str,
    pub count: usize,
    /// One sentence each for restored and removed objects.
    pub sentences: Vec<String>,
}

impl PeerChanges {
    /// One value per kind, also without repairs.
    pub fn repairs(&self) -> [Repaired; 3] {
        let routes = (names(&self.set_routes, |r| r.dst), names(&self.del_routes, |r| r.dst));
        let neighbours = (names(&self.set_neighbours, |n| n.addr), names(&self.del_neighbours, |n| n.addr));
        let fdb = (names(&self.set_fdb, |entry| entry.mac), names(&self.del_fdb, |entry| entry.mac));
        [
            repaired("peer_route", ("route to another node", "routes to other nodes"), routes),
            repaired("peer_neighbour", ("neighbour of a tunnel", "neighbours of tunnels"), neighbours),
            repaired("peer_fdb", ("forwarding entry of a tunnel", "forwarding entries of tunnels"), fdb),
        ]
    }
}

fn names<T, N: Display>(all: &[T], name: impl Fn(&T) -> N) -> Vec<String> {
    all.iter().map(|one| name(one).to_string()).collect()
}

fn repaired(
    kind: &'static str,
    nouns: (&str, &str),
    (restored, removed): (Vec<String>, Vec<String>),
) -> Repaired {
    let sentences = [(&restored, "restored"), (&removed, "removed")];
    let sentences = sentences.iter().filter_map(|(names, verb)| sentence(nouns, names, verb)).collect();
    Repaired { kind, count: restored.len() + removed.len(), sentences }
}

fn sentence((one, many): (&str, &str), names: &[String], verb: &str) -> Option<String> {
    let more = names.len().saturating_sub(MAX_NAMED);
    let named = names.iter().take(MAX_NAMED).cloned().collect::<Vec<_>>().join(", ");
    match names.len() {
        0 => None,
        1 => Some(format!("1 {one} {verb}: {named}")),
        count if more == 0 => Some(format!("{count} {many} {verb}: {named}")),
        count => Some(format!("{count} {many} {verb}: {named} and {more} more")),
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use types::Mac;

    use super::*;
    use crate::mesh::{PeerFdb, PeerNeighbour, PeerRoute};

    fn route(number: u8) -> PeerRoute {
        let dst = format!("10.2.{number}.0/24").parse().unwrap();
        PeerRoute { dst, gateway: IpAddr::from([192, 0, 2, 1]), link: 7, onlink: false, src: None }
    }

    #[test]
    fn a5_repairs_of_each_kind_are_counted_and_named() {
        let (mac, addr, link) = (Mac::local([1; 5]), IpAddr::from([10, 2, 0, 0]), 7);
        let changes = PeerChanges {
            set_routes: (0..7).map(route).collect(),
            del_routes: vec![route(9)],
            set_neighbours: vec![PeerNeighbour { link, addr, mac }],
            set_fdb: vec![PeerFdb { link, mac, dst: addr }],
            ..PeerChanges::default()
        };
        let [routes, neighbours, fdb] = changes.repairs();
        assert_eq!((routes.kind, routes.count), ("peer_route", 8));
        assert_eq!(
            routes.sentences,
            [
                "7 routes to other nodes restored: 10.2.0.0/24, 10.2.1.0/24, 10.2.2.0/24, 10.2.3.0/24, 10.2.4.0/24 and 2 more",
                "1 route to another node removed: 10.2.9.0/24",
            ]
        );
        assert_eq!(neighbours.sentences, ["1 neighbour of a tunnel restored: 10.2.0.0"]);
        assert_eq!((fdb.count, fdb.sentences.len()), (1, 1));
        // Changes that were due are not repairs.
        assert!(changes.beyond(&changes).repairs().iter().all(|repaired| repaired.count == 0));
        let due = PeerChanges { set_routes: vec![route(0)], ..PeerChanges::default() };
        assert_eq!(changes.beyond(&due).repairs()[0].count, 7);
    }

    #[test]
    fn a5_changes_are_selected_in_the_order_of_application() {
        let (mac, addr, link) = (Mac::local([1; 5]), IpAddr::from([10, 2, 0, 0]), 7);
        let mut changes = PeerChanges {
            set_neighbours: vec![PeerNeighbour { link, addr, mac }],
            set_routes: vec![route(0), route(1)],
            del_routes: vec![route(2)],
            ..PeerChanges::default()
        };
        let refused = changes.select([false, false, true, true]);
        let wanted =
            PeerChanges { set_routes: vec![route(1)], del_routes: vec![route(2)], ..PeerChanges::default() };
        assert_eq!(refused, wanted);
        let applied = changes.beyond(&refused);
        assert_eq!((applied.len(), applied.repairs()[0].count), (2, 1));
        changes.extend(&wanted);
        assert_eq!((changes.set_routes.len(), changes.len()), (3, 6));
    }
}
