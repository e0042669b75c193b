//! A run directory that cannot be written: a file is at its path, or the file system is read-only or full.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;

use serde_json::{Value, json};
use testkit::{Plugin, Pod, inspect};

use crate::common::{Host, with, with_previous};
use crate::mounts::Mounts;
use crate::watch::{BRIDGE, Watch, dual, records_and_claims, refused_with};

#[test]
fn e7_a_file_at_the_path_of_the_run_directory_is_reported() {
    let host = Host::new("file");
    let (running, _) = host.attached("a", &dual(&host, &json!({})));
    let pod = host.pod("b");
    let file = host.node.dir().join("file");
    fs::write(&file, "unrelated").unwrap();
    let watch = Watch::on(&host, &[&running, &pod]);
    for run_dir in [file.clone(), file.join("state"), file.join("a/b")] {
        let (case, config) =
            (run_dir.display().to_string(), dual(&host, &json!({"runDir": run_dir, "name": "other"})));
        let outcome = host.plugin.add(&pod, &config).unwrap();
        refused_with(&case, &outcome, (5, &[&case, "is not a directory", "set runDir"]));
        host.del(&pod, &config);
        host.plugin.gc(&host.node, &config, &[]).unwrap().ok().unwrap();
        refused_with(&case, &host.plugin.status(&host.node, &config).unwrap(), (50, &["set runDir"]));
        watch.expect_same(&case);
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), "unrelated");
}

#[test]
fn e7_a_read_only_run_directory_is_reported() {
    let host = Host::new("readonly");
    let config = dual(&host, &json!({}));
    let (running, _) = host.attached("a", &config);
    let pod = host.pod("b");
    let dir = host.node.dir().display();
    let mounts = Mounts::new(&host, &format!("mount --bind {dir} {dir}\nmount -o remount,ro,bind {dir}"));
    let watch = Watch::on(&host, &[&running, &pod]);
    // The first run directory exists, the second one cannot be created.
    for config in
        [config.clone(), dual(&host, &json!({"runDir": host.node.dir().join("new"), "name": "other"}))]
    {
        let add = mounts.plugin.add(&pod, &config).unwrap();
        refused_with("ADD", &add, (5, &["Read-only file system", "to a writable directory"]));
        refused_with(
            "STATUS",
            &mounts.plugin.status(&host.node, &config).unwrap(),
            (50, &["Read-only", "runDir"]),
        );
        mounts.plugin.del(&pod, &config).unwrap().ok().unwrap();
        watch.expect_same("a read-only run directory");
    }
}

/// A failed step does not stop the other steps. The record remains for the next DEL.
#[test]
fn e14_del_with_a_read_only_run_directory_removes_the_link() {
    let host = Host::new("rodel");
    let config = dual(&host, &json!({}));
    let (pod, _) = host.attached("a", &config);
    let dir = host.node.dir().display();
    let mounts = Mounts::new(&host, &format!("mount --bind {dir} {dir}\nmount -o remount,ro,bind {dir}"));
    let records = records_and_claims(&host.node.run_dir());
    let outcome = mounts.plugin.del(&pod, &config).unwrap();
    refused_with("DEL", &outcome, (5, &["Read-only file system"]));
    assert!(inspect::link(&pod, "eth0").is_err(), "the link was not removed");
    assert_eq!(records_and_claims(&host.node.run_dir()), records, "records or claims changed");
    host.del(&pod, &config);
    assert!(records_and_claims(&host.node.run_dir()).is_empty());
}

/// A small file system with an adjustable amount of free space.
struct Disk<'a> {
    host: &'a Host,
    mounts: Mounts,
}

/// The resource that is exhausted.
#[derive(Debug, Clone, Copy)]
enum Resource {
    Pages,
    Inodes,
}

const PAGE: u64 = 4096;

impl<'a> Disk<'a> {
    fn new(host: &'a Host) -> Self {
        let run_dir = host.node.run_dir();
        let (dir, options) = (run_dir.display(), "size=64k,nr_inodes=48,mode=700");
        let mounts = Mounts::new(host, &format!("mkdir {dir}\nmount -t tmpfs -o {options} pwt {dir}"));
        Self { host, mounts }
    }

    fn plugin(&self) -> &Plugin {
        &self.mounts.plugin
    }

    fn watch(&self, pods: &[&Pod]) -> Watch {
        Watch::with_run_dir(self.host, pods, &self.mounts.path(&self.host.node.run_dir()))
    }

    fn filler(&self) -> std::path::PathBuf {
        self.mounts.path(&self.host.node.run_dir()).join("filler")
    }

