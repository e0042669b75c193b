//! Pods are added to and removed from the tables. Each test has its own network namespace.

use std::net::IpAddr;

use nft::{AttachMode, Error, Firewall, Guard, HostPort, Protocol};

use crate::common::{Sample, all_elements, chain, elements, in_netns, nft, run, structure};

fn open() -> Firewall {
    Firewall::open().unwrap()
}

fn missing(sample: &Sample) -> Vec<String> {
    open().missing(&sample.pod()).unwrap()
}

const BOTH: [AttachMode; 2] = [AttachMode::Bridge, AttachMode::Routed];

#[test]
fn the_structure_is_as_recorded_and_applying_it_again_changes_nothing() {
    in_netns(|| {
        open().clamp(&"blue".try_into().unwrap(), &["pwvx4".try_into().unwrap()]).unwrap();
        Sample::new(AttachMode::Bridge, 2).add_pod();
        open().remove_pod(&Sample::new(AttachMode::Bridge, 2).pod()).unwrap();
        assert_eq!(all_elements(), "inet tunnels pwvx4");
        let listed = structure();
        let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/ruleset.nft");
        if std::env::var_os("PODWIRE_RECORD").is_some() {
            std::fs::write(golden, &listed).unwrap();
        }
        assert_eq!(listed, std::fs::read_to_string(golden).unwrap(), "record it with PODWIRE_RECORD=1");
        // If a set is missing, adding a pod applies the whole structure.
        let pod = Sample::new(AttachMode::Bridge, 3);
        pod.add_pod();
        let before = (structure(), all_elements());
        open().remove_pod(&pod.pod()).unwrap();
        let id = pod.chain.as_ref().unwrap().id();
        nft(&format!("delete chain inet podwire {id}"));
        nft(&format!("delete set inet podwire {id}-6"));
        nft(&format!("delete set inet podwire {id}-4"));
        pod.add_pod();
        assert_eq!((structure(), all_elements()), before);
    });
}

/// After an upgrade without an agent only ADD can replace these tables.
#[test]
fn add_pod_upgrades_a_table_of_an_earlier_version() {
    in_netns(|| {
        run(
            "nft",
            &[
                "table inet podwire { map revision { type mark : mark; elements = { 1 : 0x73e0e552 }; }; set tunnels { type ifname; }; chain loopback { ip saddr 127.0.0.0/8 iiftype != loopback drop; }; chain guard { type filter hook prerouting priority raw; goto loopback; }; chain clamp { type filter hook forward priority -150; tcp flags syn accept; }; }",
            ],
        );
        let pod = Sample::new(AttachMode::Routed, 2);
        pod.add_pod();
        assert_eq!(missing(&pod), [""; 0]);
    });
}

#[test]
fn add_pod_and_remove_pod_change_all_elements() {
    for mode in BOTH {
        in_netns(|| {
            let other = Sample::new(mode, 9).publish(Protocol::Sctp, 9, 9);
            other.add_pod();
            let before = all_elements();
            let pod = Sample::new(mode, 2).publish(Protocol::Tcp, 8080, 80).publish(Protocol::Udp, 8080, 53);
            assert_eq!(missing(&pod).len(), element_count(&pod));
            pod.add_pod();
            assert_eq!(missing(&pod), [""; 0]);
            let after = all_elements();
            assert_eq!(after.lines().count(), before.lines().count() + element_count(&pod));
            pod.add_pod();
            assert_eq!(all_elements(), after, "adding it again changes nothing");
            open().remove_pod(&pod.pod()).unwrap();
            assert_eq!(all_elements(), before);
            open().remove_pod(&pod.pod()).unwrap();
            assert_eq!(missing(&other), [""; 0]);
        });
    }
}

