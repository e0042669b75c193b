//! Tests of the individual rules, and of a large cluster.

use types::{NetworkRef, NodeUid};

use super::*;
use crate::{BlockAllocation, BlockLayout};

pub(super) fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

pub(super) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn layouts(subnets: [&str; 2], margin: u8) -> Vec<BlockLayout> {
    subnets.into_iter().map(|subnet| BlockLayout::new(net(subnet), margin).unwrap()).collect()
}

/// Link 2 with both families, tunnels 7 and 8. This node has the first block of each subnet.
pub(super) fn local_node() -> LocalNode {
    let underlay = |address: &str, on_link: &str| Underlay {
        link: 2,
        address: ip(address),
        on_link: vec![net(on_link)],
    };
    LocalNode {
        name: "m".try_into().unwrap(),
        blocks: vec![net("10.2.0.0/24"), net("fd00:2::/72")],
        block_layouts: layouts(["10.2.0.0/16", "fd00:2::/64"], 8),
        transport: Transport::Auto,
        underlays: vec![underlay("192.0.2.1", "192.0.2.0/24"), underlay("2001:db8::1", "2001:db8::/64")],
        tunnels: Tunnels { v4: Some(7), v6: Some(8) },
        sources: vec![ip("10.2.0.1"), ip("fd00:2::1")],
    }
}

pub(super) fn peer(name: &str, addresses: &[&str], blocks: &[&str]) -> NodeRecord {
    let mut tail = [0; 5];
    for (target, byte) in tail.iter_mut().zip(name.bytes().rev()) {
        *target = byte;
    }
    NodeRecord {
        name: name.try_into().unwrap(),
        uid: NodeUid::from_random([7; 16]),
        addresses: addresses.iter().map(|address| ip(address)).collect(),
        blocks: BlockAllocation::of_default(blocks.iter().map(|block| net(block)).collect()),
        tunnel_mac: Mac::local(tail),
        macs: Vec::new(),
        version: "0.1.0".to_owned(),
        transport: None,
    }
}

/// All records have the same creation revision.
pub(super) fn stored(record: NodeRecord) -> StoredNode {
    StoredNode { record, created: 1 }
}

/// The first record that names a block claims it.
pub(super) fn claims<'a>(peers: impl IntoIterator<Item = &'a NodeRecord>) -> BTreeMap<IpNet, NodeName> {
    let mut owners = BTreeMap::new();
    for peer in peers {
        for block in peer.blocks.iter() {
            owners.entry(*block).or_insert_with(|| peer.name.clone());
        }
    }
    owners
}

fn mesh(local_node: LocalNode, peers: &[NodeRecord]) -> Mesh {
    let mut mesh = Mesh::new(local_node);
    mesh.set_all(peers.iter().cloned().map(stored), claims(peers));
    mesh
}

/// Sets a record and claims for all its blocks.
fn set(mesh: &mut Mesh, record: NodeRecord) {
    record.blocks.iter().for_each(|block| mesh.set_claim(*block, Some(record.name.clone())));
    mesh.set_peer(stored(record));
}

fn with_transport(transport: Transport) -> LocalNode {
    LocalNode { transport, ..local_node() }
}

fn paths(mesh: &Mesh) -> Vec<PeerPath> {
    mesh.paths().map(|(_, _, path)| path.clone()).collect()
}

fn assert_problem(mesh: &Mesh, part: &str) {
    let problems = mesh.findings();
    assert!(problems.iter().any(|one| one.message.contains(part)), "{part:?} is not in {problems:#?}");
}

#[test]
fn transports_round_trip_as_text() {
    for transport in [Transport::Auto, Transport::Direct, Transport::Vxlan] {
        assert_eq!(transport.to_string().parse(), Ok(transport));
        assert_eq!(serde_json::to_value(transport).unwrap(), transport.to_string());
    }
    assert!("VXLAN".parse::<Transport>().unwrap_err().to_string().contains("auto, direct or vxlan"));
}

