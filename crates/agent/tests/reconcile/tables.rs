//! Tables of the firewall are restored after any change.

use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use serde_json::{Value, json};
use testkit::{
    DEADLINE, Ns, inspect, tcp_connects, tcp_echo, udp_connects, udp_echo, uninterrupted, wait_until,
};

use crate::common::{Host, host_link, ips, v4, v6, with};
use crate::scene::{BY_EVENTS, GATEWAYS, NODE, OUT, Scene, TIMEOUT, in_both_modes, run};

const SPOOFED: [&str; 2] = ["10.83.0.200", "fd00:88::200"];
const HOST_PORT: u16 = 8080;
/// Timeout of a connection attempt whose packets may be dropped.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(1500);

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Checks masquerade, hostPort and guard in both families.
#[track_caller]
fn expect_rules_in_force(scene: &Scene, what: &str) {
    for family in [0, 1] {
        let case = format!("{}, {what}, {}", scene.mode, OUT[family]);
        let echo = udp_echo(&scene.out, (ip(OUT[family]), 0).into()).unwrap();
        let source = udp_connects(&scene.a.0, echo.address(), DEADLINE).unwrap();
        assert_eq!(source.map(|source| source.ip()), Some(ip(NODE[family])), "{case}: masquerade");
        let _web = tcp_echo(&scene.a.0, (ips(&scene.a.1)[family], 80).into()).unwrap();
        let published = SocketAddr::from((ip(NODE[family]), HOST_PORT));
        let source = tcp_connects(&scene.out, published, DEADLINE).unwrap();
        assert_eq!(source.map(|source| source.ip()), Some(ip(OUT[family])), "{case}: hostPort");
        assert_eq!(received(scene, family), ["end"], "{case}: guard");
    }
}

/// The packets that the node receives from a pod that sends from a spoofed address, then from its own.
fn received(scene: &Scene, family: usize) -> Vec<String> {
    let listener = scene.node().enter(|| UdpSocket::bind((ip(GATEWAYS[family]), 0)).unwrap()).unwrap();
    listener.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let (pod, own) = (&scene.b.0, ips(&scene.b.1)[family]);
    let mut words = Vec::new();
    let mut buffer = [0; 64];
    // Packets may be lost during neighbour resolution, so they are repeated.
    for _ in 0..20 {
        send(pod, (ip(SPOOFED[family]), "spoofed"), &listener);
        send(pod, (own, "end"), &listener);
        while let Ok(count) = uninterrupted(|| listener.recv(&mut buffer)) {
            words.push(String::from_utf8_lossy(&buffer[..count]).into_owned());
            if words.last().is_some_and(|word| word == "end") {
                return words;
            }
        }
    }
    words
}

fn send(from: &Ns, (source, word): (IpAddr, &str), to: &UdpSocket) {
    let socket = from.enter(|| UdpSocket::bind((source, 0)).unwrap()).unwrap();
    // Fails if the kernel knows that a neighbour does not answer. The packet is lost in that case, too.
    let _ = socket.send_to(word.as_bytes(), to.local_addr().unwrap());
}

/// Pod b also has addresses that it does not own, so that it can send spoofed packets.
fn with_spoofed_addresses(label: &str, mode: &'static str) -> Scene {
    with_spoofed_addresses_and_flags(label, mode, &BY_EVENTS)
}

fn with_spoofed_addresses_and_flags(label: &str, mode: &'static str, flags: &[&str]) -> Scene {
    let scene = Scene::with_flags(label, mode, flags);
    run(&scene.b.0, &format!("ip addr add {}/32 dev eth0", SPOOFED[0]));
    run(&scene.b.0, &format!("ip addr add {}/128 dev eth0 nodad", SPOOFED[1]));
    wait_until("the address to be local", DEADLINE, || {
        Ok(scene.b.0.sh(&["ip", "-6", "route", "show", "table", "local"])?.contains(SPOOFED[1]))
    })
    .unwrap();
    scene
}

