//! Links, addresses, routes and neighbours that are removed on the node and inside pods.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::inspect::{self, Family};
use testkit::{DEADLINE, PacketSocket, PingStream, frames, ping, wait_until};

use crate::common::{addresses_of, host_link, v4, v6};
use crate::scene::{BRIDGE, GATEWAYS, Scene, TIMEOUT, in_both_modes, run};

#[test]
fn f4_a_deleted_host_end_is_created_again() {
    in_both_modes(|mode| {
        let scene = Scene::new("f4-link", mode);
        scene.repairs_after("host end deleted", || scene.run(&format!("ip link del {}", scene.host_end())));
        scene.repairs_after("the pod's end deleted", || run(&scene.a.0, "ip link del eth0"));
        scene.host.check(&scene.a.0, &scene.a.1);
    });
}

/// For example if the operator deletes all links of a node.
#[test]
fn f4_many_host_ends_deleted_at_once_are_created_again() {
    in_both_modes(|mode| {
        let scene = Scene::new("f4-many", mode);
        let pods: Vec<_> = (0..10).map(|number| scene.host.attached(&format!("m{number}"))).collect();
        scene.repairs_after("ten host ends deleted", || {
            let lines: Vec<String> =
                pods.iter().map(|(_, result)| format!("link del {}\n", host_link(result))).collect();
            let deleted = scene.node().run(&["ip", "-batch", "-"], lines.concat().as_bytes()).unwrap();
            assert!(deleted.success(), "{deleted:?}");
        });
        pods.windows(2).for_each(|pair| {
            scene.host.expect_connectivity((&pair[0].0, &pair[0].1), (&pair[1].0, &pair[1].1));
        });
    });
}

#[test]
fn a_host_end_is_set_up_and_added_to_its_bridge() {
    in_both_modes(|mode| {
        let scene = Scene::new("host-end", mode);
        let end = scene.host_end();
        scene.repairs_after("host end down", || scene.run(&format!("ip link set {end} down")));
        if mode == "bridge" {
            scene.repairs_after("host end removed from the bridge", || {
                scene.run(&format!("ip link set {end} nomaster"));
            });
        }
    });
}

#[test]
fn the_bridge_and_its_addresses_are_restored() {
    in_both_modes(|mode| {
        let scene = Scene::new("bridge", mode);
        scene.expect_works("before");
        scene.repairs_after("bridge down", || scene.run(&format!("ip link set {BRIDGE} down")));
        scene.repairs_after("gateway v4", || scene.run(&format!("ip addr del 10.83.0.1/16 dev {BRIDGE}")));
        scene.repairs_after("gateway v6", || scene.run(&format!("ip addr del fd00:88::1/64 dev {BRIDGE}")));
        scene.repairs_after("all addresses of the bridge", || {
            scene.run(&format!("ip addr flush dev {BRIDGE}"));
        });
        // The kernel creates the link-local address only once, and solicits neighbours from no other one.
        scene.run(&format!("ip -6 neigh flush dev {BRIDGE}"));
        scene.expect_works("neighbours flushed after all addresses");
        scene.repairs_after("bridge deleted", || scene.run(&format!("ip link del {BRIDGE}")));
    });
}

const SUBNETS: [&str; 2] = ["10.83.0.0/16", "fd00:88::/64"];

fn is_noarp(scene: &Scene, link: &str) -> bool {
    inspect::link(scene.node(), link).unwrap().flags.iter().any(|flag| flag == "NOARP")
}

fn ignores_arp(scene: &Scene, link: &str) -> bool {
    let setting = format!("/proc/sys/net/ipv4/conf/{link}/arp_ignore");
    scene.node().sh(&["cat", &setting]).unwrap().trim() == "8"
}

/// The types of the routes to the network's subnets, and their links.
fn subnet_routes(scene: &Scene) -> Vec<(Option<String>, Option<String>)> {
    let routes = |family| inspect::routes(scene.node(), family).unwrap();
    let all = routes(Family::V4).into_iter().chain(routes(Family::V6));
    let to_subnet = all.filter(|route| SUBNETS.contains(&route.dst.as_str()));
    to_subnet.map(|route| (route.kind, route.dev.filter(|dev| dev != "lo"))).collect()
}