/// How many elements a dual-stack pod has: six for NAT, and its guard and ports.
fn element_count(pod: &Sample) -> usize {
    match pod.mode {
        AttachMode::Bridge => 6 + 12 + 2 * pod.ports.len(),
        AttachMode::Routed => 6 + 6 + pod.ports.len(),
    }
}

#[test]
fn elements_have_the_expected_keys_and_values() {
    in_netns(|| {
        let mut pod = Sample::new(AttachMode::Bridge, 258).publish(Protocol::Tcp, 8080, 80);
        pod.ports.push(HostPort { host_ip: Some("192.0.2.1".parse().unwrap()), ..pod.ports[0] });
        pod.ports.push(HostPort { host_ip: Some("2001:db8::1".parse().unwrap()), ..pod.ports[1] });
        pod.add_pod();
        let id = pod.chain.as_ref().unwrap().id().to_owned();
        assert_eq!(elements("inet", "self6"), "fd77::102 . fd77::102");
        assert_eq!(elements("inet", &format!("{id}-4")), "10.77.1.2");
        assert_eq!(elements("inet", &format!("{id}-6")), "fd77::102");
        assert_eq!(elements("inet", "hostport4_any"), "tcp . 8080 : 10.77.1.2 . 80");
        assert_eq!(elements("inet", "hostport4"), "192.0.2.1 . tcp . 8080 : 10.77.1.2 . 80");
        assert_eq!(elements("inet", "hostport6"), "2001:db8::1 . tcp . 8080 : fd77::102 . 80");
        assert_eq!(elements("inet", "hairpin6"), "fd77::102 . tcp . 80 . 8080");
        assert_eq!(elements("inet", "via4"), "10.77.1.2 . \"br0\"");
        assert_eq!(elements("inet", "bound6"), "fd77::102");
        assert_eq!(elements("bridge", "macs"), "\"pwvx4pod258\" . 02:00:00:00:01:02");
        assert_eq!(elements("bridge", "addr4"), "\"pwvx4pod258\" . 10.77.1.2");
        let targets = elements("bridge", "targets6");
        assert!(targets.contains("\"pwvx4pod258\" . 0xfd770000000000000000000000000102"), "{targets}");
        assert!(targets.contains("\"pwvx4pod258\" . 0xfe80000000000000000000fffe000102"), "{targets}");
    });
}

#[test]
fn c6_missing_returns_the_removed_objects() {
    for mode in BOTH {
        in_netns(|| {
            let pod = Sample::new(mode, 2).publish(Protocol::Tcp, 8080, 80);
            pod.add_pod();
            let link = pod.link.as_str();
            let (guard, own) = match mode {
                AttachMode::Bridge => ("bridge", format!("addr4 {{ {link} . 10.77.0.2 }}")),
                AttachMode::Routed => ("inet", format!("source4 {{ {link} . 10.77.0.2 . {} }}", pod.mac)),
            };
            nft("delete element inet podwire pods6 { fd77::2 }");
            nft(&format!("delete element {guard} podwire {own}"));
            nft("delete element inet podwire hostport4_any { tcp . 8080 }");
            nft("add element inet podwire hostport4_any { tcp . 8080 : 10.77.0.9 . 80 }");
            nft(&format!("flush chain {guard} podwire guard"));
            let found = missing(&pod);
            let want = [
                format!(
                    "chain {guard} podwire guard has 0 rules instead of {}",
                    if guard == "inet" { 3 } else { 5 }
                ),
                "element inet podwire pods6 { fd77::2 }".to_owned(),
                format!("element {guard} podwire {own}"),
                "element inet podwire hostport4_any { tcp . 8080 : 10.77.0.2 . 80 } (it has another value)"
                    .to_owned(),
            ];
            assert_eq!(found, want);
        });
    }
}

#[test]
fn pain15_add_pod_restores_a_flushed_ruleset() {
    for mode in BOTH {
        in_netns(|| {
            let pod = Sample::new(mode, 2);
            pod.add_pod();
            let before = (structure(), all_elements());
            nft("flush ruleset");
            assert!(missing(&pod).iter().any(|m| m == "table inet podwire is missing"));
            pod.add_pod();
            assert_eq!((structure(), all_elements()), before);
        });
    }
}