#[test]
fn a10_the_connection_limit_is_restored_after_any_change() {
    in_both_modes(|mode| {
        let flags: Vec<&str> =
            BY_EVENTS.iter().copied().chain(["--network-connections-per-pod", "16"]).collect();
        let scene = Scene::with_flags("a10-limit", mode, &flags);
        let table = "inet podwire-limit-podwire";
        // Only rules, because the counters of pods start again.
        let rules = || {
            let listed = scene
                .node()
                .run(&["nft", "-j", "list", "chain", "inet", "podwire-limit-podwire", "connections"], b"");
            let listed: Value =
                serde_json::from_str(&listed.ok().filter(testkit::Outcome::success)?.stdout).ok()?;
            let rules = listed["nftables"].as_array()?.iter().filter(|object| object.get("rule").is_some());
            Some(rules.map(|object| object["rule"]["expr"].clone()).collect::<Vec<Value>>())
        };
        let initial = rules().unwrap();
        assert_eq!(initial.len(), 4, "{mode}: {initial:?}");
        for change in ["flush ruleset", "delete table TABLE", "flush chain TABLE connections"] {
            scene.run(&format!("nft {}", change.replace("TABLE", table)));
            let restored = wait_until(change, DEADLINE, || Ok(rules().as_ref() == Some(&initial)));
            assert!(restored.is_ok(), "{mode}, {change}: {:?}", rules());
        }
        let echo = tcp_echo(&scene.out, (ip(OUT[0]), 0).into()).unwrap();
        // The scene's pings are connections, too.
        let open =
            || scene.a.0.enter(|| TcpStream::connect_timeout(&echo.address(), CONNECT_TIMEOUT)).unwrap();
        let connections: Vec<TcpStream> = (0..17).map_while(|_| open().ok()).collect();
        assert!((1..=16).contains(&connections.len()), "{mode}: {} connections", connections.len());
    });
}

#[test]
fn pain15_removed_tables_are_restored_and_in_force() {
    in_both_modes(|mode| {
        let mut scene = with_spoofed_addresses("tables", mode);
        expect_rules_in_force(&scene, "before");
        for change in ["delete table inet podwire", "delete table bridge podwire", "flush ruleset"] {
            let exists =
                change != "delete table bridge podwire" || scene.run_quietly("nft list table bridge podwire");
            if exists {
                scene.repairs_after(change, || scene.run(&format!("nft {change}")));
                expect_rules_in_force(&scene, change);
            }
        }
        // Without agent and rules, spoofed packets arrive. So only the guard stopped them above.
        scene.host.agent.kill().unwrap();
        scene.run("nft flush ruleset");
        assert_eq!([received(&scene, 0), received(&scene, 1)], [["spoofed", "end"]; 2], "{mode}");
    });
}

#[test]
fn removed_rules_and_elements_are_restored() {
    in_both_modes(|mode| {
        let scene = with_spoofed_addresses("rules", mode);
        let (a, b) = (&scene.a.1, &scene.b.1);
        let guard = if mode == "routed" { "inet podwire guard" } else { bridge_chain(scene.node()) };
        for chain in [guard, "inet podwire nat-postrouting", "inet podwire hostports"] {
            scene.repairs_after(chain, || scene.run(&format!("nft flush chain {chain}")));
        }
        let rule = last_rule(scene.node(), guard);
        scene.repairs_after("one rule", || scene.run(&format!("nft delete rule {guard} handle {rule}")));
        scene.repairs_after("an unmanaged rule", || scene.run(&format!("nft insert rule {guard} accept")));
        scene.repairs_after("an unmanaged chain", || {
            scene.run(
                "nft add chain inet podwire unmanaged { type filter hook forward priority 0; policy drop; }",
            );
        });
        for (set, key) in [("pods4", v4(a)), ("pods6", v6(a))] {
            scene.repairs_after(set, || {
                scene.run(&format!("nft delete element inet podwire {set} {{ {key} }}"));
            });
        }
        scene.repairs_after("masquerade element", || {
            let set = set_of_network(scene.node(), v4(b));
            scene.run(&format!("nft delete element inet podwire {set} {{ {} }}", v4(b)));
        });
        scene.repairs_after("hostPort element", || {
            scene.run("nft delete element inet podwire hostport4_any { tcp . 8080 }");
        });
        scene.repairs_after("a whole map", || scene.run("nft flush map inet podwire hostport6_any"));
        expect_rules_in_force(&scene, "after all changes");
    });
}