#[test]
fn auto_is_direct_to_nodes_on_the_link_in_each_family() {
    let near = peer("a", &["192.0.2.5", "2001:db8::5"], &["10.2.5.0/24", "fd00:2:0:0:500::/72"]);
    let mut mesh = mesh(local_node(), &[near]);
    let changes = mesh.take_changes();
    let route = |dst: &str, gateway: &str, src: &str| PeerRoute {
        dst: net(dst),
        gateway: ip(gateway),
        link: 2,
        onlink: false,
        src: Some(ip(src)),
    };
    let four = route("10.2.5.0/24", "192.0.2.5", "10.2.0.1");
    let six = route("fd00:2:0:0:500::/72", "2001:db8::5", "fd00:2::1");
    assert_eq!(changes, PeerChanges { set_routes: vec![four, six], ..PeerChanges::default() });
    assert_eq!(mesh.tunnels_wanted(), (false, false));
    assert_eq!(mesh.findings(), []);
    assert!(mesh.take_changes().is_empty());
}

#[test]
fn a_node_on_another_link_is_reached_through_the_tunnel() {
    let far = peer("a", &["203.0.113.5", "2001:db8:9::5"], &["10.2.5.0/24", "fd00:2:0:0:500::/72"]);
    let mut mesh = mesh(local_node(), std::slice::from_ref(&far));
    let changes = mesh.take_changes();
    let (mac, link) = (far.tunnel_mac, 7);
    let local = ip("fe80::61:ff:fe00:0");
    assert_eq!(mac.to_string(), "02:61:00:00:00:00");
    assert_eq!(
        changes.set_neighbours,
        [PeerNeighbour { link, addr: ip("10.2.5.0"), mac }, PeerNeighbour { link, addr: local, mac }]
    );
    assert_eq!(changes.set_fdb, [PeerFdb { link, mac, dst: ip("203.0.113.5") }]);
    let gateways: Vec<_> = changes.set_routes.iter().map(|r| (r.gateway, r.link, r.onlink)).collect();
    assert_eq!(gateways, [(ip("10.2.5.0"), 7, true), (local, 7, false)]);
    assert_eq!(mesh.tunnels_wanted(), (true, false));
    let text = changes.to_string();
    assert_eq!(text.lines().count(), changes.len());
    assert!(text.contains("set route 10.2.5.0/24 via 10.2.5.0 on link 7 onlink from 10.2.0.1\n"), "{text}");
    assert!(text.contains("set forwarding entry 02:61:00:00:00:00 to 203.0.113.5 on link 7\n"), "{text}");

    mesh.remove_peer(&far.name);
    let removed = mesh.take_changes();
    assert_eq!((removed.del_routes.len(), removed.del_neighbours.len(), removed.del_fdb.len()), (2, 2, 1));
    assert_eq!((removed.len(), mesh.tunnels_wanted()), (5, (false, false)));
}

#[test]
fn the_outer_family_is_the_first_common_one() {
    let six_only = peer("a", &["2001:db8:9::5"], &["10.2.5.0/24"]);
    assert_eq!(mesh(local_node(), std::slice::from_ref(&six_only)).tunnels_wanted(), (false, true));
    let both = peer("b", &["203.0.113.5", "2001:db8:9::6"], &["10.2.6.0/24"]);
    let mut v6_node = local_node();
    v6_node.underlays.remove(0);
    let over_six = mesh(v6_node.clone(), &[both]);
    assert!(
        matches!(&paths(&over_six)[0], PeerPath::Vxlan { link: 8, remote, .. } if *remote == ip("2001:db8:9::6"))
    );
    let four_only = peer("c", &["203.0.113.7"], &["10.2.7.0/24"]);
    let none = mesh(v6_node, &[four_only]);
    assert_eq!(paths(&none), [PeerPath::None(NoPath::NoCommonFamily)]);
    assert_problem(&none, "no route to node c: it and this node have no addresses of a common family");
}

#[test]
fn a_missing_tunnel_device_is_wanted_and_has_no_routes_yet() {
    let far = |name: &str, block: &str| peer(name, &["203.0.113.5"], &[block]);
    let none = LocalNode { tunnels: Tunnels::default(), ..local_node() };
    let mut mesh = mesh(none, &[far("a", "10.2.5.0/24")]);
    assert_eq!(mesh.tunnels_wanted(), (true, false));
    assert!(mesh.take_changes().is_empty());
    assert_problem(&mesh, "no route to node a: the IPv4 tunnel device does not exist yet");
    set(&mut mesh, NodeRecord { addresses: vec![ip("203.0.113.6")], ..far("b", "10.2.6.0/24") });
    assert_problem(&mesh, "no route to node a: the IPv4 tunnel device does not exist yet");
    assert_problem(&mesh, "no route to node b: the IPv4 tunnel device does not exist yet");
    mesh.set_local_node(local_node());
    assert_eq!(mesh.take_changes().set_routes.len(), 2);
    assert_eq!(mesh.findings(), []);
}

