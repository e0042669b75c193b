//! Every change of Podwire's tables by another process is detected, and repaired without interrupting running pods.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use nft::{AttachMode, Error, Firewall, FirewallPod, IdleChains, OtherPods, Protocol, Structure};

use crate::common::{Sample, all_elements, chain, drift, in_netns, nft, repair, run, structure};
use crate::lab::{At, Lab};

const BOTH: [AttachMode; 2] = [AttachMode::Bridge, AttachMode::Routed];

fn open() -> Firewall {
    Firewall::open().unwrap()
}

fn pods(samples: &[Sample]) -> Vec<FirewallPod<'_>> {
    samples.iter().map(Sample::pod).collect()
}

/// Two pods of two networks: one of the given mode with a host port, and a routed one.
fn samples(mode: AttachMode) -> [Sample; 2] {
    let other = Sample { chain: Some(chain("red", &["10.78.0.0/16"])), ..Sample::new(AttachMode::Routed, 3) };
    [Sample::new(mode, 2).publish(Protocol::Tcp, 8080, 80), other]
}

fn structure_and_elements() -> (String, String) {
    (structure(), all_elements())
}

/// Changes by another process, each with one of the differences that must be reported. `NET` is the id of the network's chain;
/// `FIRST`, `LAST` and others stand for handles of rules.
fn changes_by_other_process(network: &str) -> Vec<(String, &'static str)> {
    let cases: [(&str, &'static str); 27] = [
        // The number of rules stays the same.
        (
            "replace rule inet podwire from-pod handle SECOND iifname . ip saddr . ether saddr @source4 ip daddr != 127.0.0.0/16 accept",
            "chain inet podwire from-pod has other rules than Podwire applied",
        ),
        (
            "replace rule inet podwire hostports handle FIRST meta l4proto != { tcp, udp } return",
            "chain inet podwire hostports has other rules than Podwire applied",
        ),
        (
            "replace rule inet podwire NET handle SEVENTH ip daddr 10.77.0.0/24 return",
            "chain inet podwire NET has other rules than Podwire applied",
        ),
        (
            "flush chain inet podwire dnat-return; delete set inet podwire hairpin4; add set inet podwire hairpin4 { type ipv4_addr . inet_proto . inet_service . inet_service; }",
            "set inet podwire hairpin4 is not as Podwire applied it",
        ),
        // The kernel changes timeout and size in place. Elements of new pods would expire, and the fourth pod would be refused.
        (
            "add set inet podwire pods4 { type ipv4_addr; flags timeout; timeout 1h; }",
            "set inet podwire pods4 is not as Podwire applied it",
        ),
        (
            "add set inet podwire pods6 { type ipv6_addr; flags timeout; size 3; }",
            "set inet podwire pods6 is not as Podwire applied it",
        ),
        (
            "flush chain inet podwire dnat-return; delete set inet podwire hairpin4; add set inet podwire hairpin4 { type ipv4_addr; }",
            "chain inet podwire dnat-return has 0 rules instead of 9",
        ),
        (
            "add chain inet podwire a; add chain inet podwire b; add rule inet podwire a jump b; add rule inet podwire hostports jump a",
            "chain inet podwire hostports has 8 rules instead of 7",
        ),
        ("delete table inet podwire", "table inet podwire is missing"),
        ("flush ruleset", "table inet podwire is missing"),
        ("flush chain inet podwire guard", "chain inet podwire guard has 0 rules instead of 3"),
        ("flush chain inet podwire hostports", "chain inet podwire hostports has 0 rules instead of 7"),
        ("flush table inet podwire", "chain inet podwire dnat-return has 0 rules instead of 9"),
        ("insert rule inet podwire guard accept", "chain inet podwire guard has 4 rules instead of 3"),
        (
            "delete rule inet podwire from-pod6 handle LAST",
            "chain inet podwire from-pod6 has 3 rules instead of 4",
        ),
        (
            "replace rule inet podwire guard handle LAST accept",
            "chain inet podwire guard has other rules than Podwire applied",
        ),
        (
            "replace rule inet podwire from-pod handle FOURTH ip saddr 10.0.0.1 accept",
            "chain inet podwire from-pod has other rules than Podwire applied",
        ),
        (
            "replace rule inet podwire guard handle FIRST iifname \"zz*\" goto from-pod",
            "chain inet podwire guard has other rules than Podwire applied",
        ),
        (
            "replace rule inet podwire dnat-return handle LAST masquerade",
            "chain inet podwire dnat-return has other rules than Podwire applied",
        ),
        (
            "flush chain inet podwire nat-output; delete chain inet podwire nat-output",
            "chain inet podwire nat-output is missing",
        ),
        (
            "flush chain inet podwire nat-output; delete chain inet podwire nat-output; add chain inet podwire nat-output; add rule inet podwire nat-output jump hostports",
            "chain inet podwire nat-output has no hook",
        ),
        (
            "flush chain inet podwire guard; delete chain inet podwire guard; add chain inet podwire guard { type filter hook prerouting priority 0; }",
            "chain inet podwire guard has another hook or priority",
        ),
        ("add chain inet podwire guard { policy drop; }", "chain inet podwire guard has another policy"),
        (
            "add table inet podwire { flags dormant; }",
            "table inet podwire is dormant: its chains are not in force",
        ),
        ("flush map inet podwire revision", "table inet podwire is of another version or configuration"),
        (
            "add chain inet podwire unmanaged { type filter hook forward priority 0; policy drop; }",
            "chain inet podwire unmanaged is not Podwire's",
        ),
        (
            "flush chain inet podwire NET; delete chain inet podwire NET; flush set inet podwire NET-4; delete set inet podwire NET-4",
            "chain inet podwire NET is missing",
        ),
    ];
    cases.into_iter().map(|(act, found)| (act.replace("NET", network), found)).collect()
}

/// The command with the handle of the rule in place of `FIRST`, `LAST` and others.
fn with_handle(act: &str) -> String {
    let Some(chain) = act.split(' ').nth(4).filter(|_| act.contains("handle ")) else {
        return act.to_owned();
    };
    let listed = run("nft", &["-a", "list", "chain", "inet", "podwire", chain]);
    // These lines also have handles, but are not rules.
    let is_rule =
        |line: &&str| !["table", "chain", "type"].contains(&line.split_whitespace().next().unwrap_or(""));
    let handles: Vec<&str> =
        listed.lines().filter(is_rule).filter_map(|line| line.split("# handle ").nth(1)).collect();
    let positions = [("FIRST", 0), ("SECOND", 1), ("FOURTH", 3), ("SEVENTH", 6), ("LAST", handles.len() - 1)];
    let (word, index) = positions.into_iter().find(|(word, _)| act.contains(word)).expect("a position");
    act.replace(word, handles[index])
}

#[test]
fn f5_every_kind_of_drift_is_found_and_repaired() {
    for mode in BOTH {
        in_netns(|| {
            let samples = samples(mode);
            let pods = pods(&samples);
            let network = samples[0].chain.as_ref().unwrap().id();
            samples.iter().for_each(Sample::add_pod);
            assert_eq!(drift(&pods), [""; 0]);
            let before = structure_and_elements();
            for (act, want) in changes_by_other_process(network) {
                run("nft", &[&with_handle(&act)]);
                let found = drift(&pods);
                let want = want.replace("NET", network);
                assert!(found.contains(&want), "{act}: {found:?}");
                repair(&pods);
                assert_eq!(drift(&pods), [""; 0], "{act}");
                let mut after = structure_and_elements();
                // The kernel lists chains in the order of their creation.
                for (after, before) in [(&mut after.0, &before.0), (&mut after.1, &before.1)] {
                    assert_eq!(sorted(after), sorted(before), "{act}");
                }
            }
        });
    }
}

fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines
}

