//! Policies that would need too many elements are suspended: they isolate their subjects and allow nothing.

use std::collections::BTreeMap;

use super::CompileWork;
use crate::direction::DIRECTIONS;
use crate::dirty::RuleScope;
use crate::encode::encode_over;
use crate::engine::PolicyEngine;
use crate::journal::Journal;
use crate::problems::PolicyObject;
use crate::profiles::ProfileEntry;
use crate::rules::{JudgeRule, RuleSource};
use crate::side::ProfileSide;
use crate::traffic::TrafficSet;

/// Why a policy is suspended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) struct TooLarge {
    /// The number of elements when it was suspended.
    pub(in crate::engine) elements: usize,
    /// By how many elements its suspension reduced the total.
    saved: usize,
    /// The number of pairs of class and profile at that time.
    pairs: usize,
}

impl PolicyEngine {
    /// Ends the suspension of policies that have changed. They are suspended again if they are still too large.
    pub(super) fn resume_changed(&mut self, changed: &[PolicyObject]) {
        for object in changed {
            self.suspended.remove(object);
            self.too_large.remove(object);
        }
    }

    pub(super) fn compile_within_limit(&mut self, work: CompileWork, journal: &mut Journal) {
        self.compile(work, journal);
        let mut may_resume = true;
        loop {
            let elements = self.verdict_elements();
            let pairs = self.classes.iter().count() * self.profiles.iter().count();
            let changed = if elements > self.max_verdicts {
                may_resume = false;
                let Some(object) = self.most_expensive() else { return };
                self.suspended.insert(object.clone());
                self.too_large.insert(object.clone(), TooLarge { elements, saved: 0, pairs });
                object
            } else {
                // If there are fewer pairs now, it probably needs fewer elements.
                let needed = |reason: &TooLarge| reason.saved * pairs.min(reason.pairs) / reason.pairs.max(1);
                let fits = |reason: &TooLarge| elements + needed(reason) <= self.max_verdicts;
                let resumable = self.too_large.iter().find(|(_, reason)| may_resume && fits(reason));
                let Some(object) = resumable.map(|(object, _)| object.clone()) else { return };
                self.resume_changed(std::slice::from_ref(&object));
                object
            };
            self.compile(work_of(&changed), journal);
            let now = self.verdict_elements();
            if let Some(reason) = self.too_large.get_mut(&changed) {
                reason.saved = elements.saturating_sub(now);
            }
        }
    }

    fn verdict_elements(&self) -> usize {
        let sides = self.profiles.iter().flat_map(|profile| DIRECTIONS.map(|d| &profile.sides[d]));
        let pairs: usize = sides.map(ProfileSide::pair_elements).sum();
        let any_pods =
            self.classes.iter().flat_map(|(_, class)| DIRECTIONS.map(|d| class.any_pod[d].as_ref()));
        pairs + any_pods.flatten().map(|any_pod| any_pod.entries.len()).sum::<usize>()
    }

    /// The policy whose rules match the most classes and ports. ClusterNetworkPolicies come last.
    fn most_expensive(&self) -> Option<PolicyObject> {
        let mut costs = BTreeMap::new();
        for profile in self.profiles.iter() {
            self.add_costs(profile, &mut costs);
        }
        // A policy of a namespace or tenant must not suspend one of the cluster.
        let rank = |object: &PolicyObject| !matches!(object, PolicyObject::ClusterNetworkPolicy(_));
        costs.into_iter().max_by_key(|(object, cost)| (rank(object), *cost)).map(|(object, _)| object)
    }

    fn add_costs(&self, profile: &ProfileEntry, costs: &mut BTreeMap<PolicyObject, usize>) {
        for direction in DIRECTIONS {
            let plan = &profile.sides[direction].plan;
            for (number, rule) in plan.rules.iter().enumerate() {
                let Some(object) = policy_of(&rule.source, profile) else { continue };
                let classes = self.classes.iter();
                let matching = classes.filter(|(class, _)| plan.is_match(number, &self.predicates, *class));
                *costs.entry(object).or_default() += matching.count() * rule_size(rule);
            }
        }
    }
}

fn rule_size(rule: &JudgeRule) -> usize {
    encode_over(&rule.traffic.fixed, &TrafficSet::none()).len() + rule.traffic.named.len()
}

fn policy_of(source: &RuleSource, profile: &ProfileEntry) -> Option<PolicyObject> {
    match source {
        RuleSource::ClusterPolicy { name, rule: _, rule_name: _ } => {
            Some(PolicyObject::ClusterNetworkPolicy(name.clone()))
        }
        RuleSource::GroupRule { group: _, policy, id: _ } => {
            Some(PolicyObject::GroupPolicy { tenant: profile.key.tenant.clone(), name: policy.clone() })
        }
        RuleSource::NetworkPolicy { namespace, name, rule: _ } => {
            Some(PolicyObject::NetworkPolicy { namespace: namespace.clone(), name: name.clone() })
        }
        RuleSource::UnknownPeer { .. }
        | RuleSource::SameTenant(_)
        | RuleSource::OutsideCluster
        | RuleSource::OwnNode
        | RuleSource::OtherNode { .. }
        | RuleSource::Share { .. }
        | RuleSource::NoShare(_)
        | RuleSource::UnknownAddress
        | RuleSource::SelfOrOwnNode
        | RuleSource::Isolated { .. }
        | RuleSource::NotCompiled(_) => None,
    }
}

/// What must be compiled after a policy was suspended or resumed.
fn work_of(object: &PolicyObject) -> CompileWork {
    let mut work = CompileWork::default();
    match object {
        PolicyObject::Tenant(tenant)
        | PolicyObject::Group { tenant, name: _ }
        | PolicyObject::GroupPolicy { tenant, name: _ } => {
            work.rules.tenants.insert(tenant.clone());
        }
        PolicyObject::NetworkPolicy { namespace, name } => {
            work.rules.network_policies.insert((namespace.clone(), name.clone()));
        }
        PolicyObject::ClusterNetworkPolicy(_) => {
            work.rules = RuleScope { all: true, ..RuleScope::default() };
            work.universal = true;
        }
    }
    work
}
