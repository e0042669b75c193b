//! Property tests: after any sequence of updates, a kernel that applied all changes has exactly the wanted objects.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::tests::{local_node, net, peer};
use super::*;

/// A model of the kernel's behaviour when objects are replaced and removed.
#[derive(Debug, Default, PartialEq)]
struct Model {
    routes: BTreeMap<IpNet, PeerRoute>,
    neighbours: BTreeMap<(u32, IpAddr), Mac>,
    fdb: BTreeMap<(u32, Mac), IpAddr>,
}

impl Model {
    fn apply(&mut self, changes: &PeerChanges) {
        for n in &changes.set_neighbours {
            self.neighbours.insert((n.link, n.addr), n.mac);
        }
        for e in &changes.set_fdb {
            self.fdb.insert((e.link, e.mac), e.dst);
        }
        for r in &changes.set_routes {
            self.routes.insert(r.dst, *r);
        }
        for r in &changes.del_routes {
            let existing = self.routes.get(&r.dst);
            if existing.is_some_and(|e| (e.gateway, e.link) == (r.gateway, r.link)) {
                self.routes.remove(&r.dst);
            }
        }
        for n in &changes.del_neighbours {
            self.neighbours.remove(&(n.link, n.addr));
        }
        for e in &changes.del_fdb {
            if self.fdb.get(&(e.link, e.mac)) == Some(&e.dst) {
                self.fdb.remove(&(e.link, e.mac));
            }
        }
    }

    fn observed(&self) -> ObservedPeers {
        let neighbour = |((link, addr), mac): (&(u32, IpAddr), &Mac)| PeerNeighbour {
            link: *link,
            addr: *addr,
            mac: *mac,
        };
        let entry =
            |((link, mac), dst): (&(u32, Mac), &IpAddr)| PeerFdb { link: *link, mac: *mac, dst: *dst };
        ObservedPeers {
            routes: self.routes.values().copied().collect(),
            neighbours: self.neighbours.iter().map(neighbour).collect(),
            fdb: self.fdb.iter().map(entry).collect(),
        }
    }
}

#[derive(Debug, Clone)]
enum Step {
    Set(StoredNode),
    SetAll(Vec<StoredNode>, BTreeMap<IpNet, NodeName>),
    Claim(IpNet, Option<NodeName>),
    Remove(NodeName),
    LocalNode(Box<LocalNode>),
    Take,
}

const NAMES: [&str; 6] = ["a", "b", "k", "m", "p", "z"];

fn claim() -> impl Strategy<Value = (IpNet, Option<NodeName>)> {
    let blocks = ["10.2.5.0/24", "10.2.5.0/25", "10.2.6.0/24", "10.2.0.0/24", "fd00:2:0:0:500::/72"];
    let owner = prop::option::of(prop::sample::select(NAMES.to_vec()));
    let claim = (prop::sample::select(blocks.to_vec()), owner);
    claim.prop_map(|(block, owner)| (net(block), owner.map(|name| name.try_into().unwrap())))
}

fn owners() -> impl Strategy<Value = BTreeMap<IpNet, NodeName>> {
    let all = prop::collection::vec(claim(), 0..8);
    all.prop_map(|all| all.into_iter().filter_map(|(block, owner)| Some((block, owner?))).collect())
}

fn stored() -> impl Strategy<Value = StoredNode> {
    (record(), 1u64..4).prop_map(|(record, created)| StoredNode { record, created })
}

/// Few different values, so that records conflict. "m" is the local node.
fn record() -> impl Strategy<Value = NodeRecord> {
    let names = prop::sample::select(NAMES.to_vec());
    let addresses = prop::sample::subsequence(
        vec![
            "192.0.2.5",
            "203.0.113.5",
            "203.0.113.6",
            "192.0.2.1",
            "2001:db8::5",
            "2001:db8:9::5",
            "10.2.5.9",
        ],
        0..3,
    );
    let blocks = prop::sample::subsequence(
        vec![
            "10.2.5.0/24",
            "10.2.5.0/25",
            "10.2.5.128/25",
            "10.2.4.0/22",
            "10.2.6.0/24",
            "10.2.0.0/24",
            "10.3.0.0/24",
            "fd00:2:0:0:500::/72",
            "fd00:2:0:0:400::/70",
            "fd00:2:0:0:600::/72",
            "10.2.0.0/16",
        ],
        0..4,
    );
    (names, addresses, blocks, prop::option::of(0u8..3)).prop_map(|(name, addresses, blocks, mac)| {
        let record = peer(name, &addresses, &blocks);
        match mac {
            Some(tail) => NodeRecord {
                tunnel_mac: Mac::local([9, 9, 9, 9, tail]),
                macs: vec![Mac::local([8, 8, 8, 8, tail])],
                ..record
            },
            None => record,
        }
    })
}

