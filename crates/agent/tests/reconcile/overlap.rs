//! B10, B16: subnets that another program or network of the node also uses.

use serde_json::{Value, json};
use testkit::{Agent, DEADLINE, Lab, Plugin, Snapshot, wait_until};

use crate::common::{Host, MODES};

const OTHER: &str = "ip link set lo up; ip link add other type bridge; ip link set other up;";
/// A route or address of another program, and how to remove it.
const CASES: [[&str; 2]; 4] = [
    ["ip address add 10.83.0.1/16 dev other", "ip address del 10.83.0.1/16 dev other"],
    ["ip address add fd00:88::9/128 dev other nodad", "ip address del fd00:88::9/128 dev other"],
    ["ip route add 10.83.7.0/24 dev other", "ip route del 10.83.7.0/24 dev other"],
    ["ip route add fd00:88::/64 dev other", "ip route del fd00:88::/64 dev other"],
];

/// The overlaps that `/v1/ready` or `/v1/status` reports, with any HTTP status. None before the agent answers.
fn overlaps(agent: &Agent, path: &str) -> Vec<Value> {
    let Ok(answer) = agent.client().get(path, DEADLINE) else { return Vec::new() };
    let body: Value = serde_json::from_slice(&answer.body).unwrap();
    let mut conditions = body["conditions"].as_array().cloned().unwrap_or_default();
    conditions.retain(|condition| condition["code"] == "SubnetOverlap");
    conditions
}

fn wait_for_overlap(agent: &Agent, path: &str) -> Value {
    wait_until("the overlap to be reported", DEADLINE, || Ok(!overlaps(agent, path).is_empty())).unwrap();
    overlaps(agent, path).remove(0)
}

#[test]
fn b10_an_overlap_at_start_prevents_readiness_and_all_changes() {
    for mode in MODES {
        for [add, remove] in CASES {
            let lab = Lab::new("b10start").unwrap();
            let node = lab.node("n1").unwrap();
            let sh = |line: &str| node.sh(&["sh", "-c", line]).unwrap();
            sh(&format!("{OTHER} {add}"));
            // The kernel creates the local route of an IPv6 address after the address.
            wait_until("the address to have its local route", DEADLINE, || {
                let has_route =
                    node.sh(&["ip", "-6", "route", "show", "table", "local"])?.contains("fd00:88::9");
                Ok(has_route == add.contains("fd00:88::9"))
            })
            .unwrap();
            let before = Snapshot::of(&node).unwrap();
            let mut agent = Agent::new(&node, &["--no-install", "--network-mode", mode]).unwrap();
            agent.launch().unwrap();
            let overlap = wait_for_overlap(&agent, "/v1/ready");
            assert_eq!(
                (&overlap["severity"], &overlap["object"]),
                (&json!("notReady"), &json!("link other")),
                "{overlap}"
            );
            let fix = overlap["fix"].as_str().unwrap();
            assert!(
                fix.starts_with(r"printf '\n%s\n' PODWIRE_NETWORK_SUBNETS=")
                    && !fix.contains("10.83.0.0/16,fd00:88::/64"),
                "{fix}"
            );
            before.expect_same(&node).unwrap();
            let pod = node.pod("a").unwrap();
            let plugin = Plugin::podwire().unwrap();
            let config = agent.config(&json!({}));
            let status = plugin.status(&node, &config).unwrap().error().unwrap();
            assert_eq!(status.code, 50, "{status:?}");
            // The proposed subnets have no overlap.
            let subnets = fix.split(['=', ' ']).nth(3).unwrap().to_owned();
            agent.kill().unwrap();
            let flags = ["--no-install", "--network-mode", mode, "--network-subnet", &subnets];
            let mut proposed = Agent::new(&node, &flags).unwrap();
            proposed.launch().unwrap();
            proposed.wait_ready().unwrap();
            plugin.add(&pod, &proposed.config(&json!({}))).unwrap().ok().unwrap();
            plugin.del(&pod, &proposed.config(&json!({}))).unwrap().ok().unwrap();
            drop(proposed);
            // Without the other program, the agent starts with its default subnets.
            sh(remove);
            agent.launch().unwrap();
            agent.wait_ready().unwrap();
            plugin.add(&pod, &config).unwrap().ok().unwrap();
        }
    }
}

