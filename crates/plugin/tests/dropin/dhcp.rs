//! B11: the reference `dhcp` IPAM plugin with a real DHCP server.

use serde_json::{Value, json};
use testkit::{DEADLINE, DHCP_SERVER, Dhcp, Pod, Snapshot, inspect, ping, wait_until};

use crate::common::{Host, ips, nets};

/// A config that the reference bridge plugin accepts, too.
fn config(host: &Host, dhcp: &Dhcp) -> Value {
    // The installed dhcp plugin does not support 1.1.0.
    host.config(&json!({"cniVersion": "1.0.0", "bridge": "lan", "ipam": dhcp.ipam()}))
}

fn reaches_server(pod: &Pod) -> bool {
    ping(pod, DHCP_SERVER.parse().unwrap(), 1).unwrap().all()
}

#[test]
fn b11_a_dhcp_lease_is_acquired_renewed_and_released() {
    let host = Host::new("b11-dhcp");
    let dhcp = Dhcp::start(&host.node, "lan").unwrap();
    let config = config(&host, &dhcp);
    // The first pod creates the tables.
    let (first, _) = host.attached("first", &config);
    host.del(&first, &config);
    let before = Snapshot::of(&host.node).unwrap();
    let (pod, result) = host.attached("a", &config);
    assert!(nets(&result)[0].starts_with("10.55.0.") && nets(&result)[0].ends_with("/24"), "{result}");
    assert_eq!(inspect::addresses(&pod, "eth0").unwrap()[0].net.to_string(), nets(&result)[0]);
    assert!(pod.sh(&["ip", "route", "show", "default"]).unwrap().contains(DHCP_SERVER));
    assert!(reaches_server(&pod));
    host.check(&pod, &config, &result).unwrap();
    let acknowledged = dhcp.acknowledged().unwrap();
    wait_until("the lease to be renewed twice", DEADLINE, || Ok(dhcp.acknowledged()? >= acknowledged + 2))
        .unwrap();
    assert!(reaches_server(&pod));
    // The source check drops packets from other addresses.
    pod.sh(&["ip", "addr", "flush", "dev", "eth0", "scope", "global"]).unwrap();
    pod.sh(&["ip", "addr", "add", "10.55.0.99/24", "dev", "eth0"]).unwrap();
    assert!(!reaches_server(&pod));
    let released = dhcp.released().unwrap();
    host.del(&pod, &config);
    wait_until("the lease to be released", DEADLINE, || Ok(dhcp.released()? > released)).unwrap();
    before.expect_same(&host.node).unwrap();
    // A second DEL succeeds.
    host.del(&pod, &config);
}

#[test]
fn b11_an_add_without_an_answer_of_the_server_is_undone() {
    let host = Host::new("b11-silent");
    let mut dhcp = Dhcp::start(&host.node, "lan").unwrap();
    let config = config(&host, &dhcp);
    let (first, _) = host.attached("first", &config);
    host.del(&first, &config);
    let before = Snapshot::of(&host.node).unwrap();
    dhcp.stop_server();
    let pod = host.pod("a");
    let error = host.refused(&pod, &config);
    assert!(error.msg.contains("dhcp"), "{error:?}");
    before.expect_same(&host.node).unwrap();
    assert!(inspect::link(&pod, "eth0").is_err());
}

#[test]
fn b11_the_record_of_a_dhcp_pod_is_recovered_from_its_link() {
    let host = Host::new("b11-lost");
    let dhcp = Dhcp::start(&host.node, "lan").unwrap();
    let config = config(&host, &dhcp);
    let (pod, result) = host.attached("a", &config);
    std::fs::remove_dir_all(host.node.run_dir()).unwrap();
    let (_other, other_result) = host.attached("b", &config);
    assert_ne!(ips(&result), ips(&other_result));
    let record = host.node.run_dir().join(format!("networks/blue/attachments/{}@eth0.ready", pod.id()));
    let record: Value = serde_json::from_slice(&std::fs::read(record).unwrap()).unwrap();
    assert_eq!((&record["addressing"], &record["delegated"]), (&json!("dhcp"), &json!(true)));
    assert_eq!((&record["schema"], &record["ipam_plugin"]), (&json!(2), &json!("dhcp")));
    let acknowledged = dhcp.acknowledged().unwrap();
    wait_until("both leases to be renewed", DEADLINE, || Ok(dhcp.acknowledged()? >= acknowledged + 2))
        .unwrap();
    host.check(&pod, &config, &result).unwrap();
    host.del(&pod, &config);
}