fn a_local_node() -> impl Strategy<Value = LocalNode> {
    let transport = prop::sample::select(vec![Transport::Auto, Transport::Direct, Transport::Vxlan]);
    let link = || prop::option::of(7u32..9);
    let blocks = prop::sample::subsequence(vec!["10.2.0.0/24", "10.2.5.128/25", "fd00:2::/72"], 0..3);
    (transport, link(), link(), blocks, 0usize..3).prop_map(|(transport, v4, v6, blocks, underlays)| {
        let base = local_node();
        LocalNode {
            transport,
            tunnels: Tunnels { v4, v6: v6.map(|link| link + 10) },
            blocks: blocks.into_iter().map(net).collect(),
            underlays: base.underlays.into_iter().skip(underlays).collect(),
            ..base
        }
    })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => stored().prop_map(Step::Set),
        5 => claim().prop_map(|(block, owner)| Step::Claim(block, owner)),
        1 => (prop::collection::vec(stored(), 0..5), owners()).prop_map(|(all, owners)| Step::SetAll(all, owners)),
        2 => record().prop_map(|record| Step::Remove(record.name)),
        1 => a_local_node().prop_map(|local_node| Step::LocalNode(Box::new(local_node))),
        3 => Just(Step::Take),
    ]
}

fn wanted(mesh: &Mesh) -> Model {
    let mut model = Model::default();
    model.apply(&mesh.clone().compare(&ObservedPeers::default()));
    model
}

/// The wanted state must depend on the records only, not on the order of updates.
fn planned_from_scratch(mesh: &Mesh) -> Model {
    let mut fresh = Mesh::new(mesh.local_node.clone());
    if let Some(mac) = mesh.own_mac {
        let own = NodeRecord { tunnel_mac: mac, ..peer("m", &[], &[]) };
        fresh.set_peer(StoredNode { record: own, created: 1 });
    }
    for peer in mesh.peers.values().rev() {
        fresh.set_peer(peer.node.clone());
    }
    for (block, owner) in &mesh.owners {
        fresh.set_claim(*block, Some(owner.clone()));
    }
    assert_eq!((fresh.tunnels_wanted(), fresh.findings()), (mesh.tunnels_wanted(), mesh.findings()));
    assert_eq!(accepted_sources(&fresh), accepted_sources(mesh));
    wanted(&fresh)
}

fn accepted_sources(mesh: &Mesh) -> BTreeSet<PeerSource> {
    mesh.sources().collect()
}