/// Earlier versions created routes to the subnets over the gateway device, and host ends that answered ARP.
#[test]
fn a6_objects_of_an_earlier_version_are_converted_without_loss() {
    let mut scene = Scene::new("a6-earlier", "routed");
    let unreachable = vec![(Some("unreachable".to_owned()), None); 2];
    assert_eq!(subnet_routes(&scene), unreachable);
    scene.host.agent.stop().unwrap();
    for (subnet, gateway) in SUBNETS.into_iter().zip(["10.83.0.1/16", "fd00:88::1/64"]) {
        scene.run(&format!("ip route del unreachable {subnet}"));
        scene.run(&format!("ip addr del {gateway} dev {BRIDGE}"));
        scene.run(&format!("ip addr add {gateway} dev {BRIDGE}"));
    }
    for (pod, result) in [&scene.a, &scene.b] {
        let (end, mac) = (host_link(result), inspect::link(pod, "eth0").unwrap().mac.unwrap());
        scene.run(&format!("ip link set {end} arp on"));
        for ip in [v4(result), v6(result)] {
            let line = format!("ip neigh replace {ip} lladdr {mac} dev {end} nud permanent proto 112");
            scene.run(&line);
        }
    }
    wait_until("the gateway", DEADLINE, || Ok(ping(&scene.a.0, v6_gateway(), 1)?.all())).unwrap();
    scene.expect_works("before the conversion");
    let pod_b = [v4(&scene.b.1), v6(&scene.b.1)];
    let gateways = GATEWAYS.map(|text| text.parse().unwrap());
    let streams: Vec<PingStream> = pod_b
        .into_iter()
        .chain(gateways)
        .map(|to| PingStream::every(&scene.a.0, to, "0.002").unwrap())
        .collect();
    scene.host.agent.launch().unwrap();
    scene.host.agent.wait_ready().unwrap();
    let is_converted = || ignores_arp(&scene, scene.host_end()) && subnet_routes(&scene) == unreachable;
    wait_until("the conversion", DEADLINE, || Ok(is_converted())).unwrap();
    for stream in streams {
        let report = stream.end().unwrap();
        assert!(report.sent > 1 && report.lost.is_empty(), "{report:?}");
    }
    scene.expect_works("after the conversion");
    assert!(!is_noarp(&scene, scene.host_end()), "setting NOARP would briefly remove the neighbours");
    let raw = PacketSocket::open(&scene.a.0, "eth0").unwrap();
    for (operation, target) in [(1, [10, 83, 0, 1]), (2, [10, 83, 0, 1]), (1, [10, 83, 7, 7])] {
        let sender = ([2, 0, 0, 0, 0, 9], [10, 83, 7, 7].into());
        raw.send(&frames::arp(([0xff; 6], sender.0), operation, sender, target.into())).unwrap();
    }
    assert!(ping(&scene.a.0, v6_gateway(), 1).unwrap().all());
    let entries =
        scene.node().sh(&["ip", "-4", "neigh", "show", "nud", "all", "dev", scene.host_end()]).unwrap();
    assert!(!entries.contains("10.83.7.7"), "{entries}");
    scene.host.check(&scene.a.0, &scene.a.1);
}

fn v6_gateway() -> IpAddr {
    GATEWAYS[1].parse().unwrap()
}

