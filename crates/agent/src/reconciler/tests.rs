//! Two agents at the same time, of which one ends, and an agent whose bridge cannot be created.

use std::fs;

use rustix::process::Signal;
use testkit::{Agent, DEADLINE, Lab, wait_until};

#[test]
fn an_agent_ends_if_another_one_uses_its_run_directory() {
    let lab = Lab::new("lostlock").unwrap();
    // In different namespaces, so that only the run directory is shared.
    let (here, there) = (lab.node("n1").unwrap(), lab.node("n2").unwrap());
    let mut first = Agent::start(&here, &["--no-install"]).unwrap();
    // So that the other one takes the lock first.
    first.signal(Signal::STOP).unwrap();
    fs::remove_dir_all(first.run_dir()).unwrap();
    let mut second = Agent::in_dir(&there, here.dir(), &["--no-install"]).unwrap();
    second.launch().unwrap();
    second.wait_ready().unwrap();
    first.signal(Signal::CONT).unwrap();
    wait_until("the first agent's end", DEADLINE, || first.has_ended()).unwrap();
    assert!(second.is_ready() && !second.has_ended().unwrap());
    let (log, pid) = (first.log().unwrap(), format!("process {}", second.pid().unwrap()));
    let line =
        log.lines().find(|line| line.contains("another agent uses it")).unwrap_or_else(|| panic!("{log}"));
    assert!(line.contains(&pid) && line.contains("--run-dir"), "{line}");
    second.kill().unwrap();
    let status = first.wait_ready().unwrap_err().to_string();
    assert!(status.contains("exit status: 1"), "{status}");
}

/// Why the agent is not ready. Empty if it is ready or does not listen yet.
fn reason(agent: &Agent) -> String {
    let answer = agent.client().get(api::READY, DEADLINE).ok();
    let readiness = answer.and_then(|answer| serde_json::from_slice::<api::Readiness>(&answer.body).ok());
    let first = readiness.and_then(|readiness| readiness.conditions.into_iter().next());
    first.map(|found| format!("{} {}", found.code, found.object)).unwrap_or_default()
}

#[test]
fn an_agent_is_ready_only_with_its_bridge() {
    let lab = Lab::new("nobridge").unwrap();
    let node = lab.node("n1").unwrap();
    node.sh(&["ip", "link", "add", "podwire0", "type", "veth", "peer", "name", "other"]).unwrap();
    let mut agent = Agent::new(&node, &["--no-install"]).unwrap();
    agent.launch().unwrap();
    wait_until("its reason", DEADLINE, || Ok(reason(&agent) == "BridgeNameTaken link podwire0")).unwrap();
    assert!(!agent.is_ready() && !agent.log().unwrap().contains("ready after"));
    node.sh(&["ip", "link", "del", "podwire0"]).unwrap();
    agent.wait_ready().unwrap();
    // A removed bridge is restored, and the agent stays ready meanwhile.
    node.sh(&["ip", "link", "del", "podwire0"]).unwrap();
    wait_until("the bridge", DEADLINE, || {
        assert!(agent.is_ready(), "{:?}", reason(&agent));
        Ok(node.sh(&["ip", "link", "show", "podwire0"]).is_ok())
    })
    .unwrap();
    // The agent may restore the bridge before the other link is added.
    let replace = ["sh", "-c", "ip link del podwire0; ip link add podwire0 type veth peer name other"];
    wait_until("a link of another kind", DEADLINE, || Ok(node.run(&replace, b"")?.success())).unwrap();
    wait_until("its reason", DEADLINE, || Ok(reason(&agent) == "BridgeNameTaken link podwire0")).unwrap();
    node.sh(&["ip", "link", "del", "podwire0"]).unwrap();
    agent.wait_ready().unwrap();
    agent.kill().unwrap();
}

#[test]
fn a3_no_fix_renames_a_link_that_the_node_uses() {
    const LINK: &str = "ip link add podwire0 type veth peer name other; ip link set other up;";
    for (more, may_be_renamed) in [
        ("", true),
        ("ip link set podwire0 up", true),
        ("ip address add 192.0.2.1/24 dev podwire0", false),
        ("ip address add 2001:db8::1/64 dev podwire0", false),
        ("ip link set podwire0 up; ip route add default dev podwire0", false),
        ("ip link set podwire0 up; ip -6 route add default dev podwire0", false),
        ("ip link add br1 type bridge; ip link set podwire0 master br1", false),
        ("ip link del podwire0; ip tuntap add podwire0 mode tun", false),
    ] {
        let lab = Lab::new("taken").unwrap();
        let node = lab.node("n1").unwrap();
        node.sh(&["sh", "-c", &format!("{LINK}{more}")]).unwrap();
        let mut agent = Agent::new(&node, &["--no-install"]).unwrap();
        agent.launch().unwrap();
        wait_until("its reason", DEADLINE, || Ok(reason(&agent) == "BridgeNameTaken link podwire0")).unwrap();
        let answer = agent.client().get(api::READY, DEADLINE).unwrap();
        let ready: api::Readiness = serde_json::from_slice(&answer.body).unwrap();
        let fix = ready.conditions[0].fix.clone().unwrap();
        let plugin = testkit::Plugin::podwire().unwrap();
        let config = serde_json::json!({"cniVersion": "1.1.0", "name": "solo", "type": "podwire-cni",
            "bridge": "podwire0", "subnet": "10.9.0.0/24", "runDir": node.dir().join("solo")});
        let status = plugin.status(&node, &config).unwrap().error().unwrap();
        if may_be_renamed {
            assert_eq!(status.details, format!("BridgeNameTaken: {fix}"), "{more}");
            node.sh(&["sh", "-c", &fix]).unwrap();
            agent.wait_ready().unwrap();
        } else {
            let other = r"printf '\n%s\n' PODWIRE_NETWORK_BRIDGE=podwire1 >> /etc/podwire/agent.env && systemctl restart podwire";
            assert_eq!(fix, other, "{more}");
            assert!(!status.details.contains("ip link"), "{more}: {status:?}");
        }
        agent.kill().unwrap();
    }
}

#[test]
fn a_second_agent_of_a_network_refuses_to_start() {
    let lab = Lab::new("onenet").unwrap();
    let node = lab.node("n1").unwrap();
    let mut first = Agent::start(&node, &["--no-install"]).unwrap();
    let elsewhere = node.dir().join("elsewhere");
    let mut second = Agent::in_dir(&node, &elsewhere, &["--no-install"]).unwrap();
    second.launch().unwrap();
    let error = second.wait_ready().unwrap_err().to_string();
    for word in
        ["exit status: 1", "the network podwire", "--network-name", "--network-bridge", "--network-subnet"]
    {
        assert!(error.contains(word), "{error}");
    }
    // The kernel releases the lock when the process ends.
    first.restart().unwrap();
    first.kill().unwrap();
    second = Agent::start(&node, &["--no-install"]).unwrap();
    second.kill().unwrap();
}
