//! Containers of a real podman with its CNI backend, with and without the agent, in both attach modes and families.

#![expect(clippy::unwrap_used, reason = "a test stops at the first error, also in helper functions")]

mod common;
#[path = "agent/site.rs"]
#[allow(dead_code, reason = "shared with the agent's tests")]
mod site;

use std::collections::BTreeSet;
use std::net::IpAddr;

use runtime::{Machine, Podman, Service};
use serde_json::{Value, json};
use testkit::{CableEnd, DEADLINE, Lab, Node, wait_until};

use common::{Traces, get, install_conflist_named, install_plugins};
use site::{CONFIG, Programs, names, start_agent_with, wait_for_agent};

const PARALLEL: usize = 20;
const STANDALONE: Setup = Setup { label: "standalone", agent: false, mode: "bridge" };
const AGENT: Setup = Setup { label: "agent", agent: true, mode: "routed" };
const ALL: [Setup; 4] = [
    STANDALONE,
    Setup { label: "standalone-routed", agent: false, mode: "routed" },
    AGENT,
    Setup { label: "agent-bridge", agent: true, mode: "bridge" },
];

#[derive(Clone, Copy)]
struct Setup {
    label: &'static str,
    agent: bool,
    mode: &'static str,
}

/// Fields are dropped from top to bottom.
struct Testbed {
    _agent: Option<Service>,
    podman: Podman,
    programs: Programs,
    machine: Machine,
    node: Node,
    lab: Lab,
    setup: Setup,
}

impl Testbed {
    fn new(test: &str, setup: Setup) -> Self {
        let lab = Lab::new(&format!("podman-{test}-{}", setup.label)).unwrap();
        let node = lab.node("n1").unwrap();
        let machine = Machine::new(&node).unwrap();
        let programs = Programs::built(&lab);
        let agent = setup.agent.then(|| {
            let flags = ["--network-mode", setup.mode];
            let agent = start_agent_with(&machine, &programs, &flags).unwrap();
            wait_for_agent(&machine).unwrap();
            wait_until("the config", DEADLINE, || Ok(machine.path(CONFIG).exists())).unwrap();
            agent
        });
        let podman = Podman::new(&machine).unwrap();
        let testbed = Self { _agent: agent, podman, programs, machine, node, lab, setup };
        if !setup.agent {
            install_plugins(&testbed.machine).unwrap();
            testbed.add_network("podwire", setup.mode, "10.70.0.0/24,fd00:70::/64");
        }
        testbed
    }

    /// Adds a network as an operator does.
    fn add_network(&self, name: &str, mode: &str, subnets: &str) {
        let mut network = json!({
            "type": "podwire-cni", "bridge": format!("pw-{name}"), "subnet": subnets, "mode": mode,
            "capabilities": { "portMappings": true, "ips": true },
        });
        if self.setup.agent {
            network["agent"] = json!(true);
        }
        install_conflist_named(&self.machine, name, &network).unwrap();
    }

    fn before_containers(&self) -> Traces {
        self.run("first", &[]);
        self.podman.remove("first").unwrap();
        Traces::after_first(&self.node, &self.machine)
    }

    fn run(&self, name: &str, options: &[&str]) {
        self.podman.run(name, &[&["--network", "podwire"], options].concat()).unwrap();
    }

    /// Addresses in one network, IPv4 first.
    fn addresses(&self, container: &str, network: &str) -> Vec<IpAddr> {
        let all: Vec<Value> =
            serde_json::from_str(&self.podman.sh(&["inspect", container]).unwrap()).unwrap();
        let network = &all[0]["NetworkSettings"]["Networks"][network];
        ["IPAddress", "GlobalIPv6Address"]
            .iter()
            .filter_map(|key| network[key].as_str()?.parse().ok())
            .collect()
    }

    fn expect_pings(&self, from: &str, to: &[IpAddr]) {
        assert_eq!(to.iter().map(IpAddr::is_ipv6).collect::<Vec<_>>(), [false, true], "{to:?}");
        for address in to {
            let program = if address.is_ipv6() { "ping6" } else { "ping" };
            self.podman.exec(from, &[program, "-c", "1", "-W", "5", &address.to_string()]).unwrap();
        }
    }

    /// Without an agent the routes exist when `disconnect` returns. An agent restores them afterwards.
    fn expect_default_routes(&self, container: &str, gateways: [&str; 2]) {
        let has_route = |(family, gateway): (&str, &str)| {
            let routes = self.podman.exec(container, &["ip", family, "route"]).unwrap();
            let is_default = |line: &str| line.starts_with(&format!("default via {gateway} "));
            routes.lines().any(is_default)
        };
        let has_both = || ["-4", "-6"].into_iter().zip(gateways).all(has_route);
        match self.setup.agent {
            true => wait_until("the default routes", DEADLINE, || Ok(has_both())).unwrap(),
            false => assert!(has_both(), "{gateways:?}"),
        }
    }