#[test]
fn add_pod_over_another_version_keeps_existing_elements() {
    in_netns(|| {
        let old = Sample::new(AttachMode::Routed, 2);
        old.add_pod();
        nft("flush chain inet podwire nat-postrouting");
        nft("flush map inet podwire revision");
        nft("add element inet podwire revision { 1 : 0x7 }");
        assert_eq!(missing(&old).len(), 2);
        Sample::new(AttachMode::Routed, 3).add_pod();
        assert_eq!(missing(&old), [""; 0]);
    });
}

#[test]
fn e18_a_host_port_of_another_pod_is_refused_without_changes() {
    for mode in BOTH {
        in_netns(|| {
            let first = Sample::new(mode, 2).publish(Protocol::Tcp, 8080, 80);
            first.add_pod();
            let before = all_elements();
            let second = Sample::new(mode, 3).publish(Protocol::Tcp, 8080, 80);
            let refused = open().add_pod(&second.pod()).unwrap_err();
            let holder: Option<IpAddr> = Some("10.77.0.2".parse().unwrap());
            assert!(
                matches!(refused, Error::PortTaken { port: 8080, protocol: Protocol::Tcp, host_ip: None, holder: h } if h == holder),
                "{refused}"
            );
            assert_eq!(
                refused.to_string(),
                "host port 8080/tcp on every address is taken by the pod with address 10.77.0.2: \
                 choose another hostPort or remove the other pod"
            );
            assert_eq!(all_elements(), before);
            // Removing the refused pod leaves the port to the first one.
            open().remove_pod(&second.pod()).unwrap();
            assert_eq!(all_elements(), before);
            // The same port number can be used with another protocol or another host address.
            let mut third = Sample::new(mode, 4).publish(Protocol::Udp, 8080, 80);
            third.ports.push(HostPort {
                host_ip: Some("192.0.2.1".parse().unwrap()),
                protocol: Protocol::Tcp,
                ..third.ports[0]
            });
            third.add_pod();
            open().remove_pod(&first.pod()).unwrap();
            second.add_pod();
            assert_eq!(missing(&second), [""; 0]);
        });
    }
}

#[test]
fn elements_of_an_earlier_pod_with_the_same_address_are_replaced() {
    in_netns(|| {
        let mut earlier = Sample::new(AttachMode::Routed, 2).publish(Protocol::Tcp, 8080, 80);
        earlier.chain = Some(chain("red", &["10.0.0.0/8"]));
        earlier.add_pod();
        let pod = Sample::new(AttachMode::Routed, 2).publish(Protocol::Tcp, 8080, 81);
        pod.add_pod();
        assert_eq!(missing(&pod), [""; 0]);
    });
}

#[test]
fn one_host_port_with_two_targets_in_one_pod_is_refused() {
    in_netns(|| {
        let pod =
            Sample::new(AttachMode::Routed, 2).publish(Protocol::Tcp, 80, 80).publish(Protocol::Tcp, 80, 81);
        let refused = open().add_pod(&pod.pod()).unwrap_err();
        assert!(matches!(refused, Error::PortTaken { .. }), "{refused}");
        assert_eq!(all_elements(), "");
        let twice =
            Sample::new(AttachMode::Routed, 2).publish(Protocol::Tcp, 80, 80).publish(Protocol::Tcp, 80, 80);
        twice.add_pod();
        open().remove_pod(&twice.pod()).unwrap();
        assert_eq!(all_elements(), "");
    });
}