#[test]
fn with_transport_direct_unreachable_nodes_are_reported() {
    let far = peer("n3", &["203.0.113.7"], &["10.2.5.0/24", "fd00:2:0:0:500::/72"]);
    let mesh = mesh(with_transport(Transport::Direct), &[far]);
    assert_eq!(mesh.tunnels_wanted(), (false, false));
    assert_problem(&mesh, "no route to node n3: the transport is direct, but 203.0.113.7 is not on-link");
    assert_problem(
        &mesh,
        "no route to node n3: the transport is direct, but the node publishes no IPv6 address",
    );
}

#[test]
fn with_transport_vxlan_nodes_on_the_link_are_tunnelled() {
    let near = peer("a", &["192.0.2.5"], &["10.2.5.0/24"]);
    assert!(matches!(
        paths(&mesh(with_transport(Transport::Vxlan), &[near]))[..],
        [PeerPath::Vxlan { link: 7, .. }]
    ));
}

#[test]
fn a_node_that_moves_onto_the_link_becomes_direct() {
    let far = peer("a", &["203.0.113.5"], &["10.2.5.0/24"]);
    let mut mesh = mesh(local_node(), std::slice::from_ref(&far));
    mesh.take_changes();
    set(&mut mesh, NodeRecord { addresses: vec![ip("192.0.2.5")], ..far });
    let changes = mesh.take_changes();
    assert_eq!((changes.set_routes.len(), changes.del_routes.len()), (1, 0), "the route is replaced");
    assert_eq!((changes.del_neighbours.len(), changes.del_fdb.len()), (1, 1));
}

#[test]
fn blocks_of_this_node_are_not_routed_to_another() {
    let conflicting = peer("a", &["192.0.2.5"], &["10.2.0.0/24", "fd00:2::/72"]);
    let mesh = mesh(local_node(), &[conflicting]);
    assert!(paths(&mesh).iter().all(|path| matches!(path, PeerPath::None(NoPath::OverlapsOwnBlock(_)))));
    assert_problem(
        &mesh,
        "block 10.2.0.0/24 of node a is not routed: it overlaps block 10.2.0.0/24 of this node",
    );
}

/// The claim decides, independent of names and of the order of events.
#[test]
fn a5_a_record_without_the_claim_gets_no_block() {
    let owner = peer("k", &["192.0.2.6", "2001:db8::6"], &["10.2.5.0/24", "fd00:2:0:0:500::/72"]);
    let later =
        peer("a", &["192.0.2.5", "2001:db8::5"], &["10.2.5.0/24", "fd00:2:0:0:500::/72", "10.2.7.0/24"]);
    let orders: [&[&str]; 4] = [
        &["owner", "claims", "later"],
        &["later", "owner", "claims"],
        &["claims", "later", "owner"],
        &["later", "claims", "owner"],
    ];
    for order in orders {
        let mut mesh = Mesh::new(local_node());
        for step in order {
            match *step {
                "owner" => mesh.set_peer(StoredNode { record: owner.clone(), created: 9 }),
                "later" => mesh.set_peer(StoredNode { record: later.clone(), created: 1 }),
                _ => owner.blocks.iter().for_each(|b| mesh.set_claim(*b, Some(owner.name.clone()))),
            }
        }
        let changes = mesh.take_changes();
        let routes: Vec<_> = changes.set_routes.iter().map(|route| (route.dst, route.gateway)).collect();
        let owned = owner.blocks.of(&NetworkRef::default());
        let wanted = [(owned[0], ip("192.0.2.6")), (owned[1], ip("2001:db8::6"))];
        assert_eq!(routes, wanted, "{order:?}");
        assert_problem(
            &mesh,
            "blocks 10.2.5.0/24, fd00:2:0:0:500::/72 of node a are not routed: claimed by node k",
        );
        assert_problem(&mesh, "block 10.2.7.0/24 of node a is not routed: not claimed in the store");
    }
}

