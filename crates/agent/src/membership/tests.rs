//! Joining, against a real store in a directory; and the choice of the node's addresses, from tables.

mod known;
mod member;
mod registry;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;

use api::RouteState;
use ipnet::IpNet;
use model::{
    AliveRecord, KeyLayout, LocalNode, Mesh, NetworkSpec, NodeRecord, Object as _, ObservedPeers, PeerRoute,
    StoredNode, Transport, Tunnels, Underlay,
};
use netlink::RtSocket;
use store::{Change, Store, StoreConfig};
use types::{Mac, NodeUid};

use super::ask_error::AskError;
use super::command::{StoreQuery, look};
use super::contact::Contact;
use super::join::{Candidate, JoinError, Joined, Registry, block_layouts};

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

fn candidate(name: &str, uid: u8) -> Candidate {
    let record = NodeRecord {
        name: name.try_into().unwrap(),
        uid: NodeUid::from_random([uid; 16]),
        addresses: vec!["192.0.2.1".parse().unwrap()],
        blocks: Vec::new(),
        tunnel_mac: Mac::local([0, 0, 0, 0, uid]),
        version: "1".to_owned(),
        transport: None,
    };
    Candidate { spec: spec(), record, remembered: Vec::new(), former: None, since: 1 }
}

async fn join(registry: &Registry, candidate: &Candidate) -> Result<Joined, JoinError> {
    registry.join(candidate, &[]).await
}

/// Each test has a directory of its own, and a runtime.
fn with_store<F: Future<Output = ()>>(test: impl FnOnce(Registry) -> F) {
    let dir = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { test(registry(dir.path())).await });
}

async fn say_alive(registry: &Registry, joined: &Joined) {
    let value = AliveRecord { uid: joined.record.uid.clone(), since: 1 }.encode();
    let put = Change::Put { key: registry.layout.alive(&joined.record.name), value, lease: None };
    registry.store.commit(&[], &[put]).await.unwrap();
}

#[test]
fn a3_a_node_gets_a_block_of_each_family_and_keeps_it() {
    with_store(|registry| async move {
        let first = join(&registry, &candidate("n1", 1)).await.unwrap();
        assert_eq!(first.record.blocks, nets(&["10.2.0.0/24", "fd00:2::/68"]));
        let second = join(&registry, &candidate("n2", 2)).await.unwrap();
        assert_eq!(second.record.blocks, nets(&["10.2.1.0/24", "fd00:2:0:0:1000::/68"]));
        let again = join(&registry, &candidate("n1", 1)).await.unwrap();
        assert_eq!(again, first, "nothing was written");
    });
}

#[test]
fn a3_the_counter_is_a_hint_and_never_trusted() {
    with_store(|registry| async move {
        let first = join(&registry, &candidate("n1", 1)).await.unwrap();
        // Somebody sets it back: the next one starts where the first one did.
        registry.store.commit(&[], &[Change::Delete(registry.layout.counter().to_owned())]).await.unwrap();
        let second = join(&registry, &candidate("n2", 2)).await.unwrap();
        assert!(second.record.blocks.iter().all(|block| !first.record.blocks.contains(block)));
    });
}

#[test]
fn nodes_that_join_at_once_get_different_blocks() {
    with_store(|registry| async move {
        let mut joins = tokio::task::JoinSet::new();
        for n in 1..=16 {
            let registry = registry.clone();
            joins.spawn(async move { join(&registry, &candidate(&format!("n{n}"), n)).await.unwrap() });
        }
        let all: Vec<Joined> = joins.join_all().await;
        let blocks: BTreeSet<IpNet> = all.iter().flat_map(|joined| joined.record.blocks.clone()).collect();
        assert_eq!(blocks.len(), 32, "each has one of each family, and nobody another's");
        let error = join(&registry, &candidate("n17", 17)).await.unwrap_err();
        assert!(matches!(error, JoinError::Exhausted { count: 16, .. }), "{error}");
        assert!(error.to_string().contains("podwire node rm"), "{error}");
    });
}