#[test]
fn b10_an_agent_becomes_ready_when_the_overlap_ends() {
    let lab = Lab::new("b10gone").unwrap();
    let node = lab.node("n1").unwrap();
    node.sh(&["sh", "-c", &format!("{OTHER} {}", CASES[0][0])]).unwrap();
    let mut agent = Agent::new(&node, &["--no-install", "--reconcile-seconds", "3600"]).unwrap();
    agent.launch().unwrap();
    wait_for_overlap(&agent, "/v1/ready");
    node.sh(&["sh", "-c", CASES[0][1]]).unwrap();
    agent.wait_ready().unwrap();
}

#[test]
fn b10_an_overlap_while_pods_run_is_degraded_until_it_ends() {
    for mode in MODES {
        let host = Host::with_flags("b10later", &["--network-mode", mode, "--reconcile-seconds", "1"]);
        let sh = |line: &str| host.node.sh(&["sh", "-c", line]).unwrap();
        sh(OTHER);
        let (pod, result) = host.attached("a");
        for [add, remove] in [CASES[1], CASES[2]] {
            sh(add);
            let overlap = wait_for_overlap(&host.agent, "/v1/status");
            assert_eq!(overlap["severity"], "degraded", "{mode}: {overlap}");
            assert!(host.agent.is_ready(), "{mode}: {overlap}");
            host.check(&pod, &result);
            assert_eq!(overlap["fix"], Value::Null, "Podwire must not propose to remove unmanaged objects");
            sh(remove);
            wait_until("the condition to end", DEADLINE, || {
                Ok(overlaps(&host.agent, "/v1/status").is_empty())
            })
            .unwrap();
        }
        // An agent that starts now serves pods, because pods already run.
        sh(CASES[2][0]);
        let mut host = host;
        host.agent.kill().unwrap();
        host.agent.launch().unwrap();
        host.agent.wait_ready().unwrap();
        assert_eq!(wait_for_overlap(&host.agent, "/v1/status")["severity"], "degraded");
    }
}

/// Bridge, subnet, and whether the agent serves the request.
const NETWORKS: [(&str, &str, bool); 3] = [
    ("podwire0", "10.83.0.0/16,fd00:88::/64", false),
    ("second0", "10.83.5.0/24", false),
    ("third0", "10.9.0.0/24,fd00:88::/64", true),
];

#[test]
fn b16_a_bridge_mode_network_on_the_agents_subnet_is_reported() {
    let host = Host::with_flags("b16same", &["--reconcile-seconds", "1"]);
    for (bridge, subnet, agent) in NETWORKS {
        let mut config = json!({
            "cniVersion": "1.0.0", "name": format!("net-{bridge}"), "type": "podwire-cni", "mode": "bridge",
            "bridge": bridge, "subnet": subnet, "runDir": host.agent.run_dir(),
            "logFile": host.node.log_file(),
        });
        if agent {
            config["agent"] = host.config(&json!({}))["agent"].clone();
        }
        let pod = host.pod(bridge);
        host.plugin.add(&pod, &config).unwrap().ok().unwrap();
        let object = json!(format!("network net-{bridge}"));
        let named = || {
            overlaps(&host.agent, "/v1/status").into_iter().find(|condition| condition["object"] == object)
        };
        wait_until("the network to be reported", DEADLINE, || Ok(named().is_some())).unwrap();
        assert!(host.agent.is_ready());
        assert_eq!(named().unwrap()["severity"], "degraded");
        host.plugin.del(&pod, &config).unwrap().ok().unwrap();
        wait_until("the condition to end", DEADLINE, || Ok(named().is_none())).unwrap();
        if bridge != "podwire0" {
            host.node.sh(&["ip", "link", "del", bridge]).unwrap();
        }
    }
}