#[test]
fn a5_routes_follow_added_and_removed_claims() {
    let mut mesh = mesh(local_node(), &[]);
    mesh.set_peer(stored(peer("a", &["192.0.2.5"], &["10.2.5.0/24"])));
    assert!(mesh.take_changes().is_empty());
    mesh.set_claim(net("10.2.5.0/24"), Some("a".try_into().unwrap()));
    assert_eq!(mesh.take_changes().set_routes.len(), 1);
    assert_eq!(mesh.findings(), []);
    mesh.set_claim(net("10.2.5.0/24"), Some("b".try_into().unwrap()));
    assert_eq!(mesh.take_changes().del_routes.len(), 1);
    mesh.set_claim(net("10.2.5.0/24"), Some("a".try_into().unwrap()));
    mesh.set_claim(net("10.2.5.0/24"), None);
    assert!(mesh.take_changes().is_empty());
}

/// Even with a claim: a /32 inside another node's /24 would be the more specific route.
#[test]
fn a5_only_blocks_of_the_layout_are_routed() {
    let good = peer("k", &["192.0.2.6"], &["10.2.5.0/24"]);
    let invalid = peer("a", &["192.0.2.5"], &["10.2.5.7/32", "10.2.4.0/22", "10.2.0.0/16", "10.3.0.0/24"]);
    let mesh = mesh(local_node(), &[invalid, good]);
    let routed: Vec<_> = mesh
        .paths()
        .filter(|(_, _, path)| !matches!(path, PeerPath::None(_)))
        .map(|(n, b, _)| (n.as_str(), b))
        .collect();
    assert_eq!(routed, [("k", net("10.2.5.0/24"))]);
    assert_problem(
        &mesh,
        "blocks 10.2.0.0/16, 10.2.4.0/22, 10.2.5.7/32 of node a are not routed: the network is divided",
    );
    assert_problem(&mesh, "block 10.3.0.0/24 of node a is not routed: outside of the pod networks");
    let [a, k] = &mesh.admitted()[..] else { panic!() };
    assert_eq!(
        (a.blocks.len(), k.blocks.of(&NetworkRef::default())),
        (0, &[net("10.2.5.0/24")][..]),
        "the records that are saved for the next boot"
    );
}

#[test]
fn the_nodes_own_record_is_not_a_peer() {
    let mut mesh = mesh(local_node(), &[peer("m", &["192.0.2.1"], &["10.2.0.0/24", "10.2.1.0/24"])]);
    assert!(mesh.take_changes().is_empty());
    assert_eq!((mesh.paths().count(), mesh.findings()), (0, Vec::new()));
}

#[test]
fn a_node_with_a_conflicting_mac_has_no_tunnel() {
    let one = peer("a", &["203.0.113.5"], &["10.2.5.0/24"]);
    let other = NodeRecord { tunnel_mac: one.tunnel_mac, ..peer("b", &["203.0.113.6"], &["10.2.6.0/24"]) };
    let near = NodeRecord { tunnel_mac: one.tunnel_mac, ..peer("c", &["192.0.2.7"], &["10.2.7.0/24"]) };
    let mut mesh = mesh(local_node(), &[other.clone(), one.clone(), near]);
    assert!(matches!(
        paths(&mesh)[..],
        [PeerPath::Vxlan { .. }, PeerPath::None(NoPath::SameMac { .. }), PeerPath::Direct { .. }]
    ));
    assert_problem(&mesh, "no route to node b: its tunnel MAC 02:61:00:00:00:00 is also used by node a");
    assert_problem(&mesh, "nodes a, b, c have the same tunnel MAC 02:61:00:00:00:00");
    mesh.take_changes();
    mesh.remove_peer(&one.name);
    let changes = mesh.take_changes();
    assert_eq!(changes.set_fdb, [PeerFdb { link: 7, mac: one.tunnel_mac, dst: ip("203.0.113.6") }]);
    assert_eq!(changes.del_fdb, []);

    let own = NodeRecord { tunnel_mac: one.tunnel_mac, ..peer("m", &["192.0.2.1"], &[]) };
    mesh.set_peer(stored(own));
    assert_eq!(mesh.take_changes().del_fdb.len(), 1, "the kernel drops packets with its own source MAC");
}

