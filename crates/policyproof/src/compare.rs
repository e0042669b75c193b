//! The naive model against the interpreter.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use policy::{PodUid, PolicyElement, PolicyVerdict, ProfileId, World};

use crate::interpret::{Kernel, RefusedElement};
use crate::naive::{self, NaiveJudgement};
use crate::{Dice, JudgedFlow, worlds};

/// The profiles of the local pods.
pub type PodProfiles = BTreeMap<PodUid, ProfileId>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mismatch {
    Refused(RefusedElement),
    Verdict { flow: JudgedFlow, expected: NaiveJudgement, found: PolicyVerdict },
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(refusal) => write!(f, "refused: {refusal}"),
            Self::Verdict { flow, expected, found } => write!(
                f,
                "{:?} at {}: {}: the naive model says {expected}, the elements say {found:?}",
                flow.direction, flow.pod, flow.flow
            ),
        }
    }
}

impl std::error::Error for Mismatch {}

/// Compares all flows. Returns their number.
pub fn compare(
    world: &World,
    elements: impl IntoIterator<Item = PolicyElement>,
    profiles: &PodProfiles,
) -> Result<usize, Mismatch> {
    let kernel = Kernel::load(elements).map_err(Mismatch::Refused)?;
    compare_flows(world, (&kernel, profiles), &worlds::flows(world))
}

/// Compares a part of the flows, in percent.
pub fn compare_some(
    world: &World,
    (kernel, profiles): (&Kernel, &PodProfiles),
    (dice, percent): (&mut Dice, usize),
) -> Result<usize, Mismatch> {
    compare_flows(world, (kernel, profiles), &worlds::some_flows(world, dice, percent))
}

pub fn compare_flows(
    world: &World,
    (kernel, profiles): (&Kernel, &PodProfiles),
    flows: &[JudgedFlow],
) -> Result<usize, Mismatch> {
    for flow in flows {
        let Some(expected) = expected(world, flow) else { continue };
        let found = found(kernel, profiles, flow);
        if found != expected.verdict {
            return Err(Mismatch::Verdict { flow: flow.clone(), expected, found });
        }
    }
    Ok(flows.len())
}

/// None if the pod does not exist.
pub fn expected(world: &World, flow: &JudgedFlow) -> Option<NaiveJudgement> {
    let pod = world.pods.get(&flow.pod)?;
    Some(naive::judge(world, pod, flow.direction, &flow.flow))
}

/// A pod without a profile is closed.
pub fn found(kernel: &Kernel, profiles: &PodProfiles, flow: &JudgedFlow) -> PolicyVerdict {
    let profile = profiles.get(&flow.pod).copied().unwrap_or(ProfileId::CLOSED);
    kernel.judge(profile, flow.direction, &flow.flow)
}

/// The flows that both worlds judge alike, with the verdict. No step between the worlds may change them.
pub fn unchanged(old: &World, new: &World, flows: &[JudgedFlow]) -> Vec<(JudgedFlow, PolicyVerdict)> {
    let is_same_pod = |flow: &JudgedFlow| {
        let addresses = |world: &World| world.pods.get(&flow.pod).and_then(|pod| pod.addresses.clone());
        addresses(old) == addresses(new)
    };
    let is_clear = |flow: &JudgedFlow| {
        [flow.flow.source, flow.flow.destination].iter().all(|one| !worlds::is_ambiguous(old, *one))
    };
    let same = flows.iter().filter(|flow| is_same_pod(flow) && is_clear(flow)).filter_map(|flow| {
        let (before, after) = (expected(old, flow)?, expected(new, flow)?);
        (before.verdict == after.verdict).then(|| (flow.clone(), after.verdict))
    });
    same.collect()
}

/// What is only in one of the two sets: `(missing, unexpected)`.
pub fn difference(
    kernel: &Kernel,
    elements: impl IntoIterator<Item = PolicyElement>,
) -> (Vec<PolicyElement>, Vec<PolicyElement>) {
    let wanted: BTreeSet<PolicyElement> = elements.into_iter().collect();
    let existing = kernel.elements();
    (wanted.difference(existing).copied().collect(), existing.difference(&wanted).copied().collect())
}
