//! The naive model against the hand-written cases.

use std::collections::BTreeSet;

use policyproof::{cases, naive};

#[test]
fn d_np_cnp_the_naive_model_agrees_with_all_cases() {
    let mut wrong = Vec::new();
    let mut names = BTreeSet::new();
    for case in cases::all() {
        assert!(names.insert(case.name), "{} exists twice", case.name);
        assert!(!case.expectations.is_empty(), "{} expects nothing", case.name);
        for (flow, expected) in &case.expectations {
            let found = naive::verdict(&case.world, flow);
            if found.verdict() != *expected {
                wrong.push(format!("{}: {flow}: expected {expected:?}, found {found:?}", case.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong verdicts:\n{}", wrong.len(), wrong.join("\n"));
}
