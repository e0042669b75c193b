//! The world of the benchmark: a large cluster without randomness.

use std::sync::Arc;

use model::Labels;
use model::objects::{
    ClusterAction, ClusterNetworkPolicy, ClusterPeer, ClusterProtocol, ClusterRule, ClusterSubject,
    ClusterTier, Identity, NamedPort, NamespaceScope, NamespacedName, NetworkPolicy, NetworkPolicyPeer,
    NetworkPolicyPort, NetworkPolicyRule, PortMatch, PortRange,
};
use policy::{NodeEntry, PodEntry, PodPhase, World, WorldChange};
use types::{Placement, Protocol};

use crate::build::{labels, named, net, network, parsed, selector};

/// Numbers of objects. The defaults are those of the documented benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BenchSize {
    pub nodes: usize,
    pub namespaces: usize,
    pub pods: usize,
    pub local_pods: usize,
    pub network_policies: usize,
    /// NetworkPolicies that allow pods of all namespaces.
    pub open_policies: usize,
    /// NetworkPolicies with a block that has exceptions.
    pub block_policies: usize,
    /// ClusterNetworkPolicies with Deny rules.
    pub cluster_policies: usize,
}

impl Default for BenchSize {
    fn default() -> Self {
        Self {
            nodes: 41,
            namespaces: 250,
            pods: 10_000,
            local_pods: 250,
            network_policies: 1_000,
            open_policies: 100,
            block_policies: 50,
            cluster_policies: 5,
        }
    }
}

const APPS: usize = 8;
const TEAMS: usize = 10;

/// The first node is the local one. Pods of all namespaces run on it.
pub fn bench_world(size: BenchSize) -> World {
    let mut world = World::new(named("node-0"));
    world.apply(network("default", "default-net", &["10.83.0.0/16", "fd00:88::/64"]));
    (0..size.nodes).for_each(|index| world.apply(node(index)));
    for index in 0..size.namespaces {
        let namespace_labels = labels(&format!("team=t{},env={}", index % TEAMS, environment(index)));
        world.apply(WorldChange::SetNamespace(namespace(index), namespace_labels));
    }
    (0..size.pods).for_each(|index| world.apply(pod(size, index)));
    (0..size.network_policies).for_each(|index| world.apply(network_policy(size, index)));
    (0..size.cluster_policies).for_each(|index| world.apply(cluster_policy(index)));
    world
}

fn environment(index: usize) -> &'static str {
    if index.is_multiple_of(3) { "prod" } else { "test" }
}

fn namespace(index: usize) -> String {
    format!("ns-{index}")
}

fn node(index: usize) -> WorldChange {
    let addresses = vec![
        parsed(&format!("192.168.{}.{}", index / 250, index % 250 + 1)),
        parsed(&format!("10.83.{index}.1")),
        parsed(&format!("fd00:88::{index:x}:0:1")),
    ];
    WorldChange::SetNode(
        named(&format!("node-{index}")),
        NodeEntry { addresses, labels: labels("zone=west") },
    )
}

/// Each pod has a labelled app and a named port whose number depends on the app.
fn pod(size: BenchSize, index: usize) -> WorldChange {
    let node = if index < size.local_pods { 0 } else { 1 + (index - size.local_pods) % (size.nodes - 1) };
    let number = if node == 0 { index } else { (index - size.local_pods) / (size.nodes - 1) } + 2;
    let app = (index / size.namespaces) % APPS;
    let namespace = namespace(index % size.namespaces);
    let name = format!("pod-{index}");
    let pod_labels: Labels = labels(&format!("app=a{app},pod-template-hash=h{index}"));
    WorldChange::SetPod(PodEntry {
        uid: Arc::from(name.as_str()),
        name: NamespacedName { namespace: Some(namespace.clone()), name },
        node: named(&format!("node-{node}")),
        identity: Arc::new(Identity {
            placement: Placement::default(),
            namespace: Some(namespace),
            labels: pod_labels,
            ports: vec![NamedPort {
                name: "http".to_owned(),
                protocol: Protocol::Tcp,
                port: 8000 + app as u16,
            }],
        }),
        addresses: Some(vec![
            parsed(&format!("10.83.{node}.{number}")),
            parsed(&format!("fd00:88::{node:x}:0:{number:x}")),
        ]),
        phase: PodPhase::Running,
    })
}

/// Each namespace has several policies: of one app each, from pods of the namespace or of a team. Some allow all pods, some have blocks.
fn network_policy(size: BenchSize, index: usize) -> WorldChange {
    let app = index / size.namespaces;
    let matching = |namespaces: &str, pods: &str| NetworkPolicyPeer::Pods {
        namespaces: NamespaceScope::Matching(selector(namespaces)),
        pods: selector(pods),
    };
    let peers = if index < size.open_policies {
        vec![matching("", "")]
    } else if index < size.open_policies + size.block_policies {
        let block = index % 200;
        vec![NetworkPolicyPeer::Block {
            cidr: net(&format!("172.{}.{block}.0/24", 16 + index % 16)),
            except: vec![net(&format!("172.{}.{block}.128/26", 16 + index % 16))],
        }]
    } else {
        let team = matching(&format!("team=t{}", index % TEAMS), &format!("app=a{}", index % APPS));
        vec![NetworkPolicyPeer::Pods { namespaces: NamespaceScope::Own, pods: selector("") }, team]
    };
    let port = |port| NetworkPolicyPort { protocol: Protocol::Tcp, port };
    let range = PortRange::new(9000, 9000 + (index % 40) as u16).map(PortMatch::Range);
    let ports = [Some(PortMatch::Named("http".to_owned())), range].into_iter().flatten().map(port).collect();
    let subjects = if app == 0 { selector("") } else { selector(&format!("app=a{}", app % APPS)) };
    WorldChange::SetNetworkPolicy(NetworkPolicy {
        namespace: namespace(index % size.namespaces),
        name: format!("policy-{index}"),
        subjects,
        ingress: Some(vec![NetworkPolicyRule { peers, ports }]),
        egress: None,
    })
}

/// Denies some ports from one team to another, and from all pods.
fn cluster_policy(index: usize) -> WorldChange {
    let deny = |peer, port| ClusterRule {
        name: None,
        action: ClusterAction::Deny,
        peers: vec![peer],
        protocols: vec![ClusterProtocol::Ports { protocol: Protocol::Tcp, port }],
    };
    let team = ClusterPeer::Namespaces(selector(&format!("team=t{}", index % TEAMS)));
    let smtp = PortMatch::Range(PortRange::single(25));
    let high = PortRange::new(30_000, 32_767).map_or(PortMatch::All, PortMatch::Range);
    let anywhere = ClusterPeer::Networks(vec![net("0.0.0.0/0"), net("::/0")]);
    WorldChange::SetClusterPolicy(ClusterNetworkPolicy {
        name: format!("cluster-{index}"),
        tier: if index == 4 { ClusterTier::Baseline } else { ClusterTier::Admin },
        priority: 10 * (index as u16 + 1),
        subject: ClusterSubject::Namespaces(if index == 0 { selector("") } else { selector("env=prod") }),
        ingress: vec![deny(team, high)],
        egress: vec![deny(anywhere, smtp)],
    })
}