#[test]
fn a5_a_later_record_cannot_take_over_a_tunnel_mac() {
    let first = peer("k", &["203.0.113.5", "2001:db8:9::5"], &["10.2.5.0/24", "fd00:2:0:0:500::/72"]);
    let later = NodeRecord { tunnel_mac: first.tunnel_mac, ..peer("a", &["203.0.113.66"], &["10.2.6.0/24"]) };
    let nodes =
        [(&first, 5), (&later, 6)].map(|(record, created)| StoredNode { record: record.clone(), created });
    let holder = PeerFdb { link: 7, mac: first.tunnel_mac, dst: ip("203.0.113.5") };
    for order in [[0, 1], [1, 0]] {
        let mut mesh = Mesh::new(local_node());
        claims([&first, &later]).into_iter().for_each(|(block, name)| mesh.set_claim(block, Some(name)));
        order.iter().for_each(|n| mesh.set_peer(nodes[*n].clone()));
        assert_eq!(mesh.take_changes().set_fdb, [holder]);
        assert_problem(&mesh, "no route to node a: its tunnel MAC 02:6b:00:00:00:00 is also used by node k");
        // The result is the same after a restart, from a listing and from saved records.
        let mut listed = Mesh::new(local_node());
        listed.set_all(nodes.clone(), claims([&first, &later]));
        assert_eq!(listed.take_changes().set_fdb, [holder]);
        let saved = listed.admitted();
        assert_eq!(saved.iter().map(|one| one.name.as_str()).collect::<Vec<_>>(), ["k", "a"]);
    }
}

/// Routes belong to blocks, and blocks to claims.
#[test]
fn a5_a_later_record_with_the_same_address_changes_no_route() {
    for address in ["192.0.2.5", "203.0.113.5"] {
        let first = peer("k", &[address], &["10.2.5.0/24"]);
        let mut mesh = mesh(local_node(), std::slice::from_ref(&first));
        let before = mesh.take_changes();
        assert_eq!(before.set_routes.len(), 1);
        set(&mut mesh, peer("a", &[address], &["10.2.6.0/24"]));
        mesh.set_peer(stored(peer("b", &[address], &["10.2.5.0/24"])));
        let changes = mesh.take_changes();
        assert!(changes.set_routes.iter().all(|route| route.dst == net("10.2.6.0/24")), "{changes}");
        assert!(changes.del_routes.is_empty() && changes.del_fdb.is_empty(), "{changes}");
        assert_problem(&mesh, &format!("nodes a, b, k publish the same address {address}"));
    }
}

#[test]
fn unusable_addresses_are_reported() {
    let of_this_node = peer("a", &["192.0.2.1"], &["10.2.5.0/24"]);
    let same = [peer("b", &["192.0.2.6"], &["10.2.6.0/24"]), peer("c", &["192.0.2.6"], &["10.2.7.0/24"])];
    let inside = peer("d", &["10.2.8.5"], &["10.2.8.0/24"]);
    let loopback = peer("e", &["127.0.0.1", "::1", "fe80::5"], &["10.2.10.0/24"]);
    let mesh = mesh(local_node(), &[&[of_this_node, inside, loopback], &same[..]].concat());
    assert_problem(&mesh, "no route to node a: it publishes this node's address 192.0.2.1");
    assert_problem(&mesh, "nodes b, c publish the same address 192.0.2.6");
    assert_problem(&mesh, "address 10.2.8.5 of node d is not used: inside the pod network 10.2.0.0/16");
    assert_problem(&mesh, "addresses 127.0.0.1, ::1 of node e are not used: loopback address");
    assert_problem(&mesh, "no route to node d: it and this node have no addresses of a common family");
    assert_problem(&mesh, "no route to node e: it and this node have no addresses of a common family");
}

