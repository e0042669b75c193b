//! Pods whose addresses come from a DHCP server, and pods of which no addresses are known.

use serde_json::{Value, json};
use testkit::{DEADLINE, DHCP_SERVER, Dhcp, Pod, REFERENCE_DIR, inspect, ping, wait_until};

use crate::common::{Host, addresses_of, host_link, ips, take_away, with};
use crate::scene::{BY_EVENTS, run};

const DHCP_FLAGS: [&str; 4] = ["--delegate-directories", REFERENCE_DIR, "--delegate-plugins", "dhcp"];

/// As they are on disk.
fn records(host: &Host) -> Vec<Value> {
    let networks = std::fs::read_dir(host.agent.run_dir().join("networks")).into_iter().flatten().flatten();
    let files = networks.flat_map(|network| std::fs::read_dir(network.path().join("attachments")));
    let records = files.flatten().flatten().filter_map(|file| std::fs::read(file.path()).ok());
    records.filter_map(|record| serde_json::from_slice(&record).ok()).collect()
}

#[track_caller]
fn is_renewed(dhcp: &Dhcp) {
    let before = dhcp.acknowledged().unwrap();
    wait_until("the lease to be renewed", DEADLINE, || Ok(dhcp.acknowledged()? > before)).unwrap();
}

#[test]
fn b11_a_lease_of_dhcp_is_renewed_whatever_happens_to_agent_and_firewall() {
    let mut host = Host::with_flags("b11-dhcp", &[&DHCP_FLAGS[..], &BY_EVENTS].concat());
    let dhcp = Dhcp::start(&host.node, "lan").unwrap();
    // The agent's mode is `routed`; this network's can only be `bridge`. The installed plugin does not speak 1.1.0.
    let config = json!({"cniVersion": "1.0.0", "name": "lan", "bridge": "lan", "ipam": dhcp.ipam()});
    let config = with(&host.config(&json!({})), &config);
    let pod = host.pod("a");
    let result = host.plugin.add(&pod, &config).unwrap().ok().unwrap();
    assert_eq!(addresses_of(&pod, "eth0"), ips(&result).into_iter().collect());
    is_renewed(&dhcp);
    host.agent.restart().unwrap();
    is_renewed(&dhcp);
    run(&host.node, "nft flush ruleset");
    wait_until("the guard to be back", DEADLINE, || {
        Ok(host.node.sh(&["nft", "list", "ruleset"])?.contains(host_link(&result)))
    })
    .unwrap();
    is_renewed(&dhcp);
    take_away(host.agent.run_dir());
    wait_until("the record to be back", DEADLINE, || Ok(!records(&host).is_empty())).unwrap();
    assert_eq!(
        (&records(&host)[0]["addressing"], &records(&host)[0]["delegated"]),
        (&json!("dhcp"), &json!(true))
    );
    is_renewed(&dhcp);
    assert!(ping(&pod, DHCP_SERVER.parse().unwrap(), 1).unwrap().all());
    assert_eq!(host.agent.get("/v1/status").unwrap()["conditions"], json!([]));
    let released = dhcp.released().unwrap();
    host.plugin.del(&pod, &config).unwrap().ok().unwrap();
    wait_until("the release", DEADLINE, || Ok(dhcp.released()? > released)).unwrap();
    assert!(inspect::link(&pod, "eth0").is_err() && host.held().is_empty());
}

/// The DHCP client sets the interface down when the lease expires: the address may belong to another host then.
#[test]
fn b11_an_expired_lease_is_a_condition_and_the_interface_stays_down() {
    let host = Host::with_flags("b11-expired", &[&DHCP_FLAGS[..], &["--reconcile-seconds", "1"]].concat());
    let mut dhcp = Dhcp::start(&host.node, "lan").unwrap();
    let config = json!({"cniVersion": "1.0.0", "name": "lan", "bridge": "lan", "ipam": dhcp.ipam()});
    let config = with(&host.config(&json!({})), &config);
    let pod = host.pod("a");
    host.plugin.add(&pod, &config).unwrap().ok().unwrap();
    let status = || host.agent.get("/v1/status").unwrap();
    let repairs = status()["reconcile"]["repairs"].clone();
    dhcp.stop_server();
    let is_reported = || {
        let status = status();
        let all = status["conditions"].as_array().unwrap();
        all.iter().any(|condition| condition["code"] == "DhcpLeaseExpired")
    };
    wait_until("the condition", DEADLINE, || Ok(is_reported())).unwrap();
    let rounds = || status()["reconcile"]["rounds"].as_u64().unwrap();
    let before = rounds();
    wait_until("two more rounds", DEADLINE, || Ok(rounds() > before + 1)).unwrap();
    assert!(!inspect::link(&pod, "eth0").unwrap().is_up() && is_reported());
    assert_eq!(status()["reconcile"]["repairs"], repairs, "{}", host.agent.log().unwrap());
    host.plugin.del(&pod, &config).unwrap().ok().unwrap();
    assert!(!is_reported() || wait_until("its end", DEADLINE, || Ok(!is_reported())).is_ok());
}

fn address(pod: &Pod, n: u8) {
    for net in [format!("10.56.0.{n}/24"), format!("fd56::{n}/64")] {
        run(pod, &format!("ip addr replace {net} dev eth0 nodad"));
    }
}

fn reaches(pod: &Pod, n: u8) -> bool {
    let addresses = [format!("10.56.0.{n}"), format!("fd56::{n}")];
    addresses.iter().all(|ip| ping(pod, ip.parse().unwrap(), 1).unwrap().all())
}

