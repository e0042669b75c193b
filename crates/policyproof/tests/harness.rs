//! The comparison finds a single wrong element.

use std::collections::BTreeMap;
use std::net::IpAddr;

use policy::{ClassId, PolicyElement, PolicyVerdict, ProfileId, VerdictKey, World};
use policyproof::compare::{self, Mismatch, PodProfiles};
use policyproof::worlds::{flows, random_world};
use policyproof::{Dice, JudgedFlow};

/// A profile for each pod, a class for each address, and an element for each flow.
struct Enumerated {
    profiles: PodProfiles,
    elements: Vec<PolicyElement>,
    /// The number of elements that are not verdicts. They come first.
    addresses: usize,
}

fn enumerate(world: &World, flows: &[JudgedFlow]) -> Enumerated {
    let pods = world.pods.keys().enumerate();
    let profiles: PodProfiles =
        pods.map(|(index, uid)| (uid.clone(), ProfileId(ProfileId::FIRST + index as u32))).collect();
    let mut classes: BTreeMap<IpAddr, ClassId> = BTreeMap::new();
    for flow in flows {
        let next = ClassId(ClassId::FIRST + classes.len() as u32);
        classes.entry(flow.flow.peer(flow.direction)).or_insert(next);
    }
    let verdict = |one: &JudgedFlow| {
        let (profile, class) = (profiles[&one.pod], classes[&one.flow.peer(one.direction)]);
        let key = match one.flow.transport().zip(one.flow.port) {
            Some((protocol, port)) => VerdictKey::PeerPort { profile, class, protocol, port },
            None => VerdictKey::PeerProtocol { profile, class, protocol: one.flow.protocol },
        };
        let verdict = compare::expected(world, one).map(|judgement| judgement.verdict)?;
        Some(PolicyElement::Verdict { direction: one.direction, key, verdict })
    };
    let verdicts: Vec<_> = flows.iter().filter_map(verdict).collect();
    let addresses =
        classes.iter().map(|(address, class)| PolicyElement::Address { address: *address, class: *class });
    let elements: Vec<_> = addresses.chain(verdicts).collect();
    Enumerated { profiles, elements, addresses: classes.len() }
}

fn inverted(element: PolicyElement) -> PolicyElement {
    match element {
        PolicyElement::Verdict { direction, key, verdict } => {
            let verdict = match verdict {
                PolicyVerdict::Accept => PolicyVerdict::Drop,
                PolicyVerdict::Drop => PolicyVerdict::Accept,
            };
            PolicyElement::Verdict { direction, key, verdict }
        }
        PolicyElement::Address { .. }
        | PolicyElement::Addresses { .. }
        | PolicyElement::OwnAddress { .. } => element,
    }
}

#[test]
fn d_the_comparison_accepts_right_elements_and_finds_each_wrong_one() {
    for seed in 0..3 {
        let world = random_world(seed);
        let flows = flows(&world);
        let Enumerated { profiles, elements, addresses } = enumerate(&world, &flows);
        assert_eq!(compare::compare(&world, elements.clone(), &profiles), Ok(flows.len()), "seed {seed}");
        let dice = &mut Dice::new(seed);
        for _ in 0..4 {
            let index = addresses + dice.below(flows.len());
            let mut wrong = elements.clone();
            wrong[index] = inverted(wrong[index]);
            let found = compare::compare(&world, wrong, &profiles);
            let Err(Mismatch::Verdict { flow, expected, found }) = found else {
                panic!("seed {seed}: {found:?}")
            };
            assert_eq!(flow, flows[index - addresses], "seed {seed}");
            assert_ne!(expected.verdict, found);
        }
    }
}

#[test]
fn d_a_pod_without_profile_is_closed() {
    let world = random_world(1);
    let flows = flows(&world);
    let Enumerated { elements, .. } = enumerate(&world, &flows);
    let found = compare::compare(&world, elements, &PodProfiles::new());
    assert!(matches!(found, Err(Mismatch::Verdict { found: PolicyVerdict::Drop, .. })), "{found:?}");
}
