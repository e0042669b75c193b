//! Prints how long the engine needs for a large world: `cargo run --release -p policy --example policy_figures`.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use model::objects::*;
use model::{LabelOperator, LabelRequirement, Labels, Selector};
use policy::*;
use types::{NodeName, Placement, Protocol};

const NAMESPACES: usize = 100;
const APPS: usize = 10;
const PODS: usize = 10_000;
const LOCAL_PODS: usize = 250;

fn label(key: &str, value: &str) -> Selector {
    let operator = LabelOperator::In(BTreeSet::from([value.to_owned()]));
    Selector { requirements: vec![LabelRequirement { key: key.to_owned(), operator }] }
}

fn node(number: usize) -> NodeName {
    NodeName::try_from(format!("node{number}")).unwrap_or_else(|e| unreachable!("{e}"))
}

fn identity(number: usize) -> Arc<Identity> {
    let (namespace, app) = (number / APPS % NAMESPACES, number % APPS);
    let labels = [
        ("app".to_owned(), format!("app{app}")),
        ("pod-template-hash".to_owned(), format!("{number:x}")),
        ("team".to_owned(), format!("team{}", namespace % 7)),
    ];
    Arc::new(Identity {
        placement: Placement::default(),
        namespace: Some(format!("ns{namespace}")),
        labels: Labels::from(labels),
        ports: vec![NamedPort { name: "web".to_owned(), protocol: Protocol::Tcp, port: 8080 }],
    })
}

/// The local pods have `LOCAL_PODS` identities with few repetitions.
fn pod(number: usize, families: usize) -> PodEntry {
    let is_local = number < LOCAL_PODS;
    let identity = identity(if is_local { number * 4 + number / 200 } else { number });
    let host = u32::try_from(number).unwrap_or(0) + 256;
    let v4 = IpAddr::from(Ipv4Addr::from(0x0a53_0000 + host));
    let v6 = IpAddr::from(Ipv6Addr::from((0xfd00_0088_u128 << 96) + u128::from(host)));
    let name = NamespacedName { namespace: identity.namespace.clone(), name: format!("pod{number}") };
    PodEntry {
        uid: format!("uid{number}").into(),
        name,
        node: node(if is_local { 0 } else { 1 + number % 100 }),
        identity,
        addresses: Some([v4, v6].into_iter().take(families).collect()),
        phase: PodPhase::Running,
    }
}

fn tcp(port: u16) -> NetworkPolicyPort {
    NetworkPolicyPort { protocol: Protocol::Tcp, port: PortMatch::Range(PortRange::single(port)) }
}

/// One per namespace and app: 100 allow all pods, 50 allow blocks with exceptions.
fn network_policy(namespace: usize, app: usize, port: u16) -> NetworkPolicy {
    let pods = |namespaces, pods| NetworkPolicyPeer::Pods { namespaces, pods };
    let mut ingress = vec![NetworkPolicyRule {
        peers: vec![
            pods(NamespaceScope::Own, label("app", &format!("app{}", (app + 1) % APPS))),
            pods(
                NamespaceScope::Matching(label("name", &format!("ns{}", (namespace + 1) % NAMESPACES))),
                label("app", "app0"),
            ),
        ],
        ports: vec![tcp(port), tcp(443)],
    }];
    if app == 0 {
        ingress.push(NetworkPolicyRule {
            peers: vec![pods(NamespaceScope::Matching(Selector::all()), Selector::all())],
            ports: vec![tcp(9090)],
        });
    }
    let mut egress = None;
    if app == 4 && namespace.is_multiple_of(2) {
        let block = |text: String| text.parse().unwrap_or_else(|e| unreachable!("{e}"));
        let cidr = block(format!("198.{}.0.0/16", namespace + 1));
        let except = vec![block(format!("198.{}.7.0/24", namespace + 1))];
        let peers = vec![NetworkPolicyPeer::Block { cidr, except }];
        egress = Some(vec![
            NetworkPolicyRule { peers, ports: vec![tcp(443)] },
            NetworkPolicyRule {
                peers: vec![pods(NamespaceScope::Matching(label("name", "ns0")), Selector::all())],
                ports: vec![NetworkPolicyPort {
                    protocol: Protocol::Udp,
                    port: PortMatch::Range(PortRange::single(53)),
                }],
            },
        ]);
    }
    NetworkPolicy {
        namespace: format!("ns{namespace}"),
        name: format!("app{app}"),
        subjects: label("app", &format!("app{app}")),
        ingress: Some(ingress),
        egress,
    }
}

