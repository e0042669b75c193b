use policy::{PolicyEngine, World};
use policyproof::Dice;
use policyproof::compare::PodProfiles;
use policyproof::worlds::all_changes;

/// `POLICYPROOF_TIMES` multiplies the number of worlds, and `POLICYPROOF_SEED` sets the first seed.
pub(crate) fn seeds(default: u64) -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let first = number("POLICYPROOF_SEED").unwrap_or(0);
    first..first + default * number("POLICYPROOF_TIMES").unwrap_or(1)
}

/// An engine that received the objects of the world in random order, one by one or all together.
pub(crate) fn engine(world: &World, seed: u64) -> PolicyEngine {
    let dice = &mut Dice::new(seed);
    let mut changes = all_changes(world);
    for last in (1..changes.len()).rev() {
        changes.swap(last, dice.below(last + 1));
    }
    let mut engine = PolicyEngine::new(world.local_node.clone());
    if dice.chance(50) {
        engine.apply(changes);
    } else {
        changes.into_iter().for_each(|change| drop(engine.apply([change])));
    }
    engine
}

/// The profiles of the local pods.
pub(crate) fn profiles(engine: &PolicyEngine) -> PodProfiles {
    engine.profiles().map(|(uid, profile)| (uid.clone(), profile)).collect()
}
