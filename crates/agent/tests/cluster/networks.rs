//! Several networks: blocks are claimed when the first pod needs one, and returned when the network is removed.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ipnet::IpNet;
use model::{KeyLayout, NodeRecord, Object as _};
use serde_json::{Value, json};
use testkit::inspect::{self, Family};
use testkit::{Call, Cluster, Plan, Pod, Verb, tcp_connects, tcp_echo, wait_until};
use types::NetworkRef;

use crate::common::TIMEOUT;

const PREFIX: &str = "/podwire";
const PORT: u16 = 8080;
const ATTEMPT: Duration = Duration::from_millis(400);

fn document(kind: &str, (tenant, name): (&str, &str), spec: &Value) -> Value {
    let mut metadata = json!({ "name": name });
    if kind != "Tenant" {
        metadata["tenant"] = tenant.into();
    }
    json!({ "apiVersion": model::API_VERSION, "kind": kind, "metadata": metadata, "spec": spec })
}

fn network_ref(text: &str) -> NetworkRef {
    NetworkRef::try_from(text.to_owned()).unwrap()
}

/// A cluster with objects, and pods with placements.
struct Scene {
    cluster: Cluster,
}

/// A pod, the config of its ADD, and its addresses.
struct PlacedPod {
    node: String,
    pod: Pod,
    config: Value,
    addresses: Vec<IpAddr>,
}

impl Scene {
    fn up(label: &str, plan: &Plan) -> Self {
        Self { cluster: Cluster::up(label, plan).unwrap() }
    }

    fn change(&self, apply: &[Value], remove: &[(&str, &str, &str)]) -> (u16, String) {
        let apply: Vec<Value> = apply.iter().map(|body| json!({ "body": body })).collect();
        let remove: Vec<Value> = remove
            .iter()
            .map(|(kind, tenant, name)| json!({ "kind": kind, "tenant": tenant, "name": name }))
            .collect();
        let body = json!({ "apply": apply, "remove": remove });
        let client = self.cluster.agent("n1").unwrap().client();
        let answer = client.post("/v1/objects", &body, TIMEOUT).unwrap();
        (answer.status, String::from_utf8_lossy(&answer.body).into_owned())
    }

    /// Applies documents, and waits until all agents know their networks.
    #[track_caller]
    fn apply(&self, documents: &[Value]) {
        let (status, answer) = self.change(documents, &[]);
        assert_eq!(status, 200, "{answer}");
        for node in self.cluster.node_names() {
            wait_until(&format!("{node} to know the objects"), TIMEOUT, || {
                let known = self.cluster.agent(&node)?.get("/v1/objects")?;
                let name = |item: &Value| json!([item["kind"], item["metadata"]["name"]]);
                let names: Vec<Value> = known["items"].as_array().unwrap().iter().map(name).collect();
                Ok(documents.iter().all(|document| names.contains(&name(document))))
            })
            .unwrap();
        }
    }

    fn attempt(&self, node: &str, name: &str, placement: &Value) -> Result<PlacedPod, String> {
        let config = self.cluster.agent(node).unwrap().config(placement);
        let pod = self.cluster.node(node).unwrap().pod(name).unwrap();
        let outcome = self.cluster.plugin().call(pod.node(), &Call::pod(Verb::Add, &pod, &config)).unwrap();
        match outcome.ok() {
            Ok(result) => {
                let ips = result["ips"].as_array().unwrap().iter();
                let ip = |ip: &Value| ip["address"].as_str().unwrap().parse::<IpNet>().unwrap().addr();
                Ok(PlacedPod { node: node.to_owned(), pod, config, addresses: ips.map(ip).collect() })
            }
            Err(error) => {
                pod.destroy().unwrap();
                Err(format!("{error:#}"))
            }
        }
    }

    /// A pod with this placement. The agent may receive a new network a moment later than its API knows it.
    #[track_caller]
    fn pod(&self, node: &str, name: &str, placement: &Value) -> PlacedPod {
        self.attempt(node, name, placement).unwrap()
    }

