//! The engine's changes against the naive model: after each one, and between its steps.

use policy::{Delta, PodPhase, PodUid, PolicyEngine, World, WorldChange};
use policyproof::compare::{self, PodProfiles};
use policyproof::interpret::Kernel;
use policyproof::worlds::{random_change, random_world, some_flows};
use policyproof::{Dice, JudgedFlow};

mod common;

/// The kernel and the links of local pods, as the agent changes them.
struct Node {
    engine: PolicyEngine,
    world: World,
    kernel: Kernel,
    profiles: PodProfiles,
}

impl Node {
    fn new(world: World, seed: u64) -> Result<Self, String> {
        let engine = common::engine(&world, seed);
        let kernel = Kernel::load(engine.elements()).map_err(|refused| refused.to_string())?;
        let profiles = common::profiles(&engine);
        Ok(Self { engine, world, kernel, profiles })
    }

    /// Applies the changes. Returns the number of compared flows.
    fn apply(&mut self, changes: Vec<WorldChange>, dice: &mut Dice) -> Result<usize, String> {
        let mut world = self.world.clone();
        changes.iter().cloned().for_each(|change| world.apply(change));
        let flows = some_flows(&world, dice, 3);
        let unchanged = if keeps_distinctions(&changes, &self.world) {
            compare::unchanged(&self.world, &world, &flows)
        } else {
            Vec::new()
        };
        let Delta { replaced, set, profiles, removed } = self.engine.apply(changes);

        self.kernel.transaction(replaced, set).map_err(|refused| format!("replaced and set: {refused}"))?;
        self.check_unchanged(&unchanged, "after set")?;
        self.profiles.extend(profiles);
        self.check_unchanged(&unchanged, "after profiles")?;
        self.kernel.transaction(removed, []).map_err(|refused| format!("removed: {refused}"))?;

        self.world = world;
        self.profiles.retain(|uid, _| is_judged(&self.world, uid));
        self.check_elements_and_profiles()?;
        compare::compare_flows(&self.world, (&self.kernel, &self.profiles), &flows)
            .map_err(|mismatch| format!("at the end: {mismatch}"))
    }

    fn check_unchanged(
        &self,
        unchanged: &[(JudgedFlow, policy::PolicyVerdict)],
        step: &str,
    ) -> Result<(), String> {
        for (flow, verdict) in unchanged {
            let found = compare::found(&self.kernel, &self.profiles, flow);
            if found != *verdict {
                return Err(format!("{step}: {flow:?} must stay {verdict:?}, found {found:?}"));
            }
        }
        Ok(())
    }

    fn check_elements_and_profiles(&self) -> Result<(), String> {
        let (missing, unexpected) = compare::difference(&self.kernel, self.engine.elements());
        if !missing.is_empty() || !unexpected.is_empty() {
            return Err(format!("the kernel lacks {missing:?} and has left {unexpected:?}"));
        }
        let wanted = common::profiles(&self.engine);
        if wanted != self.profiles {
            return Err(format!("profiles {:?} instead of {wanted:?}", self.profiles));
        }
        Ok(())
    }
}

/// Whether each step of a delta must keep the verdicts of all unchanged flows. Several changes at once may cause verdicts in between
/// that none of them causes alone. If a policy is removed or replaced, classes may be united that earlier profiles still distinguish.
fn keeps_distinctions(changes: &[WorldChange], world: &World) -> bool {
    let [change] = changes else { return false };
    match change {
        WorldChange::RemoveNetworkPolicy(..)
        | WorldChange::RemoveClusterPolicy(_)
        | WorldChange::RemoveGroupPolicy(..) => false,
        WorldChange::SetNetworkPolicy(policy) => {
            !world.network_policies.contains_key(&(policy.namespace.clone(), policy.name.clone()))
        }
        WorldChange::SetClusterPolicy(policy) => !world.cluster_policies.contains_key(&policy.name),
        WorldChange::SetGroupPolicy(policy) => {
            !world.group_policies.contains_key(&(policy.tenant.clone(), policy.name.clone()))
        }
        WorldChange::SetPod(_)
        | WorldChange::RemovePod(_)
        | WorldChange::SetNode(..)
        | WorldChange::RemoveNode(_)
        | WorldChange::SetNetwork(_)
        | WorldChange::RemoveNetwork(..)
        | WorldChange::SetTenant(_)
        | WorldChange::RemoveTenant(_)
        | WorldChange::SetGroup(_)
        | WorldChange::RemoveGroup(..)
        | WorldChange::SetShare(_)
        | WorldChange::RemoveShare(..)
        | WorldChange::SetNamespace(..)
        | WorldChange::RemoveNamespace(_) => true,
    }
}

/// Local pods with a network of their own.
fn is_judged(world: &World, uid: &PodUid) -> bool {
    world.pods.get(uid).is_some_and(|pod| {
        let has_addresses = pod.addresses.as_ref().is_some_and(|list| !list.is_empty());
        pod.node == world.local_node && pod.phase == PodPhase::Running && has_addresses
    })
}

#[test]
fn d_changes_keep_unchanged_flows_and_match_the_naive_model() {
    const STEPS: usize = 25;
    let (mut total, mut steps) = (0, 0);
    for seed in common::seeds(20) {
        let dice = &mut Dice::new(seed);
        let mut node =
            Node::new(random_world(seed), seed).unwrap_or_else(|refused| panic!("seed {seed}: {refused}"));
        for step in 0..STEPS {
            let changes = dice.list(1, 3, |dice| random_change(dice, &node.world));
            let described = format!("{changes:#?}");
            match node.apply(changes, dice) {
                Ok(count) => total += count,
                Err(wrong) => panic!("seed {seed}, step {step}: {wrong}\nafter {described}"),
            }
            steps += 1;
        }
    }
    println!("{steps} changes, {total} flows");
}