/// Elements that another program added for a running pod. The agent gets no event for them, so the timer detects them.
#[test]
fn surplus_elements_of_a_running_pod_are_removed() {
    in_both_modes(|mode| {
        let scene = with_spoofed_addresses_and_flags("surplus", mode, &["--reconcile-seconds", "1"]);
        // A pod of another run directory is known only by its link. All of its elements are kept.
        scene.run("ip link add pwother type veth peer name peer");
        let alias = "podwire:green/c1/eth0 10.60.0.2/32";
        scene.node().sh(&["ip", "link", "set", "pwother", "alias", alias]).unwrap();
        let add = |element: &str| scene.run(&format!("nft add element {element}"));
        let mac = "02:00:00:00:00:99";
        add(&format!("inet podwire source4 {{ pwother . 10.60.0.99 . {mac} }}"));
        add("inet podwire via4 { 10.60.0.2 . eth9 }");
        let interfaces = scene.b.1["interfaces"].as_array().unwrap();
        let inside = interfaces.iter().find(|it| !it["sandbox"].is_null()).unwrap();
        let (link, mac) = (host_link(&scene.b.1), inside["mac"].as_str().unwrap());
        let spoofing: Vec<String> = [("4", SPOOFED[0]), ("6", SPOOFED[1])]
            .into_iter()
            .map(|(family, spoofed)| match mode {
                "routed" => format!("inet podwire source{family} {{ {link} . {spoofed} . {mac} }}"),
                _ => format!("bridge podwire addr{family} {{ {link} . {spoofed} }}"),
            })
            .collect();
        for element in &spoofing {
            scene.repairs_after(element, || add(element));
        }
        let (v4, v6) = (v4(&scene.b.1), v6(&scene.b.1));
        for element in [
            format!("inet podwire via4 {{ {v4} . up0 }}"),
            format!("inet podwire via6 {{ {v6} . up0 }}"),
            format!("inet podwire hostport4_any {{ tcp . 9999 : {v4} . 80 }}"),
            format!("inet podwire hostport6_any {{ tcp . 9999 : {v6} . 80 }}"),
        ] {
            scene.repairs_after(&element, || add(&element));
        }
        expect_rules_in_force(&scene, "after all changes");
        let text = scene.node().sh(&["nft", "list", "table", "inet", "podwire"]).unwrap();
        assert!(text.contains("10.60.0.99") && text.contains("eth9"), "{mode}: {text}");
    });
}

/// The chain that guards pods on a bridge.
fn bridge_chain(node: &Ns) -> &'static str {
    let text = node.sh(&["nft", "list", "table", "bridge", "podwire"]).unwrap();
    if text.contains("chain guard ") { "bridge podwire guard" } else { panic!("{text}") }
}

/// The handle of a chain's last rule.
fn last_rule(node: &Ns, chain: &str) -> u64 {
    let words: Vec<&str> = chain.split(' ').collect();
    let rules = inspect::nft_json(node).unwrap();
    let of_chain =
        |rule: &&Value| rule["family"] == words[0] && rule["table"] == words[1] && rule["chain"] == words[2];
    let mut rules = rules.iter().filter_map(|object| object.get("rule"));
    rules.rfind(of_chain).unwrap()["handle"].as_u64().unwrap()
}

/// The network's set that contains this address.
fn set_of_network(node: &Ns, address: IpAddr) -> String {
    let objects = inspect::nft_json(node).unwrap();
    let sets = objects.iter().filter_map(|object| object.get("set"));
    let mut matching = sets.filter(|set| {
        set["name"].as_str().unwrap().starts_with("net")
            && set["elem"].to_string().contains(&address.to_string())
    });
    matching.next().unwrap()["name"].as_str().unwrap().to_owned()
}

#[test]
fn pain15_a_host_port_works_again_after_a_flush() {
    in_both_modes(|mode| {
        let scene = Scene::new("hostport", mode);
        let _web =
            [v4(&scene.a.1), v6(&scene.a.1)].map(|own| tcp_echo(&scene.a.0, (own, 80).into()).unwrap());
        for node in NODE {
            let published = SocketAddr::from((ip(node), HOST_PORT));
            let answers = |within| tcp_connects(&scene.out, published, within).unwrap().is_some();
            assert!(answers(DEADLINE), "{mode}: before");
            scene.run("nft flush ruleset");
            wait_until("the hostPort", TIMEOUT, || Ok(answers(Duration::from_millis(50)))).unwrap();
        }
    });
}

