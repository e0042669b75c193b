use model::objects::{
    Direction, Group, GroupPeer, GroupPolicy, GroupRule, NodeAccess, PortMatch, RuleAction, RuleProtocol,
    Share, SharedPart, Tenant,
};
use policy::WorldChange;

use super::{named, port};

pub fn tenant(name: &str, nodes: NodeAccess) -> WorldChange {
    WorldChange::SetTenant(Tenant { name: named(name), nodes, default_network: None })
}

/// `tenant/name` with the policies bound to it.
pub fn group(name: &str, policies: &[&str]) -> WorldChange {
    let (tenant, name) = split(name);
    WorldChange::SetGroup(Group {
        tenant: named(tenant),
        name: named(name),
        policies: policies.iter().map(|&text| text.to_owned()).collect(),
    })
}

/// `tenant/name`.
pub fn group_policy<const N: usize>(name: &str, rules: [GroupRuleBuilder; N]) -> WorldChange {
    let (tenant, name) = split(name);
    WorldChange::SetGroupPolicy(GroupPolicy {
        tenant: named(tenant),
        name: name.to_owned(),
        rules: rules.map(|builder| builder.0).into(),
    })
}

#[derive(Debug, Clone)]
pub struct GroupRuleBuilder(GroupRule);

/// An ingress rule of priority 1 for all protocols.
pub fn group_rule(id: u32, action: RuleAction, peer: GroupPeer) -> GroupRuleBuilder {
    GroupRuleBuilder(GroupRule {
        id,
        direction: Direction::Ingress,
        priority: 1,
        peer,
        protocol: RuleProtocol::Any,
        ports: None,
        action,
    })
}

impl GroupRuleBuilder {
    pub fn out(mut self) -> Self {
        self.0.direction = Direction::Egress;
        self
    }

    pub fn priority(mut self, priority: u8) -> Self {
        self.0.priority = priority;
        self
    }

    /// `tcp/80`, `icmp`, or the number of a protocol.
    pub fn protocol(mut self, text: &str) -> Self {
        if text == "icmp" {
            self.0.protocol = RuleProtocol::Icmp;
        } else if let Ok(number) = text.parse() {
            self.0.protocol = RuleProtocol::Number(number);
        } else {
            let (protocol, port) = port(text);
            self.0.protocol = RuleProtocol::WithPorts(protocol);
            self.0.ports = match port {
                PortMatch::All => None,
                PortMatch::Range(range) => Some(range),
                PortMatch::Named(name) => panic!("a rule of a group cannot have the named port {name}"),
            };
        }
        self
    }
}

/// `tenant/name`, open for the tenants `with` (none: all) on the ports (none: all).
pub fn share(name: &str, part: SharedPart, (with, ports): (&[&str], &[&str])) -> WorldChange {
    let (tenant, name) = split(name);
    let ports = ports.iter().map(|text| match port(text) {
        (protocol, PortMatch::Range(range)) => (protocol, range),
        (protocol, PortMatch::All) => (protocol, model::objects::PortRange::ALL),
        (_, PortMatch::Named(name)) => panic!("a share cannot have the named port {name}"),
    });
    WorldChange::SetShare(Share {
        tenant: named(tenant),
        name: name.to_owned(),
        part,
        with: with.iter().map(|&text| named(text)).collect(),
        ports: ports.collect(),
    })
}

fn split(name: &str) -> (&str, &str) {
    name.split_once('/').unwrap_or_else(|| panic!("{name:?} is not tenant/name"))
}
