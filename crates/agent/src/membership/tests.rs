//! Joins with a real store in a directory, and the selection of the node's addresses from given links and routes.

mod known;
mod member;
mod objects;
mod registry;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;
use std::sync::LazyLock;

use api::RouteState;
use ipnet::IpNet;
use model::{
    AliveRecord, BlockAllocation, BlockLayout, KeyLayout, LocalNode, Mesh, NetworkSpec, NodeRecord,
    Object as _, ObservedPeers, PeerRoute, StoredNode, Transport, Tunnels, Underlay,
};
use netlink::RtSocket;
use store::{Change, Store, StoreConfig};
use types::{Mac, NetworkRef, NodeUid};

use super::ask_error::AskError;
use super::claim::{SearchedPools, WantedBlock};
use super::command::{StoreQuery, read_contents};
use super::contact::Contact;
use super::join::{Candidate, JoinError, Joined, Registry};
use super::networks::NetworkLayouts;

fn registry(dir: &Path) -> Registry {
    let store = Store::open(&StoreConfig::Embedded { dir: dir.join("store") }).unwrap();
    Registry { store, layout: KeyLayout::new("/pods", None) }
}

fn spec() -> NetworkSpec {
    NetworkSpec { subnets: nets(&["10.2.0.0/20", "fd00:2::/64"]), margin: 4, vni: 4077, vxlan_port: 4789 }
}

fn nets(texts: &[&str]) -> Vec<IpNet> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

/// Blocks of the default network.
fn blocks(texts: &[&str]) -> BlockAllocation {
    BlockAllocation::of_default(nets(texts))
}

fn claim_key(registry: &Registry, block: &IpNet) -> String {
    registry.layout.default_block(block)
}

/// How the subnets of the default network are divided.
fn default_layouts(spec: &NetworkSpec) -> Vec<BlockLayout> {
    NetworkLayouts::of_default(spec).unwrap().all()
}

/// A block of the default network outside of pools.
fn any_block(block_layout: &BlockLayout) -> WantedBlock<'_> {
    static NETWORK: LazyLock<NetworkRef> = LazyLock::new(NetworkRef::default);
    WantedBlock { network: &NETWORK, block_layout, pools: SearchedPools::Outside(&[]) }
}

fn candidate(name: &str, uid: u8) -> Candidate {
    let record = NodeRecord {
        name: name.try_into().unwrap(),
        uid: NodeUid::from_random([uid; 16]),
        addresses: vec!["192.0.2.1".parse().unwrap()],
        blocks: BlockAllocation::default(),
        tunnel_mac: Mac::local([0, 0, 0, 0, uid]),
        macs: Vec::new(),
        version: "1".to_owned(),
        transport: None,
    };
    let networks = NetworkLayouts::of_default(&spec()).unwrap();
    let saved_blocks = BlockAllocation::default();
    Candidate {
        spec: spec(),
        networks,
        default_pools: Vec::new(),
        released: BTreeSet::new(),
        record,
        saved_blocks,
        former: None,
        since: 1,
    }
}

async fn join(registry: &Registry, candidate: &Candidate) -> Result<Joined, JoinError> {
    registry.join(candidate, &[]).await
}

/// Runs a test with a new store directory, on a tokio runtime.
fn with_store<F: Future<Output = ()>>(test: impl FnOnce(Registry) -> F) {
    let dir = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { test(registry(dir.path())).await });
}

async fn put_alive(registry: &Registry, joined: &Joined) {
    let value = AliveRecord { uid: joined.record.uid.clone(), since: 1 }.encode();
    let put = Change::Put { key: registry.layout.alive(&joined.record.name), value, lease: None };
    registry.store.commit(&[], &[put]).await.unwrap();
}