#[test]
fn f5_drift_of_the_bridge_table_is_found_where_pods_need_it() {
    in_netns(|| {
        let samples = samples(AttachMode::Bridge);
        samples.iter().for_each(Sample::add_pod);
        let before = structure_and_elements();
        for act in [
            "delete table bridge podwire",
            "flush chain bridge podwire from-arp",
            "flush chain bridge podwire advert6",
        ] {
            nft(act);
            assert_eq!(drift(&pods(&samples)).len(), 1, "{act}");
            repair(&pods(&samples));
            assert_eq!(sorted(&structure_and_elements().1), sorted(&before.1));
            assert_eq!(drift(&pods(&samples)), [""; 0]);
        }
        nft("delete table bridge podwire");
        assert_eq!(drift(&pods(&samples[1..])), [""; 0], "routed pods do not need it");
    });
}

#[test]
fn f5_adding_and_removing_pods_is_no_drift() {
    in_netns(|| {
        assert_eq!(drift(&[]), [""; 0], "no tables, no pods");
        repair(&[]);
        assert_eq!(run("nft", &["list", "ruleset"]), "", "no pod needs tables");
        let all: Vec<Sample> = (2..20)
            .map(|n| Sample {
                chain: Some(chain(&format!("net{}", n % 5), &["10.0.0.0/8"])),
                ..Sample::new(BOTH[usize::from(n % 2)], n)
            })
            .collect();
        for (n, sample) in all.iter().enumerate() {
            sample.add_pod();
            assert_eq!(drift(&pods(&all[..=n])), [""; 0]);
        }
        for (n, sample) in all.iter().enumerate() {
            open().remove_pod(&sample.pod()).unwrap();
            // Chains of networks without pods stay for a while.
            assert_eq!(drift(&pods(&all[n + 1..])), [""; 0]);
        }
        let idle = all[0].chain.as_ref().unwrap().id();
        nft(&format!("flush chain inet podwire {idle}"));
        // A network of another run directory may use the chain. Drift is reported for its pods.
        assert_eq!(drift(&[]), [""; 0]);
        let want = format!("chain inet podwire {idle} has 0 rules instead of 8");
        assert_eq!(drift(&[all[0].pod()]), [want]);
        let networks: Vec<String> = (0..5).map(|n| format!("net{n}")).collect();
        assert_eq!(open().prune(IdleChains::RemoveAll, &networks, None).unwrap(), 5);
        assert!(!run("nft", &["list", "ruleset"]).contains("net-"));
    });
}

