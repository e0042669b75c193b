//! Links on a real kernel, compared with the output of `ip -j`.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::testbed::{Testbed, command, eventually, mac, name, pair};
use netlink::{AddBridge, LinkRef, Op, SetLink, Veth};

#[test]
fn e13_one_send_creates_a_completely_configured_veth() {
    let mut w = Testbed::new();
    let bridge = w.bridge("br0");
    let (host, peer) = (name("pwabc"), name("eth0"));
    let long_alias = "podwire:".to_owned() + &"x".repeat(247);
    let veth = Veth { mtu: 1420, master: Some(bridge), ..pair(&w.pod, &host, &peer) };
    let second = SetLink {
        alias: Some(&long_alias),
        hairpin: Some(true),
        no_link_local: true,
        ..SetLink::of(LinkRef::Name(&host))
    };
    w.host_socket.run_every(&[Op::AddVeth(veth), Op::SetLink(second)]).unwrap();

    let shown = &command(&w.host, "ip -j -d link show dev pwabc")[0];
    assert_eq!(shown["address"], mac(7).to_string());
    assert_eq!(shown["mtu"], 1420);
    assert_eq!(shown["master"], "br0");
    assert_eq!(shown["ifalias"], long_alias.as_str());
    assert_eq!(shown["inet6_addr_gen_mode"], "none");
    assert_eq!(shown["linkinfo"]["info_slave_data"]["hairpin"], true);
    for flag in ["UP", "NOARP"] {
        assert!(shown["flags"].as_array().unwrap().contains(&flag.into()), "{flag}");
    }
    let shown = &command(&w.pod, "ip -j -d link show dev eth0")[0];
    assert!(!shown["flags"].as_array().unwrap().contains(&"NOARP".into()));
    assert_eq!(shown["address"], mac(8).to_string());
    assert_eq!(shown["mtu"], 1420);
    assert!(!shown["flags"].as_array().unwrap().contains(&"UP".into()));

    let link = w.host_socket.link(&host).unwrap().unwrap();
    let pod = w.pod_socket.link(&peer).unwrap().unwrap();
    assert_eq!((link.mac, link.mtu, link.up), (Some(mac(7)), 1420, true));
    assert_eq!(link.alias, Some(long_alias));
    assert_eq!((link.master, link.peer, link.hairpin), (Some(bridge), Some(pod.index), Some(true)));
    assert_eq!(link.kind.as_deref(), Some("veth"));
    assert_eq!((pod.peer, pod.hairpin, pod.up, pod.running), (Some(link.index), None, false, false));
}

#[test]
fn no_link_local_address_is_added_when_the_peer_goes_up() {
    let mut w = Testbed::new();
    let (without, with, eth0, eth1) = (name("pwwithout"), name("pwwith"), name("eth0"), name("eth1"));
    let veth = pair(&w.pod, &without, &eth0);
    let no_link_local = SetLink { no_link_local: true, ..SetLink::of(LinkRef::Name(&without)) };
    let other = Veth { host_mac: mac(9), peer_mac: mac(10), ..pair(&w.pod, &with, &eth1) };
    w.host_socket.run_every(&[Op::AddVeth(veth), Op::SetLink(no_link_local), Op::AddVeth(other)]).unwrap();
    for peer in [&eth0, &eth1] {
        w.pod_socket
            .run(&Op::SetLink(SetLink { up: Some(true), ..SetLink::of(LinkRef::Name(peer)) }))
            .unwrap();
    }
    let [without, with] = [&without, &with].map(|n| w.host_socket.link(n).unwrap().unwrap().index);
    // The kernel adds the addresses in the order in which links went up: once the second link has one, the first would, too.
    eventually("a link-local address", || !w.host_socket.addresses(Some(with)).unwrap().is_empty());
    assert!(w.host_socket.link_at(without).unwrap().unwrap().running);
    assert_eq!(w.host_socket.addresses(Some(without)).unwrap(), []);
}

#[test]
fn a_veth_has_its_group_and_a_change_affects_one_link() {
    let mut w = Testbed::new();
    let (first, second, eth0, eth1) = (name("pwfirst"), name("pwsecond"), name("eth0"), name("eth1"));
    let other = Veth { host_mac: mac(9), peer_mac: mac(10), ..pair(&w.pod, &second, &eth1) };
    let grouped = Veth { group: 0x5057_0001, ..pair(&w.pod, &first, &eth0) };
    w.host_socket
        .run_every(&[Op::AddVeth(grouped), Op::AddVeth(Veth { group: 0x5057_0001, ..other })])
        .unwrap();
    let groups = |w: &mut Testbed| [&first, &second].map(|n| w.host_socket.link(n).unwrap().unwrap().group);
    assert_eq!(groups(&mut w), [0x5057_0001; 2]);
    assert_eq!(command(&w.host, "ip -j link show dev pwfirst")[0]["group"], (0x5057_0001).to_string());
    assert_eq!(w.pod_socket.link(&eth0).unwrap().unwrap().group, 0);
    let link = w.host_socket.link(&first).unwrap().unwrap().index;
    w.host_socket.run(&Op::SetLinkGroup { link, group: 0x5057_0002 }).unwrap();
    assert_eq!(groups(&mut w), [0x5057_0002, 0x5057_0001]);
    w.host_socket.run(&Op::SetLinkGroup { link: 0, group: 0x5057_0001 }).unwrap_err();
    assert_eq!(groups(&mut w), [0x5057_0002, 0x5057_0001]);
}

