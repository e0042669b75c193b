//! The rules of a pod: one list per direction, in the order in which they decide. The compiler and the explanation read the same
//! list.

mod application;
mod cluster;
mod source;
mod tenant;

use std::borrow::Cow;
use std::collections::BTreeSet;

use model::objects::{Direction, NamedPort};
use types::Protocol;

use crate::direction::PerDirection;
use crate::predicate::Predicate;
use crate::problems::PolicyObject;
use crate::profile::ProfileKey;
use crate::traffic::TrafficSet;
use crate::world::World;

pub(crate) use cluster::{cluster_peers, universal_rules};
pub use source::RuleSource;

/// The stages of a decision, in order. A stage without a matching rule passes to the next one. After the last, flows are accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PolicyTier {
    Admin,
    Tenant,
    Group,
    NetworkPolicy,
    Baseline,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RuleOutcome {
    Accept,
    Drop,
    NextTier,
}

/// The first rule of a tier that matches decides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct JudgeRule {
    pub(crate) tier: PolicyTier,
    pub(crate) peers: RulePeers,
    /// Whether it matches the pod as its own peer.
    pub(crate) matches_self: bool,
    pub(crate) traffic: RuleTraffic,
    pub(crate) outcome: RuleOutcome,
    pub(crate) source: RuleSource,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RulePeers {
    All,
    AnyOf(Vec<Predicate>),
}

/// The traffic of a rule. Names are resolved at the peer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RuleTraffic {
    pub(crate) fixed: TrafficSet,
    pub(crate) named: Vec<PortName>,
}

/// A named port of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PortName {
    /// None: any protocol.
    pub(crate) protocol: Option<Protocol>,
    pub(crate) name: String,
}

/// Policies that are not compiled. They isolate their subjects and allow nothing.
pub(crate) type Suspended = BTreeSet<PolicyObject>;

#[derive(Clone, Copy)]
pub(crate) struct RuleInputs<'a> {
    pub(crate) world: &'a World,
    pub(crate) suspended: &'a Suspended,
}

/// All rules that apply to pods with this key.
pub(crate) fn rules_of(inputs: RuleInputs<'_>, key: &ProfileKey) -> PerDirection<Vec<JudgeRule>> {
    let rules = |direction| {
        let mut rules = Vec::new();
        cluster::push_rules(&mut rules, (inputs, key), PolicyTier::Admin, direction);
        tenant::push_rules(&mut rules, inputs.world, key, direction);
        application::push_group_rules(&mut rules, inputs, key, direction);
        application::push_network_policies(&mut rules, inputs, key, direction);
        cluster::push_rules(&mut rules, (inputs, key), PolicyTier::Baseline, direction);
        rules
    };
    PerDirection { ingress: rules(Direction::Ingress), egress: rules(Direction::Egress) }
}

/// The traffic that the rules accept. `matches` selects the rules that match the peer, `ports` are those of the peer.
pub(crate) fn accepted_traffic(
    rules: &[JudgeRule],
    ports: &[NamedPort],
    mut matches: impl FnMut(usize, &JudgeRule) -> bool,
) -> TrafficSet {
    let mut accepted = TrafficSet::none();
    let mut undecided = TrafficSet::all();
    let mut passed = TrafficSet::none();
    let mut tier = None;
    for (number, rule) in rules.iter().enumerate() {
        if tier != Some(rule.tier) {
            tier = Some(rule.tier);
            undecided = undecided.union(&std::mem::take(&mut passed));
        }
        if undecided.is_empty() || !matches(number, rule) {
            continue;
        }
        let decided = undecided.intersection(&rule.traffic.resolve(ports));
        undecided = undecided.difference(&decided);
        match rule.outcome {
            RuleOutcome::Accept => accepted = accepted.union(&decided),
            RuleOutcome::Drop => {}
            RuleOutcome::NextTier => passed = passed.union(&decided),
        }
    }
    accepted.union(&undecided).union(&passed)
}

impl RuleTraffic {
    pub(crate) fn all() -> Self {
        Self { fixed: TrafficSet::all(), named: Vec::new() }
    }

    pub(crate) fn resolve(&self, ports: &[NamedPort]) -> Cow<'_, TrafficSet> {
        if self.named.is_empty() {
            return Cow::Borrowed(&self.fixed);
        }
        let found = self.named.iter().flat_map(|name| name.find(ports));
        Cow::Owned(found.fold(self.fixed.clone(), |set, port| set.union(&single_port(port))))
    }

    /// Resolves the names at the subject.
    fn resolve_at_subject(mut self, ports: &[NamedPort]) -> Self {
        self.fixed = self.resolve(ports).into_owned();
        self.named.clear();
        self
    }

    fn is_empty(&self) -> bool {
        self.fixed.is_empty() && self.named.is_empty()
    }
}

fn single_port(port: &NamedPort) -> TrafficSet {
    TrafficSet::of_ports(port.protocol, model::objects::PortRange::single(port.port))
}

impl PortName {
    pub(crate) fn find<'a>(&'a self, ports: &'a [NamedPort]) -> impl Iterator<Item = &'a NamedPort> + 'a {
        ports.iter().filter(|port| {
            port.name == self.name && self.protocol.is_none_or(|protocol| protocol == port.protocol)
        })
    }
}