    /// Messages of `podwire doctor` about overlapping subnets.
    fn overlaps(&self) -> Vec<String> {
        let podwire = &self.programs.podwire;
        let outcome = self.machine.run(&[podwire.to_str().unwrap(), "doctor", "-o", "json"]).unwrap();
        let report: Value = serde_json::from_str(&outcome.stdout).unwrap();
        let overlaps =
            report["checks"].as_array().unwrap().iter().filter(|check| check["code"] == "SubnetOverlap");
        overlaps.map(|check| check["message"].to_string()).collect()
    }

    fn claims(&self) -> Vec<String> {
        names(&self.machine, "/run/podwire/networks/podwire/addresses")
    }

    fn expect_nothing_left(&self, before: &Traces) {
        before.expect_same_on(&self.node, &self.machine);
        assert_eq!(self.claims(), Vec::<String>::new());
        assert_eq!(names(&self.machine, "/run/podwire/tombstones"), Vec::<String>::new());
    }
}

#[test]
fn b18_podman_containers_reach_each_other_and_leave_no_objects() {
    for setup in ALL {
        let testbed = Testbed::new("run", setup);
        let before = testbed.before_containers();
        testbed.run("a", &[]);
        testbed.run("b", &[]);
        testbed.expect_pings("a", &testbed.addresses("b", "podwire"));
        testbed.expect_pings("b", &testbed.addresses("a", "podwire"));
        for container in ["a", "b"] {
            testbed.podman.remove(container).unwrap();
        }
        testbed.expect_nothing_left(&before);
    }
}

#[test]
fn b18_a_published_port_is_forwarded_until_the_container_is_removed() {
    for setup in [STANDALONE, AGENT] {
        let testbed = Testbed::new("port", setup);
        let outside = testbed.lab.node("outside").unwrap();
        let here = CableEnd { ns: &testbed.node, dev: "up0", addresses: &["192.0.2.1/24", "2001:db8::1/64"] };
        let there = CableEnd { ns: &outside, dev: "eth0", addresses: &["192.0.2.2/24", "2001:db8::2/64"] };
        testbed.lab.wire(&here, &there).unwrap();
        let before = testbed.before_containers();
        testbed.run("web", &["-p", "8080:80", "--hostname", "web"]);
        let serve = "echo hello from $(hostname) > /www/index.html; httpd -p 80 -h /www";
        testbed.podman.exec("web", &["sh", "-c", serve]).unwrap();
        let servers = ["192.0.2.1:8080", "[2001:db8::1]:8080"].map(|server| server.parse().unwrap());
        for server in servers {
            let page = get(&outside, server).unwrap();
            assert!(page.ends_with("hello from web\n"), "{server}: {page:?}");
        }
        testbed.podman.remove("web").unwrap();
        testbed.expect_nothing_left(&before);
        for server in servers {
            let error = get(&outside, server).unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused, "{server}");
        }
    }
}

#[test]
fn b18_podman_can_request_addresses_and_duplicates_are_rejected() {
    for setup in [STANDALONE, AGENT] {
        let testbed = Testbed::new("ip", setup);
        let before = testbed.before_containers();
        testbed.run("probe", &[]);
        // In the same subnets as a container without requested addresses.
        let requested: Vec<IpAddr> =
            testbed.addresses("probe", "podwire").into_iter().map(with_host_77).collect();
        let [v4, v6] = [0, 1].map(|family| requested[family].to_string());
        let options = ["--ip", &v4, "--ip6", &v6];
        testbed.run("chosen", &options);
        assert_eq!(testbed.addresses("chosen", "podwire"), requested);
        testbed.expect_pings("probe", &requested);
        let refused = testbed
            .podman
            .try_run("second", &[&["--network", "podwire"], options.as_slice()].concat())
            .unwrap();
        assert!(!refused.success() && refused.stderr.contains(&v4), "{}", refused.stderr);
        testbed.expect_pings("probe", &requested);
        for container in ["probe", "chosen", "second"] {
            testbed.podman.remove(container).unwrap();
        }
        testbed.expect_nothing_left(&before);
    }
}

fn with_host_77(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(v4) => IpAddr::from([v4.octets()[0], v4.octets()[1], v4.octets()[2], 77]),
        IpAddr::V6(v6) => {
            let mut segments = v6.segments();
            segments[7] = 0x77;
            segments.into()
        }
    }
}