proptest! {
    /// Applying differences only leads to the accepted sources of the records.
    #[test]
    fn any_history_of_sources_ends_in_the_accepted_ones(steps in prop::collection::vec(step(), 0..30)) {
        let mut mesh = Mesh::new(local_node());
        let mut kernel = BTreeSet::new();
        for step in steps.into_iter().chain([Step::Take]) {
            match step {
                Step::Set(record) => mesh.set_peer(record),
                Step::SetAll(records, owners) => mesh.set_all(records, owners),
                Step::Claim(block, owner) => mesh.set_claim(block, owner),
                Step::Remove(name) => mesh.remove_peer(&name),
                Step::LocalNode(local_node) => mesh.set_local_node(*local_node),
                Step::Take => {
                    let SourceChanges { add, remove } = mesh.take_source_changes();
                    prop_assert!(add.iter().all(|source| kernel.insert(*source)));
                    prop_assert!(remove.iter().all(|source| kernel.remove(source)));
                    prop_assert_eq!(&kernel, &accepted_sources(&mesh));
                }
            }
        }
        planned_from_scratch(&mesh);
    }

    /// This node's addresses and pod addresses are never accepted as outer addresses. Inner addresses belong to the sender.
    #[test]
    fn accepted_sources_are_sound(
        records in prop::collection::vec(stored(), 0..8), local_node in a_local_node(), owners in owners(),
    ) {
        let mut mesh = Mesh::new(local_node.clone());
        mesh.set_all(records, owners);
        let is_pod_net = |net: &IpNet| local_node.subnets().iter().any(|subnet| subnet.contains(net));
        for source in mesh.sources() {
            let (outer, inner) = match source {
                PeerSource::Tunnel { outer, inner } => (outer, inner),
                PeerSource::Link { mac, block } => {
                    let is_of = |peer: &NodeRecord| peer.macs.contains(&mac) || peer.tunnel_mac == mac;
                    let has = |peer: &NodeRecord| peer.blocks.iter().any(|it| it.trunc() == block);
                    prop_assert!(mesh.peers().any(|peer| is_of(peer) && has(peer)));
                    continue;
                }
                PeerSource::Checked { block } => {
                    prop_assert!(!local_node.blocks.iter().any(|own| own.contains(&block)));
                    continue;
                }
            };
            prop_assert!(!local_node.is_own_address(outer) && !is_pod_net(&outer.into()));
            let senders: Vec<&NodeRecord> = mesh.peers().filter(|peer| peer.addresses.contains(&outer)).collect();
            if is_pod_net(&inner) {
                prop_assert!(!local_node.blocks.iter().any(|own| own.contains(&inner) || inner.contains(own)));
                prop_assert!(senders.iter().any(|peer| peer.blocks.iter().any(|block| block.trunc() == inner)));
            } else {
                let is_own = |peer: &&NodeRecord| peer.addresses.contains(&inner.addr());
                prop_assert!(inner.prefix_len() == inner.max_prefix_len() && senders.iter().any(is_own));
            }
        }
    }

    #[test]
    fn any_history_ends_in_the_wanted_state(steps in prop::collection::vec(step(), 0..30)) {
        let mut mesh = Mesh::new(local_node());
        let mut kernel = Model::default();
        for step in steps {
            match step {
                Step::Set(record) => mesh.set_peer(record),
                Step::SetAll(records, owners) => mesh.set_all(records, owners),
                Step::Claim(block, owner) => mesh.set_claim(block, owner),
                Step::Remove(name) => mesh.remove_peer(&name),
                Step::LocalNode(local_node) => mesh.set_local_node(*local_node),
                Step::Take => {
                    kernel.apply(&mesh.take_changes());
                    prop_assert_eq!(&kernel, &wanted(&mesh));
                }
            }
        }
        kernel.apply(&mesh.take_changes());
        let wanted = wanted(&mesh);
        prop_assert_eq!(&kernel, &wanted);
        prop_assert_eq!(&planned_from_scratch(&mesh), &wanted);
        prop_assert!(mesh.take_changes().is_empty());
        prop_assert!(mesh.compare(&wanted.observed()).is_empty());
    }

    #[test]
    fn any_kernel_state_is_changed_to_the_wanted_state(
        records in prop::collection::vec(stored(), 0..8), before in prop::collection::vec(stored(), 0..8),
        local_node in a_local_node(), owners in owners(), owned_before in owners(),
    ) {
        let mut old = Mesh::new(local_node.clone());
        old.set_all(before, owned_before);
        let mut kernel = wanted(&old);
        let mut mesh = Mesh::new(local_node);
        mesh.set_all(records, owners);
        kernel.apply(&mesh.compare(&kernel.observed()));
        prop_assert_eq!(kernel, wanted(&mesh));
        prop_assert!(mesh.take_changes().is_empty());
    }

    /// Every routed block belongs to one node, and every route has its neighbour and FDB entry.
    #[test]
    fn routed_blocks_are_sound(
        records in prop::collection::vec(stored(), 0..8), local_node in a_local_node(), owners in owners(),
    ) {
        let mut mesh = Mesh::new(local_node.clone());
        mesh.set_all(records, owners.clone());
        let model = wanted(&mesh);
        let routed: Vec<_> =
            mesh.paths().filter(|(_, _, path)| !matches!(path, PeerPath::None(_))).map(|(n, b, _)| (n.clone(), b)).collect();
        prop_assert_eq!(routed.len(), model.routes.len());
        for (name, block) in &routed {
            prop_assert_eq!(owners.get(block), Some(name));
            prop_assert!(local_node.subnets().iter().any(|subnet| subnet.contains(block)));
            prop_assert!(!local_node.blocks.iter().any(|own| own.contains(block) || block.contains(own)));
            let overlapping: BTreeSet<_> = routed
                .iter()
                .filter(|(_, other)| other.contains(block) || block.contains(other))
                .map(|(other, _)| other)
                .collect();
            prop_assert_eq!(overlapping, BTreeSet::from([name]));
        }
        for route in model.routes.values().filter(|route| route.link != 2) {
            let mac = model.neighbours.get(&(route.link, route.gateway));
            prop_assert!(mac.is_some_and(|mac| model.fdb.contains_key(&(route.link, *mac))));
        }
    }
}
