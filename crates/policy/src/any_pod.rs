//! Verdicts that are the same for all pods, so that an Admin rule for all pods does not need elements per profile.

use std::collections::HashMap;
use std::sync::Arc;

use model::objects::NamedPort;

use crate::encode::{Entries, encode_all, encode_part};
use crate::rules::{JudgeRule, RuleOutcome};
use crate::traffic::TrafficSet;

/// The elements that apply to every pod if the peer has a certain class. The elements of a pod's profile have priority over them.
#[derive(Debug)]
pub(crate) struct AnyPod {
    /// Unique. Never 0.
    pub(crate) number: u64,
    pub(crate) accepted: TrafficSet,
    pub(crate) denied: TrafficSet,
    pub(crate) entries: Entries,
}

/// More entries than this are replaced by verdicts for all traffic and exceptions per profile.
const MAX_ENTRIES: usize = 8;

/// The rules that match a class, and the ports of the class.
type AnyPodKey = (Vec<usize>, Vec<NamedPort>);

/// The results for all classes. Classes with the same key have the same result.
#[derive(Debug, Clone, Default)]
pub(crate) struct AnyPods {
    known: HashMap<AnyPodKey, Option<Arc<AnyPod>>>,
    numbers: u64,
}

/// With more results than this, all are forgotten and computed again.
const MAX_KNOWN: usize = 4096;

impl AnyPods {
    /// Forgets all results, because the rules changed.
    pub(crate) fn clear(&mut self) {
        self.known.clear();
    }

    /// None if no rule decides.
    pub(crate) fn get(
        &mut self,
        rules: &[JudgeRule],
        matching: Vec<usize>,
        ports: &[NamedPort],
    ) -> Option<Arc<AnyPod>> {
        if matching.is_empty() {
            return None;
        }
        let key = (matching, ports.to_vec());
        if let Some(known) = self.known.get(&key) {
            return known.clone();
        }
        self.numbers += 1;
        let matching = key.0.iter().filter_map(|number| rules.get(*number));
        let result = any_pod(self.numbers, matching, ports).map(Arc::new);
        if self.known.len() >= MAX_KNOWN {
            self.clear();
        }
        self.known.insert(key, result.clone());
        result
    }
}

fn any_pod<'a>(
    number: u64,
    rules: impl Iterator<Item = &'a JudgeRule>,
    ports: &[NamedPort],
) -> Option<AnyPod> {
    let (mut accepted, mut denied) = (TrafficSet::none(), TrafficSet::none());
    let mut undecided = TrafficSet::all();
    for rule in rules {
        let decided = undecided.intersection(&rule.traffic.resolve(ports));
        undecided = undecided.difference(&decided);
        match rule.outcome {
            RuleOutcome::Accept => accepted = accepted.union(&decided),
            RuleOutcome::Drop => denied = denied.union(&decided),
            RuleOutcome::NextTier => {}
        }
    }
    if accepted.is_empty() && denied.is_empty() {
        return None;
    }
    let mut entries = encode_part(&accepted, &denied);
    if entries.len() > MAX_ENTRIES {
        // The undecided part gets the verdict that needs fewer elements.
        let filled = accepted.union(&undecided);
        let (drop, accept) = (encode_all(&accepted), encode_all(&filled));
        entries = if drop.len() <= accept.len() {
            drop
        } else {
            accepted = filled;
            accept
        };
        denied = TrafficSet::all().difference(&accepted);
    }
    Some(AnyPod { number, accepted, denied, entries: entries.into() })
}