/// The mode of a network is changed while pods run. Pods on the bridge keep their routes.
#[test]
fn a6_pods_on_the_bridge_stay_reachable_after_a_mode_change() {
    let mut scene = Scene::new("a6-mode", "bridge");
    scene.host.agent.stop().unwrap();
    scene.host.agent.set_flag("--network-mode", "routed").unwrap();
    scene.host.agent.launch().unwrap();
    scene.host.agent.wait_ready().unwrap();
    let (routed, result) = scene.host.attached("r");
    for ip in [v4(&result), v6(&result), v4(&scene.a.1), v6(&scene.a.1)] {
        assert!(ping(scene.node(), ip, 1).unwrap().all(), "{ip}");
    }
    for (pod, _) in [&scene.a, &scene.b] {
        scene.host.del(pod);
    }
    scene.run("ip -4 route del unreachable 10.83.0.0/16 proto 112");
    let unreachable = vec![(Some("unreachable".to_owned()), None); 2];
    wait_until("the routes over the bridge to be removed", DEADLINE, || {
        Ok(subnet_routes(&scene) == unreachable)
    })
    .unwrap();
    assert!(ping(&routed, v6_gateway(), 1).unwrap().all());
}

#[test]
fn routes_and_neighbours_of_routed_pods_are_restored() {
    let scene = Scene::new("routes", "routed");
    let (end, result) = (scene.host_end(), &scene.a.1);
    for ip in [v4(result), v6(result)] {
        scene.repairs_after("host route", || scene.run(&format!("ip route del {ip} dev {end}")));
        scene.repairs_after("host neighbour", || scene.run(&format!("ip neigh del {ip} dev {end}")));
    }
    for subnet in SUBNETS {
        let line = format!("ip route del unreachable {subnet} proto 112");
        scene.repairs_after("unreachable route to the subnet", || scene.run(&line));
        let log = scene.host.agent.log().unwrap();
        let wanted = format!("restored the route of type unreachable to {subnet}");
        assert!(log.contains(&wanted), "{wanted}: {log}");
    }
    scene.repairs_after("all managed routes", || {
        scene.run("ip -4 route flush proto 112");
        scene.run("ip -6 route flush proto 112");
    });
}

/// A route of another program conflicts: it is reported, and all other objects are repaired.
#[test]
fn a_conflicting_route_is_reported_and_other_objects_are_repaired() {
    let scene = Scene::new("conflict", "routed");
    let (end, result) = (scene.host_end(), &scene.a.1);
    let status = || scene.host.agent.get("/v1/status").unwrap();
    let routes = || scene.node().sh(&["ip", "-6", "route", "show", "proto", "112"]).unwrap();
    scene.run(&format!("ip route replace {} dev {end} proto static", v4(result)));
    scene.run(&format!("ip route del {} dev {end}", v6(result)));
    let restored = format!("{} dev {end}", v6(result));
    wait_until("the other route", TIMEOUT, || Ok(routes().contains(&restored))).unwrap();
    wait_until("the condition", TIMEOUT, || Ok(status()["conditions"].to_string().contains(scene.a.0.id())))
        .unwrap();
    println!("{}", status()["conditions"]);
    scene.run(&format!("ip route del {} dev {end}", v4(result)));
    scene.run(&format!("ip neigh del {} dev {end}", v6(result)));
    wait_until("the end of the condition", TIMEOUT, || {
        Ok(status()["conditions"].as_array().unwrap().is_empty())
    })
    .unwrap();
    scene.expect_works("after the conflicting route was removed");
}

#[test]
fn objects_inside_a_pod_are_restored() {
    in_both_modes(|mode| {
        let scene = Scene::new("inside", mode);
        let (pod, result) = &scene.a;
        for ip in result["ips"].as_array().unwrap() {
            let address = ip["address"].as_str().unwrap();
            scene
                .repairs_after("address in the pod", || run(pod, &format!("ip addr del {address} dev eth0")));
        }
        scene.repairs_after("default route v4 in the pod", || run(pod, "ip -4 route del default"));
        scene.repairs_after("default route v6 in the pod", || run(pod, "ip -6 route del default"));
        scene.repairs_after("link down in the pod", || run(pod, "ip link set eth0 down"));
        if mode == "routed" {
            for gateway in GATEWAYS {
                let line = format!("ip neigh del {gateway} dev eth0");
                scene.repairs_after("gateway's neighbour in the pod", || run(pod, &line));
            }
        }
    });
}