#[test]
fn a3_a_node_gets_a_block_of_each_family_and_keeps_it() {
    with_store(|registry| async move {
        let first = join(&registry, &candidate("n1", 1)).await.unwrap();
        assert_eq!(first.record.blocks, blocks(&["10.2.0.0/24", "fd00:2::/68"]));
        let other = join(&registry, &candidate("n2", 2)).await.unwrap();
        assert_eq!(other.record.blocks, blocks(&["10.2.1.0/24", "fd00:2:0:0:1000::/68"]));
        let second_join = join(&registry, &candidate("n1", 1)).await.unwrap();
        assert_eq!(second_join, first, "a second join must write nothing");
    });
}

#[test]
fn a3_a_reset_counter_does_not_cause_duplicate_blocks() {
    with_store(|registry| async move {
        let first = join(&registry, &candidate("n1", 1)).await.unwrap();
        // The counter is reset, so that the next node starts its search with the blocks of the first one.
        registry.store.commit(&[], &[Change::Delete(registry.layout.counter().to_owned())]).await.unwrap();
        let second = join(&registry, &candidate("n2", 2)).await.unwrap();
        assert!(second.record.blocks.iter().all(|block| !first.record.blocks.contains(block)));
    });
}

#[test]
fn nodes_that_join_concurrently_get_different_blocks() {
    with_store(|registry| async move {
        let mut joins = tokio::task::JoinSet::new();
        for n in 1..=16 {
            let registry = registry.clone();
            joins.spawn(async move { join(&registry, &candidate(&format!("n{n}"), n)).await.unwrap() });
        }
        let all: Vec<Joined> = joins.join_all().await;
        let blocks: BTreeSet<IpNet> =
            all.iter().flat_map(|joined| joined.record.blocks.iter().copied()).collect();
        assert_eq!(blocks.len(), 32, "each node must have its own block of each family");
        let error = join(&registry, &candidate("n17", 17)).await.unwrap_err();
        assert!(matches!(error, JoinError::Exhausted { count: 16, .. }), "{error}");
        assert!(error.to_string().contains("podwire node rm"), "{error}");
    });
}

#[test]
fn a_held_name_is_refused_and_taken_over_after_its_release() {
    with_store(|registry| async move {
        let first = join(&registry, &candidate("n1", 1)).await.unwrap();
        put_alive(&registry, &first).await;
        let error = join(&registry, &candidate("n1", 2)).await.unwrap_err();
        let reported = error.to_string();
        assert!(matches!(error, JoinError::Held { .. }), "{reported}");
        assert!(reported.contains(first.record.uid.as_str()) && reported.contains("192.0.2.1"), "{reported}");
        let released = Change::Delete(registry.layout.alive(&first.record.name));
        registry.store.commit(&[], &[released]).await.unwrap();
        let second = join(&registry, &candidate("n1", 2)).await.unwrap();
        assert_eq!(second.record.blocks, first.record.blocks);
        assert_ne!(second.record.uid, first.record.uid);
    });
}

#[test]
fn nodes_restore_their_blocks_in_a_wiped_store() {
    with_store(|registry| async move {
        let first_node = candidate("n0", 9);
        join(&registry, &first_node).await.unwrap();
        let mut first = candidate("n1", 1);
        first.saved_blocks = blocks(&["10.2.9.0/24", "fd00:2:0:0:7000::/68"]);
        let joined = join(&registry, &first).await.unwrap();
        assert_eq!(joined.record.blocks, first.saved_blocks);
        // Another node with the same saved blocks is slower.
        let mut second = candidate("n2", 2);
        second.saved_blocks.clone_from(&first.saved_blocks);
        let joined = join(&registry, &second).await.unwrap();
        assert_eq!(joined.lost.len(), 2);
        assert!(joined.record.blocks.iter().all(|block| !first.saved_blocks.contains(block)));
    });
}