    /// Fills the file system except for `free` pages or inodes.
    fn fill_except(&self, resource: Resource, free: u64) {
        self.empty();
        match resource {
            Resource::Pages => fill_pages(&self.filler(), free),
            Resource::Inodes => fill_inodes(&self.filler(), free),
        }
    }

    fn empty(&self) {
        let _ = fs::remove_file(self.filler());
        let _ = fs::remove_dir_all(self.filler());
    }
}

fn fill_pages(filler: &Path, free: u64) {
    let mut file = File::create(filler).unwrap();
    let page = [0; PAGE as usize];
    let full = (0..1000).find_map(|_| file.write_all(&page).err()).unwrap();
    assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
    let length = file.metadata().unwrap().len() / PAGE * PAGE;
    file.set_len(length.saturating_sub(free * PAGE)).unwrap();
}

fn fill_inodes(filler: &Path, free: u64) {
    fs::create_dir(filler).unwrap();
    let created = (0..1000).take_while(|n| File::create(filler.join(n.to_string())).is_ok()).count() as u64;
    (created.saturating_sub(free)..created)
        .for_each(|n| fs::remove_file(filler.join(n.to_string())).unwrap());
}

/// Increases the free resource until the ADD succeeds, so that each write of an ADD fails once. Each failed ADD must be undone.
fn fail_at_every_step(host: &Host, resource: Resource, config: &Value) {
    host.node.sh(&["ip", "link", "add", BRIDGE, "up", "type", "bridge"]).unwrap();
    let pod = host.pod("b");
    let disk = Disk::new(host);
    for free in 0..40 {
        disk.fill_except(resource, free);
        let watch = disk.watch(&[&pod]);
        let outcome = disk.plugin().add(&pod, config).unwrap();
        let case = format!("{resource:?}: {free} free");
        if outcome.success() {
            assert!(free > 1, "{case}: the file system was never full");
            disk.plugin().del(&pod, config).unwrap().ok().unwrap();
            return;
        }
        refused_with(&case, &outcome, (5, &["No space left", "full", "free space or set runDir"]));
        watch.expect_same(&case);
        disk.plugin().del(&pod, config).unwrap().ok().unwrap();
        watch.expect_same(&format!("DEL, {case}"));
    }
    panic!("{resource:?}: no ADD succeeded");
}

#[test]
fn c3_an_add_that_fills_the_disk_at_any_step_is_undone() {
    for resource in [Resource::Pages, Resource::Inodes] {
        let host = Host::new("full");
        fail_at_every_step(&host, resource, &dual(&host, &json!({})));
    }
}

#[test]
fn c3_a_full_disk_is_reported_and_pods_can_be_removed() {
    for resource in [Resource::Pages, Resource::Inodes] {
        let host = Host::new("fillsup");
        let config = dual(&host, &json!({}));
        // A pod with another run directory creates the bridge, so that it exists independent of this disk.
        host.attached("z", &with(&config, &json!({"runDir": host.node.dir().join("z"), "name": "z"})));
        let (a, b, c) = (host.pod("a"), host.pod("b"), host.pod("c"));
        let disk = Disk::new(&host);
        let result = disk.plugin().add(&a, &config).unwrap().ok().unwrap();
        let second = disk.plugin().add(&b, &config).unwrap().ok().unwrap();
        disk.fill_except(resource, 0);
        let watch = disk.watch(&[&a, &b, &c]);
        let case = format!("{resource:?}");
        let add = disk.plugin().add(&c, &config).unwrap();
        refused_with(&case, &add, (5, &["file system of the state directory is full"]));
        // Every pod needs a record, also without addresses or with an external IPAM plugin.
        let layer2 = host.config(&json!({"name": "layer2", "bridge": "l2", "mode": "bridge"}));
        let delegated = with(&config, &json!({"name": "leased", "bridge": "le", "ipam": {"type": "dhcp"}}));
        for config in [&config, &layer2, &delegated] {
            let status = disk.plugin().status(&host.node, config).unwrap();
            refused_with(&case, &status, (50, &["is full", "RunDirFull: df -h"]));
        }
        disk.plugin().check(&a, &config, &result).unwrap().ok().unwrap();
        disk.plugin().del(&c, &config).unwrap().ok().unwrap();
        watch.expect_same(&case);
        // Removing pods must work on a full disk, because it frees space.
        disk.plugin().del(&a, &with_previous(&config, &result)).unwrap().ok().unwrap();
        assert!(inspect::link(&a, "eth0").is_err());
        disk.plugin().check(&b, &config, &second).unwrap().ok().unwrap();
        disk.empty();
        disk.plugin().status(&host.node, &config).unwrap().ok().unwrap();
        disk.plugin().add(&c, &config).unwrap().ok().unwrap();
        disk.plugin().add(&a, &config).unwrap().ok().unwrap();
    }
}
