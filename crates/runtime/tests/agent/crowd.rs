use std::collections::BTreeSet;

use anyhow::Context as _;
use runtime::{PodSpec, Stop};
use testkit::{Snapshot, wait_until};

use crate::common::{Testbed, Traces};
use crate::site::{CONFIG, LOOPBACK, PLUGIN, Programs, Site, TIMEOUT, names};

const PODS: usize = 20;

#[test]
fn twenty_parallel_pods_are_removed_and_cleanup_removes_the_rest() {
    let testbed = Testbed::without_network("agent-crowd");
    let untouched = Snapshot::of(&testbed.node).unwrap();
    let programs = Programs::built(&testbed.lab);
    let mut site = Site::in_testbed(testbed, programs);
    let before = Traces::before_pods(&site.testbed);
    add_and_remove_pods(&site);
    site.expect_nothing_left(&before);

    // Cleanup also removes the objects of a running pod.
    site.testbed.run("last");
    site.agent.stop(Stop::Sigterm).unwrap();
    let output = site.podwire(&["cleanup"]);
    assert!(output.contains("removed"), "{output}");
    untouched.expect_same(&site.testbed.node).unwrap();
    let machine = &site.testbed.machine;
    for path in [CONFIG, PLUGIN, LOOPBACK, "/run/podwire", "/var/lib/podwire"] {
        assert!(!machine.path(path).exists(), "{path} still exists ({:?}): {output}", names(machine, path));
    }
    wait_until("the runtime to report a missing network", TIMEOUT, || {
        let error = site.testbed.cri().ready().err().context("the network is still ready")?;
        Ok(format!("{error:#}").contains("NetworkReady is false"))
    })
    .unwrap();
    assert!(site.podwire(&["cleanup"]).contains("nothing to remove"));
}

fn add_and_remove_pods(site: &Site) {
    let cri = site.testbed.cri();
    let sandboxes: Vec<String> = std::thread::scope(|scope| {
        let runs: Vec<_> = (0..PODS)
            .map(|number| scope.spawn(move || cri.run_sandbox(&PodSpec::named(&format!("p{number}")))))
            .collect();
        runs.into_iter().map(|run| run.join().unwrap().unwrap()).collect()
    });
    let addresses: BTreeSet<_> = sandboxes.iter().flat_map(|id| cri.addresses(id).unwrap()).collect();
    assert_eq!(addresses.len(), 2 * PODS, "{addresses:?}");
    assert_eq!(site.claims().len(), 2 * PODS);
    std::thread::scope(|scope| {
        for sandbox in &sandboxes {
            scope.spawn(move || cri.stop_pod(sandbox).and_then(|()| cri.remove_pod(sandbox)).unwrap());
        }
    });
}