#[test]
fn a_name_that_is_held_is_refused_and_taken_over_afterwards() {
    with_store(|registry| async move {
        let first = join(&registry, &candidate("n1", 1)).await.unwrap();
        say_alive(&registry, &first).await;
        let error = join(&registry, &candidate("n1", 2)).await.unwrap_err();
        let reported = error.to_string();
        assert!(matches!(error, JoinError::Held { .. }), "{reported}");
        assert!(reported.contains(first.record.uid.as_str()) && reported.contains("192.0.2.1"), "{reported}");
        let gone = Change::Delete(registry.layout.alive(&first.record.name));
        registry.store.commit(&[], &[gone]).await.unwrap();
        let second = join(&registry, &candidate("n1", 2)).await.unwrap();
        assert_eq!(second.record.blocks, first.record.blocks);
        assert_ne!(second.record.uid, first.record.uid);
    });
}

#[test]
fn a_store_that_was_wiped_gets_everything_back() {
    with_store(|registry| async move {
        let nobody = candidate("n0", 9);
        join(&registry, &nobody).await.unwrap();
        let mut first = candidate("n1", 1);
        first.remembered = nets(&["10.2.9.0/24", "fd00:2:0:0:7000::/68"]);
        let joined = join(&registry, &first).await.unwrap();
        assert_eq!(joined.record.blocks, first.remembered);
        // Somebody else who remembers the same one was too slow.
        let mut second = candidate("n2", 2);
        second.remembered.clone_from(&first.remembered);
        let joined = join(&registry, &second).await.unwrap();
        assert_eq!(joined.lost.len(), 2);
        assert!(joined.record.blocks.iter().all(|block| !first.remembered.contains(block)));
    });
}

#[test]
fn all_nodes_mean_the_same_network_and_one_alone_may_change_it() {
    with_store(|registry| async move {
        join(&registry, &candidate("n1", 1)).await.unwrap();
        let other = NetworkSpec { subnets: nets(&["10.9.0.0/16"]), margin: 8, ..spec() };
        let mut moved = candidate("n1", 1);
        moved.spec = other.clone();
        let joined = join(&registry, &moved).await.unwrap();
        assert_eq!(joined.record.blocks.len(), 1);
        assert!(other.subnets[0].contains(&joined.record.blocks[0]));
        let contents = look(&registry).await.unwrap();
        assert_eq!(contents.claims.len(), 1, "the old ones went back");
        let error = join(&registry, &candidate("n2", 2)).await.unwrap_err().to_string();
        assert!(error.contains("10.9.0.0/16 with 8 bits") && error.contains("10.2.0.0/20 and"), "{error}");
    });
}