#[test]
fn only_a_single_node_may_change_the_network() {
    with_store(|registry| async move {
        join(&registry, &candidate("n1", 1)).await.unwrap();
        let other = NetworkSpec { subnets: nets(&["10.9.0.0/16"]), margin: 8, ..spec() };
        let mut moved = candidate("n1", 1);
        moved.spec = other.clone();
        moved.networks = NetworkLayouts::of_default(&other).unwrap();
        let joined = join(&registry, &moved).await.unwrap();
        assert_eq!(joined.record.blocks.len(), 1);
        assert!(other.subnets[0].contains(&joined.record.blocks.of(&NetworkRef::default())[0]));
        let contents = read_contents(&registry).await.unwrap();
        assert_eq!(contents.claims.len(), 1, "the old blocks must be released");
        let error = join(&registry, &candidate("n2", 2)).await.unwrap_err().to_string();
        assert!(error.contains("10.9.0.0/16 with margin 8,") && error.contains("10.2.0.0/20 and"), "{error}");
    });
}

#[test]
fn a_full_node_gets_another_block() {
    with_store(|registry| async move {
        let joined = join(&registry, &candidate("n1", 1)).await.unwrap();
        let block_layout = default_layouts(&spec())[1];
        let after =
            registry.claim_another_block(joined.clone(), any_block(&block_layout), &[]).await.unwrap();
        assert_eq!(after.record.blocks.len(), 3);
        let network = NetworkRef::default();
        assert_eq!(after.record.blocks.of(&network)[..2], *joined.record.blocks.of(&network));
        assert_eq!(join(&registry, &candidate("n1", 1)).await.unwrap().record.blocks, after.record.blocks);
        // An outdated record must not be extended.
        assert!(registry.claim_another_block(joined, any_block(&block_layout), &[]).await.is_err());
    });
}

#[test]
fn a_newer_record_is_never_overwritten() {
    with_store(|registry| async move {
        let key = registry.layout.node(&"n1".try_into().unwrap());
        let newer = br#"{"schema":7,"node":{"shape":"round"}}"#.to_vec();
        let put = Change::Put { key: key.clone(), value: newer.clone(), lease: None };
        registry.store.commit(&[], &[put]).await.unwrap();
        let error = join(&registry, &candidate("n1", 1)).await.unwrap_err().to_string();
        assert!(error.contains("update podwire") && error.contains(&key), "{error}");
        assert_eq!(registry.store.get(&key).await.unwrap().unwrap().value, newer);
    });
}

async fn remove(registry: &Registry, name: &str, force: bool) -> Result<Vec<IpNet>, AskError> {
    let (done, answer) = tokio::sync::oneshot::channel();
    let ask = StoreQuery::Remove { name: name.try_into().unwrap(), force, done };
    ask.answer(registry.clone(), "n1".try_into().unwrap(), &Contact::new(None)).await;
    answer.await.unwrap()
}

#[test]
fn the_blocks_of_a_removed_node_are_released() {
    with_store(|registry| async move {
        join(&registry, &candidate("n1", 1)).await.unwrap();
        let second = join(&registry, &candidate("n2", 2)).await.unwrap();
        put_alive(&registry, &second).await;
        assert!(remove(&registry, "n1", true).await.unwrap_err().to_string().contains("this node"));
        assert!(remove(&registry, "n9", false).await.unwrap_err().to_string().contains("no node n9"));
        assert!(remove(&registry, "n2", false).await.unwrap_err().to_string().contains("is alive"));
        assert_eq!(
            BlockAllocation::of_default(remove(&registry, "n2", true).await.unwrap()),
            second.record.blocks
        );
        let contents = read_contents(&registry).await.unwrap();
        assert_eq!((contents.nodes.len(), contents.claims.len()), (1, 2));
    });
}

