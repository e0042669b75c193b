//! A pod's namespace goes while its ADD is under way.

use testkit::{DEADLINE, Snapshot, Verb, wait_until};

use crate::common::Host;
use crate::gate::Gate;

/// Whatever the ADD says: nothing of the pod stays, and others are served.
#[test]
fn a_namespace_that_vanishes_in_the_middle_of_add_leaves_nothing() {
    let host = Host::new("vanish");
    let gate = Gate::new(&host);
    // The bridge of the gated network is the node's, and stays.
    let (first, others) = (host.pod("first"), host.attached("other"));
    gate.open();
    gate.call(&host, Verb::Add, &first).ok().unwrap();
    gate.call(&host, Verb::Del, &first).ok().unwrap();
    gate.close();
    let before = Snapshot::of(&host.node).unwrap();
    let held = host.held();
    let pod = host.pod("gone");
    let adding = gate.spawn(&host, Verb::Add, &pod);
    gate.wait_for(2);
    pod.destroy().unwrap();
    gate.open();
    adding.outcome();
    wait_until("the attachment to be collected", DEADLINE, || Ok(host.held() == held))
        .unwrap_or_else(|e| panic!("{e}: {:?}; {}", host.held(), host.agent.log().unwrap()));
    before.wait_for_same(&host.node, DEADLINE).unwrap();
    host.del(&others.0);
}
