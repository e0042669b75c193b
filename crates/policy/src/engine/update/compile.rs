//! Compiles rules of profiles into elements.

use std::collections::BTreeSet;

use model::objects::Direction;

use super::CompileWork;
use crate::class::ClassIndex;
use crate::direction::{DIRECTIONS, PerDirection};
use crate::element::{ClassId, ProfileId};
use crate::elements;
use crate::encode::Encoder;
use crate::engine::PolicyEngine;
use crate::journal::Journal;
use crate::predicate::Namespaces;
use crate::profile::ProfileKey;
use crate::profiles::ProfileEntry;
use crate::rules::{JudgeRule, rules_of, universal_rules};
use crate::side::{KnownEntries, PairCompiler, PeerBase, ProfileSide, RulePlan, SideInputs, SideKey};

impl PolicyEngine {
    pub(super) fn compile(&mut self, mut work: CompileWork, journal: &mut Journal) {
        if work.universal && self.plan_universal_rules() {
            work.classes.extend(self.classes.iter().map(|(index, _)| index));
            work.fresh = self.classes.iter().map(|(index, _)| index).collect();
        }
        self.compile_any_pod(&work.classes, journal);
        let planned = self.plan_profiles(&work);
        self.compile_profiles(&planned, &work.classes, journal);
        self.compile_idle_profiles(&work.fresh, journal);
    }

    /// Compiles the profiles that no pod has any more. The agent changes the links of pods later, so packets still need these rules,
    /// also for new classes and with the changed elements for any pod.
    fn compile_idle_profiles(&mut self, classes: &[ClassIndex], journal: &mut Journal) {
        let mut encoder = Encoder::default();
        let inputs = SideInputs {
            classes: &self.classes,
            predicates: &self.predicates,
            namespaces: &Namespaces(&self.world),
        };
        for profile in self.profiles.idle_mut() {
            for direction in DIRECTIONS {
                let key = SideKey { numbers: profile.numbers, direction };
                let compiler = PairCompiler::new(inputs, key, &mut encoder);
                compile_pairs(&mut profile.sides[direction], classes, compiler, journal);
            }
        }
    }

    /// True if the rules for all pods differ from before.
    fn plan_universal_rules(&mut self) -> bool {
        let mut is_changed = false;
        for direction in DIRECTIONS {
            let rules = universal_rules(self.rule_inputs(), direction);
            if rules != self.universal[direction].rules {
                let plan = self.plan(rules);
                std::mem::replace(&mut self.universal[direction], plan).release(&mut self.predicates);
                self.any_pods[direction].clear();
                is_changed = true;
            }
        }
        is_changed
    }

    fn plan(&mut self, rules: Vec<JudgeRule>) -> RulePlan {
        let namespaces = Namespaces(&self.world);
        RulePlan::new(rules, |predicate| self.predicates.acquire(predicate, &self.classes, &namespaces))
    }

    fn compile_any_pod(&mut self, classes: &BTreeSet<ClassIndex>, journal: &mut Journal) {
        for direction in DIRECTIONS {
            let (plan, results) = (&self.universal[direction], &mut self.any_pods[direction]);
            for index in classes {
                let Some(class) = self.classes.get_mut(*index) else { continue };
                let matching = plan.matching(&self.predicates, *index);
                let new = results.get(&plan.rules, matching, class.key.ports());
                let old = std::mem::replace(&mut class.any_pod[direction], new);
                let (old, new) = (old.as_deref(), class.any_pod[direction].as_deref());
                journal.replace_entries(
                    old.map(|any_pod| &any_pod.entries),
                    new.map(|any_pod| &any_pod.entries),
                    elements::of_any_pod(direction, class.id),
                );
            }
        }
    }