/// A managed route with other attributes differs from the desired one, even with the same next hop.
#[test]
fn a_route_with_any_changed_attribute_is_shown_as_different() {
    let underlay =
        Underlay { link: 1, address: "192.0.2.1".parse().unwrap(), on_link: nets(&["192.0.2.0/24"]) };
    let mut mesh = Mesh::new(LocalNode {
        name: "n1".try_into().unwrap(),
        blocks: nets(&["10.2.0.0/24"]),
        block_layouts: vec![BlockLayout::new(nets(&["10.2.0.0/16"])[0], 8).unwrap()],
        transport: Transport::Auto,
        underlays: vec![underlay],
        tunnels: Tunnels::default(),
        sources: vec!["10.2.0.1".parse().unwrap()],
    });
    let record = NodeRecord {
        addresses: vec!["192.0.2.2".parse().unwrap()],
        blocks: blocks(&["10.2.1.0/24"]),
        ..candidate("n2", 2).record
    };
    mesh.set_claim(*record.blocks.iter().next().unwrap(), Some(record.name.clone()));
    mesh.set_peer(StoredNode { record, created: 1 });
    let desired = mesh.take_changes().set_routes[0];
    let other: IpAddr = "192.0.2.9".parse().unwrap();
    let view = |route: PeerRoute| {
        let observed = ObservedPeers { routes: vec![route], ..ObservedPeers::default() };
        let routes = super::view::routes(&mesh, &observed, &mut RtSocket::open().unwrap());
        (routes.len(), routes[0].state, routes[0].message.clone().unwrap_or_default())
    };
    assert_eq!(view(desired), (1, RouteState::Ok, String::new()));
    for (changed, word) in [
        (PeerRoute { gateway: other, ..desired }, "via 192.0.2.9 dev lo"),
        (PeerRoute { link: u32::MAX, ..desired }, "via 192.0.2.2 dev no link"),
        (PeerRoute { src: None, ..desired }, "another source address"),
        (PeerRoute { onlink: !desired.onlink, ..desired }, "onlink flag"),
    ] {
        let (count, state, message) = view(changed);
        assert_eq!((count, state), (1, RouteState::Different));
        assert!(message.contains(word), "{message}");
    }
}

mod position {
    use netlink::{Address, Link, Route};

    use super::*;
    use crate::peers::underlay::{Position, UnderlayCandidates, find};
    use config::{Config, Flags};

    fn config(interface: Option<&str>, addresses: &[&str]) -> Config {
        let mut config = Config::load(&Flags::default(), Vec::new()).unwrap();
        config.node_interface = interface.map(|name| name.try_into().unwrap());
        config.node_addresses = addresses.iter().map(|ip| ip.parse().unwrap()).collect();
        config
    }

    fn link(index: u32, name: &str, mtu: u32) -> Link {
        Link {
            index,
            name: name.to_owned(),
            mac: None,
            mtu,
            up: true,
            running: true,
            promisc: false,
            arp: true,
            master: None,
            peer: None,
            alias: None,
            group: 0,
            kind: None,
            hairpin: None,
            vxlan: None,
        }
    }

    fn address(link: u32, addr: &str) -> Address {
        Address {
            link,
            addr: addr.parse().unwrap(),
            broadcast: None,
            nodad: false,
            tentative: false,
            duplicate: false,
            protocol: None,
        }
    }

    fn default(link: u32, gateway: &str) -> Route {
        let gateway: IpAddr = gateway.parse().unwrap();
        let dst = if gateway.is_ipv4() { "0.0.0.0/0" } else { "::/0" };
        Route { gateway: Some(gateway), link: Some(link), ..Route::to(dst.parse().unwrap()) }
    }

    /// Two links with both families. The default routes use the second one.
    fn candidates() -> UnderlayCandidates {
        UnderlayCandidates {
            links: vec![link(1, "lo", 65536), link(2, "eth0", 1500), link(3, "eth1", 1400)],
            addresses: vec![
                address(1, "127.0.0.1/8"),
                address(2, "10.0.0.5/24"),
                address(3, "192.0.2.5/24"),
                address(3, "192.0.2.6/24"),
                address(3, "fe80::1/64"),
                address(3, "2001:db8::5/64"),
            ],
            defaults: vec![default(3, "192.0.2.1"), default(3, "2001:db8::1")],
        }
    }

    fn chosen(config: &Config, candidates: &UnderlayCandidates) -> Position {
        find(config, candidates, |_| false, &[])
    }

