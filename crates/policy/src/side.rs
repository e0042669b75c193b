//! The compiled rules of a profile in one direction: verdicts for all peers, and entries for classes that differ.

use std::collections::HashMap;

use model::objects::NamedPort;
use types::{NetworkId, TenantName};

use crate::class::{ClassEntry, ClassIndex, ClassKey, Classes, PeerKind, PodClass};
use crate::direction::PerDirection;
use crate::element::{ClassId, PolicyVerdict, ProfileId, VerdictKey};
use crate::encode::{Encoder, Entries, constant, encode_all, encode_over};
use crate::predicate::{Namespaces, Predicate, PredicateIndex, Predicates};
use crate::rules::{JudgeRule, RulePeers, accepted_traffic};
use crate::traffic::TrafficSet;

/// Rules with their predicates.
#[derive(Debug, Clone, Default)]
pub(crate) struct RulePlan {
    pub(crate) rules: Vec<JudgeRule>,
    /// The predicates of each rule. None: it matches all peers.
    predicates: Vec<Option<Vec<PredicateIndex>>>,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct ProfileSide {
    pub(crate) plan: RulePlan,
    /// None until it is compiled.
    pub(crate) base: Option<PeerBase>,
    pub(crate) pairs: PairEntries,
    /// Entries for the pod as its own peer.
    pub(crate) self_pair: Option<Entries>,
    /// Depends on the plan and the base.
    pub(crate) known: KnownEntries,
}

/// Entries for classes that the base does not fit.
#[derive(Debug, Clone, Default)]
pub(crate) struct PairEntries {
    by_class: HashMap<ClassIndex, Entries>,
    elements: usize,
}

/// The entries of classes by signature: see [`PairCompiler::sign`].
#[derive(Debug, Clone, Default)]
pub(crate) struct KnownEntries(HashMap<Vec<u64>, Option<Entries>>);

/// With more signatures than this, all are forgotten and computed again.
const MAX_KNOWN: usize = 256;

/// The verdicts for peers without entries.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct PeerBase {
    any_peer: TrafficSet,
    /// For classes that belong to no pod. None: as `any_peer`.
    no_tenant: Option<PolicyVerdict>,
    /// For classes of other tenants. None: as `any_peer`.
    other_tenants: Option<PolicyVerdict>,
}

/// The numbers of a profile.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProfileNumbers {
    pub(crate) id: ProfileId,
    /// The slot of its tenant: the upper bits of the classes of the tenant's pods.
    pub(crate) slot: u32,
}

impl PairEntries {
    /// Returns the old entries.
    pub(crate) fn replace(&mut self, class: ClassIndex, new: Option<&Entries>) -> Option<Entries> {
        let old = match new {
            Some(new) => self.by_class.insert(class, Entries::clone(new)),
            None => self.by_class.remove(&class),
        };
        let len = |entries: Option<&Entries>| entries.map_or(0, |entries| entries.len());
        self.elements = self.elements + len(new) - len(old.as_ref());
        old
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (ClassIndex, &Entries)> {
        self.by_class.iter().map(|(class, entries)| (*class, entries))
    }
}

/// The inputs of the compilation that are the same for all profiles.
#[derive(Clone, Copy)]
pub(crate) struct SideInputs<'a> {
    pub(crate) classes: &'a Classes,
    pub(crate) predicates: &'a Predicates,
    pub(crate) namespaces: &'a Namespaces<'a>,
}

impl RulePlan {
    /// `acquire` counts this plan as a user of a predicate.
    pub(crate) fn new(rules: Vec<JudgeRule>, mut acquire: impl FnMut(&Predicate) -> PredicateIndex) -> Self {
        let predicates = rules.iter().map(|rule| match &rule.peers {
            RulePeers::All => None,
            RulePeers::AnyOf(predicates) => Some(predicates.iter().map(&mut acquire).collect()),
        });
        Self { predicates: predicates.collect(), rules }
    }

    pub(crate) fn release(&self, predicates: &mut Predicates) {
        self.predicates.iter().flatten().flatten().for_each(|index| predicates.release(*index));
    }

