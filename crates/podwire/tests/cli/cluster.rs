//! Queries of the cluster through the agent of one node: nodes, routes, blocks, and the removal of a node.

use std::fs;
use std::path::Path;

use api::{BlocksView, NodeView, NodesView, Removed, RouteState, RouteTransport, RoutesView};
use rustix::process::Signal;
use serde::de::DeserializeOwned;
use serde_json::json;
use testkit::{Cluster, DEADLINE, Outcome, Plan, TransportMode, wait_until};

use crate::common::{Host, expect_width, has};

/// A cluster with etcd. The agents run the tested tool.
pub(crate) fn cluster(label: &str, plan: &Plan) -> Cluster {
    let mut cluster = Cluster::hosts(label, plan).unwrap();
    cluster.start_etcd().unwrap();
    for name in cluster.node_names() {
        cluster.agent_mut(&name).unwrap().set_program(Path::new(env!("CARGO_BIN_EXE_podwire")));
    }
    cluster.start_agents().unwrap();
    cluster
}

pub(crate) fn ask(cluster: &Cluster, node: &str, args: &[&str]) -> Outcome {
    let agent = cluster.agent(node).unwrap();
    let run_dir = agent.run_dir().to_str().unwrap().to_owned();
    let outcome = agent.podwire(&[args, &["--run-dir", &run_dir]].concat()).unwrap();
    expect_width(args, &outcome.stdout, 80);
    outcome
}

fn json<T: DeserializeOwned>(outcome: &Outcome) -> T {
    serde_json::from_str(&outcome.stdout).unwrap_or_else(|error| panic!("{error}: {outcome:?}"))
}

