//! A state directory that cannot be written: in the way, read-only, or full.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;

use serde_json::{Value, json};
use testkit::{Plugin, Pod, inspect};

use crate::common::{Host, with, with_previous};
use crate::mounts::Mounts;
use crate::watch::{BRIDGE, Watch, dual, held, refused_with};

#[test]
fn e7_something_in_the_way_of_the_state_directory() {
    let host = Host::new("inway");
    let (running, _) = host.attached("a", &dual(&host, &json!({})));
    let pod = host.pod("b");
    let file = host.node.dir().join("file");
    fs::write(&file, "precious").unwrap();
    let watch = Watch::on(&host, &[&running, &pod]);
    for state in [file.clone(), file.join("state"), file.join("a/b")] {
        let (case, config) =
            (state.display().to_string(), dual(&host, &json!({"runDir": state, "name": "other"})));
        let outcome = host.plugin.add(&pod, &config).unwrap();
        refused_with(&case, &outcome, (5, &[&case, "no directory is in the way", "set runDir"]));
        host.del(&pod, &config);
        host.plugin.gc(&host.node, &config, &[]).unwrap().ok().unwrap();
        refused_with(&case, &host.plugin.status(&host.node, &config).unwrap(), (50, &["set runDir"]));
        watch.expect_same(&case);
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
}

#[test]
fn e7_a_read_only_state_directory() {
    let host = Host::new("readonly");
    let config = dual(&host, &json!({}));
    let (running, _) = host.attached("a", &config);
    let pod = host.pod("b");
    let dir = host.node.dir().display();
    let mounts = Mounts::new(&host, &format!("mount --bind {dir} {dir}\nmount -o remount,ro,bind {dir}"));
    let watch = Watch::on(&host, &[&running, &pod]);
    // Once with state that can be read, once where not even the directory can be made.
    for config in
        [config.clone(), dual(&host, &json!({"runDir": host.node.dir().join("new"), "name": "other"}))]
    {
        let add = mounts.plugin.add(&pod, &config).unwrap();
        refused_with(
            "ADD",
            &add,
            (5, &["Read-only file system", "set runDir to a directory that can be written"]),
        );
        refused_with(
            "STATUS",
            &mounts.plugin.status(&host.node, &config).unwrap(),
            (50, &["Read-only", "runDir"]),
        );
        mounts.plugin.del(&pod, &config).unwrap().ok().unwrap();
        watch.expect_same("a read-only state directory");
    }
}

/// E14: one failed step never stops the others. The record stays, and the next DEL ends it.
#[test]
fn e14_del_with_a_read_only_state_directory_does_what_it_can() {
    let host = Host::new("rodel");
    let config = dual(&host, &json!({}));
    let (pod, _) = host.attached("a", &config);
    let dir = host.node.dir().display();
    let mounts = Mounts::new(&host, &format!("mount --bind {dir} {dir}\nmount -o remount,ro,bind {dir}"));
    let records = held(&host.node.run_dir());
    let outcome = mounts.plugin.del(&pod, &config).unwrap();
    refused_with("DEL", &outcome, (5, &["Read-only file system"]));
    assert!(inspect::link(&pod, "eth0").is_err(), "the link went all the same");
    assert_eq!(held(&host.node.run_dir()), records, "its address is not given away");
    host.del(&pod, &config);
    assert!(held(&host.node.run_dir()).is_empty());
}

/// A small file system of which a test says how much is free.
struct Disk<'a> {
    host: &'a Host,
    mounts: Mounts,
}

/// What runs out.
#[derive(Debug, Clone, Copy)]
enum Scarce {
    Space,
    Files,
}

const PAGE: u64 = 4096;

impl<'a> Disk<'a> {
    fn new(host: &'a Host) -> Self {
        let state = host.node.run_dir();
        let (dir, options) = (state.display(), "size=64k,nr_inodes=48,mode=700");
        let mounts = Mounts::new(host, &format!("mkdir {dir}\nmount -t tmpfs -o {options} pwt {dir}"));
        Self { host, mounts }
    }

    fn plugin(&self) -> &Plugin {
        &self.mounts.plugin
    }

    fn watch(&self, pods: &[&Pod]) -> Watch {
        Watch::on_state(self.host, pods, &self.mounts.path(&self.host.node.run_dir()))
    }

    fn ballast(&self) -> std::path::PathBuf {
        self.mounts.path(&self.host.node.run_dir()).join("ballast")
    }

    /// Leaves so many pages or files free, and no more.
    fn leave(&self, scarce: Scarce, free: u64) {
        self.empty();
        match scarce {
            Scarce::Space => fill_space(&self.ballast(), free),
            Scarce::Files => fill_files(&self.ballast(), free),
        }
    }

