use std::fs;

use anyhow::Result;
use runtime::{Machine, PodSpec, Stop};
use serde_json::Value;
use testkit::{DEADLINE, Snapshot, wait_until};

use crate::site::{Site, TIMEOUT, names};

const ATTACHMENTS: &str = "/run/podwire/networks/podwire/attachments";
const NAMESPACES: &str = "/run/netns";
const RESULTS: &str = "/var/lib/cni/results";
const SNAPSHOTS: &str = "/var/lib/containerd/io.containerd.snapshotter.v1.native/snapshots";

type Exists = fn(&Machine) -> Result<bool>;

/// Objects of a pod that is being created, in the order of their creation.
const NAMESPACE: (&str, Exists) = ("its namespace", |machine| Ok(!names(machine, NAMESPACES).is_empty()));
const RECORD: (&str, Exists) = ("its record", |machine| Ok(!names(machine, ATTACHMENTS).is_empty()));
const ATTACHMENT: (&str, Exists) =
    ("its attachment", |machine| Ok(names(machine, ATTACHMENTS).iter().any(|name| name.ends_with(".ready"))));
const SHIM: (&str, Exists) = ("its shim", |machine| {
    Ok(machine.remains()?.iter().any(|line| line.starts_with("process containerd-shim")))
});

/// What the test does with the pod's namespace after it has killed containerd.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NamespaceAction {
    Keep,
    Remove,
}

#[test]
fn containerd_killed_during_pod_creation_leaves_no_managed_objects() {
    let mut site = Site::new("agent-midway");
    site.testbed.remove(&site.testbed.run("first"));
    wait_until("removal of the first pod", DEADLINE, || {
        Ok(names(&site.testbed.machine, NAMESPACES).is_empty())
    })
    .unwrap();
    let before = Snapshot::of(&site.testbed.node).unwrap();
    let layers = names(&site.testbed.machine, SNAPSHOTS);
    let rounds = [
        (NAMESPACE, NamespaceAction::Keep),
        (RECORD, NamespaceAction::Keep),
        (ATTACHMENT, NamespaceAction::Keep),
        (SHIM, NamespaceAction::Keep),
        (RECORD, NamespaceAction::Remove),
        (ATTACHMENT, NamespaceAction::Remove),
    ];
    for (number, ((object, exists), namespace)) in rounds.into_iter().enumerate() {
        let cri = site.testbed.cri().clone();
        let run = std::thread::spawn(move || cri.run_sandbox(&PodSpec::named(&format!("p{number}"))));
        wait_until(object, DEADLINE, || Ok(run.is_finished() || exists(&site.testbed.machine)?)).unwrap();
        let was_finished = run.is_finished();
        site.testbed.containerd.stop(Stop::Sigkill).unwrap();
        // The call may finish before the kill; then it must succeed.
        let outcome = run.join().unwrap();
        let outcome = outcome.map_err(|error| format!("{error:#}"));
        assert!(outcome.is_ok() || !was_finished, "{outcome:?}");
        if namespace == NamespaceAction::Remove {
            remove_namespaces(&site.testbed.machine);
            wait_for_removal(&site, object);
        }
        site.testbed.containerd.launch().unwrap();
        site.wait_until_ready();
        remove_leftovers(&site);
        remove_partial_snapshots(&site.testbed.machine, &layers);
        wait_for_removal(&site, object);
        before.wait_for_same(&site.testbed.node, TIMEOUT).unwrap();
    }
    let pod = site.testbed.run("last");
    site.testbed.remove(&pod);
    before.wait_for_same(&site.testbed.node, TIMEOUT).unwrap();
}

fn wait_for_removal(site: &Site, object: &str) {
    wait_until(
        &format!("removal of a pod after containerd was killed after the creation of {object}"),
        TIMEOUT,
        || Ok(names(&site.testbed.machine, ATTACHMENTS).is_empty() && site.claims().is_empty()),
    )
    .unwrap();
}

/// Removes unknown pods, as a kubelet does, and namespaces that containerd no longer knows. While such a namespace exists, its
/// addresses stay allocated.
fn remove_leftovers(site: &Site) {
    let (machine, cri) = (&site.testbed.machine, site.testbed.cri());
    remove_partial_results(machine);
    for sandbox in cri.sandboxes().unwrap() {
        cri.stop_pod(&sandbox).unwrap();
        cri.remove_pod(&sandbox).unwrap();
    }
    let namespaces = names(machine, NAMESPACES);
    for attachment in site.pods() {
        let netns = attachment["netns"].as_str().unwrap();
        assert!(
            namespaces.iter().any(|name| netns.ends_with(name)),
            "{netns} was removed, but its attachment exists"
        );
    }
    remove_namespaces(machine);
}

/// Removes the namespaces and kills their processes.
fn remove_namespaces(machine: &Machine) {
    for name in names(machine, NAMESPACES) {
        let script = r#"ip netns pids "$0" | xargs -r kill -KILL; ip netns del "$0""#;
        machine.sh(&["sh", "-c", script, &name]).unwrap();
    }
}

/// libcni writes its cache in place. With a truncated result containerd could never stop the pod.
fn remove_partial_results(machine: &Machine) {
    for name in names(machine, RESULTS) {
        let file = machine.path(RESULTS).join(name);
        if serde_json::from_slice::<Value>(&fs::read(&file).unwrap()).is_err() {
            fs::remove_file(file).unwrap();
        }
    }
}

/// containerd's native snapshotter creates a directory before it records the directory's number. If it is killed in between,
/// the existing directory makes the next pod fail.
fn remove_partial_snapshots(machine: &Machine, layers: &[String]) {
    for name in names(machine, SNAPSHOTS).iter().filter(|name| !layers.contains(name)) {
        if let Err(error) = fs::remove_dir_all(machine.path(SNAPSHOTS).join(name)) {
            // containerd removes known snapshots at the same time.
            assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{name}: {error}");
        }
    }
}
