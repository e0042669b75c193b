//! Computes the results that a change of the inputs affects, in the order of their dependencies:
//! addresses → classes → predicates → profiles of pods → rules → elements.

mod classify;
mod compile;
mod limit;

use std::collections::BTreeSet;

use super::PolicyEngine;
use crate::class::ClassIndex;
use crate::dirty::{Dirty, PodScope, RuleScope};
use crate::element::{Delta, ProfileId};
use crate::elements;
use crate::journal::Journal;
use crate::predicate::Namespaces;
use crate::profile::ProfileKey;
use crate::world::{PodEntry, PodUid};

pub(super) use limit::TooLarge;

/// What must be compiled.
#[derive(Debug, Default)]
struct CompileWork {
    /// Classes that are new or match other rules.
    classes: BTreeSet<ClassIndex>,
    /// Classes that are new.
    fresh: Vec<ClassIndex>,
    /// Profiles that are new.
    profiles: BTreeSet<ProfileId>,
    /// Profiles that may have other rules than before.
    rules: RuleScope,
    /// The rules for all pods may differ.
    universal: bool,
}

impl PolicyEngine {
    pub(super) fn update(&mut self, dirty: Dirty) -> Delta {
        let mut journal = Journal::default();
        let uses = self.uses.take_changes();
        self.classify_addresses(&dirty, uses.any, &mut journal);
        if dirty.ranges || uses.cidrs {
            self.divide_ranges(&mut journal);
        }
        let idle = self.classes.take_idle();
        self.remove_classes(&idle, &mut journal);
        let fresh = self.classes.take_fresh();
        let work = CompileWork {
            classes: self.touched_classes(&fresh, &dirty),
            fresh,
            profiles: self.assign_profiles(&dirty.pods, &mut journal),
            rules: dirty.rules,
            universal: dirty.cluster_policies,
        };
        self.resume_changed(&dirty.policies);
        self.compile_within_limit(work, &mut journal);
        for profile in self.profiles.take_idle(&mut self.slots) {
            journal.removed.extend(elements::of_profile(&profile, &self.classes));
            let plans = [&profile.sides.ingress.plan, &profile.sides.egress.plan];
            plans.into_iter().for_each(|plan| plan.release(&mut self.predicates));
        }
        self.classes.sweep(&idle, &mut self.slots);
        journal.into_delta()
    }

    /// Classes that are new or whose namespace has other labels. Evaluates their predicates.
    fn touched_classes(&mut self, fresh: &[ClassIndex], dirty: &Dirty) -> BTreeSet<ClassIndex> {
        let mut touched: BTreeSet<_> = fresh.iter().copied().collect();
        if !dirty.namespaces.is_empty() {
            let is_dirty = |namespace: &String| dirty.namespaces.contains(namespace);
            let affected = self.classes.iter().filter(|(_, class)| {
                class.key.pod().and_then(|pod| pod.namespace.as_ref()).is_some_and(is_dirty)
            });
            touched.extend(affected.map(|(index, _)| index));
        }
        let namespaces = Namespaces(&self.world);
        for index in &touched {
            if let Some(class) = self.classes.get(*index) {
                self.predicates.evaluate(*index, &class.key, &namespaces);
            }
        }
        touched
    }

    /// Returns the profiles that are new.
    fn assign_profiles(&mut self, scope: &PodScope, journal: &mut Journal) -> BTreeSet<ProfileId> {
        let mut pods = scope.uids.clone();
        if scope.has_groups() {
            let local = self.profiles.of_pods.keys().filter_map(|uid| self.world.pods.get(uid));
            pods.extend(local.filter(|pod| scope.contains(pod)).map(|pod| PodUid::clone(&pod.uid)));
        }
        let mut fresh = BTreeSet::new();
        for uid in pods {
            let pod = self.world.pods.get(&uid).filter(|pod| pod.is_local_subject(&self.world.local_node));
            let key = pod.map(|pod| ProfileKey::of(&self.world, &self.uses, pod));
            if let Some((profile, is_new)) = self.profiles.assign(&uid, key, &mut self.slots) {
                journal.profiles.insert(uid, profile);
                fresh.extend(is_new.then_some(profile));
            }
        }
        fresh
    }
}

impl PodScope {
    fn has_groups(&self) -> bool {
        self.all || !self.namespaces.is_empty() || !self.tenants.is_empty()
    }

    fn contains(&self, pod: &PodEntry) -> bool {
        let identity = &pod.identity;
        self.all
            || self.tenants.contains(&identity.placement.tenant)
            || identity.namespace.as_ref().is_some_and(|namespace| self.namespaces.contains(namespace))
    }
}

impl RuleScope {
    fn contains(&self, key: &ProfileKey) -> bool {
        let has_policy = |(namespace, name): &(String, String)| {
            key.namespace.as_ref() == Some(namespace) && key.network_policies.contains(name)
        };
        self.all || self.tenants.contains(&key.tenant) || self.network_policies.iter().any(has_policy)
    }
}