/// The check of pods does not wait for the end of the node's events.
#[test]
fn pods_are_repaired_during_continuous_events_of_the_node() {
    in_both_modes(|mode| {
        let scene = Scene::new("busy", mode);
        let (pod, result) = &scene.a;
        let (is_done, end) = (AtomicBool::new(false), Instant::now() + TIMEOUT * 4);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) && Instant::now() < end {
                    scene.run_quietly("nft flush ruleset");
                    std::thread::sleep(Duration::from_millis(10));
                }
            });
            let restored = result["ips"].as_array().unwrap().iter().map(|ip| {
                let address = ip["address"].as_str().unwrap();
                let started = Instant::now();
                run(pod, &format!("ip addr del {address} dev eth0"));
                // Half of the time for which events arrive, so that a repair after their end would be too late.
                let restored =
                    wait_until(address, TIMEOUT * 2, || Ok(addresses_of(pod, "eth0").contains(&ip_of(ip))));
                println!("{mode:6} {address} restored after {:3} ms", started.elapsed().as_millis());
                restored.map_err(|error| format!("{error:#}"))
            });
            let restored: Result<Vec<()>, String> = restored.collect();
            is_done.store(true, Ordering::Relaxed);
            assert_eq!(restored.map(drop), Ok(()), "{mode}");
        });
    });
}

fn ip_of(address: &Value) -> IpAddr {
    address["address"].as_str().unwrap().split('/').next().unwrap().parse().unwrap()
}

/// For these changes the kernel sends a generic link event or none, so the round of the timer detects them.
#[test]
fn changes_without_a_specific_event_are_repaired_by_the_timer() {
    in_both_modes(|mode| {
        let scene = Scene::with_flags("timer", mode, &["--reconcile-seconds", "1"]);
        let end = scene.host_end();
        scene.repairs_after("alias", || scene.run(&format!("ip link set {end} alias x")));
        scene.repairs_after("ARP", || scene.run(&format!("ip link set {end} arp on")));
        assert!(is_noarp(&scene, end) || ignores_arp(&scene, end), "{mode}");
        if mode == "bridge" {
            let port = scene.node().json(&["bridge", "-d", "-j", "link", "show", "dev", end]).unwrap();
            let (current, changed) = if port[0]["hairpin"] == true { ("on", "off") } else { ("off", "on") };
            println!("hairpin is {current}");
            scene.repairs_after("hairpin", || {
                scene.run(&format!("bridge link set dev {end} hairpin {changed}"));
            });
        }
    });
}

#[test]
fn attributes_of_a_managed_bridge_are_restored() {
    in_both_modes(|mode| {
        let mut scene = Scene::with_flags("attributes", mode, &["--reconcile-seconds", "1"]);
        let snooping = |scene: &Scene| {
            let link = scene.node().json(&["ip", "-j", "-d", "link", "show", "dev", BRIDGE]).unwrap();
            link[0]["linkinfo"]["info_data"]["mcast_snooping"].clone()
        };
        scene.repairs_after("multicast snooping", || {
            scene.run(&format!("ip link set {BRIDGE} type bridge mcast_snooping 1"));
        });
        assert_eq!(snooping(&scene), 0, "{mode}");
        let accept_ra = format!("net.ipv6.conf.{BRIDGE}.accept_ra");
        scene.repairs_after("advertisements", || scene.run(&format!("sysctl -q -w {accept_ra}=2")));
        let value = scene.node().sh(&["sysctl", "-n", &accept_ra]).unwrap();
        assert_eq!(value.trim(), "0", "{mode}");
        scene.repairs_after("mark", || scene.run(&format!("ip link set {BRIDGE} alias mine")));
        scene.repairs_after("no mark", || {
            // `scene.run` splits at whitespace and cannot pass an empty argument.
            scene.node().sh(&["ip", "link", "set", BRIDGE, "alias", ""]).unwrap();
        });
        let log = scene.host.agent.log().unwrap();
        for kind in ["bridge", "sysctl"] {
            let is_repair =
                |line: &&str| line.contains("repaired: ") && line.contains(&format!("kind=\"{kind}\""));
            assert!(log.lines().any(|line| is_repair(&line)), "{mode}, {kind}: {log}");
        }
        // Cleanup recognizes the bridge by its restored mark.
        scene.host.agent.stop().unwrap();
        let run_dir = scene.host.agent.run_dir().display().to_string();
        let cleaned = scene.host.agent.podwire(&["cleanup", "--run-dir", &run_dir]).unwrap();
        assert!(cleaned.success(), "{cleaned:?}");
        assert!(!scene.run_quietly(&format!("ip link show {BRIDGE}")), "{mode}: {}", cleaned.stdout);
    });
}