    /// The numbers of the rules that match.
    pub(crate) fn matching(&self, predicates: &Predicates, class: ClassIndex) -> Vec<usize> {
        (0..self.rules.len()).filter(|rule| self.is_match(*rule, predicates, class)).collect()
    }

    pub(crate) fn is_match(&self, rule: usize, predicates: &Predicates, class: ClassIndex) -> bool {
        let any = |of_rule: &Vec<PredicateIndex>| of_rule.iter().any(|one| predicates.is_match(*one, class));
        self.predicates[rule].as_ref().is_none_or(any)
    }

    fn accepted_of_key(&self, inputs: SideInputs<'_>, key: &ClassKey) -> TrafficSet {
        accepted_traffic(&self.rules, key.ports(), |number, _| {
            let is_match = |one: &PredicateIndex| inputs.predicates.matches_key(*one, key, inputs.namespaces);
            self.predicates[number].as_ref().is_none_or(|of_rule| of_rule.iter().any(is_match))
        })
    }
}

/// A peer like most others: a pod without labels and blocks, in a namespace without labels.
fn typical_pod(tenant: TenantName) -> ClassKey {
    let class = PodClass {
        tenant,
        network: NetworkId::default(),
        group: None,
        namespace: Some(String::new()),
        labels: model::Labels::new(),
        ports: Vec::new(),
    };
    ClassKey { kind: PeerKind::Pod(class.into()), cidrs: Vec::new() }
}

fn other_tenant(tenant: &TenantName) -> TenantName {
    // Any valid name that differs.
    TenantName::try_from(format!("{tenant}-other")).unwrap_or_default()
}

impl PeerBase {
    /// The base that fits typical peers.
    pub(crate) fn new(plan: &RulePlan, inputs: SideInputs<'_>, tenant: &TenantName) -> Self {
        let any_peer = plan.accepted_of_key(inputs, &typical_pod(tenant.clone()));
        let outside = plan.accepted_of_key(inputs, &ClassKey { kind: PeerKind::Outside, cidrs: Vec::new() });
        let other = plan.accepted_of_key(inputs, &typical_pod(other_tenant(tenant)));
        Self {
            no_tenant: verdict_for(&outside, &any_peer),
            other_tenants: verdict_for(&other, &any_peer),
            any_peer,
        }
    }

    /// The traffic that is accepted without entries for this class.
    fn accepted(&self, class: &ClassEntry, side: SideKey) -> TrafficSet {
        let slot = class.id.0 >> ClassId::SLOT_SHIFT;
        let verdict = if slot == 0 {
            self.no_tenant
        } else if slot == side.numbers.slot {
            None
        } else {
            self.other_tenants
        };
        let accepted = verdict.map_or_else(|| self.any_peer.clone(), constant);
        match &class.any_pod[side.direction] {
            None => accepted,
            Some(any_pod) => any_pod.accepted.union(&accepted.difference(&any_pod.denied)),
        }
    }

    pub(crate) fn elements(&self, numbers: ProfileNumbers) -> Vec<(VerdictKey, PolicyVerdict)> {
        let profile = numbers.id;
        let mut elements: Vec<_> = encode_all(&self.any_peer)
            .iter()
            .map(|entry| (entry.key.of_any_peer(profile), entry.verdict))
            .collect();
        let mut push = |first: u32, last: u32, verdict| {
            let key = VerdictKey::PeerClasses { profile, first: ClassId(first), last: ClassId(last) };
            elements.push((key, verdict));
        };
        let own_first = numbers.slot << ClassId::SLOT_SHIFT;
        let own_last = own_first + ((1 << ClassId::SLOT_SHIFT) - 1);
        let first_tenant = 1 << ClassId::SLOT_SHIFT;
        if let Some(verdict) = self.no_tenant {
            let is_joined = self.no_tenant == self.other_tenants;
            let end = if is_joined { own_first } else { first_tenant };
            push(ClassId::FIRST, end - 1, verdict);
        }
        if let Some(verdict) = self.other_tenants {
            if self.no_tenant != self.other_tenants && own_first > first_tenant {
                push(first_tenant, own_first - 1, verdict);
            }
            if own_last < u32::MAX {
                push(own_last + 1, u32::MAX, verdict);
            }
        }
        elements
    }
}