    fn remove(&self, placed: &PlacedPod) {
        let call = Call::pod(Verb::Del, &placed.pod, &placed.config);
        self.cluster.plugin().call(placed.pod.node(), &call).unwrap().ok().unwrap();
        placed.pod.destroy().unwrap();
    }

    fn stored(&self) -> BTreeMap<String, String> {
        let member = &self.cluster.etcd.members[0];
        let argv = [
            "env",
            "ETCDCTL_API=3",
            "etcdctl",
            "--endpoints",
            member.endpoint(),
            "get",
            "--prefix",
            "/podwire/",
        ];
        let text = member.node().sh(&argv).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        lines.chunks(2).map(|pair| (pair[0].to_owned(), pair[1].to_owned())).collect()
    }

    /// The blocks of a network in the record of a node. Each has a claim of this node.
    #[track_caller]
    fn blocks(&self, node: &str, network: &str) -> Vec<IpNet> {
        let (all, layout) = (self.stored(), KeyLayout::new(PREFIX, None));
        let record = NodeRecord::decode(all[&format!("{PREFIX}/nodes/{node}")].as_bytes()).unwrap();
        let blocks = record.blocks.of(&network_ref(network)).to_vec();
        for block in &blocks {
            let key = layout.network_block(&network_ref(network), block);
            let (_, _, owner) = layout.claim_at(&key, all[&key].as_bytes()).unwrap();
            assert_eq!(owner.unwrap().as_str(), node);
        }
        blocks
    }

    /// The pool of group web has seven addresses: the last one of its block is the broadcast address.
    #[track_caller]
    fn expect_pool_of_a_group(&self) {
        let pool: IpNet = "10.72.0.136/29".parse().unwrap();
        let web = json!({ "tenant": "blue", "group": "web" });
        let is_in_pool = |placed: &PlacedPod| pool.contains(&placed.addresses[0]);
        for number in 0..7 {
            assert!(is_in_pool(&self.pod("n1", &format!("web{number}"), &web)), "pod {number}");
        }
        let full = self.attempt("n1", "web7", &web).err().unwrap();
        assert!(full.contains("all blocks with addresses of the pools 10.72.0.136/29 are in use"), "{full}");
        let elsewhere = self.attempt("n2", "web8", &web).err().unwrap();
        assert!(elsewhere.contains("no block of this node has addresses of 10.72.0.136/29"), "{elsewhere}");
        for number in 0..14 {
            let placement = json!({ "tenant": "blue", "network": "pooled" });
            let other = self.pod("n1", &format!("other{number}"), &placement);
            assert!(!is_in_pool(&other), "{:?}", other.addresses);
            self.expect_in(&other, "blue.pooled");
        }
    }

    /// The pod's addresses are in blocks of this network of its node.
    fn expect_recovery_of_lost_data(&mut self) {
        let directories = ["networks", "tenants", "groups", "pods", "identities"];
        let kept = |key: &str| directories.iter().any(|name| key.starts_with(&format!("{PREFIX}/{name}/")));
        let mut before = self.stored();
        before.retain(|key, _| kept(key));
        for part in ["/networks/blue.front/blocks/", "/networks/red.back/blocks/", "/tenants/", "/pods/n3/"] {
            assert!(before.keys().any(|key| key.contains(part)), "{part}: {:?}", before.keys());
        }
        let etcd = &mut self.cluster.etcd.members[0];
        etcd.stop().unwrap();
        std::fs::remove_dir_all(etcd.node().dir().join("data")).unwrap();
        self.cluster.start_etcd().unwrap();
        let mut after = BTreeMap::new();
        let recovered = wait_until("the store to have everything again", TIMEOUT, || {
            after = self.stored();
            after.retain(|key, _| kept(key));
            Ok(after == before)
        });
        recovered.unwrap_or_else(|error| panic!("{error}: {after:#?} instead of {before:#?}"));
    }

    #[track_caller]
    fn expect_in(&self, placed: &PlacedPod, network: &str) {
        let blocks = self.blocks(&placed.node, network);
        for address in &placed.addresses {
            assert!(blocks.iter().any(|block| block.contains(address)), "{address} in {blocks:?}");
        }
    }
}