fn cluster_policies() -> Vec<ClusterNetworkPolicy> {
    let rule = |action, peers, protocols| ClusterRule { name: None, action, peers, protocols };
    let ports = |port| {
        vec![ClusterProtocol::Ports {
            protocol: Protocol::Tcp,
            port: PortMatch::Range(PortRange::single(port)),
        }]
    };
    let policy = |name: &str, tier, priority| ClusterNetworkPolicy {
        name: name.to_owned(),
        tier,
        priority,
        subject: ClusterSubject::Namespaces(Selector::all()),
        ingress: Vec::new(),
        egress: Vec::new(),
    };
    let namespaces = |selector| vec![ClusterPeer::Namespaces(selector)];
    let (accept, deny) = (ClusterAction::Accept, ClusterAction::Deny);
    let mut monitoring = policy("monitoring", ClusterTier::Admin, 1);
    monitoring.ingress = vec![rule(accept, namespaces(label("name", "ns1")), ports(9100))];
    let mut smtp = policy("no-smtp", ClusterTier::Admin, 2);
    smtp.ingress = vec![rule(deny, namespaces(Selector::all()), ports(25))];
    smtp.egress = vec![rule(deny, namespaces(Selector::all()), ports(25))];
    let mut metadata = policy("no-metadata", ClusterTier::Admin, 3);
    let address = "169.254.169.254/32".parse().unwrap_or_else(|e| unreachable!("{e}"));
    metadata.egress = vec![rule(deny, vec![ClusterPeer::Networks(vec![address])], Vec::new())];
    let mut team = policy("team", ClusterTier::Admin, 4);
    team.subject = ClusterSubject::Namespaces(label("team", "team1"));
    team.ingress = vec![rule(deny, namespaces(label("team", "team2")), Vec::new())];
    let mut baseline = policy("baseline", ClusterTier::Baseline, 1);
    baseline.egress = vec![rule(deny, namespaces(label("team", "team3")), ports(6379))];
    vec![monitoring, smtp, metadata, team, baseline]
}

fn world(families: usize) -> Vec<WorldChange> {
    let mut changes: Vec<_> = (0..PODS).map(|number| WorldChange::SetPod(pod(number, families))).collect();
    for namespace in 0..NAMESPACES {
        let labels = [
            ("name".to_owned(), format!("ns{namespace}")),
            ("team".to_owned(), format!("team{}", namespace % 7)),
        ];
        changes.push(WorldChange::SetNamespace(format!("ns{namespace}"), Labels::from(labels)));
        let policies = (0..APPS).map(|app| network_policy(namespace, app, 80));
        changes.extend(policies.map(WorldChange::SetNetworkPolicy));
    }
    changes.extend(cluster_policies().into_iter().map(WorldChange::SetClusterPolicy));
    changes.extend((0..=100).map(|number| {
        let host = u32::try_from(number).unwrap_or(0);
        let addresses = vec![IpAddr::from(Ipv4Addr::from(0xac10_0000 + host))];
        WorldChange::SetNode(node(number), NodeEntry { addresses, labels: Labels::new() })
    }));
    let subnets =
        ["10.83.0.0/16", "fd00:88::/64"].map(|text| text.parse().unwrap_or_else(|e| unreachable!("{e}")));
    changes.push(WorldChange::SetNetwork(PolicyNetwork {
        tenant: Default::default(),
        id: Default::default(),
        subnets: subnets.to_vec(),
    }));
    changes
}