/// The words of a table, without its column widths.
fn words(text: &str) -> String {
    format!("{} ", text.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// The kernel has all routes of n1.
fn wait_for_routes(cluster: &Cluster, number: usize) {
    wait_until("the routes of n1", DEADLINE, || {
        let outcome = ask(cluster, "n1", &["routes", "-o", "json"]);
        Ok(outcome.success() && serde_json::from_str::<RoutesView>(&outcome.stdout)?.routes.len() == number)
    })
    .unwrap();
}

#[test]
fn nodes_blocks_and_routes_are_listed_and_nodes_removed() {
    let mut cluster = cluster("three", &Plan { nodes: 3, subnets: 2, ..Plan::default() });
    wait_for_routes(&cluster, 4);
    let routes = ask(&cluster, "n1", &["routes"]).stdout;
    assert!(routes.starts_with("4 routes to 2 nodes: 2 direct, 2 vxlan; all as expected\n"), "{routes}");
    has(&routes, &["10.199.1.3 on eth0", "fd99:1::3 on eth0", " on pwvx4", "  ok"]);

    let RoutesView { routes, .. } = json(&ask(&cluster, "n1", &["routes", "-o", "json"]));
    for (transport, words) in [(RouteTransport::Direct, "direct to"), (RouteTransport::Vxlan, "VXLAN to")] {
        let route = routes.iter().find(|route| route.transport == transport).unwrap();
        let target = route.block.hosts().nth(9).unwrap().to_string();
        let explained = ask(&cluster, "n1", &["explain", "node:n1", &target, "--proto", "icmp"]);
        assert!(explained.success(), "{explained:?}");
        let (link, node) = (route.link.as_deref().unwrap(), route.node.as_deref().unwrap());
        let path = [
            format!("transport: {words} the other node, link {link}, next hop "),
            format!("to: node {node}"),
            "NAT: none on this node".to_owned(),
            format!("not known: the pod with address {target}"),
        ];
        has(&explained.stdout, &path.each_ref().map(String::as_str));
    }

    let NodesView { nodes, .. } = json(&ask(&cluster, "n1", &["nodes", "-o", "json"]));
    assert!(nodes.iter().all(|node| node.blocks.len() == 2 && node.addresses.len() == 2), "{nodes:?}");
    wait_until("all agents to be alive", DEADLINE, || {
        Ok(ask(&cluster, "n1", &["nodes"]).stdout.starts_with("3 nodes: all agents are alive\n"))
    })
    .unwrap();
    let table = ask(&cluster, "n1", &["nodes"]).stdout;
    has(&table, &["\nn1 (here)  ", "  10.199.1.1  ", "  fd99:1::1  ", "\nn2 ", "\nn3 ", "alive for "]);
    has(&ask(&cluster, "n1", &["nodes", "-o", "wide"]).stdout, &["  10.199.1.1 fd99:1::1  ", "VERSION"]);
    has(&ask(&cluster, "n2", &["nodes"]).stdout, &["\nn2 (here)  "]);

    let blocks = ask(&cluster, "n1", &["blocks"]);
    assert!(blocks.success(), "{blocks:?}");
    has(&blocks.stdout, &["10.42.0.0/16: 3 of 256 blocks claimed\nfd42::/64: 3 of 256 blocks claimed\n"]);
    let of_n1 = format!(" {} n1 (here) 0 253 ", nodes[0].blocks[0]);
    let of_n2 = format!(" {} n2 - - ", nodes[1].blocks[0]);
    has(&words(&blocks.stdout), &[&of_n1, &of_n2]);
    let status = ask(&cluster, "n1", &["status"]).stdout;
    has(&status, &["\nof the network 10.42.0.0/16 fd42::/64; 'podwire blocks'"]);

    route_is_restored(&cluster, &nodes);
    removal(&mut cluster, &nodes);
}

/// A route that was deleted while the agent was stopped is restored.
fn route_is_restored(cluster: &Cluster, nodes: &[NodeView]) {
    let (agent, node) = (cluster.agent("n1").unwrap(), cluster.node("n1").unwrap());
    let block = nodes[2].blocks[0].to_string();
    agent.signal(Signal::STOP).unwrap();
    node.sh(&["ip", "route", "del", &block]).unwrap();
    agent.signal(Signal::CONT).unwrap();
    wait_for_routes(cluster, 4);
    has(&node.sh(&["ip", "route", "show", &block]).unwrap(), &["via 10.199.1.3 dev eth0 proto 113"]);
}

fn removal(cluster: &mut Cluster, nodes: &[NodeView]) {
    let refused = |cluster: &Cluster, name: &str, reason: &str| {
        let outcome = ask(cluster, "n1", &["node", "rm", name]);
        assert_eq!((outcome.status.code(), outcome.stdout.as_str()), (Some(1), ""), "{outcome:?}");
        has(&outcome.stderr, &["podwire: ", reason]);
    };
    refused(cluster, "n2", "the agent of n2 is alive");
    refused(cluster, "n1", "n1 is this node");
    refused(cluster, "n9", "there is no node n9 in the store");
    assert_eq!(ask(cluster, "n1", &["node", "rm", "../n2"]).status.code(), Some(2), "an invalid name");

    cluster.agent_mut("n2").unwrap().stop().unwrap();
    cluster.kill_agent("n3").unwrap();
    // Its lease has not expired yet.
    refused(cluster, "n3", "the agent of n3 is alive");
    let removed: Removed = json(&ask(cluster, "n1", &["node", "rm", "n3", "--force", "-o", "json"]));
    assert_eq!((removed.name.as_str(), &removed.blocks), ("n3", &nodes[2].blocks));
    wait_for_routes(cluster, 2);
    wait_until("n2 to be offline", DEADLINE, || {
        Ok(ask(cluster, "n1", &["nodes"]).stdout.starts_with("2 nodes: the agent of n2 is OFFLINE\n"))
    })
    .unwrap();
    // Routes stay until the node is removed, because its pods may be running.
    wait_for_routes(cluster, 2);
    let outcome = ask(cluster, "n1", &["node", "rm", "n2"]);
    assert!(outcome.success(), "{outcome:?}");
    let [v4, v6] = &nodes[1].blocks[..] else { panic!("{nodes:?}") };
    assert_eq!(outcome.stdout, format!("node n2 removed; freed blocks: {v4} {v6}\n"));
    wait_for_routes(cluster, 0);
    assert_eq!(ask(cluster, "n1", &["routes"]).stdout, "no routes: no other node has a block\n");
    has(&ask(cluster, "n1", &["nodes"]).stdout, &["1 node: its agent is alive\n"]);
    let blocks: BlocksView = json(&ask(cluster, "n1", &["blocks", "-o", "json"]));
    assert_eq!(blocks.subnets.iter().map(|subnet| subnet.claimed).collect::<Vec<_>>(), [1, 1]);
    assert!(blocks.blocks.iter().all(|block| block.local), "{blocks:?}");
}

#[test]
fn missing_routes_are_listed_first_and_exit_with_1() {
    let plan = Plan { nodes: 3, subnets: 2, transport: TransportMode::Direct, ..Plan::default() };
    let cluster = cluster("nopath", &plan);
    let title = "4 routes to 2 nodes: 2 direct, 2 without a path; 2 missing\n";
    wait_until("the routes of n1", DEADLINE, || {
        Ok(ask(&cluster, "n1", &["routes"]).stdout.starts_with(title))
    })
    .unwrap();
    let outcome = ask(&cluster, "n1", &["routes"]);
    assert_eq!(outcome.status.code(), Some(1), "{outcome:?}");
    let table = words(&outcome.stdout);
    has(
        &table,
        &["STATE 10.42.", " n2 none - missing: the transport is direct", "use transport auto or vxlan"],
    );
    assert!(table.find(" n2 none ") < table.find(" n3 direct "), "{table}");
    let outcome = ask(&cluster, "n1", &["routes", "-o", "json"]);
    assert_eq!(outcome.status.code(), Some(1));
    let RoutesView { routes, .. } = json(&outcome);
    let missing = routes.iter().filter(|route| route.state != RouteState::Ok);
    assert!(
        missing
            .clone()
            .all(|route| route.node.as_deref() == Some("n2") && route.transport == RouteTransport::None)
    );
    assert_eq!(missing.count(), 2);
}

/// etcd is killed after the agents have read the cluster.
#[test]
fn a4_stale_data_is_shown_and_exits_with_1() {
    let mut cluster = Cluster::hosts("cli-stale", &Plan { nodes: 2, ..Plan::default() }).unwrap();
    for name in cluster.node_names() {
        cluster.agent_mut(&name).unwrap().set_program(Path::new(env!("CARGO_BIN_EXE_podwire")));
    }
    cluster.start_etcd().unwrap();
    cluster.start_agents().unwrap();
    wait_for_routes(&cluster, 2);
    wait_until("all agents to be alive", DEADLINE, || {
        Ok(ask(&cluster, "n1", &["nodes"]).stdout.starts_with("2 nodes: all agents are alive\n"))
    })
    .unwrap();
    cluster.etcd.members[0].kill().unwrap();
    let mark = " ago; etcd is not reachable: ";
    wait_until("the stale answer", DEADLINE, || Ok(ask(&cluster, "n1", &["nodes"]).stdout.contains(mark)))
        .unwrap();
    let nodes = ask(&cluster, "n1", &["nodes"]);
    assert_eq!(nodes.status.code(), Some(1), "{nodes:?}");
    assert!(nodes.stdout.starts_with("2 nodes as of "), "{}", nodes.stdout);
    has(&nodes.stdout, &["\nn1 (here)  ", "  10.199.1.1  ", "\nn2  ", "  was alive  "]);
    let blocks = ask(&cluster, "n1", &["blocks"]);
    assert_eq!(blocks.status.code(), Some(1), "{blocks:?}");
    assert!(blocks.stdout.starts_with("as of "), "{}", blocks.stdout);
    has(&blocks.stdout, &[mark, "10.42.0.0/16: 2 of 256 blocks claimed\n", "n1 (here)  0     253"]);
    let routes = ask(&cluster, "n1", &["routes"]);
    assert_eq!(routes.status.code(), Some(1), "{routes:?}");
    assert!(routes.stdout.starts_with("as of "), "{}", routes.stdout);
    has(&routes.stdout, &[mark, "\n\n2 routes to 1 node: 2 direct; all as expected\n"]);
    for (command, number) in [("nodes", 2), ("blocks", 4), ("routes", 2)] {
        let outcome = ask(&cluster, "n1", &[command, "-o", "json"]);
        assert_eq!(outcome.status.code(), Some(1), "{outcome:?}");
        let view: serde_json::Value = json(&outcome);
        assert!(view["stale"] == true && view["asOf"].as_str().unwrap().ends_with('Z'), "{view:#}");
        assert_eq!(view[command].as_array().unwrap().len(), number, "{command}");
    }
}

#[test]
fn errors_of_an_unreachable_store_are_shown() {
    let host = Host::new("nostore");
    let mut agent = host.idle_agent(&["--no-install", "--store", "etcd", "--etcd-endpoints", "127.0.0.1:1"]);
    agent.launch().unwrap();
    wait_until("an answer", DEADLINE, || Ok(agent.client().get(api::HEALTH, DEADLINE)?.status == 200))
        .unwrap();
    for args in [&["nodes"][..], &["blocks"], &["node", "rm", "n2"], &["nodes", "-o", "json"]] {
        let outcome = host.ask(args);
        assert_eq!((outcome.status.code(), outcome.stdout.as_str()), (Some(1), ""), "{outcome:?}");
        has(&outcome.stderr, &["podwire: ", "127.0.0.1:1"]);
        if args[0] != "node" {
            has(
                &outcome.stderr,
                &["etcd is not reachable: ", "; this node has no saved state of the cluster"],
            );
        }
        assert_eq!(outcome.stderr.lines().count(), 1, "{}", outcome.stderr);
    }
    // Routes are shown, because the kernel may have some.
    let routes = host.ask(&["routes"]);
    assert_eq!(routes.status.code(), Some(1), "{routes:?}");
    let text = words(&routes.stdout);
    has(&text, &["of unknown age; etcd is not reachable: ", "; this node has no saved state of the cluster"]);
    has(&text, &["no routes: no other node with a block is known"]);
    drop(agent);
    let outcome = host.ask(&["nodes"]);
    assert_eq!(outcome.status.code(), Some(3));
    has(&outcome.stderr, &["no agent listens"]);
    assert!(!outcome.stderr.contains("os error"), "{}", outcome.stderr);
    assert_eq!(
        outcome.stderr.matches("Connection refused").count() + outcome.stderr.matches("No such file").count(),
        1,
        "{}",
        outcome.stderr
    );
}

#[test]
fn a_single_node_owns_the_complete_network() {
    let host = Host::new("one");
    let _agent = host.agent(&["--no-install", "--node", "only"]);
    wait_until("the node in the store", DEADLINE, || {
        Ok(host.ask(&["nodes"]).stdout.starts_with("1 node: its agent is alive\n"))
    })
    .unwrap();
    has(&host.ask(&["nodes"]).stdout, &["only (here)", "10.83.0.0/16", "fd00:88::/64"]);
    let blocks = host.ask(&["blocks"]);
    assert!(blocks.success(), "{blocks:?}");
    has(&blocks.stdout, &["10.83.0.0/16: 1 of 1 block claimed\n", "10.83.0.0/16  only (here)  0     65533"]);
    let routes = host.ask(&["routes"]);
    assert!(routes.success() && routes.stdout.starts_with("no routes"), "{routes:?}");
}

#[test]
fn a7_installed_config_has_the_block_and_the_network() {
    let host = Host::new("ownblock");
    let runtime = host.runtime();
    let template = host.node.dir().join("template");
    let text = r#"{"cniVersion": "{{ CNI_VERSION }}", "name": "{{ NAME }}", "plugins": [{"type": "{{ TYPE }}",
        "agent": "{{ SOCKET }}", "runDir": "{{ RUN_DIR }}", "subnet": "{{ BLOCK }}",
        "args": {"network": "{{ NETWORK }}", "gateway": "{{ GATEWAY }}"}}]}"#;
    fs::write(&template, text).unwrap();
    let agent =
        host.agent(&["--no-install", "--network-margin", "8", "--network-subnet", "10.42.0.0/16,fd42::/64"]);
    let outcome = host.install(&["--template", template.to_str().unwrap()]);
    assert!(outcome.success(), "{outcome:?}");
    let status: api::Status = serde_json::from_value(agent.get(api::STATUS).unwrap()).unwrap();
    let blocks: Vec<String> = status.network.blocks.iter().map(|block| block.block.to_string()).collect();
    assert!(blocks[0].ends_with(".0/24") && blocks[1].ends_with("/72"), "{blocks:?}");
    let plugin = &runtime.config("10-podwire.conflist")["plugins"][0];
    assert_eq!(plugin["subnet"], json!(blocks.join(",")));
    assert_eq!(plugin["args"]["network"], "10.42.0.0/16,fd42::/64");
    let gateway = blocks[0].replace(".0/24", ".1");
    assert!(plugin["args"]["gateway"].as_str().unwrap().starts_with(&format!("{gateway},fd42:")), "{plugin}");
    assert_eq!(
        host.install(&["--template", template.to_str().unwrap()]).stdout,
        "all files are up to date\n"
    );
}
