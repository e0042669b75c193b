use std::collections::BTreeSet;

use anyhow::Context as _;
use runtime::{PodSpec, Stop};
use testkit::{Snapshot, wait_until};

use crate::common::{Traces, World};
use crate::site::{CONFIG, LOOPBACK, PLUGIN, Programs, SOON, Site, names};

const PODS: usize = 20;

#[test]
fn twenty_pods_at_once_come_and_go_and_cleanup_leaves_nothing() {
    let world = World::without_network("agent-crowd");
    let untouched = Snapshot::of(&world.node).unwrap();
    let programs = Programs::built(&world.lab);
    let mut site = Site::in_world(world, programs);
    let before = Traces::before_pods(&site.world);
    come_and_go(&site);
    site.expect_nothing_left(&before);

    // One pod lives on: what it has of ours goes, too.
    site.world.run("last");
    site.agent.stop(Stop::Politely).unwrap();
    let said = site.podwire(&["cleanup"]);
    assert!(said.contains("removed"), "{said}");
    untouched.expect_same(&site.world.node).unwrap();
    let machine = &site.world.machine;
    for path in [CONFIG, PLUGIN, LOOPBACK, "/run/podwire", "/var/lib/podwire"] {
        assert!(!machine.path(path).exists(), "{path} is left ({:?}): {said}", names(machine, path));
    }
    wait_until("the runtime to miss its network", SOON, || {
        let error = site.world.cri().ready().err().context("it still has one")?;
        Ok(format!("{error:#}").contains("NetworkReady does not hold"))
    })
    .unwrap();
    assert!(site.podwire(&["cleanup"]).contains("nothing of Podwire is here"));
}

fn come_and_go(site: &Site) {
    let cri = site.world.cri();
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
