use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use runtime::{Cri, PodSpec, Stop};
use testkit::{DEADLINE, wait_until};

use crate::common::{Testbed, Traces};
use crate::site::{PLUGIN, Programs, Site};

const UPGRADES: u8 = 3;
/// Maximum number of pods per worker.
const MAX_PODS: usize = 500;

/// Stops the workers on drop, also if the test fails.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

#[test]
fn pods_are_created_without_errors_during_plugin_upgrades() {
    let testbed = Testbed::without_network("agent-upgrade");
    let built = Programs::built(&testbed.lab);
    let packaged = testbed.machine.path("/opt/podwire/podwire-cni");
    fs::create_dir_all(packaged.parent().unwrap()).unwrap();
    install_version(&packaged, &built.plugin, 0);
    let programs = Programs { plugin: "/opt/podwire/podwire-cni".into(), ..built.clone() };
    let mut site = Site::in_testbed(testbed, programs);
    let before = Traces::before_pods(&site.testbed);

    let (cri, stop) = (site.testbed.cri().clone(), AtomicBool::new(false));
    let counts = std::thread::scope(|scope| {
        let (cri, stop) = (&cri, &stop);
        let guard = StopOnDrop(stop);
        let workers = ["x", "y"].map(|worker| scope.spawn(move || create_pods(cri, worker, stop)));
        for version in 1..=UPGRADES {
            install_version(&packaged, &built.plugin, version);
            site.restart_agent(Stop::Sigterm);
            let installed = site.testbed.machine.path(PLUGIN);
            wait_until("the new plugin to be installed", DEADLINE, || {
                Ok(fs::read(&installed)?.last() == Some(&version))
            })
            .unwrap();
        }
        drop(guard);
        workers.map(|worker| worker.join().unwrap().unwrap())
    });
    assert!(counts.iter().all(|&pods| pods > 0), "{counts:?} pods were created meanwhile");
    site.expect_nothing_left(&before);
}

/// Installs another version of the plugin with a rename, as a package manager does. An extra byte at the end does not affect
/// execution.
fn install_version(target: &Path, plugin: &Path, version: u8) {
    let mut program = fs::read(plugin).unwrap();
    program.push(version);
    let new = target.with_extension("new");
    fs::write(&new, program).unwrap();
    fs::rename(new, target).unwrap();
}

/// Creates and removes pods until `stop` is set, and returns their number.
fn create_pods(cri: &Cri, worker: &str, stop: &AtomicBool) -> Result<usize> {
    let mut created = 0;
    while created < MAX_PODS && !stop.load(Ordering::Acquire) {
        let sandbox = cri.run_sandbox(&PodSpec::named(&format!("{worker}{created}")))?;
        cri.stop_pod(&sandbox)?;
        cri.remove_pod(&sandbox)?;
        created += 1;
    }
    Ok(created)
}