#[test]
fn unusable_addresses_are_never_a_path() {
    for address in [
        "255.255.255.255",
        "240.0.0.1",
        "0.1.2.3",
        "169.254.1.1",
        "192.0.2.255",
        "192.0.2.0",
        "::ffff:192.0.2.5",
        "::ffff:203.0.113.5",
        "10.2.5.5",
        "fd00:2::5",
    ] {
        let invalid = peer("a", &[address], &["10.2.5.0/24"]);
        for transport in [Transport::Auto, Transport::Direct, Transport::Vxlan] {
            let mesh = mesh(with_transport(transport), std::slice::from_ref(&invalid));
            assert!(
                matches!(paths(&mesh)[..], [PeerPath::None(_)]),
                "{transport} {address}: {:?}",
                paths(&mesh)
            );
        }
    }
    let second = peer("a", &["192.0.2.255", "192.0.2.5"], &["10.2.5.0/24"]);
    assert!(matches!(paths(&mesh(local_node(), &[second]))[..], [PeerPath::Direct { .. }]));
}

#[test]
fn a5_an_address_inside_a_block_of_another_node_removes_no_route() {
    let block = peer("a", &["192.0.2.5", "2001:db8::5"], &["10.2.5.0/24", "fd00:2:0:0:500::/72"]);
    let third = peer("z", &["10.2.5.9", "fd00:2:0:0:500::9"], &["10.2.9.0/24"]);
    let mut mesh = mesh(local_node(), std::slice::from_ref(&block));
    assert_eq!(mesh.take_changes().set_routes.len(), 2);
    set(&mut mesh, third.clone());
    assert!(mesh.take_changes().is_empty());
    assert_problem(&mesh, "address 10.2.5.9 of node z is not used: inside the pod network");
    set(&mut mesh, NodeRecord { addresses: vec![ip("192.0.2.9")], ..third });
    assert_eq!(mesh.take_changes().set_routes.len(), 1);
}

#[test]
fn a_block_that_contains_a_directly_connected_network_is_not_routed() {
    let mut own = local_node();
    own.underlays[0] = Underlay {
        link: 2,
        address: ip("10.2.5.200"),
        on_link: vec![net("10.2.5.192/26"), net("10.0.0.0/8")],
    };
    own.underlays[1].on_link = vec![net("fd00:2:0:0:500::/80")];
    let near = peer("a", &["192.0.2.5"], &["10.2.5.0/24", "10.2.8.0/24", "fd00:2:0:0:500::/72"]);
    let mesh = mesh(own, &[near]);
    assert!(
        matches!(paths(&mesh)[..], [PeerPath::None(_), PeerPath::Vxlan { .. }, PeerPath::None(_)]),
        "{:?}",
        paths(&mesh)
    );
    assert_problem(
        &mesh,
        "block 10.2.5.0/24 of node a is not routed: it contains 10.2.5.192/26, which is on a link of this node",
    );
}

#[test]
fn a1_each_unreachable_node_has_a_separate_condition() {
    let far = |i: u8| peer(&format!("n{i}"), &[&format!("203.0.113.{i}")], &[&format!("10.2.{i}.0/24")]);
    let peers: Vec<NodeRecord> = (1..100).map(far).collect();
    let direct = mesh(with_transport(Transport::Direct), &peers);
    let objects = |mesh: &Mesh| -> Vec<String> {
        let mut objects: Vec<String> = mesh.findings().into_iter().map(|one| one.object).collect();
        objects.sort();
        objects
    };
    let mut wanted: Vec<String> = (1..100).map(|i| format!("node n{i}")).collect();
    wanted.sort();
    assert_eq!(objects(&direct), wanted);
    // The object does not depend on the number of nodes.
    assert_eq!(objects(&mesh(with_transport(Transport::Direct), &peers[..1])), ["node n1"]);
    let mut v6_node = local_node();
    v6_node.underlays.remove(0);
    let six = mesh(v6_node, &peers);
    assert_eq!(objects(&six), wanted);
    assert_problem(&six, "no route to node n7: it and this node have no addresses of a common family");
}