    fn empty(&self) {
        let _ = fs::remove_file(self.ballast());
        let _ = fs::remove_dir_all(self.ballast());
    }
}

fn fill_space(ballast: &Path, free: u64) {
    let mut file = File::create(ballast).unwrap();
    let page = [0; PAGE as usize];
    let full = (0..1000).find_map(|_| file.write_all(&page).err()).unwrap();
    assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
    let length = file.metadata().unwrap().len() / PAGE * PAGE;
    file.set_len(length.saturating_sub(free * PAGE)).unwrap();
}

fn fill_files(ballast: &Path, free: u64) {
    fs::create_dir(ballast).unwrap();
    let made = (0..1000).take_while(|n| File::create(ballast.join(n.to_string())).is_ok()).count() as u64;
    (made.saturating_sub(free)..made).for_each(|n| fs::remove_file(ballast.join(n.to_string())).unwrap());
}

/// Every page and every file more lets the ADD come a step further, until it succeeds: each step on the way must fail well.
fn every_step(host: &Host, scarce: Scarce, config: &Value) {
    host.node.sh(&["ip", "link", "add", BRIDGE, "up", "type", "bridge"]).unwrap();
    let pod = host.pod("b");
    let disk = Disk::new(host);
    for free in 0..40 {
        disk.leave(scarce, free);
        let watch = disk.watch(&[&pod]);
        let outcome = disk.plugin().add(&pod, config).unwrap();
        let case = format!("{scarce:?}: {free} free");
        if outcome.success() {
            assert!(free > 1, "{case}: it was never full");
            disk.plugin().del(&pod, config).unwrap().ok().unwrap();
            return;
        }
        refused_with(&case, &outcome, (5, &["No space left", "full", "free space or set runDir"]));
        watch.expect_same(&case);
        disk.plugin().del(&pod, config).unwrap().ok().unwrap();
        watch.expect_same(&format!("DEL, {case}"));
    }
    panic!("{scarce:?}: no ADD succeeded");
}

#[test]
fn c3_a_full_disk_at_every_step_of_the_first_add() {
    for scarce in [Scarce::Space, Scarce::Files] {
        let host = Host::new("full");
        every_step(&host, scarce, &dual(&host, &json!({})));
    }
}

#[test]
fn c3_a_disk_that_fills_up_under_running_pods() {
    for scarce in [Scarce::Space, Scarce::Files] {
        let host = Host::new("fillsup");
        let config = dual(&host, &json!({}));
        // The bridge and its gateways are another pod's work, so that they are not in question here.
        host.attached("z", &with(&config, &json!({"runDir": host.node.dir().join("z"), "name": "z"})));
        let (a, b, c) = (host.pod("a"), host.pod("b"), host.pod("c"));
        let disk = Disk::new(&host);
        let result = disk.plugin().add(&a, &config).unwrap().ok().unwrap();
        let second = disk.plugin().add(&b, &config).unwrap().ok().unwrap();
        disk.leave(scarce, 0);
        let watch = disk.watch(&[&a, &b, &c]);
        let case = format!("{scarce:?}");
        let add = disk.plugin().add(&c, &config).unwrap();
        refused_with(&case, &add, (5, &["file system of the state directory is full"]));
        // Every pod needs a record, also one whose addresses another plugin assigns.
        let layer2 = host.config(&json!({"name": "layer2", "bridge": "l2", "mode": "bridge"}));
        let delegated = with(&config, &json!({"name": "leased", "bridge": "le", "ipam": {"type": "dhcp"}}));
        for config in [&config, &layer2, &delegated] {
            let status = disk.plugin().status(&host.node, config).unwrap();
            refused_with(&case, &status, (50, &["is full", "RunDirFull: df -h"]));
        }
        disk.plugin().check(&a, &config, &result).unwrap().ok().unwrap();
        disk.plugin().del(&c, &config).unwrap().ok().unwrap();
        watch.expect_same(&case);
        // Whoever wants to free a full disk must be able to remove pods.
        disk.plugin().del(&a, &with_previous(&config, &result)).unwrap().ok().unwrap();
        assert!(inspect::link(&a, "eth0").is_err());
        disk.plugin().check(&b, &config, &second).unwrap().ok().unwrap();
        disk.empty();
        disk.plugin().status(&host.node, &config).unwrap().ok().unwrap();
        disk.plugin().add(&c, &config).unwrap().ok().unwrap();
        disk.plugin().add(&a, &config).unwrap().ok().unwrap();
    }
}