#[test]
fn errors_name_the_operation_and_the_kernels_message() {
    let mut w = Testbed::new();
    let (host, peer) = (name("pwabc"), name("eth0"));
    let veth = pair(&w.pod, &host, &peer);
    w.host_socket.run(&Op::AddVeth(veth)).unwrap();
    let error = w.host_socket.run(&Op::AddVeth(veth)).unwrap_err();
    assert!(error.is_exists(), "{error}");
    assert!(error.to_string().starts_with("cannot create veth pwabc with peer eth0: File exists"), "{error}");

    let too_big = SetLink { mtu: Some(70_000), ..SetLink::of(LinkRef::Name(&host)) };
    let error = w.host_socket.run(&Op::SetLink(too_big)).unwrap_err();
    assert_eq!(error.errno(), Some(rustix::io::Errno::INVAL));
    let expected = "cannot change link pwabc: mtu: Invalid argument, \
    kernel message: mtu greater than device maximum";
    assert_eq!(error.to_string(), expected);
}

#[test]
fn f5_a_name_clash_is_refused_and_changes_nothing() {
    let mut w = Testbed::new();
    let (existing, _) = w.veth("pwabc", "eth0");
    w.host_socket
        .run(&Op::SetLink(SetLink { alias: Some("unmanaged"), ..SetLink::of(LinkRef::Index(existing)) }))
        .unwrap();
    let (clash, eth1) = (name("pwabc"), name("eth1"));
    let before = w.host_socket.link_at(existing).unwrap();
    let error = w.host_socket.run(&Op::AddVeth(pair(&w.pod, &clash, &eth1))).unwrap_err();
    assert!(error.is_exists(), "{error}");
    assert_eq!(w.host_socket.link_at(existing).unwrap(), before);
    assert_eq!(w.pod_socket.link(&eth1).unwrap(), None);
}

#[test]
fn a_clash_of_the_peer_name_creates_no_link() {
    let mut w = Testbed::new();
    w.veth("pwabc", "eth0");
    let (host, peer) = (name("pwdef"), name("eth0"));
    let veth = pair(&w.pod, &host, &peer);
    let alias = SetLink { alias: Some("x"), ..SetLink::of(LinkRef::Name(&host)) };
    let results = w.host_socket.run_all(&[Op::AddVeth(veth), Op::SetLink(alias)]).unwrap();
    assert!(results[0].as_ref().is_err_and(netlink::Error::is_exists), "{results:?}");
    assert!(results[1].as_ref().is_err_and(netlink::Error::is_missing), "{results:?}");
    assert_eq!(w.host_socket.link(&host).unwrap(), None);
}

#[test]
fn the_mac_of_a_bridge_does_not_depend_on_its_ports() {
    let mut w = Testbed::new();
    let bridge = w.bridge("br0");
    let (port, _) = w.veth("pwabc", "eth0");
    let low = "02:00:00:00:00:00".parse().unwrap();
    let join = SetLink { mac: Some(low), master: Some(bridge), ..SetLink::of(LinkRef::Index(port)) };
    w.host_socket.run(&Op::SetLink(join)).unwrap();
    assert_eq!(w.host_socket.link_at(bridge).unwrap().unwrap().mac, Some(mac(1)));
    let link = w.host_socket.link_at(port).unwrap().unwrap();
    assert_eq!((link.master, link.mac), (Some(bridge), Some(low)));
    w.host_socket
        .run(&Op::SetLink(SetLink { master: Some(0), ..SetLink::of(LinkRef::Index(port)) }))
        .unwrap();
    assert_eq!(w.host_socket.link_at(port).unwrap().unwrap().master, None);
}