#[test]
fn observed_objects_are_compared_with_the_wanted_ones() {
    let far = peer("a", &["203.0.113.5"], &["10.2.5.0/24"]);
    let mut mesh = mesh(local_node(), &[far]);
    let all = mesh.compare(&ObservedPeers::default());
    assert!(mesh.take_changes().is_empty(), "the changes count as taken");
    let (route, neighbour, entry) = (all.set_routes[0], all.set_neighbours[0], all.set_fdb[0]);
    let right = ObservedPeers { routes: vec![route], neighbours: vec![neighbour], fdb: vec![entry] };
    assert!(mesh.compare(&right).is_empty());

    let wrong = PeerRoute { gateway: ip("192.0.2.9"), link: 2, onlink: false, ..route };
    let stale = PeerRoute { dst: net("10.2.99.0/24"), ..route };
    let observed = ObservedPeers { routes: vec![wrong, stale], ..right.clone() };
    let changes = mesh.compare(&observed);
    assert_eq!((&changes.set_routes[..], &changes.del_routes[..]), (&[route][..], &[stale][..]));
    let both = ObservedPeers { routes: vec![wrong, route], ..right.clone() };
    assert_eq!(mesh.compare(&both), PeerChanges { del_routes: vec![wrong], ..PeerChanges::default() });
    let unsourced = PeerRoute { src: None, ..route };
    let changes = mesh.compare(&ObservedPeers { routes: vec![unsourced], ..right.clone() });
    assert_eq!(changes, PeerChanges { set_routes: vec![route], ..PeerChanges::default() });

    // The kernel ignores the source when it removes a route, so it would remove the right one.
    assert!(mesh.compare(&ObservedPeers { routes: vec![unsourced, route], ..right.clone() }).is_empty());

    let old = PeerFdb { dst: ip("203.0.113.99"), ..entry };
    let changes = mesh.compare(&ObservedPeers { fdb: vec![old], ..right });
    assert_eq!(
        changes,
        PeerChanges { set_fdb: vec![entry], ..PeerChanges::default() },
        "the entry is replaced"
    );
}

/// `cargo test --release -p model -- --nocapture five_thousand` prints the times.
#[test]
fn one_change_among_five_thousand_nodes_is_cheap() {
    let record = |i: u32| {
        let [_, _, high, low] = i.to_be_bytes();
        let far = if i.is_multiple_of(2) { "203.0" } else { "192.0" };
        let four = format!("{far}.{high}.{low}");
        let six = format!("2001:db8:9::{i:x}");
        let blocks = [format!("10.{}.{low}.0/24", 64 + high), format!("fd00:2:0:{i:x}::/64")];
        let mut record = peer("x", &[&four, &six], &[&blocks[0], &blocks[1]]);
        record.name = format!("node-{i}").as_str().try_into().unwrap();
        record.tunnel_mac = Mac::local([1, 0, 0, high, low]);
        record
    };
    let mut own = local_node();
    own.block_layouts = layouts(["10.0.0.0/8", "fd00:2::/48"], 16);
    own.blocks.clear();
    let records: Vec<_> = (1000..6000).map(record).collect();
    let mut mesh = mesh(own, &records);
    let changes = mesh.take_changes();
    assert_eq!((changes.set_routes.len(), mesh.findings().len()), (10_000, 0));
    let observed = ObservedPeers {
        routes: changes.set_routes,
        neighbours: changes.set_neighbours,
        fdb: changes.set_fdb,
    };
    assert!(mesh.compare(&observed).is_empty());
    let moved = NodeRecord { addresses: vec![ip("203.0.113.99")], ..record(3000) };
    mesh.set_peer(stored(moved));
    let changes = mesh.take_changes();
    assert_eq!(changes.len(), 1, "{changes}");
    mesh.set_claim(record(3000).blocks.of(&NetworkRef::default())[0], None);
    let changes = mesh.take_changes();
    assert_eq!((changes.del_routes.len(), changes.set_routes.len()), (1, 0), "{changes}");
}

fn source(outer: &str, inner: &str) -> PeerSource {
    PeerSource::Tunnel { outer: ip(outer), inner: net(inner) }
}

#[test]
fn a_peer_may_send_from_its_blocks_and_addresses() {
    let near = peer("a", &["192.0.2.5", "2001:db8::5"], &["10.2.5.0/24", "fd00:2:0:0:500::/72"]);
    let mesh = mesh(local_node(), &[near]);
    let inner = ["10.2.5.0/24", "192.0.2.5/32", "2001:db8::5/128", "fd00:2:0:0:500::/72"];
    let expected: Vec<PeerSource> = ["192.0.2.5", "2001:db8::5"]
        .iter()
        .flat_map(|outer| inner.map(|inner| source(outer, inner)))
        .collect();
    assert_eq!(mesh.sources().collect::<Vec<_>>(), expected);
}