/// The pods reach each other in all families. Returns the source that the second one observed.
#[track_caller]
fn expect_reach(from: &PlacedPod, to: &PlacedPod) {
    assert_eq!(from.addresses.len(), to.addresses.len());
    for (address, source) in to.addresses.iter().zip(&from.addresses) {
        let _echo = tcp_echo(&to.pod, SocketAddr::new(*address, PORT)).unwrap();
        let mut observed = None;
        wait_until("the pods to reach each other", TIMEOUT, || {
            observed = tcp_connects(&from.pod, SocketAddr::new(*address, PORT), ATTEMPT)?;
            Ok(observed.is_some())
        })
        .unwrap();
        assert_eq!(observed.map(|it| it.ip()), Some(*source), "pod traffic must keep its source");
    }
}

fn links_of_gateways(scene: &Scene, node: &str, subnets: &[IpNet]) -> Vec<String> {
    let shown = scene.cluster.node(node).unwrap().sh(&["ip", "-j", "address", "show"]).unwrap();
    let links: Vec<Value> = serde_json::from_str(&shown).unwrap();
    let mut found = Vec::new();
    for link in &links {
        for info in link["addr_info"].as_array().into_iter().flatten() {
            let address: IpAddr = info["local"].as_str().unwrap().parse().unwrap();
            if subnets.iter().any(|subnet| subnet.contains(&address)) {
                found.push(format!("{} {address}", link["ifname"].as_str().unwrap()));
            }
        }
    }
    found
}

fn routes_into(scene: &Scene, node: &str, subnets: &[IpNet]) -> Vec<String> {
    let node = scene.cluster.node(node).unwrap();
    let all = [Family::V4, Family::V6].map(|family| inspect::routes(node, family).unwrap()).concat();
    let is_inside = |dst: &str| {
        let net = dst.parse::<IpNet>().or_else(|_| dst.parse::<IpAddr>().map(IpNet::from));
        net.is_ok_and(|net| subnets.iter().any(|subnet| subnet.contains(&net)))
    };
    all.into_iter().map(|route| route.dst).filter(|dst| is_inside(dst)).collect()
}

fn nets(texts: &[&str]) -> Vec<IpNet> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

/// n1 and n3 are on one link, n2 is behind the tunnel.
fn two_tenants() -> [Value; 5] {
    [
        document("Tenant", ("", "blue"), &json!({})),
        document("Tenant", ("", "red"), &json!({})),
        document(
            "Network",
            ("blue", "front"),
            &json!({ "subnets": ["10.50.0.0/18", "fd50::/64"], "masquerade": false }),
        ),
        document(
            "Network",
            ("red", "back"),
            &json!({ "subnets": ["10.60.0.0/16", "fd60::/64"], "mtu": 1300 }),
        ),
        document("Group", ("blue", "web"), &json!({ "network": "front" })),
    ]
}