#[test]
fn b18_podman_connects_a_running_container_to_networks_and_disconnects_it() {
    for setup in [STANDALONE, AGENT] {
        let testbed = Testbed::new("connect", setup);
        testbed.add_network("second", "bridge", "10.71.0.0/24,fd00:71::/64");
        for network in ["podwire", "second"] {
            testbed.podman.run("first", &["--network", network]).unwrap();
            testbed.podman.remove("first").unwrap();
        }
        let before = Traces::after_first(&testbed.node, &testbed.machine);
        testbed.run("a", &[]);
        testbed.run("b", &[]);
        testbed.podman.run("peer", &["--network", "second"]).unwrap();
        let (first, peer) = (testbed.addresses("b", "podwire"), testbed.addresses("peer", "second"));

        testbed.podman.sh(&["network", "connect", "second", "a"]).unwrap();
        testbed.expect_pings("a", &first);
        testbed.expect_pings("a", &peer);
        testbed.expect_pings("peer", &testbed.addresses("a", "second"));
        testbed.podman.sh(&["network", "disconnect", "podwire", "a"]).unwrap();
        assert_eq!(testbed.addresses("a", "podwire"), Vec::<IpAddr>::new());
        assert_eq!(testbed.claims().len(), 2, "the addresses of b: {:?}", testbed.claims());
        testbed.expect_default_routes("a", ["10.71.0.1", "fd00:71::1"]);
        testbed.expect_pings("a", &peer);
        testbed.podman.sh(&["network", "connect", "podwire", "a"]).unwrap();
        testbed.expect_pings("a", &first);
        testbed.expect_pings("b", &testbed.addresses("a", "podwire"));
        for container in ["a", "b", "peer"] {
            testbed.podman.remove(container).unwrap();
        }
        testbed.expect_nothing_left(&before);
    }
}

#[test]
fn b18_twenty_parallel_podman_containers_have_unique_addresses() {
    for setup in [STANDALONE, AGENT] {
        let testbed = Testbed::new("many", setup);
        let before = testbed.before_containers();
        let names: Vec<String> = (0..PARALLEL).map(|number| format!("c{number}")).collect();
        std::thread::scope(|scope| {
            for name in &names {
                scope.spawn(|| testbed.run(name, &[]));
            }
        });
        let addresses: BTreeSet<IpAddr> =
            names.iter().flat_map(|name| testbed.addresses(name, "podwire")).collect();
        assert_eq!(addresses.len(), 2 * PARALLEL, "{addresses:?}");
        assert_eq!(testbed.claims().len(), 2 * PARALLEL);
        testbed.expect_pings("c0", &testbed.addresses("c19", "podwire"));
        std::thread::scope(|scope| {
            for name in &names {
                scope.spawn(|| testbed.podman.remove(name).unwrap());
            }
        });
        testbed.expect_nothing_left(&before);
    }
}

/// podman's default network is 10.88.0.0/16.
#[test]
fn b10_the_default_networks_of_podman_and_podwire_coexist() {
    let testbed = Testbed::new("coexist", AGENT);
    testbed.podman.run("other", &[]).unwrap();
    testbed.run("a", &[]);
    testbed.run("b", &[]);
    let other = testbed.addresses("other", "podman");
    assert!(other[0].to_string().starts_with("10.88."), "{other:?}");
    testbed.expect_pings("a", &testbed.addresses("b", "podwire"));
    // The node reaches both, and `doctor` reports no overlap.
    for address in [other[0], testbed.addresses("a", "podwire")[0]] {
        testbed.machine.sh(&["ping", "-c", "1", "-W", "5", &address.to_string()]).unwrap();
    }
    assert_eq!(testbed.overlaps(), Vec::<String>::new());
}

#[test]
fn b10_podwire_does_not_use_podmans_subnet() {
    let lab = Lab::new("podman-taken").unwrap();
    let node = lab.node("n1").unwrap();
    let machine = Machine::new(&node).unwrap();
    let podman = Podman::new(&machine).unwrap();
    podman.run("other", &[]).unwrap();
    let before = testkit::Snapshot::of(&node).unwrap();
    let flags = ["--network-subnet", "10.88.0.0/16"];
    let agent = start_agent_with(&machine, &Programs::built(&lab), &flags).unwrap();
    let log = || std::fs::read_to_string(agent.log_file());
    wait_until("the overlap to be reported", DEADLINE, || {
        Ok(log()?
            .lines()
            .any(|line| ["SubnetOverlap", "link cni-podman0"].iter().all(|part| line.contains(part))))
    })
    .unwrap();
    before.expect_same(&node).unwrap();
    assert!(!machine.path(CONFIG).exists(), "the config was installed");
}