#[test]
fn remove_pod_removes_the_remaining_elements() {
    for mode in BOTH {
        in_netns(|| {
            let pod = Sample::new(mode, 2).publish(Protocol::Tcp, 8080, 80);
            open().remove_pod(&pod.pod()).unwrap();
            pod.add_pod();
            for (set, key) in
                [("pods4", "10.77.0.2"), ("self6", "fd77::2 . fd77::2"), ("hostport6_any", "tcp . 8080")]
            {
                nft(&format!("delete element inet podwire {set} {{ {key} }}"));
            }
            open().remove_pod(&pod.pod()).unwrap();
            assert_eq!(all_elements(), "");
            pod.add_pod();
            if mode == AttachMode::Bridge {
                nft("delete table bridge podwire");
                open().remove_pod(&pod.pod()).unwrap();
                assert_eq!(all_elements(), "");
            }
            nft("flush ruleset");
            open().remove_pod(&pod.pod()).unwrap();
        });
    }
}

#[test]
fn a_pod_can_publish_ports_beyond_the_default_socket_buffer() {
    in_netns(|| {
        let pod =
            (1..=2000).fold(Sample::new(AttachMode::Bridge, 2), |pod, n| pod.publish(Protocol::Tcp, n, n));
        pod.add_pod();
        assert_eq!(missing(&pod), [""; 0]);
        open().remove_pod(&pod.pod()).unwrap();
        assert_eq!(all_elements(), "");
    });
}

#[test]
fn a_pod_that_is_added_again_at_once_stays() {
    for mode in BOTH {
        in_netns(|| {
            let pod = Sample::new(mode, 2).publish(Protocol::Tcp, 8080, 80);
            // Faster than removed elements expire. The elements of the new pod must not expire with them.
            for _ in 0..50 {
                pod.add_pod();
                open().remove_pod(&pod.pod()).unwrap();
            }
            pod.add_pod();
            assert_eq!(all_elements().lines().count(), element_count(&pod));
            assert_eq!(missing(&pod), [""; 0]);
        });
    }
}

#[test]
fn a_pod_without_guard_and_masquerade_has_no_elements_for_them() {
    in_netns(|| {
        let mut pod = Sample::new(AttachMode::Bridge, 2);
        (pod.guard, pod.chain) = (Guard::Off, None);
        pod.add_pod();
        let found = all_elements();
        assert_eq!(found.lines().count(), 8, "{found}");
        assert!(
            !run("nft", &["list", "tables"]).contains("bridge"),
            "the bridge family is not needed for this pod"
        );
    });
}

#[test]
fn e17_is_available_succeeds_without_tables_and_creates_none() {
    in_netns(|| {
        open().is_available().unwrap();
        assert_eq!(run("nft", &["list", "tables"]), "");
        Sample::new(AttachMode::Routed, 2).add_pod();
        open().is_available().unwrap();
    });
}

#[test]
fn cleanup_removes_only_podwires_tables() {
    in_netns(|| {
        nft("add table inet other");
        assert!(!open().cleanup().unwrap());
        Sample::new(AttachMode::Bridge, 2).add_pod();
        assert!(open().cleanup().unwrap());
        assert_eq!(run("nft", &["list", "tables"]), "table inet other\n");
        Sample::new(AttachMode::Routed, 2).add_pod();
        assert!(open().cleanup().unwrap());
    });
}

#[test]
fn concurrent_adds_and_removals_all_succeed() {
    in_netns(|| {
        std::thread::scope(|scope| {
            for worker in 0..8u16 {
                scope.spawn(move || {
                    for n in 0..20 {
                        let mode = if n % 2 == 0 { AttachMode::Bridge } else { AttachMode::Routed };
                        let n = 1 + worker * 20 + n;
                        let pod = Sample::new(mode, n).publish(Protocol::Tcp, 1000 + n, 80);
                        pod.add_pod();
                        assert_eq!(missing(&pod), [""; 0]);
                        open().remove_pod(&pod.pod()).unwrap();
                    }
                });
            }
        });
        assert_eq!(all_elements(), "");
    });
}
