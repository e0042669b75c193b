//! Pods with addresses of a DHCP server, and pods without known addresses.

use serde_json::{Value, json};
use testkit::{DEADLINE, DHCP_SERVER, Dhcp, Pod, REFERENCE_DIR, inspect, ping, wait_until};

use crate::common::{Host, addresses_of, host_link, ips, remove_dir_atomically, with};
use crate::scene::{BY_EVENTS, run};

const DHCP_FLAGS: [&str; 4] = ["--delegate-directories", REFERENCE_DIR, "--delegate-plugins", "dhcp"];

/// The records on disk.
fn records(host: &Host) -> Vec<Value> {
    let networks = std::fs::read_dir(host.agent.run_dir().join("networks")).into_iter().flatten().flatten();
    let files = networks.flat_map(|network| std::fs::read_dir(network.path().join("attachments")));
    let records = files.flatten().flatten().filter_map(|file| std::fs::read(file.path()).ok());
    records.filter_map(|record| serde_json::from_slice(&record).ok()).collect()
}

#[track_caller]
fn expect_renewal(dhcp: &Dhcp) {
    let before = dhcp.acknowledged().unwrap();
    wait_until("the lease to be renewed", DEADLINE, || Ok(dhcp.acknowledged()? > before)).unwrap();
}

#[test]
fn b11_a_dhcp_lease_is_renewed_after_restarts_and_flushes() {
    let mut host = Host::with_flags("b11-dhcp", &[&DHCP_FLAGS[..], &BY_EVENTS].concat());
    let dhcp = Dhcp::start(&host.node, "lan").unwrap();
    // The agent's mode is `routed`, but DHCP requires mode `bridge`. The installed plugin does not support 1.1.0.
    let config = json!({"cniVersion": "1.0.0", "name": "lan", "bridge": "lan", "ipam": dhcp.ipam()});
    let config = with(&host.config(&json!({})), &config);
    let pod = host.pod("a");
    let result = host.plugin.add(&pod, &config).unwrap().ok().unwrap();
    assert_eq!(addresses_of(&pod, "eth0"), ips(&result).into_iter().collect());
    expect_renewal(&dhcp);
    host.agent.restart().unwrap();
    expect_renewal(&dhcp);
    run(&host.node, "nft flush ruleset");
    wait_until("the guard to be restored", DEADLINE, || {
        Ok(host.node.sh(&["nft", "list", "ruleset"])?.contains(host_link(&result)))
    })
    .unwrap();
    expect_renewal(&dhcp);
    remove_dir_atomically(host.agent.run_dir());
    wait_until("the record to be restored", DEADLINE, || Ok(!records(&host).is_empty())).unwrap();
    assert_eq!(
        (&records(&host)[0]["addressing"], &records(&host)[0]["delegated"]),
        (&json!("dhcp"), &json!(true))
    );
    expect_renewal(&dhcp);
    assert!(ping(&pod, DHCP_SERVER.parse().unwrap(), 1).unwrap().all());
    assert_eq!(host.agent.get("/v1/status").unwrap()["conditions"], json!([]));
    let released = dhcp.released().unwrap();
    host.plugin.del(&pod, &config).unwrap().ok().unwrap();
    wait_until("the release", DEADLINE, || Ok(dhcp.released()? > released)).unwrap();
    assert!(inspect::link(&pod, "eth0").is_err() && host.state_entries().is_empty());
}

/// The DHCP client sets the interface down when the lease expires, because the address may then belong to another host.
#[test]
fn b11_an_expired_lease_is_reported_and_the_interface_stays_down() {
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
    assert!(
        !is_reported() || wait_until("the end of the condition", DEADLINE, || Ok(!is_reported())).is_ok()
    );
}

fn set_addresses(pod: &Pod, n: u8) {
    for net in [format!("10.56.0.{n}/24"), format!("fd56::{n}/64")] {
        run(pod, &format!("ip addr replace {net} dev eth0 nodad"));
    }
}

fn reaches(pod: &Pod, n: u8) -> bool {
    let addresses = [format!("10.56.0.{n}"), format!("fd56::{n}")];
    addresses.iter().all(|ip| ping(pod, ip.parse().unwrap(), 1).unwrap().all())
}