#[test]
fn f5_a_repair_restores_host_ports_and_removes_no_other_pod() {
    for mode in BOTH {
        in_netns(|| {
            let [first, second] = samples(mode);
            first.add_pod();
            second.add_pod();
            let unrelated = Sample::new(mode, 9).publish(Protocol::Udp, 99, 99);
            unrelated.add_pod();
            let want = all_elements();
            // The first pod's host port leads to another address.
            nft("delete element inet podwire hostport4_any { tcp . 8080 }");
            nft("add element inet podwire hostport4_any { tcp . 8080 : 10.77.0.77 . 80 }");
            let all = [first, second];
            assert_eq!(open().missing_of(&pods(&all)).unwrap(), [0]);
            repair(&pods(&all));
            assert_eq!(all_elements(), want);
        });
    }
}

/// A process applies the structure and then stores its digests. It may be killed in between.
#[test]
fn structure_without_digests_is_applied_again() {
    in_netns(|| {
        let samples = samples(AttachMode::Bridge);
        samples.iter().for_each(Sample::add_pod);
        let before = structure_and_elements();
        nft("flush map inet podwire applied");
        assert_eq!(open().missing(&samples[0].pod()).unwrap(), [""; 0], "no element is missing");
        assert_eq!(drift(&pods(&samples)), ["table inet podwire has chains or sets without a stored digest"]);
        repair(&pods(&samples));
        assert_eq!(drift(&pods(&samples)), [""; 0]);
        assert_eq!(structure_and_elements(), before);
    });
}