    fn addresses(position: &Position) -> Vec<String> {
        position.addresses().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn pain18_the_default_route_selects_the_addresses() {
        let position = chosen(&config(None, &[]), &candidates());
        assert_eq!(addresses(&position), ["192.0.2.5", "2001:db8::5"]);
        assert_eq!((position.mtu, position.problems.len()), (Some(1400), 0));
        assert_eq!(position.underlays[0].on_link, nets(&["192.0.2.0/24"]));
    }

    #[test]
    fn pain18_the_config_has_priority_over_the_default_route() {
        let position = chosen(&config(Some("eth0"), &[]), &candidates());
        assert_eq!((addresses(&position), position.mtu), (vec!["10.0.0.5".to_owned()], Some(1500)));
        let position = chosen(&config(None, &["10.0.0.5"]), &candidates());
        assert_eq!(position.underlays[0].link, 2);
        assert_eq!(addresses(&position), ["10.0.0.5", "2001:db8::5"]);
        let position = chosen(&config(Some("eth7"), &[]), &candidates());
        assert!(position.underlays.is_empty());
        assert!(
            position.problems.iter().any(|finding| finding.message.contains("eth7")),
            "{:?}",
            position.problems
        );
    }

    #[test]
    fn pain18_an_ambiguous_choice_of_addresses_is_reported() {
        let mut candidates = candidates();
        candidates.defaults[1].link = None;
        let position = chosen(&config(None, &[]), &candidates);
        assert_eq!(addresses(&position), ["192.0.2.5", "2001:db8::5"], "only one link has an IPv6 address");
        assert!(
            position.problems[0].message.contains("IPv6")
                && position.problems[0].message.contains("node_interface")
        );
        candidates.defaults.clear();
        let position = chosen(&config(None, &[]), &candidates);
        assert_eq!(addresses(&position), ["2001:db8::5"], "two links have an IPv4 address");
        assert!(position.problems[0].message.contains("several links have addresses (eth0, eth1)"));
        candidates.addresses.clear();
        assert!(chosen(&config(None, &[]), &candidates).problems[0].message.contains("no address"));
    }

    #[test]
    fn pain18_a_configured_address_without_link_is_reported() {
        for interface in [None, Some("eth0")] {
            let position = chosen(&config(interface, &["10.0.0.77", "2001:db8::5"]), &candidates());
            assert!(addresses(&position).contains(&"10.0.0.77".to_owned()), "NAT may translate the address");
            let [finding] = &position.problems[..] else { panic!("{:?}", position.problems) };
            assert!(finding.message.contains("node_addresses says 10.0.0.77, but no link"), "{finding:?}");
        }
    }

    #[test]
    fn pain17_the_published_address_is_kept_while_it_exists() {
        let before: Vec<IpAddr> = vec!["192.0.2.6".parse().unwrap()];
        let position = find(&config(None, &[]), &candidates(), |_| false, &before);
        assert_eq!(addresses(&position)[0], "192.0.2.6");
        let mut candidates = candidates();
        candidates.addresses.retain(|address| address.addr.addr() != before[0]);
        let position = find(&config(None, &[]), &candidates, |_| false, &before);
        assert_eq!(addresses(&position)[0], "192.0.2.5");
    }

    #[test]
    fn a_removed_address_is_reported_until_its_family_has_one() {
        let (config, whole) = (config(None, &[]), candidates());
        let find = |candidates: &UnderlayCandidates, before: &Position| {
            find(&config, candidates, |_| false, &before.known_addresses())
        };
        let mut candidates = candidates();
        candidates.addresses.retain(|address| address.addr.addr().is_ipv6());
        candidates.defaults.remove(0);
        let first = find(&candidates, &chosen(&config, &whole));
        for position in [&first, &find(&candidates, &first)] {
            assert_eq!(addresses(position), ["2001:db8::5"]);
            let [finding] = &position.problems[..] else { panic!("{:?}", position.problems) };
            assert_eq!(
                (finding.code, finding.object.as_str()),
                (types::Code::NodeAddressMissing, "address 192.0.2.5")
            );
        }
        let restored = find(&whole, &first);
        assert_eq!((restored.problems.len(), restored.lost.len()), (0, 0));
        candidates.addresses.clear();
        let none = find(&candidates, &first);
        let objects: Vec<&str> = none.problems.iter().map(|finding| finding.object.as_str()).collect();
        assert_eq!(objects, ["address 192.0.2.5", "address 2001:db8::5"]);
    }

    #[test]
    fn a_lost_address_is_explained_by_its_link() {
        let loss = |candidates: &UnderlayCandidates, config: &Config| {
            let saved = Position::saved(vec!["192.0.2.5".parse().unwrap()]);
            let position = find(config, candidates, |_| false, &saved.known_addresses());
            let lost = position.problems.iter().find(|finding| finding.object == "address 192.0.2.5");
            let types::Finding { message, fix, .. } = lost.unwrap().clone();
            (message, fix.as_deref().map(str::to_owned), position.lost_links)
        };
        let (config, mut candidates) = (config(None, &[]), candidates());
        candidates.defaults.clear();
        // Two links have addresses.
        let (message, fix, links) = loss(&candidates, &config);
        assert!(
            message.contains("eth1 has address 192.0.2.5, but there is no IPv4 default route"),
            "{message}"
        );
        assert_eq!((fix, links), (None, vec![3]));
        candidates.links.remove(1);
        candidates.addresses.retain(|address| address.link != 2);
        candidates.links[1].up = false;
        let (message, fix, links) = loss(&candidates, &config);
        assert!(
            message.starts_with("link eth1, which has address 192.0.2.5 of this node, is down"),
            "{message}"
        );
        assert_eq!((fix.as_deref(), links), (Some("ip link set dev eth1 up"), vec![3]));
        candidates.addresses.clear();
        let (message, fix, links) = loss(&candidates, &config);
        assert!(message.contains("192.0.2.5 of this node was removed"), "{message}");
        assert_eq!((fix.as_deref(), links), (Some("ip address show"), vec![]));
    }

    #[test]
    fn a_tentative_address_is_not_published() {
        let mut candidates = candidates();
        candidates.addresses[5].tentative = true;
        assert_eq!(addresses(&chosen(&config(None, &[]), &candidates)), ["192.0.2.5"]);
    }

    #[test]
    fn managed_links_are_never_chosen() {
        let mut candidates = candidates();
        candidates.defaults.clear();
        let position = find(&config(None, &[]), &candidates, |link| link.name == "eth0", &[]);
        assert_eq!(addresses(&position), ["192.0.2.5", "2001:db8::5"]);
    }
}

#[test]
fn an_unexpected_end_of_the_thread_is_reported() {
    let reported = |stop_requested: bool| {
        let agent_status = std::sync::Arc::new(crate::agent_status::AgentStatus::new());
        let (stop, stopped) = tokio::sync::watch::channel(false);
        let contact = std::sync::Arc::new(Contact::new(None));
        contact.watch_started(super::contact::ListedNodes::default());
        let refused = types::Finding::new(types::Code::PeerRouteFailed, "route 10.2.3.0/24", "EINVAL");
        agent_status.set(crate::conditions::Source::Routes, vec![refused]);
        let (copy, contact_copy) = (std::sync::Arc::clone(&agent_status), std::sync::Arc::clone(&contact));
        let guard = super::ThreadExitGuard { agent_status: copy, contact: contact_copy, stop: stopped };
        stop.send_replace(stop_requested);
        drop(guard);
        let has = |code| agent_status.has(code);
        (has(types::Code::StoreWatchStopped), contact.is_reachable(), has(types::Code::PeerRouteFailed))
    };
    // The peers thread maintains the routes and continues.
    assert_eq!((reported(false), reported(true)), ((true, false, true), (false, true, true)));
}
