//! Random worlds in the kernel. Rules and elements are read from the listing of the program nft and interpreted without knowledge of
//! the engine.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::Instant;

use model::objects::Direction;
use netlink::NetNs;
use policy::{PolicyElement, PolicyVerdict, World, WorldChange};
use policyproof::worlds::{random_change, random_world, some_flows, transition};
use policyproof::{Dice, JudgedFlow, cases, compare};

use crate::common;
use crate::listed::{Hook, Link, ListedTable, Packet, Verdict};
use crate::node::Node;

const UPLINK: Link = Link { name: "up0", kind: "veth", group: 0 };

fn listing() -> String {
    let output =
        Command::new("nft").args(["-n", "-j", "list", "table", "inet", "podwire-policy"]).output().unwrap();
    assert!(output.status.success(), "nft: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The verdict of the listed table about a flow of a pod with another end that is not judged.
fn listed_verdict(table: &ListedTable, node: &Node, world: &World, judged: &JudgedFlow) -> PolicyVerdict {
    let group = node.profiles.get(&judged.pod).map_or(0, |profile| profile.0);
    let link = Link { name: "pw0123", kind: "veth", group };
    let flow = &judged.flow;
    let is_for_node = world.nodes[&world.local_node].addresses.contains(&flow.destination);
    let (hook, input, output) = match (judged.direction, is_for_node) {
        (Direction::Ingress, _) => (Hook::Forward, UPLINK, Some(link)),
        (Direction::Egress, false) => (Hook::Forward, link, Some(UPLINK)),
        (Direction::Egress, true) => (Hook::Input, link, None),
    };
    match table.judge(hook, &Packet { flow, input, output }) {
        Verdict::Accept => PolicyVerdict::Accept,
        Verdict::Drop => PolicyVerdict::Drop,
    }
}

/// Compares the kernel's listing with the naive model. Returns the number of flows and elements.
fn check(node: &mut Node, world: &World, flows: &[JudgedFlow]) -> Result<(usize, usize), String> {
    let table = ListedTable::read(&listing())?;
    for flow in flows {
        let Some(expected) = compare::expected(world, flow) else { continue };
        let found = listed_verdict(&table, node, world, flow);
        if found != expected.verdict {
            return Err(format!(
                "{:?} at {}: {}: the naive model says {expected}, the kernel's listing says {found:?}",
                flow.direction, flow.pod, flow.flow
            ));
        }
    }
    let wanted: BTreeSet<PolicyElement> = node.engine.elements().collect();
    let read: BTreeSet<PolicyElement> = node.read_elements().into_iter().collect();
    let difference: Vec<_> = wanted.symmetric_difference(&read).collect();
    if !difference.is_empty() {
        return Err(format!("elements that only the engine or only the kernel has: {difference:?}"));
    }
    let profiles = common::profiles(&node.engine);
    if profiles != node.profiles {
        return Err(format!("profiles {:?} instead of {profiles:?}", node.profiles));
    }
    Ok((flows.len(), table.size()))
}

#[derive(Debug, Default)]
struct Total {
    worlds: usize,
    changes: usize,
    flows: usize,
    elements: usize,
}

/// The node goes from world to world by deltas. In each world, some objects change.
fn compare_worlds(seeds: std::ops::Range<u64>) -> Total {
    let mut total = Total::default();
    let mut before = random_world(seeds.start);
    let mut node = Node::new(common::engine(&before, seeds.start));
    for seed in seeds {
        let dice = &mut Dice::new(seed);
        let mut world = random_world(seed);
        let mut step = |name: &str, changes: Vec<WorldChange>, world: &World, percent: usize| {
            node.apply(changes, |_| {});
            let flows = some_flows(world, dice, percent);
            let (flows, elements) = check(&mut node, world, &flows)
                .unwrap_or_else(|wrong| panic!("seed {seed}, {name}: {wrong}\n{world:#?}"));
            total.flows += flows;
            total.elements += elements;
        };
        step("world", transition(&before, &world), &world, PERCENT);
        let changes = Dice::new(seed).list(1, 3, |dice| random_change(dice, &world));
        changes.iter().cloned().for_each(|change| world.apply(change));
        step("changes", changes, &world, PERCENT);
        total.worlds += 1;
        total.changes += 1;
        if seed.is_multiple_of(RELAXED) {
            node.relax();
            assert_eq!(node.drift(), [""; 0], "seed {seed}");
        }
        before = world;
    }
    total
}

/// How often the chain of the own node is removed if no rule needs it, and the digests of rules are compared.
const RELAXED: u64 = 20;
/// The part of the flows that is compared in each world. Each pair of addresses has at least one.
const PERCENT: usize = 1;

#[test]
fn d_random_worlds_get_the_verdicts_of_the_naive_model_from_the_kernels_listing() {
    let started = Instant::now();
    let seeds = common::seeds(1000);
    let middle = seeds.start + (seeds.end - seeds.start) / 2;
    // The kernel makes each transaction wait, so two namespaces are faster than one.
    let compared =
        |seeds: std::ops::Range<u64>| NetNs::create().unwrap().run(|| compare_worlds(seeds)).unwrap();
    let totals = std::thread::scope(|scope| {
        let halves = [seeds.start..middle, middle..seeds.end].map(|half| scope.spawn(|| compared(half)));
        halves.map(|half| half.join().unwrap())
    });
    println!("{totals:?} in {:?}", started.elapsed());
}

#[test]
fn d_np_cnp_all_cases_get_their_verdicts_from_the_kernels_listing() {
    let check_cases = || {
        let cases = cases::all();
        let mut before = cases[0].world.clone();
        let mut node = Node::new(common::engine(&before, 1));
        for case in cases {
            node.apply(transition(&before, &case.world), |_| {});
            let table = ListedTable::read(&listing()).unwrap();
            for (flow, expected) in &case.expectations {
                let ends = JudgedFlow::of(&case.world, flow);
                let mut verdicts = ends.iter().map(|end| listed_verdict(&table, &node, &case.world, end));
                let is_dropped = verdicts.any(|verdict| verdict == PolicyVerdict::Drop);
                assert_eq!(is_dropped, *expected == PolicyVerdict::Drop, "{}: {flow}", case.name);
            }
            before = case.world;
        }
    };
    NetNs::create().unwrap().run(check_cases).unwrap();
}

/// Changes by another process. Each of them changes verdicts.
const TAMPERED: [&str; 6] = [
    "flush chain TABLE ingress-deny",
    "flush chain TABLE egress-specific",
    "insert rule TABLE ingress accept",
    "insert rule TABLE forward-policy iifgroup 1-2000000000 accept",
    "flush map TABLE class4",
    "flush map TABLE in_default",
];

#[test]
fn d_the_comparison_finds_changed_rules_and_missing_elements() {
    NetNs::create()
        .unwrap()
        .run(|| {
            let world = random_world(5);
            let flows = policyproof::worlds::flows(&world);
            for tampered in TAMPERED {
                let mut node = Node::new(common::engine(&world, 5));
                check(&mut node, &world, &flows).unwrap();
                let command = tampered.replace("TABLE", "inet podwire-policy");
                assert!(Command::new("nft").arg(&command).status().unwrap().success(), "{command}");
                let wrong = check(&mut node, &world, &flows).unwrap_err();
                assert!(wrong.contains("the naive model says"), "{command}: {wrong}");
            }
        })
        .unwrap();
}

#[test]
fn d_unknown_expressions_in_a_listing_are_errors() {
    let listing = |rule: &str| format!(r#"{{"nftables": [{{"rule": {{"chain": "c", "expr": [{rule}]}}}}]}}"#);
    ListedTable::read(&listing(r#"{"accept": null}"#)).unwrap();
    for unknown in [
        r#"{"queue": null}"#,
        r#"{"mangle": {"key": {"meta": {"key": "mark"}}, "value": 1}}"#,
        r#"{"match": {"op": "<", "left": {"meta": {"key": "priority"}}, "right": "0:1"}}"#,
        r#"{"match": {"op": "==", "left": {"meta": {"key": "skuid"}}, "right": 0}}"#,
    ] {
        ListedTable::read(&listing(unknown)).unwrap_err();
    }
}