/// The node has no pods. The events of the repair itself must not cause another repair.
#[test]
fn an_unmanaged_chain_in_a_managed_table_is_removed_once() {
    let host = Host::with_flags("unmanaged", &BY_EVENTS);
    let status = || host.agent.get("/v1/status").unwrap()["reconcile"].clone();
    let number = |key: &str| status()[key].as_u64().unwrap();
    let repairs = number("repairs");
    run(&host.node, "nft add chain inet podwire unmanaged");
    wait_until("the repair", TIMEOUT, || Ok(number("repairs") > repairs)).unwrap();
    let tables = host.node.sh(&["nft", "list", "ruleset"]).unwrap();
    assert!(!tables.contains("unmanaged"), "{tables}");
    // The agent receives the events of its own repair, and runs one more round that finds no drift.
    let mut rounds = number("rounds");
    wait_until("no more rounds", TIMEOUT, || {
        let before = std::mem::replace(&mut rounds, number("rounds"));
        std::thread::sleep(Duration::from_millis(600));
        Ok(before == rounds && number("rounds") == rounds)
    })
    .unwrap();
    assert_eq!(number("repairs"), repairs + 1, "{}", status());
}

/// The chain exists before the first pod. A chain that is removed and created again has another handle.
#[test]
fn b15_gc_without_pods_leaves_the_agents_masquerade_chain() {
    in_both_modes(|mode| {
        let host = Host::with_flags("b15", &["--network-mode", mode, "--reconcile-seconds", "3600"]);
        let chains = || {
            let rules = host.node.json(&["nft", "-j", "list", "chains"]).unwrap();
            let all = rules["nftables"].as_array().unwrap().clone();
            let is_network =
                |chain: &Value| chain["chain"]["name"].as_str().is_some_and(|n| n.starts_with("net-"));
            all.into_iter().filter(is_network).collect::<Vec<_>>()
        };
        wait_until("the chain", TIMEOUT, || Ok(chains().len() == 1)).unwrap();
        let (before, repairs) =
            (chains(), || host.agent.get("/v1/status").unwrap()["reconcile"]["repairs"].clone());
        let count = repairs();
        host.plugin.gc(&host.node, &host.config(&json!({})), &[]).unwrap().ok().unwrap();
        assert_eq!(chains(), before, "{mode}");
        let pod = host.pod("a");
        // Another network with a masqueraded pod, with and without the agent.
        let other =
            json!({"name": "other", "bridge": "other0", "subnet": "10.77.0.0/24,fd77::/64", "ipMasq": true});
        let run_dir = json!({"agent": null, "runDir": host.node.dir().join("other")});
        for more in [json!({}), run_dir] {
            let config = with(&host.config(&other), &more);
            host.plugin.add(&pod, &config).unwrap().ok().unwrap();
            assert_eq!(chains().len(), 2, "{mode}");
            host.plugin.del(&pod, &config).unwrap().ok().unwrap();
            host.plugin.gc(&host.node, &config, &[]).unwrap().ok().unwrap();
            assert_eq!(chains(), before, "{mode}: {more}");
        }
        // More idle chains than the process keeps, without an agent.
        for n in 0..6 {
            let config = json!({"name": format!("s{n}"), "bridge": "other0", "subnet": "10.77.0.0/24", "ipMasq": true,
                "agent": null, "runDir": host.node.dir().join("other")});
            let config = host.config(&config);
            host.plugin.add(&pod, &config).unwrap().ok().unwrap();
            host.plugin.del(&pod, &config).unwrap().ok().unwrap();
            assert!(chains().contains(&before[0]), "{mode}: {n}");
        }
        // The next pod finds the chain, and no repair was necessary.
        let (_pod, _) = host.attached("b");
        assert!(chains().contains(&before[0]), "{mode}");
        assert_eq!(repairs(), count, "{mode}: {}", host.agent.log().unwrap());
    });
}