#[test]
fn d_pods_of_two_tenants_get_addresses_of_their_networks_and_reach_other_nodes() {
    let mut scene = Scene::up("nets", &Plan { nodes: 3, subnets: 2, ..Plan::default() });
    scene.apply(&two_tenants());
    assert_eq!(scene.blocks("n1", "blue.front"), [], "blocks are claimed when a pod needs one");
    let front = json!({ "tenant": "blue", "network": "front" });
    let back = json!({ "tenant": "red", "network": "back" });
    // The network of the group.
    let in_web = json!({ "tenant": "blue", "group": "web" });
    let blue: Vec<PlacedPod> = [("n1", &in_web), ("n2", &front), ("n3", &front)]
        .into_iter()
        .map(|(node, placement)| scene.pod(node, &format!("blue-{node}"), placement))
        .collect();
    let red: Vec<PlacedPod> =
        ["n1", "n2"].into_iter().map(|node| scene.pod(node, &format!("red-{node}"), &back)).collect();
    blue.iter().for_each(|placed| scene.expect_in(placed, "blue.front"));
    red.iter().for_each(|placed| scene.expect_in(placed, "red.back"));
    for [from, to] in [[0, 1], [1, 0], [0, 2], [2, 1]] {
        expect_reach(&blue[from], &blue[to]);
    }
    expect_reach(&red[0], &red[1]);
    // Settings of the networks.
    let mtu = |placed: &PlacedPod| {
        placed.pod.json(&["ip", "-j", "link", "show", "eth0"]).unwrap()[0]["mtu"].clone()
    };
    let gateway_device =
        scene.cluster.node("n1").unwrap().json(&["ip", "-j", "link", "show", "podwire0"]).unwrap();
    assert_eq!(mtu(&red[0]), json!(1300));
    assert_eq!((mtu(&blue[0]), mtu(&blue[0])), (gateway_device[0]["mtu"].clone(), json!(1450)));
    let host = scene.cluster.node("n3").unwrap();
    let node_addresses = scene.cluster.addresses("n1").unwrap();
    for address in scene.cluster.addresses("n3").unwrap() {
        let _echo = tcp_echo(host, SocketAddr::new(address, PORT)).unwrap();
        let source = |placed: &PlacedPod| {
            let connected = tcp_connects(&placed.pod, SocketAddr::new(address, PORT), TIMEOUT).unwrap();
            connected.unwrap_or_else(|| panic!("{address} was not reached")).ip()
        };
        assert!(blue[0].addresses.contains(&source(&blue[0])), "blue.front is not masqueraded");
        assert!(node_addresses.contains(&source(&red[0])), "red.back is masqueraded");
    }
    // One device has the gateways of all networks.
    let subnets =
        nets(&["10.50.0.0/18", "fd50::/64", "10.60.0.0/16", "fd60::/64", "10.42.0.0/16", "fd42::/64"]);
    let gateways = links_of_gateways(&scene, "n1", &subnets);
    let on_device = gateways.iter().filter(|it| it.starts_with("podwire0 ")).count();
    assert_eq!(on_device, 6, "{gateways:?}");

    // A restart keeps the blocks, also while etcd is down.
    let before: Vec<Vec<IpNet>> =
        ["blue.front", "red.back"].map(|network| scene.blocks("n1", network)).to_vec();
    scene.cluster.etcd.members[0].kill().unwrap();
    scene.cluster.restart_agent("n1").unwrap();
    let late = scene.pod("n1", "late", &front);
    assert!(late.addresses.iter().all(|ip| before[0].iter().any(|block| block.contains(ip))));
    expect_reach(&late, &blue[0]);
    scene.cluster.start_etcd().unwrap();
    // Other nodes know the new pod when the store has it.
    expect_reach(&late, &blue[1]);
    expect_reach(&blue[1], &late);
    wait_until("n1 to know the store again", TIMEOUT, || {
        Ok(scene.cluster.agent("n1")?.get(api::BLOCKS)?["stale"] == json!(false))
    })
    .unwrap();
    let after: Vec<Vec<IpNet>> =
        ["blue.front", "red.back"].map(|network| scene.blocks("n1", network)).to_vec();
    assert_eq!(after, before);

    // etcd loses its data. The networks, the claims of their blocks and the pods are written again.
    scene.expect_recovery_of_lost_data();
    expect_reach(&late, &blue[1]);
    expect_reach(&red[0], &red[1]);
    scene.expect_in(&scene.pod("n2", "later", &front), "blue.front");
}