#[test]
fn multicast_snooping_of_a_bridge_is_off_and_can_be_disabled() {
    let mut w = Testbed::new();
    let bridge = w.bridge("br0");
    let snooping =
        || command(&w.host, "ip -d -j link show br0")[0]["linkinfo"]["info_data"]["mcast_snooping"].clone();
    assert_eq!((snooping(), w.host_socket.snoops_multicast(bridge).unwrap()), (0.into(), Some(false)));
    command(&w.host, "ip -j link set br0 type bridge mcast_snooping 1");
    assert_eq!((snooping(), w.host_socket.snoops_multicast(bridge).unwrap()), (1.into(), Some(true)));
    let change = SetLink::of(LinkRef::Index(bridge));
    w.host_socket.run(&Op::SetLink(SetLink { no_snooping: true, ..change })).unwrap();
    assert_eq!((snooping(), w.host_socket.snoops_multicast(bridge).unwrap()), (0.into(), Some(false)));
    let (no_bridge, _) = w.veth("pwabc", "eth0");
    assert_eq!(w.host_socket.snoops_multicast(no_bridge).unwrap(), None);
}

/// Documents the kernel behaviour that `AddBridge` describes.
#[test]
fn f8_only_a_change_pins_the_mtu_of_a_bridge() {
    for (created, pinned) in [(1500, false), (1499, true)] {
        let mut w = Testbed::new();
        let n = name("br0");
        w.host_socket
            .run_every(&[
                Op::AddBridge(AddBridge { name: &n, mac: mac(1), mtu: created, up: true }),
                Op::SetLink(SetLink { mtu: Some(1500), ..SetLink::of(LinkRef::Name(&n)) }),
            ])
            .unwrap();
        let bridge = w.host_socket.link(&n).unwrap().unwrap().index;
        let (port, _) = w.veth("pwabc", "eth0");
        let small = SetLink { mtu: Some(1400), master: Some(bridge), ..SetLink::of(LinkRef::Index(port)) };
        w.host_socket.run(&Op::SetLink(small)).unwrap();
        assert_eq!(w.host_socket.link_at(bridge).unwrap().unwrap().mtu == 1500, pinned);
    }
}

#[test]
fn flags_of_a_link_change_independently() {
    let mut w = Testbed::new();
    let bridge = w.bridge("br0");
    let mut set = |up, promisc| {
        let change = SetLink { up, promisc, ..SetLink::of(LinkRef::Index(bridge)) };
        w.host_socket.run(&Op::SetLink(change)).unwrap();
        let link = w.host_socket.link_at(bridge).unwrap().unwrap();
        (link.up, link.promisc)
    };
    assert_eq!(set(None, Some(true)), (true, true));
    assert_eq!(set(Some(false), None), (false, true));
    assert_eq!(set(Some(true), Some(false)), (true, false));
}

#[test]
fn links_are_read_by_name_in_one_send_and_listed() {
    let mut w = Testbed::new();
    let names: Vec<_> = (0..70).map(|i| name(&format!("ifb{i}"))).collect();
    let ops: Vec<_> = names.iter().map(|name| Op::AddIfb { name, mtu: 1400 }).collect();
    w.host_socket.run_every(&ops).unwrap();
    let missing = name("missing");
    let mut requested: Vec<_> = names.iter().collect();
    requested.insert(3, &missing);
    let found = w.host_socket.links_by_name(&requested).unwrap();
    assert_eq!(found.len(), 71);
    for (requested, found) in requested.iter().zip(&found) {
        let expected = (*requested != &missing).then_some(requested.as_str());
        assert_eq!(found.as_ref().map(|l| l.name.as_str()), expected);
    }
    let first = found[0].as_ref().unwrap();
    assert_eq!((first.kind.as_deref(), first.mtu, first.up), (Some("ifb"), 1400, true));
    let all = w.host_socket.links().unwrap();
    assert_eq!(all.len(), command(&w.host, "ip -j link show").as_array().unwrap().len());
    assert!(all.iter().any(|l| l.name == "lo" && l.mac.is_none()));

    w.host_socket.run(&Op::DelLink(first.index)).unwrap();
    assert_eq!(w.host_socket.link(&names[0]).unwrap(), None);
    assert_eq!(w.host_socket.link_at(first.index).unwrap(), None);
    assert!(w.host_socket.run(&Op::DelLink(first.index)).unwrap_err().is_missing());
}