#[test]
fn b11_a_pod_without_addresses_is_repaired_and_guarded() {
    let host = Host::with_flags("b11-l2", &BY_EVENTS);
    let config = json!({"name": "wire", "bridge": "wire0", "mode": "bridge"});
    let config = with(&host.config(&json!({})), &config);
    let (a, b) = (host.pod("a"), host.pod("b"));
    let result = host.plugin.add(&a, &config).unwrap().ok().unwrap();
    host.plugin.add(&b, &config).unwrap().ok().unwrap();
    for (pod, n) in [(&a, 1), (&b, 2)] {
        set_addresses(pod, n);
    }
    assert!(reaches(&a, 2));
    let expect_reachable = |what: &str| {
        wait_until(what, DEADLINE, || {
            // A recreated link has no addresses, because the pod configures them.
            if inspect::link(&a, "eth0").is_ok() {
                set_addresses(&a, 1);
            }
            Ok(inspect::link(&a, "eth0").is_ok() && reaches(&a, 2))
        })
        .unwrap();
    };
    run(&host.node, &format!("ip link del {}", host_link(&result)));
    expect_reachable("the link to be created again");
    run(&host.node, &format!("ip link set {} nomaster", host_link(&result)));
    expect_reachable("the bridge port to be restored");
    run(&host.node, "nft flush ruleset");
    wait_until("the guard to be restored", DEADLINE, || {
        Ok(host.node.sh(&["nft", "list", "ruleset"])?.contains(host_link(&result)))
    })
    .unwrap();
    remove_dir_atomically(host.agent.run_dir());
    wait_until("the records to be restored", DEADLINE, || Ok(records(&host).len() == 2)).unwrap();
    for record in records(&host) {
        assert_eq!((&record["addressing"], &record["mode"]), (&json!("none"), &json!("bridge")), "{record}");
        assert_eq!(record["schema"], json!(2), "{record}");
    }
    expect_reachable("recovered records");
    run(&a, "ip link set eth0 address 02:00:00:00:00:99");
    set_addresses(&a, 1);
    assert!(!reaches(&a, 2), "frames with another MAC must be dropped");
    for pod in [&a, &b] {
        host.plugin.del(pod, &config).unwrap().ok().unwrap();
    }
    assert!(host.state_entries().is_empty());
    assert_eq!(host.agent.get("/v1/status").unwrap()["conditions"], json!([]));
}

/// A pod without addresses could impersonate the gateway.
#[test]
fn b11_gateway_and_pod_without_addresses_never_share_a_bridge() {
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

    // With the agent stopped, the gateways are deleted, and a port of another run directory is added.
    host.agent.stop().unwrap();
    run(&host.node, "ip addr del 10.57.0.1/24 dev lan0");
    run(&host.node, "ip addr del fd57::1/64 dev lan0");
    run(&host.node, "ip link add port9 master lan0 type veth peer name peer9");
    host.node.sh(&["ip", "link", "set", "port9", "alias", "podwire:far/c9/eth0 ipam=none"]).unwrap();
    let refused = |host: &Host, object: &str| {
        wait_until("the condition", DEADLINE, || {
            let status = host.agent.get("/v1/status")?;
            let all = status["conditions"].as_array().unwrap();
            Ok(all.iter().any(|condition| condition["object"].as_str().unwrap().contains(object)))
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

    // A pod without addresses loses its port or link, and a gateway is added meanwhile.
    run(&host.node, "ip link del lan0");
    let result = host.plugin.add(&wire, &layer2).unwrap().ok().unwrap();
    let port = host_link(&result);
    for drift in [format!("ip link set {port} nomaster"), format!("ip link del {port}")] {
        host.agent.stop().unwrap();
        run(&host.node, &drift);
        run(&host.node, "ip addr add 10.57.0.1/24 dev lan0");
        host.agent.launch().unwrap();
        host.agent.wait_ready().unwrap();
        refused(&host, wire.id());
        let link = inspect::link(&host.node, port);
        assert!(link.is_ok_and(|link| link.master.is_none()) || drift.contains("del"), "{drift}");
        run(&host.node, "ip addr del 10.57.0.1/24 dev lan0");
        let is_port =
            || inspect::link(&host.node, port).is_ok_and(|link| link.master.as_deref() == Some("lan0"));
        wait_until("the port", DEADLINE, || Ok(is_port())).unwrap();
    }
}