#[test]
fn unusable_and_unowned_sources_are_not_accepted() {
    for record in [
        // The node's own address, a pod's address, and addresses that cannot be a source.
        peer("a", &["192.0.2.1"], &["10.2.5.0/24"]),
        peer("a", &["10.2.7.9"], &["10.2.5.0/24"]),
        peer("a", &["127.0.0.1", "224.0.0.1", "fe80::1"], &["10.2.5.0/24"]),
    ] {
        assert_eq!(mesh(local_node(), &[record]).sources().count(), 0);
    }
    let over_claiming =
        peer("b", &["192.0.2.6"], &["10.2.0.0/25", "10.9.0.0/24", "10.2.5.0/24", "10.2.6.0/24"]);
    let mesh = mesh(local_node(), &[peer("a", &["192.0.2.5"], &["10.2.5.0/24"]), over_claiming]);
    let of_b: Vec<_> = mesh
        .sources()
        .filter(|it| matches!(it, PeerSource::Tunnel { outer, .. } if *outer == ip("192.0.2.6")))
        .collect();
    assert_eq!(of_b, [source("192.0.2.6", "10.2.6.0/24"), source("192.0.2.6", "192.0.2.6/32")]);
}

#[test]
fn a_changed_address_of_a_peer_replaces_its_sources() {
    let mut mesh = mesh(local_node(), &[peer("a", &["192.0.2.5"], &["10.2.5.0/24"])]);
    mesh.take_source_changes();
    set(&mut mesh, peer("a", &["192.0.2.6"], &["10.2.5.0/24"]));
    let both =
        |address: &str| vec![source(address, "10.2.5.0/24"), source(address, &format!("{address}/32"))];
    let expected = SourceChanges { add: both("192.0.2.6"), remove: both("192.0.2.5") };
    assert_eq!(mesh.take_source_changes(), expected);
    // A node with the same address keeps it if the other node is removed.
    set(&mut mesh, peer("b", &["192.0.2.6"], &["10.2.6.0/24"]));
    mesh.take_source_changes();
    mesh.remove_peer(&"a".try_into().unwrap());
    let expected = SourceChanges { add: Vec::new(), remove: vec![source("192.0.2.6", "10.2.5.0/24")] };
    assert_eq!(mesh.take_source_changes(), expected);
}

#[test]
fn packets_of_a_peer_are_accepted_from_its_links_and_its_tunnel() {
    let macs = [Mac::local([7; 5]), Mac::local([8; 5])];
    let record = NodeRecord { macs: vec![macs[0]], ..peer("b", &["192.0.2.5"], &["10.2.5.0/24"]) };
    let tunnel = record.tunnel_mac;
    let mut mesh = mesh(local_node(), std::slice::from_ref(&record));
    let link = |mac| PeerSource::Link { mac, block: net("10.2.5.0/24") };
    let checked = PeerSource::Checked { block: net("10.2.5.0/24") };
    let of_links = |sources: Vec<PeerSource>| -> BTreeSet<PeerSource> {
        sources.into_iter().filter(|it| !matches!(it, PeerSource::Tunnel { .. })).collect()
    };
    assert_eq!(of_links(mesh.sources().collect()), [link(macs[0]), link(tunnel), checked].into());
    mesh.take_source_changes();
    // Another link: the block stays checked meanwhile.
    set(&mut mesh, NodeRecord { macs: vec![macs[1]], ..record.clone() });
    let SourceChanges { add, remove } = mesh.take_source_changes();
    assert_eq!((add, remove), (vec![link(macs[1])], vec![link(macs[0])]));
    // An earlier version publishes no MACs.
    set(&mut mesh, NodeRecord { macs: Vec::new(), ..record });
    assert_eq!(of_links(mesh.sources().collect()), BTreeSet::new());
    let SourceChanges { remove, .. } = mesh.take_source_changes();
    assert_eq!(of_links(remove), [link(macs[1]), link(tunnel), checked].into());
}
