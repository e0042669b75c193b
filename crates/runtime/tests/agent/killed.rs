use std::fs;

use anyhow::Result;
use runtime::{Machine, PodSpec, Stop};
use serde_json::Value;
use testkit::{DEADLINE, Snapshot, wait_until};

use crate::site::{SOON, Site, names};

const ATTACHMENTS: &str = "/run/podwire/networks/podwire/attachments";
const NAMESPACES: &str = "/run/netns";
const RESULTS: &str = "/var/lib/cni/results";
const SNAPSHOTS: &str = "/var/lib/containerd/io.containerd.snapshotter.v1.native/snapshots";

type IsThere = fn(&Machine) -> Result<bool>;

/// What there is to see of a pod that is being made, in the order in which it appears.
const NAMESPACE: (&str, IsThere) = ("its namespace", |machine| Ok(!names(machine, NAMESPACES).is_empty()));
const RECORD: (&str, IsThere) = ("its record", |machine| Ok(!names(machine, ATTACHMENTS).is_empty()));
const ATTACHMENT: (&str, IsThere) =
    ("its attachment", |machine| Ok(names(machine, ATTACHMENTS).iter().any(|name| name.ends_with(".ready"))));
const SHIM: (&str, IsThere) = ("its shim", |machine| {
    Ok(machine.remains()?.iter().any(|line| line.starts_with("process containerd-shim")))
});

/// What becomes of the namespace of a pod whose maker was killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Stays,
    Dies,
}

#[test]
fn containerd_killed_while_it_makes_a_pod_leaves_nothing_of_ours() {
    let mut site = Site::new("agent-midway");
    site.world.remove(&site.world.run("first"));
    wait_until(
        "the first pod to be gone",
        DEADLINE,
        || Ok(names(&site.world.machine, NAMESPACES).is_empty()),
    )
    .unwrap();
    let before = Snapshot::of(&site.world.node).unwrap();
    let layers = names(&site.world.machine, SNAPSHOTS);
    let rounds = [
        (NAMESPACE, Fate::Stays),
        (RECORD, Fate::Stays),
        (ATTACHMENT, Fate::Stays),
        (SHIM, Fate::Stays),
        (RECORD, Fate::Dies),
        (ATTACHMENT, Fate::Dies),
    ];
    for (number, ((what, is_there), fate)) in rounds.into_iter().enumerate() {
        let cri = site.world.cri().clone();
        let run = std::thread::spawn(move || cri.run_sandbox(&PodSpec::named(&format!("p{number}"))));
        wait_until(what, DEADLINE, || Ok(run.is_finished() || is_there(&site.world.machine)?)).unwrap();
        let is_over = run.is_finished();
        site.world.containerd.stop(Stop::Killed).unwrap();
        // It may be quicker than the kill, but then it succeeds.
        let outcome = run.join().unwrap();
        let outcome = outcome.map_err(|error| format!("{error:#}"));
        assert!(outcome.is_ok() || !is_over, "{outcome:?}");
        if fate == Fate::Dies {
            end_namespaces(&site.world.machine);
            wait_for_nothing(&site, what);
        }
        site.world.containerd.launch().unwrap();
        site.wait_until_ready();
        collect(&site);
        forget_half_snapshots(&site.world.machine, &layers);
        wait_for_nothing(&site, what);
        before.wait_for_same(&site.world.node, SOON).unwrap();
    }
    let pod = site.world.run("last");
    site.world.remove(&pod);
    before.wait_for_same(&site.world.node, SOON).unwrap();
}

fn wait_for_nothing(site: &Site, moment: &str) {
    wait_until(&format!("nothing to be left of a pod whose maker was killed at {moment}"), SOON, || {
        Ok(names(&site.world.machine, ATTACHMENTS).is_empty() && site.claims().is_empty())
    })
    .unwrap();
}

/// As a kubelet does with pods that it does not know, and as somebody must with the namespaces that containerd forgot.
/// While they are there, their addresses are in use, and nobody else may get them.
fn collect(site: &Site) {
    let (machine, cri) = (&site.world.machine, site.world.cri());
    forget_half_results(machine);
    for sandbox in cri.sandboxes().unwrap() {
        cri.stop_pod(&sandbox).unwrap();
        cri.remove_pod(&sandbox).unwrap();
    }
    let forgotten = names(machine, NAMESPACES);
    for attachment in site.pods() {
        let netns = attachment["netns"].as_str().unwrap();
        assert!(forgotten.iter().any(|name| netns.ends_with(name)), "{netns} is gone, its attachment is not");
    }
    end_namespaces(machine);
}

/// With all that runs in them.
fn end_namespaces(machine: &Machine) {
    for name in names(machine, NAMESPACES) {
        let end = r#"ip netns pids "$0" | xargs -r kill -KILL; ip netns del "$0""#;
        machine.sh(&["sh", "-c", end, &name]).unwrap();
    }
}

/// libcni writes its cache in place. A result that was cut off would keep containerd from ever stopping the pod.
fn forget_half_results(machine: &Machine) {
    for name in names(machine, RESULTS) {
        let file = machine.path(RESULTS).join(name);
        if serde_json::from_slice::<Value>(&fs::read(&file).unwrap()).is_err() {
            fs::remove_file(file).unwrap();
        }
    }
}

/// containerd's native snapshotter puts a directory into its place before it writes down that the number is taken. One that
/// was killed in between finds the directory in its way with the next pod.
fn forget_half_snapshots(machine: &Machine, layers: &[String]) {
    for name in names(machine, SNAPSHOTS).iter().filter(|name| !layers.contains(name)) {
        if let Err(error) = fs::remove_dir_all(machine.path(SNAPSHOTS).join(name)) {
            // containerd collects those that it knows of at the same time.
            assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{name}: {error}");
        }
    }
}