#[test]
fn b11_a_pod_without_addresses_is_repaired_and_recovered_and_stays_guarded() {
    let host = Host::with_flags("b11-l2", &BY_EVENTS);
    let config = json!({"name": "wire", "bridge": "wire0", "mode": "bridge"});
    let config = with(&host.config(&json!({})), &config);
    let (a, b) = (host.pod("a"), host.pod("b"));
    let result = host.plugin.add(&a, &config).unwrap().ok().unwrap();
    host.plugin.add(&b, &config).unwrap().ok().unwrap();
    for (pod, n) in [(&a, 1), (&b, 2)] {
        address(pod, n);
    }
    assert!(reaches(&a, 2));
    let talk = |what: &str| {
        wait_until(what, DEADLINE, || {
            // A link that is made anew has no addresses: they are the pod's own business.
            if inspect::link(&a, "eth0").is_ok() {
                address(&a, 1);
            }
            Ok(inspect::link(&a, "eth0").is_ok() && reaches(&a, 2))
        })
        .unwrap();
    };
    run(&host.node, &format!("ip link del {}", host_link(&result)));
    talk("the link to be made anew");
    run(&host.node, &format!("ip link set {} nomaster", host_link(&result)));
    talk("the port to be back");
    run(&host.node, "nft flush ruleset");
    wait_until("the guard to be back", DEADLINE, || {
        Ok(host.node.sh(&["nft", "list", "ruleset"])?.contains(host_link(&result)))
    })
    .unwrap();
    take_away(host.agent.run_dir());
    wait_until("the records to be back", DEADLINE, || Ok(records(&host).len() == 2)).unwrap();
    for record in records(&host) {
        assert_eq!((&record["addressing"], &record["mode"]), (&json!("none"), &json!("bridge")), "{record}");
        assert_eq!(record["schema"], json!(2), "{record}");
    }
    talk("recovered");
    run(&a, "ip link set eth0 address 02:00:00:00:00:99");
    address(&a, 1);
    assert!(!reaches(&a, 2), "another MAC than its own");
    for pod in [&a, &b] {
        host.plugin.del(pod, &config).unwrap().ok().unwrap();
    }
    assert!(host.held().is_empty());
    assert_eq!(host.agent.get("/v1/status").unwrap()["conditions"], json!([]));
}

/// A pod without addresses could answer for the gateway.
#[test]
fn b11_repairs_put_no_gateway_and_no_pod_without_addresses_onto_one_bridge() {
    let mut host = Host::with_flags("b11-back", &["--reconcile-seconds", "1"]);
    let shared = |more: Value| {
        with(&host.config(&json!({})), &with(&json!({"bridge": "lan0", "mode": "bridge"}), &more))
    };
    let addressed = shared(json!({"name": "lan", "subnet": "10.57.0.0/24,fd57::/64"}));
    let layer2 = shared(json!({"name": "wire"}));
    let (a, wire) = (host.pod("a"), host.pod("wire"));
    let result = host.plugin.add(&a, &addressed).unwrap().ok().unwrap();
    let gateways = |node: &testkit::Ns| {
        let words = node.sh(&["ip", "-br", "addr", "show", "dev", "lan0"]).unwrap();
        (words.contains("10.57.0.1/24"), words.contains("fd57::1/64"))
    };
    assert_eq!(gateways(&host.node), (true, true));

    // With the agent stopped, the gateways are deleted and a port of another run directory comes.
    host.agent.stop().unwrap();
    run(&host.node, "ip addr del 10.57.0.1/24 dev lan0");
    run(&host.node, "ip addr del fd57::1/64 dev lan0");
    run(&host.node, "ip link add port9 master lan0 type veth peer name peer9");
    host.node.sh(&["ip", "link", "set", "port9", "alias", "podwire:far/c9/eth0 ipam=none"]).unwrap();
    let refused = |host: &Host, object: &str| {
        wait_until("the condition", DEADLINE, || {
            let status = host.agent.get("/v1/status")?;
            let all = status["conditions"].as_array().unwrap();
            Ok(all.iter().any(|found| found["object"].as_str().unwrap().contains(object)))
        })
        .unwrap();
    };
    host.agent.launch().unwrap();
    host.agent.wait_ready().unwrap();
    refused(&host, "bridge lan0");
    assert_eq!(gateways(&host.node), (false, false));
    run(&host.node, &format!("ip link del {}", host_link(&result)));
    refused(&host, a.id());
    assert_eq!(gateways(&host.node), (false, false));
    assert!(inspect::link(&a, "eth0").is_err());
    run(&host.node, "ip link del port9");
    wait_until("the gateways", DEADLINE, || Ok(gateways(&host.node) == (true, true))).unwrap();
    wait_until("the link", DEADLINE, || Ok(inspect::link(&a, "eth0").is_ok())).unwrap();
    host.plugin.del(&a, &addressed).unwrap().ok().unwrap();

    // A pod without addresses whose port or link was lost, and a gateway that came meanwhile.
    run(&host.node, "ip link del lan0");
    let result = host.plugin.add(&wire, &layer2).unwrap().ok().unwrap();
    let port = host_link(&result);
    for damage in [format!("ip link set {port} nomaster"), format!("ip link del {port}")] {
        host.agent.stop().unwrap();
        run(&host.node, &damage);
        run(&host.node, "ip addr add 10.57.0.1/24 dev lan0");
        host.agent.launch().unwrap();
        host.agent.wait_ready().unwrap();
        refused(&host, wire.id());
        let found = inspect::link(&host.node, port);
        assert!(found.is_ok_and(|link| link.master.is_none()) || damage.contains("del"), "{damage}");
        run(&host.node, "ip addr del 10.57.0.1/24 dev lan0");
        let is_port =
            || inspect::link(&host.node, port).is_ok_and(|link| link.master.as_deref() == Some("lan0"));
        wait_until("the port", DEADLINE, || Ok(is_port())).unwrap();
    }
}