#[test]
fn a_repair_in_place_fails_rather_than_remove_other_pods() {
    for mode in BOTH {
        in_netns(|| {
            let own = [Sample::new(mode, 2)];
            let unrelated = Sample::new(mode, 9).publish(Protocol::Udp, 99, 99);
            own.iter().chain([&unrelated]).for_each(Sample::add_pod);
            nft("flush chain inet podwire guard");
            open().repair_in_place(&Structure::of(&pods(&own)), &pods(&own)).unwrap();
            assert_eq!(drift(&pods(&own)), [""; 0]);
            nft(
                "flush chain inet podwire dnat-return; delete set inet podwire hairpin4; add set inet podwire hairpin4 { type ipv4_addr; }",
            );
            let error = open().repair_in_place(&Structure::of(&pods(&own)), &pods(&own)).unwrap_err();
            assert!(matches!(error, Error::Structure { .. }), "{error}");
            nft("get element inet podwire hostport4_any { udp . 99 }");
            repair(&pods(&own));
            assert_eq!(drift(&pods(&own)), [""; 0]);
        });
    }
}

#[test]
fn c6_missing_of_returns_the_pods_with_missing_elements() {
    for mode in BOTH {
        in_netns(|| {
            let all: Vec<Sample> =
                (0..60).map(|n| Sample::new(mode, 2 + n).publish(Protocol::Tcp, 8000 + n, 80)).collect();
            let all_pods = pods(&all);
            assert_eq!(open().missing_of(&all_pods).unwrap().len(), 60, "no table at all");
            repair(&all_pods);
            assert_eq!(open().missing_of(&all_pods).unwrap(), [0; 0]);
            nft("delete element inet podwire pods4 { 10.77.0.7 }");
            nft("delete element inet podwire hostport6_any { tcp . 8010 }");
            nft("delete element inet podwire hostport4_any { tcp . 8020 }");
            nft("add element inet podwire hostport4_any { tcp . 8020 : 10.77.0.99 . 80 }");
            open().remove_pod(&all[30].pod()).unwrap();
            assert_eq!(open().missing_of(&all_pods).unwrap(), [5, 10, 20, 30]);
            repair(&all_pods);
            assert_eq!(open().missing_of(&all_pods).unwrap(), [0; 0]);
            // Concurrent ADDs and DELs interrupt listings. No pod may be reported as missing because of that.
            let over = AtomicBool::new(false);
            let concurrent = Sample::new(mode, 1000);
            let here = netlink::NetNs::current().unwrap();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    here.run(|| {
                        while !over.load(Ordering::Relaxed) {
                            concurrent.add_pod();
                            open().remove_pod(&concurrent.pod()).unwrap();
                        }
                    })
                });
                let structure = Structure::of(&all_pods);
                let listings: Vec<_> =
                    (0..30).map(|_| (open().missing_of(&all_pods), open().drift(&structure))).collect();
                over.store(true, Ordering::Relaxed);
                for (missing, drift) in listings {
                    assert_eq!((missing.unwrap(), drift.unwrap()), (Vec::new(), Vec::new()));
                }
            });
        });
    }
}

/// Rounds of traffic while tables are repaired continuously.
const ROUNDS: u32 = 40;

/// New flows are opened during repairs. Each must arrive, with the expected source address. Packets with a spoofed source must
/// never arrive.
#[test]
fn f5_a_repair_does_not_interrupt_traffic() {
    for mode in BOTH {
        let lab = Lab::new(mode);
        let all = [Sample::new(mode, 2).publish(Protocol::Udp, 8080, 80), Sample::new(mode, 3)];
        all.iter().for_each(|sample| lab.add_pod(sample));
        for (address, prefix) in [("10.77.0.99", 32), ("fd77::99", 128)] {
            lab.ip(At::Pod(3), &format!("addr add {address}/{prefix} dev eth0"));
        }
        let spoofed = [lab.sender(At::Pod(3), "10.77.0.99:0"), lab.sender(At::Pod(3), "[fd77::99]:0")];
        let targets = ["192.0.2.2:99", "[2001:db8::2]:99"];
        let listeners = targets.map(|at| lab.serve(At::Outside, Protocol::Udp, at));
        let published = lab.serve(At::Pod(2), Protocol::Udp, "10.77.0.2:80");
        let outside = lab.serve(At::Outside, Protocol::Udp, "[2001:db8::2]:80");
        let (over, rounds) = (AtomicBool::new(false), AtomicU32::new(0));
        std::thread::scope(|scope| {
            let traffic = scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let source =
                        lab.ask(At::Outside, "192.0.2.1:8080", &published).expect("to the host port");
                    assert_eq!(source.to_string(), "192.0.2.2");
                    let source = lab.ask(At::Pod(2), "[2001:db8::2]:80", &outside).expect("to the outside");
                    assert_eq!(source.to_string(), "2001:db8::1", "masqueraded");
                    for (sender, target) in spoofed.iter().zip(targets) {
                        sender.send("spoofed", target);
                    }
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
            });
            let mut round = 0;
            let rebuilt = lab.inside(At::Host, || {
                while !traffic.is_finished() && (round < 10 || rounds.load(Ordering::Relaxed) < ROUNDS) {
                    if round % 2 == 1 {
                        nft("add chain inet podwire unmanaged");
                    }
                    open().repair(&Structure::of(&pods(&all)), &pods(&all))?;
                    round += 1;
                }
                Ok::<(), Error>(())
            });
            over.store(true, Ordering::Relaxed);
            traffic.join().unwrap();
            rebuilt.unwrap();
        });
        for (n, (from, listener)) in ["10.77.0.3:0", "[fd77::3]:0"].iter().zip(&listeners).enumerate() {
            lab.sender(At::Pod(3), from).send("honest", targets[n]);
            assert_eq!(listener.receive(), "honest", "no spoofed packet arrived before it");
        }
    }
}

