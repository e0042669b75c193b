//! The engine against the naive model.

mod common;

use std::cell::RefCell;
use std::collections::BTreeMap;

use model::objects::Direction;
use policy::{
    Explanation, FlowEnd, Judgement, JudgementReason, PolicyFlow, PolicyTier, PolicyVerdict, World,
};
use policyproof::compare;
use policyproof::interpret::Kernel;
use policyproof::naive::{self, NaiveJudgement, NaiveTier};
use policyproof::worlds::{random_world, smallest, some_flows};
use policyproof::{Dice, Flow, JudgedFlow, cases};

/// Compares a part of the flows of a world, in percent.
fn check(world: &World, seed: u64, percent: usize) -> Result<usize, String> {
    let engine = common::engine(world, seed);
    let kernel = Kernel::load(engine.elements()).map_err(|refused| refused.to_string())?;
    compare::compare_some(world, (&kernel, &common::profiles(&engine)), (&mut Dice::new(seed), percent))
        .map_err(|mismatch| mismatch.to_string())
}

/// Runs `check` for each seed. The first failure is reported with a world as small as possible.
fn all_worlds(default: u64, check: impl Fn(&World, u64, usize) -> Result<usize, String>) {
    let mut total = 0;
    for seed in common::seeds(default) {
        let world = random_world(seed);
        // One world in fifty with all flows.
        let percent = if seed.is_multiple_of(50) { 100 } else { 4 };
        match check(&world, seed, percent) {
            Ok(count) => total += count,
            Err(first) => {
                let small = smallest(world, |world| check(world, seed, 100).is_err());
                panic!("seed {seed}: {first}\nsmaller: {:?}\n{small:#?}", check(&small, seed, 100));
            }
        }
    }
    println!("{} worlds, {total} flows", common::seeds(default).count());
}

#[test]
fn d_random_worlds_get_the_verdicts_of_the_naive_model() {
    all_worlds(250, check);
}

#[test]
fn d_np_cnp_all_cases_get_their_verdicts_from_the_engine() {
    let mut wrong = Vec::new();
    for case in cases::all() {
        let engine = common::engine(&case.world, 1);
        let kernel = Kernel::load(engine.elements()).unwrap();
        let profiles = common::profiles(&engine);
        for (flow, expected) in &case.expectations {
            let ends = JudgedFlow::of(&case.world, flow);
            let is_dropped =
                ends.iter().any(|end| compare::found(&kernel, &profiles, end) == PolicyVerdict::Drop);
            if is_dropped != (*expected == PolicyVerdict::Drop) {
                let naive = naive::verdict(&case.world, flow);
                wrong.push(format!("{}: {flow}: expected {expected:?}, {naive:?}", case.name));
            }
            let explained = engine.explain(&explained_flow(flow));
            if !agrees(&case.world, flow, &explained) {
                wrong.push(format!("{}: {flow}: expected {expected:?}, {explained:?}", case.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong verdicts:\n{}", wrong.len(), wrong.join("\n"));
}

fn explained_flow(flow: &Flow) -> PolicyFlow {
    PolicyFlow {
        from: FlowEnd::Address(flow.source),
        to: FlowEnd::Address(flow.destination),
        protocol: flow.protocol,
        port: flow.port.unwrap_or_default(),
    }
}

/// The tier that decided, as the naive model names it.
fn explained_tier(judgement: &Judgement) -> Option<NaiveTier> {
    match &judgement.reason {
        JudgementReason::OwnNode => Some(NaiveTier::OwnNode),
        JudgementReason::Closed => None,
        JudgementReason::Tiers(steps) => {
            let last = steps.last().filter(|step| {
                step.rule.as_ref().is_some_and(|(_, outcome)| *outcome != policy::RuleOutcome::NextTier)
            });
            Some(last.map_or(NaiveTier::Default, |step| match step.tier {
                PolicyTier::Admin => NaiveTier::Admin,
                PolicyTier::Tenant => NaiveTier::Tenant,
                PolicyTier::Group => NaiveTier::Group,
                PolicyTier::NetworkPolicy => NaiveTier::NetworkPolicy,
                PolicyTier::Baseline => NaiveTier::Baseline,
            }))
        }
    }
}

/// Whether both ends are explained like the naive model judges them, also at pods of other nodes.
fn agrees(world: &World, flow: &Flow, explained: &Explanation) -> bool {
    let naive = |address, direction| {
        naive::pod_at(world, address).map(|pod| naive::judge(world, pod, direction, flow))
    };
    let is_same = |explained: Option<&Judgement>, naive: Option<NaiveJudgement>| match (explained, naive) {
        (None, None) => true,
        (Some(explained), Some(naive)) => {
            // Without rules that name nodes, flows to the own node pass no firewall.
            let is_own_node =
                explained.reason == JudgementReason::OwnNode && naive.tier == NaiveTier::Default;
            explained.verdict == naive.verdict
                && (is_own_node || explained_tier(explained) == Some(naive.tier))
        }
        (Some(_), None) | (None, Some(_)) => false,
    };
    is_same(explained.egress.as_ref(), naive(flow.source, Direction::Egress))
        && is_same(explained.ingress.as_ref(), naive(flow.destination, Direction::Ingress))
}

/// The pod whose flows are compared, or the pod at the other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    Subject,
    Peer,
}

type Explained = BTreeMap<(Direction, End, NaiveTier, PolicyVerdict), usize>;

/// Counts explained ends of flows by their result.
fn check_explanations(
    world: &World,
    seed: u64,
    percent: usize,
    counts: &mut Explained,
) -> Result<usize, String> {
    let engine = common::engine(world, seed);
    let flows = some_flows(world, &mut Dice::new(seed), percent);
    for one in &flows {
        let explained = engine.explain(&explained_flow(&one.flow));
        if !agrees(world, &one.flow, &explained) {
            let naive = naive::verdict(world, &one.flow);
            return Err(format!("{}: {naive:?}, but explained as {explained:#?}", one.flow));
        }
        for (direction, judgement) in
            [(Direction::Egress, &explained.egress), (Direction::Ingress, &explained.ingress)]
        {
            let Some(judgement) = judgement else { continue };
            let end = if direction == one.direction { End::Subject } else { End::Peer };
            let tier = explained_tier(judgement).ok_or("a closed pod")?;
            *counts.entry((direction, end, tier, judgement.verdict)).or_default() += 1;
        }
    }
    Ok(flows.len())
}

#[test]
fn d_explanations_name_the_verdict_and_the_tier_of_the_naive_model() {
    let explained = RefCell::new(BTreeMap::new());
    all_worlds(60, |world, seed, percent| {
        check_explanations(world, seed, percent, &mut explained.borrow_mut())
    });
    let explained = explained.into_inner();
    println!("{explained:?}");
    let tiers = [NaiveTier::Admin, NaiveTier::Group, NaiveTier::NetworkPolicy, NaiveTier::Baseline];
    let denials = tiers.into_iter().chain([NaiveTier::Tenant]).map(|tier| (tier, PolicyVerdict::Drop));
    let both = [NaiveTier::Admin, NaiveTier::NetworkPolicy, NaiveTier::Baseline, NaiveTier::Default];
    for (tier, verdict) in denials.chain(both.map(|tier| (tier, PolicyVerdict::Accept))) {
        for direction in [Direction::Ingress, Direction::Egress] {
            for end in [End::Subject, End::Peer] {
                let count = explained.get(&(direction, end, tier, verdict)).copied().unwrap_or_default();
                assert!(count > 20, "{direction:?}, {end:?}, {tier:?}, {verdict:?}: {count} explanations");
            }
        }
    }
}