#[test]
fn a_full_node_gets_another_block() {
    with_store(|registry| async move {
        let joined = join(&registry, &candidate("n1", 1)).await.unwrap();
        let block_layout = block_layouts(&spec()).unwrap()[1];
        let grown = registry.grow(joined.clone(), &block_layout, &[]).await.unwrap();
        assert_eq!(grown.record.blocks.len(), 3);
        assert_eq!(grown.record.blocks[..2], joined.record.blocks);
        assert_eq!(join(&registry, &candidate("n1", 1)).await.unwrap().record.blocks, grown.record.blocks);
        // What is not known any more is not built upon.
        assert!(registry.grow(joined, &block_layout, &[]).await.is_err());
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
fn a_removed_nodes_blocks_return() {
    with_store(|registry| async move {
        join(&registry, &candidate("n1", 1)).await.unwrap();
        let second = join(&registry, &candidate("n2", 2)).await.unwrap();
        say_alive(&registry, &second).await;
        assert!(remove(&registry, "n1", true).await.unwrap_err().to_string().contains("this node"));
        assert!(remove(&registry, "n9", false).await.unwrap_err().to_string().contains("no node n9"));
        assert!(remove(&registry, "n2", false).await.unwrap_err().to_string().contains("is alive"));
        assert_eq!(remove(&registry, "n2", true).await.unwrap(), second.record.blocks);
        let contents = look(&registry).await.unwrap();
        assert_eq!((contents.nodes.len(), contents.claims.len()), (1, 2));
    });
}

/// A route of ours that somebody changed is not the one that is wanted, also where it leads to the same place.
#[test]
fn a_route_is_shown_as_different_whatever_of_it_is() {
    let underlay =
        Underlay { link: 1, address: "192.0.2.1".parse().unwrap(), on_link: nets(&["192.0.2.0/24"]) };
    let mut mesh = Mesh::new(LocalNode {
        name: "n1".try_into().unwrap(),
        blocks: nets(&["10.2.0.0/24"]),
        subnets: nets(&["10.2.0.0/16"]),
        margin: 8,
        transport: Transport::Auto,
        underlays: vec![underlay],
        tunnels: Tunnels::default(),
        sources: vec!["10.2.0.1".parse().unwrap()],
    });
    let record = NodeRecord {
        addresses: vec!["192.0.2.2".parse().unwrap()],
        blocks: nets(&["10.2.1.0/24"]),
        ..candidate("n2", 2).record
    };
    mesh.set_claim(record.blocks[0], Some(record.name.clone()));
    mesh.set_peer(StoredNode { record, created: 1 });
    let wanted = mesh.take_changes().set_routes[0];
    let other: IpAddr = "192.0.2.9".parse().unwrap();
    let shown = |route: PeerRoute| {
        let observed = ObservedPeers { routes: vec![route], ..ObservedPeers::default() };
        let routes = super::view::routes(&mesh, &observed, &mut RtSocket::open().unwrap());
        (routes.len(), routes[0].state, routes[0].message.clone().unwrap_or_default())
    };
    assert_eq!(shown(wanted), (1, RouteState::Ok, String::new()));
    for (changed, word) in [
        (PeerRoute { gateway: other, ..wanted }, "leads to 192.0.2.9 over lo"),
        (PeerRoute { link: u32::MAX, ..wanted }, "leads to 192.0.2.2 over no link"),
        (PeerRoute { src: None, ..wanted }, "another source address"),
        (PeerRoute { onlink: !wanted.onlink, ..wanted }, "another way to its gateway"),
    ] {
        let (count, state, note) = shown(changed);
        assert_eq!((count, state), (1, RouteState::Different));
        assert!(note.contains(word), "{note}");
    }
}

mod position {
    use netlink::{Address, Link, Route};

    use super::*;
    use crate::peers::underlay::{Position, Surroundings, find};
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

    /// Two links with both families; the default routes are on the second.
    fn around() -> Surroundings {
        Surroundings {
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

    fn chosen(config: &Config, around: &Surroundings) -> Position {
        find(config, around, |_| false, &[])
    }

    fn addresses(position: &Position) -> Vec<String> {
        position.addresses().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn pain18_the_default_route_decides() {
        let position = chosen(&config(None, &[]), &around());
        assert_eq!(addresses(&position), ["192.0.2.5", "2001:db8::5"]);
        assert_eq!((position.mtu, position.problems.len()), (Some(1400), 0));
        assert_eq!(position.underlays[0].on_link, nets(&["192.0.2.0/24"]));
    }

    #[test]
    fn pain18_config_decides_before_routes_do() {
        let position = chosen(&config(Some("eth0"), &[]), &around());
        assert_eq!((addresses(&position), position.mtu), (vec!["10.0.0.5".to_owned()], Some(1500)));
        let position = chosen(&config(None, &["10.0.0.5"]), &around());
        assert_eq!(position.underlays[0].link, 2);
        assert_eq!(addresses(&position), ["10.0.0.5", "2001:db8::5"]);
        let position = chosen(&config(Some("eth7"), &[]), &around());
        assert!(position.underlays.is_empty());
        assert!(
            position.problems.iter().any(|what| what.message.contains("eth7")),
            "{:?}",
            position.problems
        );
    }

    #[test]
    fn pain18_what_is_not_clear_is_told() {
        let mut around = around();
        around.defaults[1].link = None;
        let position = chosen(&config(None, &[]), &around);
        assert_eq!(addresses(&position), ["192.0.2.5", "2001:db8::5"], "of IPv6 there is one link to choose");
        assert!(
            position.problems[0].message.contains("IPv6")
                && position.problems[0].message.contains("node_interface")
        );
        around.defaults.clear();
        let position = chosen(&config(None, &[]), &around);
        assert_eq!(addresses(&position), ["2001:db8::5"], "of IPv4 there are two");
        assert!(position.problems[0].message.contains("several links have addresses (eth0, eth1)"));
        around.addresses.clear();
        assert!(chosen(&config(None, &[]), &around).problems[0].message.contains("no address"));
    }

    #[test]
    fn pain18_an_address_that_no_link_has_is_told() {
        for interface in [None, Some("eth0")] {
            let position = chosen(&config(interface, &["10.0.0.77", "2001:db8::5"]), &around());
            assert!(
                addresses(&position).contains(&"10.0.0.77".to_owned()),
                "it may be translated on its way"
            );
            let [problem] = &position.problems[..] else { panic!("{:?}", position.problems) };
            assert!(problem.message.contains("node_addresses says 10.0.0.77, but no link"), "{problem:?}");
        }
    }

    #[test]
    fn pain17_an_address_stays_as_long_as_it_is_there() {
        let before: Vec<IpAddr> = vec!["192.0.2.6".parse().unwrap()];
        let position = find(&config(None, &[]), &around(), |_| false, &before);
        assert_eq!(addresses(&position)[0], "192.0.2.6");
        let mut around = around();
        around.addresses.retain(|address| address.addr.addr() != before[0]);
        let position = find(&config(None, &[]), &around, |_| false, &before);
        assert_eq!(addresses(&position)[0], "192.0.2.5");
    }

    #[test]
    fn an_address_that_was_removed_is_reported_until_the_family_has_one_again() {
        let (config, whole) = (config(None, &[]), around());
        let find = |around: &Surroundings, before: &Position| {
            find(&config, around, |_| false, &before.known_addresses())
        };
        let mut around = around();
        around.addresses.retain(|address| address.addr.addr().is_ipv6());
        around.defaults.remove(0);
        let first = find(&around, &chosen(&config, &whole));
        for position in [&first, &find(&around, &first)] {
            assert_eq!(addresses(position), ["2001:db8::5"]);
            let [found] = &position.problems[..] else { panic!("{:?}", position.problems) };
            assert_eq!(
                (found.code, found.object.as_str()),
                (types::Code::NodeAddressMissing, "address 192.0.2.5")
            );
        }
        let back = find(&whole, &first);
        assert_eq!((back.problems.len(), back.lost.len()), (0, 0));
        around.addresses.clear();
        let none = find(&around, &first);
        let objects: Vec<&str> = none.problems.iter().map(|found| found.object.as_str()).collect();
        assert_eq!(objects, ["address 192.0.2.5", "address 2001:db8::5"]);
    }

    #[test]
    fn an_address_that_is_not_usable_yet_is_not_published() {
        let mut around = around();
        around.addresses[5].tentative = true;
        assert_eq!(addresses(&chosen(&config(None, &[]), &around)), ["192.0.2.5"]);
    }

    #[test]
    fn links_of_ours_are_never_chosen() {
        let mut around = around();
        around.defaults.clear();
        let position = find(&config(None, &[]), &around, |link| link.name == "eth0", &[]);
        assert_eq!(addresses(&position), ["192.0.2.5", "2001:db8::5"]);
    }
}

#[test]
fn an_end_that_nobody_asked_for_is_told() {
    let reported = |asked: bool| {
        let agent_status = std::sync::Arc::new(crate::agent_status::AgentStatus::new());
        let (stop, stopped) = tokio::sync::watch::channel(false);
        let contact = std::sync::Arc::new(Contact::new(None));
        contact.watching(super::contact::ListedNodes::default());
        let refused = types::Finding::new(types::Code::PeerRouteFailed, "route 10.2.3.0/24", "EINVAL");
        agent_status.set(crate::conditions::Source::Routes, vec![refused]);
        let (copy, shown) = (std::sync::Arc::clone(&agent_status), std::sync::Arc::clone(&contact));
        let ending = super::ThreadExitGuard { agent_status: copy, contact: shown, stop: stopped };
        stop.send_replace(asked);
        drop(ending);
        let has = |code| agent_status.has(code);
        (has(types::Code::StoreWatchStopped), contact.is_reachable(), has(types::Code::PeerRouteFailed))
    };
    // Routes are kept by another thread, which goes on.
    assert_eq!((reported(false), reported(true)), ((true, false, true), (false, true, true)));
}