#[test]
fn d_a_full_block_claims_another_and_a_removed_network_leaves_nothing() {
    let scene = Scene::up("nets-end", &Plan { nodes: 2, subnets: 2, ..Plan::default() });
    let (n1, n2) = ("n1", "n2");
    let tiny = json!({ "subnets": ["10.70.0.0/24", "fd70::/120"], "blockMargin": 5 });
    let only = json!({ "subnets": ["10.71.0.0/24"], "blockMargin": 2, "nodes": ["n2"] });
    scene.apply(&[
        document("Tenant", ("", "blue"), &json!({})),
        document("Network", ("blue", "tiny"), &tiny),
        document("Network", ("blue", "only"), &only),
        document("Network", ("blue", "pooled"), &json!({ "subnets": ["10.72.0.0/24"], "blockMargin": 4 })),
        document("Group", ("blue", "web"), &json!({ "network": "pooled", "pools": ["10.72.0.136/29"] })),
    ]);
    let placement = json!({ "tenant": "blue", "network": "tiny" });
    let mut pods = vec![scene.pod(n2, "far", &placement)];
    pods.extend((0..8).map(|number| scene.pod(n1, &format!("p{number}"), &placement)));
    assert!(scene.blocks(n1, "blue.tiny").len() >= 4, "eight pods need two blocks of each family");
    pods.iter().for_each(|placed| scene.expect_in(placed, "blue.tiny"));
    expect_reach(&pods[8], &pods[0]);
    // Names and nodes that are not allowed.
    let refused = scene.attempt(n1, "bad", &json!({ "tenant": "blue", "network": "tin" })).err().unwrap();
    assert!(refused.contains("there are: default-net, only, pooled, tiny"), "{refused}");
    let refused = scene.attempt(n1, "bad", &json!({ "tenant": "blue", "network": "only" })).err().unwrap();
    assert!(refused.contains("network only of tenant blue has pods only on these nodes: n2"), "{refused}");
    let elsewhere = scene.pod(n2, "only", &json!({ "tenant": "blue", "network": "only" }));
    scene.expect_in(&elsewhere, "blue.only");
    // The list of nodes changes: n2 returns its block when it has no pod in it.
    let moved = json!({ "subnets": ["10.71.0.0/24"], "blockMargin": 2, "nodes": ["n1"] });
    scene.apply(&[document("Network", ("blue", "only"), &moved)]);
    assert_eq!(scene.blocks(n2, "blue.only").len(), 1);
    scene.remove(&elsewhere);
    wait_until("n2 to return its block", TIMEOUT, || Ok(scene.blocks(n2, "blue.only").is_empty())).unwrap();
    let mut refused = None;
    wait_until("n1 to have the network", TIMEOUT, || {
        let attempt = scene.attempt(n1, "only", &json!({ "tenant": "blue", "network": "only" }));
        Ok(attempt
            .map(|placed| scene.expect_in(&placed, "blue.only"))
            .map_err(|error| refused = Some(error))
            .is_ok())
    })
    .unwrap_or_else(|_| panic!("{refused:?}"));

    scene.expect_pool_of_a_group();
    let removal = [("Network", "blue", "tiny")];
    let refused = |pods: &str| {
        wait_until(&format!("the store to know {pods}"), TIMEOUT, || {
            let (status, answer) = scene.change(&[], &removal);
            Ok(status == 409 && answer.contains(&format!("in use by {pods}")))
        })
        .unwrap();
    };
    refused("9 pods");
    pods.iter().filter(|placed| placed.node == n1).for_each(|placed| scene.remove(placed));
    // A pod of another node.
    refused("1 pod");
    assert_eq!(scene.blocks(n2, "blue.tiny").len(), 2);
    scene.remove(&pods[0]);
    wait_until("the network to be unused", TIMEOUT, || Ok(scene.change(&[], &removal).0 == 200)).unwrap();
    let subnets = nets(&["10.70.0.0/24", "fd70::/120"]);
    for node in [n1, n2] {
        wait_until(&format!("{node} to return its blocks"), TIMEOUT, || {
            Ok(scene.blocks(node, "blue.tiny").is_empty())
        })
        .unwrap();
    }
    let leftovers = || scene.stored().into_keys().filter(|key| key.contains("blue.tiny")).collect::<Vec<_>>();
    assert_eq!(leftovers(), [""; 0]);
    for node in [n1, n2] {
        wait_until(&format!("{node} to remove gateways and routes"), TIMEOUT, || {
            let (gateways, routes) =
                (links_of_gateways(&scene, node, &subnets), routes_into(&scene, node, &subnets));
            Ok(gateways.is_empty() && routes.is_empty())
        })
        .unwrap();
    }
    let (status, answer) = scene.change(&[document("Network", ("blue", "next"), &tiny)], &[]);
    assert_eq!(status, 200, "{answer}");
}