/// The rules of this version use sets that an earlier version lacks. Their elements are applied with the rules.
#[test]
fn a_repair_upgrades_a_table_of_an_earlier_version_with_its_pods() {
    for mode in BOTH {
        in_netns(|| {
            let samples = samples(mode);
            let pods = pods(&samples);
            samples.iter().for_each(Sample::add_pod);
            let before = structure_and_elements();
            nft("add set inet podwire addr4 { type ifname . ipv4_addr; flags timeout; }");
            nft("add element inet podwire addr4 { pwpod3 . 10.77.0.3 }");
            nft("add rule inet podwire from-pod iifname . ip saddr @addr4 accept");
            for set in ["source4", "source6", "bound4", "bound6", "via4", "via6"] {
                nft(&format!("flush set inet podwire {set}"));
            }
            nft("flush map inet podwire revision");
            repair(&pods);
            assert_eq!(structure_and_elements(), before);
        });
    }
}

/// The previous version had another name for the chain `dnat-return`.
#[test]
fn a_table_with_the_previous_name_of_a_chain_is_replaced() {
    for mode in BOTH {
        let by_repair: fn(&[Sample]) = |samples| repair(&pods(samples));
        let by_add: fn(&[Sample]) = |samples| samples.iter().for_each(Sample::add_pod);
        for replace in [by_repair, by_add] {
            in_netns(|| {
                let samples = samples(mode);
                samples.iter().for_each(Sample::add_pod);
                let before = structure_and_elements();
                let previous = nft("list ruleset").replace("dnat-return", "bent");
                nft("flush ruleset");
                run("nft", &[&previous]);
                nft("flush map inet podwire revision");
                nft("add element inet podwire revision { 1 : 0xd207dee4 }");
                assert!(structure().contains("chain bent"));
                replace(&samples);
                let (now, expected) = (structure_and_elements(), before);
                let sorted = |text: &str| {
                    let mut lines: Vec<String> = text.lines().map(ToOwned::to_owned).collect();
                    lines.sort();
                    lines
                };
                assert_eq!((sorted(&now.0), now.1), (sorted(&expected.0), expected.1));
                for sample in &samples {
                    assert_eq!(open().missing(&sample.pod()).unwrap(), [""; 0]);
                }
            });
        }
    }
}

/// One running pod. `restore` checks that it still reaches the host.
struct Running<'a> {
    lab: &'a Lab,
    pod: &'a Sample,
    restored: usize,
}