    /// Updates the rules of profiles. Returns the profiles that are new or have other rules.
    fn plan_profiles(&mut self, work: &CompileWork) -> BTreeSet<ProfileId> {
        let mut planned = work.profiles.clone();
        let is_affected = |profile: &&ProfileEntry| {
            work.profiles.contains(&profile.numbers.id) || work.rules.contains(&profile.key)
        };
        let affected: Vec<ProfileId> =
            self.profiles.iter().filter(is_affected).map(|profile| profile.numbers.id).collect();
        for id in affected {
            let Some(profile) = self.profiles.get(id) else { continue };
            let PerDirection { ingress, egress } = rules_of(self.rule_inputs(), &profile.key);
            for (direction, rules) in [(Direction::Ingress, ingress), (Direction::Egress, egress)] {
                let is_equal =
                    self.profiles.get(id).is_some_and(|profile| profile.sides[direction].plan.rules == rules);
                if is_equal {
                    continue;
                }
                let plan = self.plan(rules);
                if let Some(profile) = self.profiles.get_mut(id) {
                    let old = std::mem::replace(&mut profile.sides[direction].plan, plan);
                    old.release(&mut self.predicates);
                    planned.insert(id);
                }
            }
        }
        planned
    }

    fn compile_profiles(
        &mut self,
        planned: &BTreeSet<ProfileId>,
        classes: &BTreeSet<ClassIndex>,
        journal: &mut Journal,
    ) {
        if planned.is_empty() && classes.is_empty() {
            return;
        }
        let mut encoder = Encoder::default();
        let inputs = SideInputs {
            classes: &self.classes,
            predicates: &self.predicates,
            namespaces: &Namespaces(&self.world),
        };
        let all: Vec<ClassIndex> = if planned.is_empty() {
            Vec::new()
        } else {
            self.classes.iter().map(|(index, _)| index).collect()
        };
        let some: Vec<ClassIndex> = classes.iter().copied().collect();
        for profile in self.profiles.iter_mut() {
            let is_planned = planned.contains(&profile.numbers.id);
            for direction in DIRECTIONS {
                let key = SideKey { numbers: profile.numbers, direction };
                let side = &mut profile.sides[direction];
                if is_planned {
                    compile_base(side, &profile.key, PairCompiler::new(inputs, key, &mut encoder), journal);
                }
                let compiler = PairCompiler::new(inputs, key, &mut encoder);
                compile_pairs(side, if is_planned { &all } else { &some }, compiler, journal);
            }
        }
    }
}

fn compile_base(
    side: &mut ProfileSide,
    profile: &ProfileKey,
    mut compiler: PairCompiler<'_>,
    journal: &mut Journal,
) {
    let SideKey { numbers, direction } = compiler.key;
    side.known = KnownEntries::default();
    let base = PeerBase::new(&side.plan, compiler.inputs, &profile.tenant);
    let self_pair = compiler.self_entries(&side.plan, &base, &profile.ports);
    journal.replace_entries(
        side.self_pair.as_ref(),
        self_pair.as_ref(),
        elements::of_pair(direction, numbers, ClassId::SELF),
    );
    side.self_pair = self_pair;
    let old = side.base.replace(base);
    for (key, value) in old.iter().flat_map(|base| base.elements(numbers)) {
        journal.remove(elements::verdict(direction, key, value));
    }
    for (key, value) in side.base.iter().flat_map(|base| base.elements(numbers)) {
        journal.set(elements::verdict(direction, key, value));
    }
}

fn compile_pairs(
    side: &mut ProfileSide,
    classes: &[ClassIndex],
    mut compiler: PairCompiler<'_>,
    journal: &mut Journal,
) {
    let Some(base) = &side.base else { return };
    let SideKey { numbers, direction } = compiler.key;
    for index in classes {
        let Some(class) = compiler.inputs.classes.get(*index) else { continue };
        let new = compiler.entries((&side.plan, base), &mut side.known, (*index, class));
        let old = side.pairs.replace(*index, new.as_ref());
        let to_element = elements::of_pair(direction, numbers, class.id);
        journal.replace_entries(old.as_ref(), new.as_ref(), to_element);
    }
}
