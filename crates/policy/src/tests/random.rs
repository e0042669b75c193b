//! Sequences of random changes of small worlds.

use std::net::IpAddr;

use model::Selector;
use model::objects::*;
use proptest::prelude::*;
use types::{NodeName, Protocol};

use super::build::*;
use super::lab::{Lab, removal_of};
use crate::world::WorldChange;

/// A small generator of pseudo-random numbers (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) % (end as u64)).unwrap()
    }

    fn pick<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())].clone()
    }

    fn some<T>(&mut self, most: usize, mut make: impl FnMut(&mut Self) -> T) -> Vec<T> {
        (0..self.below(most + 1)).map(|_| make(self)).collect()
    }

    fn maybe<T>(&mut self, make: impl FnOnce(&mut Self) -> T) -> Option<T> {
        (self.below(2) == 0).then(|| make(self))
    }

    fn labels(&mut self) -> &'static str {
        self.pick(&["", "app=web", "app=db", "app=web env=dev", "env=dev", "env=prod"])
    }

    fn selector(&mut self) -> Selector {
        let text = self.pick(&["", "", "app=web", "app=db", "app!=web", "env", "!env", "env=dev app=web"]);
        selector(text)
    }

    fn tenant(&mut self) -> &'static str {
        self.pick(&["default", "default", "blue", "red"])
    }

    fn namespace(&mut self) -> &'static str {
        self.pick(&["default", "default", "other", "third", ""])
    }

    fn range(&mut self) -> PortRange {
        let (first, last) = self.pick(&[(80, 80), (443, 443), (80, 90), (79, 8080), (0, 65535), (1, 100)]);
        PortRange::new(first, last).unwrap()
    }

    fn protocol(&mut self) -> Protocol {
        self.pick(&[Protocol::Tcp, Protocol::Tcp, Protocol::Udp, Protocol::Sctp])
    }

    fn cidr(&mut self) -> ipnet::IpNet {
        cidr(self.pick(&[
            "10.0.0.0/24",
            "10.0.0.0/29",
            "10.0.0.2/32",
            "0.0.0.0/0",
            "::/0",
            "fd00::/64",
            "192.0.2.0/24",
            "172.16.0.1/32",
            "172.16.0.0/16",
            "fd00::4/126",
        ]))
    }

    fn port_match(&mut self) -> PortMatch {
        match self.below(4) {
            0 => PortMatch::All,
            1 => PortMatch::Named("web".to_owned()),
            _ => PortMatch::Range(self.range()),
        }
    }

    fn pod(&mut self) -> WorldChange {
        let number = self.below(7);
        let addresses = self.pick(&[
            format!("10.0.0.{number}"),
            format!("10.0.0.{number} fd00::{number}"),
            format!("fd00::{number}"),
            format!("10.0.0.{} fd00::{number}", number + 1),
        ]);
        let mut pod = pod(&format!("p{number}"), &addresses)
            .node(self.pick(&["n1", "n1", "n2"]))
            .tenant(self.tenant())
            .namespace(self.namespace())
            .network(self.pick(&["default-net", "back"]))
            .labels(self.labels());
        if self.below(2) == 0 {
            pod = pod.group(self.pick(&["front", "rear"]));
        }
        if self.below(2) == 0 {
            pod = pod.port("web", self.protocol(), self.pick(&[80, 443, 8080]));
        }
        match self.below(12) {
            0 => pod.host_network().set(),
            1 => pod.completed().set(),
            _ => pod.set(),
        }
    }

    fn network_policy_rule(&mut self) -> NetworkPolicyRule {
        let peers = self.some(2, |random| match random.below(3) {
            0 => NetworkPolicyPeer::Block { cidr: random.cidr(), except: random.some(2, Self::cidr) },
            1 => NetworkPolicyPeer::Pods { namespaces: NamespaceScope::Own, pods: random.selector() },
            _ => NetworkPolicyPeer::Pods {
                namespaces: NamespaceScope::Matching(random.selector()),
                pods: random.selector(),
            },
        });
        let ports = self
            .some(2, |random| NetworkPolicyPort { protocol: random.protocol(), port: random.port_match() });
        NetworkPolicyRule { peers, ports }
    }

    fn network_policy(&mut self) -> WorldChange {
        WorldChange::SetNetworkPolicy(NetworkPolicy {
            namespace: self.pick(&["default", "other"]).to_owned(),
            name: self.pick(&["a", "b"]).to_owned(),
            subjects: self.selector(),
            ingress: self.maybe(|random| random.some(2, Self::network_policy_rule)),
            egress: self.maybe(|random| random.some(2, Self::network_policy_rule)),
        })
    }

    fn cluster_rule(&mut self, direction: Direction) -> ClusterRule {
        let action = self.pick(&[ClusterAction::Accept, ClusterAction::Deny, ClusterAction::Pass]);
        let kinds = if direction == Direction::Egress { 8 } else { 5 };
        let mut peers = self.some(1, |random| random.cluster_peer(kinds));
        peers.push(self.cluster_peer(kinds));
        let protocols = self.some(2, |random| match random.below(3) {
            0 => ClusterProtocol::NamedPort("web".to_owned()),
            _ => ClusterProtocol::Ports { protocol: random.protocol(), port: random.port_match() },
        });
        ClusterRule { name: None, action, peers, protocols }
    }

    fn cluster_peer(&mut self, kinds: usize) -> ClusterPeer {
        match self.below(kinds) {
            0 | 1 => ClusterPeer::Namespaces(self.selector()),
            2 | 3 => ClusterPeer::Pods { namespaces: self.selector(), pods: self.selector() },
            4 if self.below(4) == 0 => ClusterPeer::Unknown,
            4 => ClusterPeer::DomainNames,
            5 => ClusterPeer::Nodes(self.selector()),
            _ => ClusterPeer::Networks(vec![self.cidr()]),
        }
    }

    fn cluster_policy(&mut self) -> WorldChange {
        let tier = self.pick(&[ClusterTier::Admin, ClusterTier::Admin, ClusterTier::Baseline]);
        let name = self.pick(&["a", "b", "c"]);
        let mut policy = cluster_policy(name, tier, self.pick(&[10, 20]));
        policy.subject = match self.below(3) {
            0 => ClusterSubject::Namespaces(Selector::all()),
            1 => ClusterSubject::Namespaces(self.selector()),
            _ => ClusterSubject::Pods { namespaces: self.selector(), pods: self.selector() },
        };
        policy.ingress = self.some(2, |random| random.cluster_rule(Direction::Ingress));
        policy.egress = self.some(2, |random| random.cluster_rule(Direction::Egress));
        WorldChange::SetClusterPolicy(policy)
    }

    fn group_policy(&mut self) -> WorldChange {
        let first = self.below(1000);
        let mut rules = self.some(3, |random| GroupRule {
            id: 0,
            direction: random.pick(&[Direction::Ingress, Direction::Egress]),
            priority: random.pick(&[1, 50, 100]),
            peer: match random.below(4) {
                0 => GroupPeer::Any,
                1 => GroupPeer::Group(random.pick(&["front", "rear"]).try_into().unwrap()),
                2 => GroupPeer::Network("back".try_into().unwrap()),
                _ => GroupPeer::Block(random.cidr()),
            },
            protocol: match random.below(4) {
                0 => RuleProtocol::Any,
                1 => RuleProtocol::WithPorts(random.protocol()),
                2 => RuleProtocol::Icmp,
                _ => RuleProtocol::Number(47),
            },
            ports: None,
            action: random.pick(&[RuleAction::Allow, RuleAction::Deny]),
        });
        for (number, rule) in rules.iter_mut().enumerate() {
            rule.id = u32::try_from(first * 10 + number).unwrap();
            if matches!(rule.protocol, RuleProtocol::WithPorts(_)) {
                rule.ports = self.maybe(Self::range);
            }
        }
        WorldChange::SetGroupPolicy(GroupPolicy {
            tenant: tenant_name(self.tenant()),
            name: self.pick(&["x", "y"]).to_owned(),
            rules,
        })
    }

    fn share(&mut self) -> WorldChange {
        WorldChange::SetShare(Share {
            tenant: tenant_name(self.tenant()),
            name: "s".to_owned(),
            part: match self.below(3) {
                0 => SharedPart::AllPods,
                1 => SharedPart::Network("back".try_into().unwrap()),
                _ => SharedPart::Group("front".try_into().unwrap()),
            },
            with: self.some(2, |random| tenant_name(random.tenant())),
            ports: self.some(1, |random| (random.protocol(), random.range())),
        })
    }

    fn group(&mut self) -> WorldChange {
        WorldChange::SetGroup(Group {
            tenant: tenant_name(self.tenant()),
            name: self.pick(&["front", "rear"]).try_into().unwrap(),
            policies: self.some(2, |random| random.pick(&["x", "y"]).to_owned()),
        })
    }

    fn node(&mut self) -> WorldChange {
        let (name, address) =
            self.pick(&[("n1", "172.16.0.1 fd01::1"), ("n2", "172.16.0.2"), ("n3", "172.17.0.3")]);
        node(name, address, self.labels())
    }

    fn change(&mut self) -> WorldChange {
        match self.below(24) {
            0..=6 => self.pod(),
            7..=10 => self.network_policy(),
            11..=13 => self.cluster_policy(),
            14 => self.group_policy(),
            15 => self.group(),
            16 => self.share(),
            17 => self.node(),
            18 => namespace(self.pick(&["default", "other", "third"]), self.labels()),
            19 => network("default", "default-net", self.pick(&["10.0.0.0/24", "10.0.0.0/28 fd00::/64"])),
            20 => WorldChange::SetTenant(Tenant {
                name: tenant_name(self.tenant()),
                nodes: self.pick(&[NodeAccess::Allow, NodeAccess::Deny]),
                default_network: None,
            }),
            _ => self.removal(),
        }
    }

    fn removal(&mut self) -> WorldChange {
        let tenant = tenant_name(self.tenant());
        match self.below(8) {
            0 | 1 => WorldChange::RemovePod(format!("p{}", self.below(7)).into()),
            2 => WorldChange::RemoveNetworkPolicy(
                self.pick(&["default", "other"]).to_owned(),
                self.pick(&["a", "b"]).to_owned(),
            ),
            3 => WorldChange::RemoveClusterPolicy(self.pick(&["a", "b", "c"]).to_owned()),
            4 => WorldChange::RemoveGroupPolicy(tenant, self.pick(&["x", "y"]).to_owned()),
            5 => WorldChange::RemoveShare(tenant, "s".to_owned()),
            6 => WorldChange::RemoveNode(NodeName::try_from("n2").unwrap()),
            _ => WorldChange::RemoveNamespace(self.namespace().to_owned()),
        }
    }
}

fn outside() -> Vec<IpAddr> {
    ["10.0.0.9", "10.0.0.200", "172.16.0.77", "fd00::5", "fd00::99"].map(|text| text.parse().unwrap()).into()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn elements_deltas_and_explanations_agree_after_any_sequence_of_changes(seed in any::<u64>()) {
        let mut random = Random(seed);
        let mut lab = Lab::new();
        for _ in 0..12 {
            let changes = (0..=random.below(5)).map(|_| random.change()).collect::<Vec<_>>();
            lab.apply_and_check(changes, &outside());
        }
        lab.check_against_new_engine(&outside());
        let removal = removal_of(lab.engine.world());
        lab.apply(removal);
        let empty = Lab::new();
        prop_assert_eq!(&lab.kernel.elements, &empty.kernel.elements);
    }
}