/// A bridge that existed before the agent belongs to another program.
#[test]
fn an_unmanaged_bridge_is_not_changed() {
    let lab = testkit::Lab::new("unmanaged-bridge").unwrap();
    let node = lab.node("n1").unwrap();
    run(&node, &format!("ip link add {BRIDGE} type bridge mcast_snooping 1"));
    run(&node, &format!("ip link set {BRIDGE} alias unmanaged"));
    let mut agent = testkit::Agent::start(&node, &["--no-install", "--reconcile-seconds", "1"]).unwrap();
    let rounds = || agent.get("/v1/status").unwrap()["reconcile"]["rounds"].as_u64().unwrap();
    wait_until("some rounds", TIMEOUT, || Ok(rounds() > 2)).unwrap();
    let link = node.json(&["ip", "-j", "-d", "link", "show", "dev", BRIDGE]).unwrap();
    assert_eq!(link[0]["ifalias"], "unmanaged", "{link}");
    assert_eq!(link[0]["linkinfo"]["info_data"]["mcast_snooping"], 1, "{link}");
    agent.kill().unwrap();
}

#[test]
fn disabled_forwarding_is_enabled_again() {
    let scene = Scene::new("forward", "routed");
    for key in ["net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"] {
        scene.repairs_after(key, || scene.run(&format!("sysctl -q -w {key}=0")));
    }
}

#[test]
fn removed_bandwidth_limits_are_restored_and_unmanaged_qdiscs_kept() {
    in_both_modes(|mode| {
        let scene = Scene::with_flags("limits", mode, &["--reconcile-seconds", "1"]);
        let limited = |name: &str, bandwidth: Value| {
            let pod = scene.host.pod(name);
            let result = scene.host.add_with(&pod, &json!({"runtimeConfig": {"bandwidth": bandwidth}}));
            let link = host_link(&result).to_owned();
            (pod, result, link)
        };
        let rate = 80_000_000;
        let (limited_ingress, result, link) =
            limited("c", json!({"ingressRate": rate, "ingressBurst": rate}));
        scene.run(&format!("tc qdisc add dev {link} ingress"));
        let qdiscs = |link: &str| scene.node().sh(&["tc", "qdisc", "show", "dev", link]).unwrap();
        let has = |link: &str, kind: &str| qdiscs(link).contains(&format!("qdisc {kind} "));
        assert!(has(&link, "tbf") && has(&link, "ingress"), "{}", qdiscs(&link));
        scene.run(&format!("tc qdisc del dev {link} root"));
        wait_until("the limit to be restored", DEADLINE, || Ok(has(&link, "tbf"))).unwrap();
        assert!(has(&link, "ingress"), "{mode}: the unmanaged qdisc was removed: {}", qdiscs(&link));
        scene.host.check(&limited_ingress, &result);

        let both =
            json!({"ingressRate": rate, "ingressBurst": rate, "egressRate": rate, "egressBurst": rate});
        let (limited_both, result, link) = limited("d", both);
        scene.run(&format!("tc qdisc del dev {link} ingress"));
        let config = scene.host.config(&json!({}));
        wait_until("the pod to be repaired", DEADLINE, || {
            Ok(scene.host.plugin.check(&limited_both, &config, &result)?.success())
        })
        .unwrap();
        assert!(has(&link, "tbf") && has(&link, "ingress"), "{mode}: {}", qdiscs(&link));
    });
}