fn resident_kib() -> usize {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("VmRSS:")).unwrap_or_default().to_owned();
    line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).unwrap_or(0)
}

fn timed(name: &str, engine: &mut PolicyEngine, changes: Vec<WorldChange>) -> Duration {
    let start = Instant::now();
    let delta = engine.apply(changes);
    let time = start.elapsed();
    println!(
        "{name:55} {time:>12.1?}  replaced {}, set {}, profiles {}, removed {}",
        delta.replaced.len(),
        delta.set.len(),
        delta.profiles.len(),
        delta.removed.len()
    );
    time
}

fn small_changes(engine: &mut PolicyEngine, families: usize) {
    let mut new = pod(5000, families);
    new.uid = "new".into();
    new.addresses = Some(vec![IpAddr::from([10, 83, 200, 1])]);
    timed("a remote pod joins, known class", engine, vec![WorldChange::SetPod(new.clone())]);
    let mut local = new.clone();
    local.node = node(0);
    local.uid = "local".into();
    local.identity = identity(0);
    local.addresses = Some(vec![IpAddr::from([10, 83, 200, 2])]);
    timed("a local pod joins, known class and profile", engine, vec![WorldChange::SetPod(local.clone())]);
    local.uid = "local2".into();
    local.identity = identity(3);
    local.addresses = Some(vec![IpAddr::from([10, 83, 200, 3])]);
    timed("a local pod joins, known class, new profile", engine, vec![WorldChange::SetPod(local)]);
    let mut odd = Identity::clone(&new.identity);
    odd.labels.insert("app".to_owned(), "odd".to_owned());
    new.identity = Arc::new(odd);
    new.uid = "odd".into();
    new.addresses = Some(vec![IpAddr::from([10, 83, 200, 4])]);
    timed("a remote pod joins, new class", engine, vec![WorldChange::SetPod(new)]);
    timed("a remote pod leaves, last of its class", engine, vec![WorldChange::RemovePod("odd".into())]);
    timed(
        "a rule of a NetworkPolicy changes its port",
        engine,
        vec![WorldChange::SetNetworkPolicy(network_policy(0, 0, 81))],
    );
    let mut keyed = network_policy(0, 0, 80);
    keyed.ingress.get_or_insert_default()[0].peers[0] =
        NetworkPolicyPeer::Pods { namespaces: NamespaceScope::Own, pods: label("pod-template-hash", "1") };
    timed(
        "a rule of a NetworkPolicy uses a new label key",
        engine,
        vec![WorldChange::SetNetworkPolicy(keyed)],
    );
    timed("and back", engine, vec![WorldChange::SetNetworkPolicy(network_policy(0, 0, 80))]);
    let labels = Labels::from([("name".to_owned(), "ns0".to_owned())]);
    timed("labels of a namespace change", engine, vec![WorldChange::SetNamespace("ns0".to_owned(), labels)]);
    let mut policies = cluster_policies();
    policies[3].priority = 5;
    timed(
        "the priority of a ClusterNetworkPolicy changes",
        engine,
        policies.drain(3..4).map(WorldChange::SetClusterPolicy).collect(),
    );
}

fn main() {
    for families in [1, 2] {
        println!("--- {PODS} pods with {families} addresses, {LOCAL_PODS} local");
        let changes = world(families);
        let before = resident_kib();
        let mut engine = PolicyEngine::new(node(0));
        timed("full compilation", &mut engine, changes);
        println!("memory of world and engine: {} KiB", resident_kib().saturating_sub(before));
        let counts = engine.counts();
        println!("{} classes, {} profiles, {} elements", counts.classes, counts.profiles, counts.total());
        for (kind, number) in &counts.elements {
            println!("  {:25} {number}", kind.to_string());
        }
        small_changes(&mut engine, families);
        println!("{} problems", engine.problems().len());
    }
}