/// The verdict of a range of classes that accept `accepted`. None: without a range, fewer entries are needed.
fn verdict_for(accepted: &TrafficSet, any_peer: &TrafficSet) -> Option<PolicyVerdict> {
    if accepted == any_peer {
        None
    } else if accepted.is_all() {
        Some(PolicyVerdict::Accept)
    } else if accepted.is_empty() {
        Some(PolicyVerdict::Drop)
    } else {
        let over = |base| encode_over(accepted, base).len();
        (over(&TrafficSet::none()) < over(any_peer)).then_some(PolicyVerdict::Drop)
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct SideKey {
    pub(crate) numbers: ProfileNumbers,
    pub(crate) direction: model::objects::Direction,
}

/// Compiles the entries of one side, once per combination of matching rules.
pub(crate) struct PairCompiler<'a> {
    pub(crate) inputs: SideInputs<'a>,
    pub(crate) key: SideKey,
    encoder: &'a mut Encoder,
    signature: Vec<u64>,
}

impl<'a> PairCompiler<'a> {
    pub(crate) fn new(inputs: SideInputs<'a>, key: SideKey, encoder: &'a mut Encoder) -> Self {
        Self { inputs, key, encoder, signature: Vec::new() }
    }

    /// The entries of the pod as its own peer.
    pub(crate) fn self_entries(
        &mut self,
        plan: &RulePlan,
        base: &PeerBase,
        own_ports: &[NamedPort],
    ) -> Option<Entries> {
        let accepted = accepted_traffic(&plan.rules, own_ports, |_, rule| rule.matches_self);
        self.encoder.encode(accepted, base.any_peer.clone())
    }

    /// None if the base fits.
    pub(crate) fn entries(
        &mut self,
        (plan, base): (&RulePlan, &PeerBase),
        known: &mut KnownEntries,
        (index, class): (ClassIndex, &ClassEntry),
    ) -> Option<Entries> {
        self.sign(plan, index, class);
        if let Some(known) = known.0.get(&self.signature) {
            return known.clone();
        }
        let accepted = accepted_traffic(&plan.rules, class.key.ports(), |rule, _| {
            self.signature[rule / 64] & (1 << (rule % 64)) != 0
        });
        let entries = self.encoder.encode(accepted, base.accepted(class, self.key));
        if known.0.len() >= MAX_KNOWN {
            known.0.clear();
        }
        known.0.insert(self.signature.clone(), entries.clone());
        entries
    }

    /// Computes the signature of a class, which is everything that decides its entries: the rules that match, the base, and named ports.
    fn sign(&mut self, plan: &RulePlan, index: ClassIndex, class: &ClassEntry) {
        self.signature.clear();
        self.signature.resize(plan.rules.len().div_ceil(64), 0);
        for rule in 0..plan.rules.len() {
            if plan.is_match(rule, self.inputs.predicates, index) {
                self.signature[rule / 64] |= 1 << (rule % 64);
            }
        }
        let slot = class.id.0 >> ClassId::SLOT_SHIFT;
        // All other tenants are alike.
        self.signature.push(u64::from(if slot == 0 || slot == self.key.numbers.slot {
            slot
        } else {
            u32::MAX
        }));
        let any_pod = class.any_pod[self.key.direction].as_ref();
        self.signature.push(any_pod.map_or(0, |any_pod| any_pod.number));
        let ports = class.key.ports();
        for (number, name) in plan.rules.iter().flat_map(|rule| &rule.traffic.named).enumerate() {
            for port in name.find(ports) {
                let words = [number as u64, u64::from(port.protocol.number()), u64::from(port.port)];
                self.signature.extend(words);
            }
        }
    }
}

impl ProfileSide {
    /// The number of elements, without those of the base.
    pub(crate) fn pair_elements(&self) -> usize {
        self.pairs.elements + self.self_pair.as_ref().map_or(0, |entries| entries.len())
    }
}

/// Both directions of a profile.
pub(crate) type ProfileSides = PerDirection<ProfileSide>;