#[test]
fn an_overlong_alias_is_refused_and_other_operations_are_carried_out() {
    let mut w = Testbed::new();
    let (link, _) = w.veth("pwabc", "eth0");
    for length in [256, 70_000] {
        let alias = "x".repeat(length);
        let long = SetLink { alias: Some(&alias), ..SetLink::of(LinkRef::Index(link)) };
        let mtu = SetLink { mtu: Some(1300), ..SetLink::of(LinkRef::Index(link)) };
        let results = w.host_socket.run_all(&[Op::SetLink(long), Op::SetLink(mtu)]).unwrap();
        assert!(matches!(results[0], Err(netlink::Error::Invalid { .. })), "{results:?}");
        assert!(results[1].is_ok());
        assert!(w.host_socket.run(&Op::SetLink(long)).is_err());
    }
    assert_eq!(w.host_socket.link_at(link).unwrap().unwrap().mtu, 1300);
    let set = |alias| Op::SetLink(SetLink { alias: Some(alias), ..SetLink::of(LinkRef::Index(link)) });
    w.host_socket.run(&set("something")).unwrap();
    assert_eq!(w.host_socket.link_at(link).unwrap().unwrap().alias.as_deref(), Some("something"));
    w.host_socket.run(&set("")).unwrap();
    assert_eq!(w.host_socket.link_at(link).unwrap().unwrap().alias, None);
}

#[test]
fn dumps_are_complete_while_links_are_added_and_removed() {
    let mut w = Testbed::new();
    let steady: Vec<_> = (0..80).map(|i| name(&format!("steady{i}"))).collect();
    let ops: Vec<_> = steady.iter().map(|name| Op::AddIfb { name, mtu: 1500 }).collect();
    w.host_socket.run_every(&ops).unwrap();
    let mut other = netlink::RtSocket::open_in(&w.host).unwrap();
    let churn = std::thread::spawn(move || {
        for i in 0..40 {
            let n = name(&format!("churn{i}"));
            other.run(&Op::AddIfb { name: &n, mtu: 1500 }).unwrap();
            let link = other.link(&n).unwrap().unwrap();
            other.run(&Op::DelLink(link.index)).unwrap();
        }
    });
    let mut complete = 0;
    while !churn.is_finished() || complete == 0 {
        match w.host_socket.links() {
            Ok(links) => {
                complete += 1;
                let count = links.iter().filter(|l| l.name.starts_with("steady")).count();
                assert_eq!(count, steady.len());
            }
            Err(error) => assert!(matches!(error, netlink::Error::Interrupted { .. }), "{error}"),
        }
    }
    churn.join().unwrap();
}

#[test]
fn without_cap_net_admin_the_error_is_permission() {
    let Testbed { mut host_socket, .. } = Testbed::new();
    let refused = std::thread::spawn(move || {
        let mut sets = rustix::thread::capabilities(None).unwrap();
        sets.effective.remove(rustix::thread::CapabilitySet::NET_ADMIN);
        rustix::thread::set_capabilities(None, sets).unwrap();
        host_socket.run(&Op::AddIfb { name: &name("ifb9"), mtu: 1500 }).unwrap_err()
    });
    let error = refused.join().unwrap();
    assert!(error.is_permission(), "{error}");
}

#[test]
fn on_removed_runs_after_removal_and_also_after_a_failure() {
    let mut w = Testbed::new();
    let (host, peer) = (name("pwgone"), name("eth0"));
    w.host_socket.run(&Op::AddVeth(pair(&w.pod, &host, &peer))).unwrap();
    let index = w.host_socket.link(&host).unwrap().unwrap().index;
    let mut other = w.host.run(netlink::RtSocket::open).unwrap().unwrap();
    let start = std::time::Instant::now();
    let (deleted, early) = w
        .host
        .run(|| {
            w.host_socket.delete_link(index, || {
                assert!(other.link_at(index).unwrap().is_none(), "the link still exists");
                start.elapsed()
            })
        })
        .unwrap();
    deleted.unwrap();
    assert!(early <= start.elapsed());
    let (refused, ran) = w.host.run(|| w.host_socket.delete_link(index, || true)).unwrap();
    assert!(ran && refused.unwrap_err().is_missing());
}

/// A standalone ADD must not fail because other programs create links continuously.
#[test]
fn b10_a_dump_that_is_always_interrupted_is_used() {
    let mut w = Testbed::new();
    let steady: Vec<_> = (0..400).map(|i| name(&format!("steady{i}"))).collect();
    let ops: Vec<_> = steady.iter().map(|name| Op::AddIfb { name, mtu: 1500 }).collect();
    w.host_socket.run_every(&ops).unwrap();
    let mut other = netlink::RtSocket::open_in(&w.host).unwrap();
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..50_000 {
                if is_done.load(Ordering::Relaxed) {
                    break;
                }
                other.run(&Op::AddIfb { name: &name(&format!("new{number}")), mtu: 1500 }).unwrap();
            }
        });
        eventually("an interrupted dump", || {
            let links = w.host_socket.links_best_effort().unwrap();
            assert_eq!(links.iter().filter(|l| l.name.starts_with("steady")).count(), steady.len());
            let is_interrupted = matches!(w.host_socket.links(), Err(netlink::Error::Interrupted { .. }));
            is_done.store(is_interrupted, Ordering::Relaxed);
            is_interrupted
        });
    });
}