impl OtherPods for Running<'_> {
    fn hold(&mut self, act: &mut dyn FnMut(&[FirewallPod<'_>]) -> Result<(), Error>) -> Result<(), Error> {
        act(&[self.pod.pod()])
    }

    fn restore(&mut self) {
        self.restored += 1;
        assert_eq!(Firewall::open().unwrap().missing(&self.pod.pod()).unwrap(), [""; 0]);
        for target in ["10.77.0.1:9", "[fd77::1]:9"] {
            let server = self.lab.serve(At::Host, Protocol::Udp, target);
            self.lab.ask(At::Pod(2), target, &server).unwrap();
        }
    }
}

#[test]
fn a_pod_added_over_another_version_interrupts_no_pod() {
    for mode in [AttachMode::Bridge, AttachMode::Routed] {
        let lab = Lab::new(mode);
        let [running, new] = [2, 3].map(|n| Sample::new(mode, n));
        lab.add_pod(&running);
        lab.inside(At::Host, || {
            // An older version had other sets and rules.
            match mode {
                AttachMode::Routed => {
                    ["from-pod", "from-pod6", "from-pod-icmp6"]
                        .iter()
                        .for_each(|chain| drop(nft(&format!("flush chain inet podwire {chain}"))));
                    ["source4", "source6"]
                        .iter()
                        .for_each(|set| drop(nft(&format!("delete set inet podwire {set}"))));
                }
                AttachMode::Bridge => {
                    nft("flush chain bridge podwire guard");
                    ["macs", "addr4", "addr6"]
                        .iter()
                        .for_each(|set| drop(nft(&format!("flush set bridge podwire {set}"))));
                }
            }
            let family = if mode == AttachMode::Routed { "inet" } else { "bridge" };
            nft(&format!("flush map {family} podwire revision"));
            nft(&format!("add element {family} podwire revision {{ 1 : 0x7 }}"));
            let mut others = Running { lab: &lab, pod: &running, restored: 0 };
            Firewall::open().unwrap().add_pod_after(&new.pod(), &mut others).unwrap();
            assert_eq!(others.restored, 1);
        });
    }
}

/// The first process removes conflicting objects of an older version.
#[test]
fn concurrent_adds_over_tables_of_another_version_both_succeed() {
    in_netns(|| {
        let here = netlink::NetNs::current().unwrap();
        let pods = [2, 3].map(|n| Sample::new(AttachMode::Routed, n));
        pods[0].add_pod();
        for _ in 0..8 {
            nft("add chain inet podwire clamp { type filter hook forward priority -150; }");
            nft("add set inet podwire tunnels { type ifname; }");
            nft("add rule inet podwire clamp oifname @tunnels accept");
            nft("flush map inet podwire revision");
            nft("add element inet podwire revision { 1 : 0x7 }");
            let start = std::sync::Barrier::new(pods.len());
            let add_pod = |pod: &Sample| {
                start.wait();
                open().add_pod(&pod.pod())
            };
            std::thread::scope(|scope| {
                let added = pods.each_ref().map(|pod| scope.spawn(|| here.run(|| add_pod(pod)).unwrap()));
                added.into_iter().for_each(|thread| thread.join().unwrap().unwrap());
            });
            assert_eq!(drift(&[pods[0].pod(), pods[1].pod()]), [""; 0]);
        }
    });
}

#[test]
fn a_repair_against_another_version_removes_no_other_pod() {
    in_netns(|| {
        let own = [Sample::new(AttachMode::Routed, 2)];
        let unrelated = Sample::new(AttachMode::Routed, 9).publish(Protocol::Udp, 99, 99);
        own.iter().chain([&unrelated]).for_each(Sample::add_pod);
        let (here, over) = (netlink::NetNs::current().unwrap(), AtomicBool::new(false));
        let other_version = || {
            while !over.load(Ordering::Relaxed) {
                run(
                    "nft",
                    &["flush map inet podwire revision; add element inet podwire revision { 1 : 0x7 }"],
                );
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| here.run(other_version).unwrap());
            // Until a repair is interrupted by a change of the other version.
            let tables = Structure::of(&pods(&own));
            let error = (0..200).find_map(|_| open().repair(&tables, &pods(&own)).err());
            over.store(true, Ordering::Relaxed);
            let error = error.expect("no repair was interrupted by the other version").to_string();
            assert!(error.contains("another version of Podwire"), "{error}");
        });
        assert_eq!(open().missing_of(&[unrelated.pod()]).unwrap(), [0; 0]);
        repair(&pods(&own));
        assert_eq!(drift(&pods(&own)), [""; 0]);
    });
}
