use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use runtime::{Cri, PodSpec, Stop};
use testkit::{DEADLINE, wait_until};

use crate::common::{Traces, World};
use crate::site::{PLUGIN, Programs, Site};

const UPGRADES: u8 = 3;
/// No lane makes more pods than this.
const MOST: usize = 500;

/// Dropped, also by a failing test, it ends the making of pods.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

#[test]
fn the_plugin_is_replaced_while_pods_are_made_and_no_pod_notices() {
    let world = World::without_network("agent-upgrade");
    let built = Programs::built(&world.lab);
    let packaged = world.machine.path("/opt/podwire/podwire-cni");
    fs::create_dir_all(packaged.parent().unwrap()).unwrap();
    place(&packaged, &built.plugin, 0);
    let programs = Programs { plugin: "/opt/podwire/podwire-cni".into(), ..built.clone() };
    let mut site = Site::in_world(world, programs);
    let before = Traces::before_pods(&site.world);

    let (cri, over) = (site.world.cri().clone(), AtomicBool::new(false));
    let made = std::thread::scope(|scope| {
        let (cri, over) = (&cri, &over);
        let end = End(over);
        let lanes = ["x", "y"].map(|lane| scope.spawn(move || make_pods(cri, lane, over)));
        for version in 1..=UPGRADES {
            place(&packaged, &built.plugin, version);
            site.restart_agent(Stop::Politely);
            let installed = site.world.machine.path(PLUGIN);
            wait_until("the new plugin to be installed", DEADLINE, || {
                Ok(fs::read(&installed)?.last() == Some(&version))
            })
            .unwrap();
        }
        drop(end);
        lanes.map(|lane| lane.join().unwrap().unwrap())
    });
    assert!(made.iter().all(|&pods| pods > 0), "{made:?} pods were made meanwhile");
    site.expect_nothing_left(&before);
}

/// Another version of the plugin: a byte after its end changes nothing for the kernel. Renamed into place, as a package
/// manager does it.
fn place(at: &Path, plugin: &Path, version: u8) {
    let mut program = fs::read(plugin).unwrap();
    program.push(version);
    let new = at.with_extension("new");
    fs::write(&new, program).unwrap();
    fs::rename(new, at).unwrap();
}

/// Pods come and go until it is over; how many.
fn make_pods(cri: &Cri, lane: &str, over: &AtomicBool) -> Result<usize> {
    let mut made = 0;
    while made < MOST && !over.load(Ordering::Acquire) {
        let sandbox = cri.run_sandbox(&PodSpec::named(&format!("{lane}{made}")))?;
        cri.stop_pod(&sandbox)?;
        cri.remove_pod(&sandbox)?;
        made += 1;
    }
    Ok(made)
}
