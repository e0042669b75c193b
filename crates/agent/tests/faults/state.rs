//! Files of the agent that are corrupted, removed or not writable.

use std::fs;
use std::io::Write as _;
use std::path::PathBuf;

use serde_json::{Value, json};
use testkit::{Agent, DEADLINE, Lab, Node, Plugin, Pod, Snapshot, inspect, wait_until};

use crate::common::{Host, ips, remove_dir_atomically};
use crate::load::expect_attached;

#[derive(Debug, Clone, Copy)]
enum Corruption {
    Truncated,
    Garbage,
    Removed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum When {
    Running,
    Down,
}

fn record(host: &Host, pod: &Pod) -> PathBuf {
    host.agent.run_dir().join(format!("networks/podwire/attachments/{}@eth0.ready", pod.id()))
}

fn corrupt(host: &Host, pod: &Pod, corruption: Corruption) {
    let path = record(host, pod);
    // In place, because the claims are hard links to this file.
    let open = || fs::File::options().write(true).open(&path).unwrap();
    match corruption {
        Corruption::Truncated => open().set_len(40).unwrap(),
        Corruption::Garbage => open().write_all(&[0xfe; 64]).unwrap(),
        Corruption::Removed => fs::remove_file(&path).unwrap(),
    }
}

/// The DEL of a pod causes events, and thus a round.
fn cause_round(host: &Host) {
    let rounds =
        || Ok::<_, std::io::Error>(host.agent.get("/v1/status").unwrap()["reconcile"]["rounds"].as_u64());
    let before = rounds().unwrap();
    let (pod, _) = host.attached("noise");
    host.del(&pod);
    pod.destroy().unwrap();
    wait_until("another round", DEADLINE, || Ok(rounds()? > before)).unwrap();
}

/// With a corrupt record, the pod keeps its network, its address is not allocated again, and it can be deleted.
fn expect_recovery(corruption: Corruption, when: When) {
    let case = format!("{corruption:?} while {when:?}");
    let mut host = Host::new("damage");
    let neighbour = host.attached("neighbour");
    let (pod, result) = host.attached("pod");
    if when == When::Down {
        host.agent.kill().unwrap();
    }
    corrupt(&host, &pod, corruption);
    match when {
        When::Running => cause_round(&host),
        When::Down => {
            host.agent.launch().unwrap();
            host.agent.wait_ready().unwrap();
        }
    }
    let has_link = inspect::links(&pod).unwrap().iter().any(|link| link.name == "eth0");
    assert!(has_link, "{case}: the pod lost its link; {}", host.agent.log().unwrap());
    expect_attached(&pod, &result);
    wait_until("the record to be restored", DEADLINE, || Ok(record(&host, &pod).metadata()?.len() > 64))
        .unwrap();
    let next = host.attached("next");
    let in_use: Vec<_> = ips(&result).into_iter().chain(ips(&neighbour.1)).collect();
    assert!(!ips(&next.1).iter().any(|ip| in_use.contains(ip)), "{case}: an address was allocated twice");
    host.expect_connectivity((&pod, &result), (&neighbour.0, &neighbour.1));
    host.del(&pod);
    assert!(inspect::link(&pod, "eth0").is_err(), "{case}: DEL did not remove the link");
    host.del(&neighbour.0);
    host.del(&next.0);
    let empty = || Ok(host.state_entries().is_empty());
    wait_until("the state to be empty", DEADLINE, empty)
        .unwrap_or_else(|e| panic!("{case}: {e}: {:?}", host.state_entries()));
}

#[test]
fn a_truncated_record_is_restored() {
    expect_recovery(Corruption::Truncated, When::Running);
    expect_recovery(Corruption::Truncated, When::Down);
}

#[test]
fn a_corrupt_record_is_restored() {
    expect_recovery(Corruption::Garbage, When::Running);
    expect_recovery(Corruption::Garbage, When::Down);
}

#[test]
fn a_removed_record_is_restored_while_the_agent_runs() {
    expect_recovery(Corruption::Removed, When::Running);
}

#[test]
fn a_removed_record_is_restored_when_the_agent_starts() {
    expect_recovery(Corruption::Removed, When::Down);
}

/// An address belongs to the pod that uses it, even without a claim.
#[test]
fn removed_claims_are_restored() {
    let mut host = Host::new("claims");
    let (pod, result) = host.attached("pod");
    host.agent.kill().unwrap();
    for ip in ips(&result) {
        fs::remove_file(host.agent.run_dir().join(format!("networks/podwire/addresses/{ip}"))).unwrap();
    }
    host.agent.launch().unwrap();
    host.agent.wait_ready().unwrap();
    for ip in ips(&result) {
        let call = host.config(&json!({"runtimeConfig": {"ips": [ip.to_string()]}}));
        let other = host.pod(&format!("other{}", u8::from(ip.is_ipv6())));
        let error = host.plugin.add(&other, &call).unwrap().error().unwrap();
        assert_eq!(error.code, 101, "{error:?}");
    }
    expect_attached(&pod, &result);
}

/// A pod may request a MAC. Its recovered record must not have the default MAC.
#[test]
fn a_pod_with_a_requested_mac_survives_the_loss_of_its_record() {
    for mode in ["routed", "bridge"] {
        let mut host = Host::with_flags("ownmac", &["--network-mode", mode]);
        let neighbour = host.attached("neighbour");
        let config = host.config(&json!({"runtimeConfig": {"mac": "02:11:22:33:44:55"}}));
        let pod = host.pod("pod");
        let result = host.plugin.add(&pod, &config).unwrap().ok().unwrap();
        host.expect_connectivity((&pod, &result), (&neighbour.0, &neighbour.1));
        host.agent.kill().unwrap();
        fs::remove_dir_all(host.agent.run_dir()).unwrap();
        // The agent creates the tables again from the recovered records.
        host.node.sh(&["nft", "flush", "ruleset"]).unwrap();
        host.agent.launch().unwrap();
        host.agent.wait_ready().unwrap();
        cause_round(&host);
        host.expect_connectivity((&pod, &result), (&neighbour.0, &neighbour.1));
    }
}

/// The run directory is removed while pods run: it is restored, and no address in use is allocated again.
#[test]
fn a_removed_run_directory_is_restored() {
    expect_restored_run_dir(|host| remove_dir_atomically(host.agent.run_dir()));
}

/// A removal by rm, during which the agent may already create files again.
#[test]
fn a_run_directory_removed_file_by_file_is_restored() {
    expect_restored_run_dir(|host| {
        // rm fails if files were created meanwhile.
        host.node.run(&["rm", "-rf", host.agent.run_dir().to_str().unwrap()], b"").unwrap();
    });
}

fn expect_restored_run_dir(remove: impl Fn(&Host)) {
    let host = Host::new("lostrun");
    let pods: Vec<_> = (0..3).map(|n| host.attached(&format!("p{n}"))).collect();
    remove(&host);
    let is_restored = || Ok(host.agent.is_ready() && host.state_entries().len() == 9);
    wait_until("directory, socket and records to be restored", DEADLINE, is_restored)
        .unwrap_or_else(|e| panic!("{e}: {:?}", host.state_entries()));
    let next = host.attached("next");
    let in_use: Vec<_> = pods.iter().flat_map(|(_, result)| ips(result)).collect();
    assert!(!ips(&next.1).iter().any(|ip| in_use.contains(ip)), "{:?}", next.1);
    // It is still the only agent.
    let mut second = Agent::new(&host.node, &["--no-install"]).unwrap();
    second.launch().unwrap();
    wait_until("the second agent to end", DEADLINE, || second.has_ended()).unwrap();
    assert!(second.log().unwrap().contains("another agent"));
    for (pod, result) in &pods {
        expect_attached(pod, result);
        host.check(pod, result);
    }
    for (pod, _) in pods.iter().chain([&next]) {
        host.del(pod);
        assert!(inspect::link(pod, "eth0").is_err());
    }
    assert!(host.state_entries().is_empty(), "{:?}", host.state_entries());
}

/// The run directory is removed while no agent runs, and an ADD follows right after the start.
#[test]
fn a_run_directory_removed_without_an_agent_is_restored() {
    let mut host = Host::new("lostdown");
    let pods: Vec<_> = (0..3).map(|n| host.attached(&format!("p{n}"))).collect();
    host.agent.kill().unwrap();
    fs::remove_dir_all(host.agent.run_dir()).unwrap();
    host.agent.launch().unwrap();
    let next = host.attached("next");
    let in_use: Vec<_> = pods.iter().flat_map(|(_, result)| ips(result)).collect();
    assert!(!ips(&next.1).iter().any(|ip| in_use.contains(ip)), "{:?}", next.1);
    for (pod, result) in &pods {
        expect_attached(pod, result);
        host.expect_connectivity((pod, result), (&next.0, &next.1));
    }
    for (pod, _) in pods.iter().chain([&next]) {
        host.del(pod);
        assert!(inspect::link(pod, "eth0").is_err());
    }
    assert!(host.state_entries().is_empty(), "{:?}", host.state_entries());
}

/// An agent with its own mount namespace, in which its records are on a small file system.
struct SmallDisk {
    agent: Agent,
    plugin: Plugin,
    node: Node,
    _lab: Lab,
}

impl SmallDisk {
    fn new(label: &str) -> Self {
        let lab = Lab::new(label).unwrap();
        let node = lab.node("n1").unwrap();
        // A first start creates the run directory.
        let mut agent = Agent::start(&node, &["--no-install"]).unwrap();
        agent.stop().unwrap();
        let (program, records) = (agent.program().display(), agent.run_dir().join("networks"));
        let script = format!(
            "#!/bin/sh\nexec unshare --mount --propagation slave /bin/sh -c '\n\
             mount -t tmpfs -o size=256k,nr_inodes=200,mode=700 pwt {0} && exec {program} \"$@\"' sh \"$@\"\n",
            records.display()
        );
        let wrapper = lab.dir().join("podwire-mounted");
        let write = format!("cat >{0} && chmod 755 {0}", wrapper.display());
        let outcome = node.run(&["sh", "-c", &write], script.as_bytes()).unwrap();
        assert!(outcome.success(), "{}", outcome.stderr);
        agent.set_program(&wrapper);
        agent.launch().unwrap();
        agent.wait_ready().unwrap();
        Self { agent, plugin: Plugin::podwire().unwrap(), node, _lab: lab }
    }

    /// The records in the agent's mount namespace.
    fn records(&self) -> PathBuf {
        let run_dir = self.agent.run_dir().strip_prefix("/").unwrap();
        PathBuf::from(format!("/proc/{}/root", self.agent.pid().unwrap())).join(run_dir).join("networks")
    }

    fn remount(&self, options: &str) {
        let pid = self.agent.pid().unwrap().to_string();
        let dir = self.agent.run_dir().join("networks");
        let remount = ["nsenter", "--target", &pid, "--mount", "mount", "-o", options, dir.to_str().unwrap()];
        self.node.sh(&remount).unwrap();
    }

    fn fill(&self) {
        let mut ballast = fs::File::create(self.records().join("ballast")).unwrap();
        let full = (0..1000).find_map(|_| ballast.write_all(&[0; 1024]).err()).unwrap();
        assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
    }

    fn config(&self) -> Value {
        self.agent.config(&json!({}))
    }

    /// While the disk is broken, ADDs fail with a clear error and leave nothing, and the agent runs on. After the repair, all
    /// works.
    fn expect(&mut self, break_disk: &dyn Fn(&Self), repair_disk: &dyn Fn(&Self), words: &[&str]) {
        let config = self.config();
        let (old, older, new) =
            (self.node.pod("old").unwrap(), self.node.pod("older").unwrap(), self.node.pod("new").unwrap());
        let result = self.plugin.add(&old, &config).unwrap().ok().unwrap();
        self.plugin.add(&older, &config).unwrap().ok().unwrap();
        let before = Snapshot::of(&self.node).unwrap();
        break_disk(self);
        for _ in 0..2 {
            let error = self.plugin.add(&new, &config).unwrap().error().unwrap();
            let text = format!("{} {}", error.msg, error.details);
            for word in words {
                assert!(text.contains(word), "{word:?} is not in {text:?}");
            }
            before.wait_for_same(&self.node, DEADLINE).unwrap();
        }
        let status = self.plugin.status(&self.node, &config).unwrap().error().unwrap();
        assert_eq!(status.code, 50, "{status:?}");
        assert!(!self.agent.has_ended().unwrap());
        // Running pods are not affected.
        self.plugin.check(&old, &config, &result).unwrap().ok().unwrap();
        repair_disk(self);
        self.plugin.status(&self.node, &config).unwrap().ok().unwrap();
        let added = self.plugin.add(&new, &config).unwrap().ok().unwrap();
        expect_attached(&new, &added);
        for pod in [&old, &older, &new] {
            self.plugin.del(pod, &config).unwrap().ok().unwrap();
            assert!(inspect::link(pod, "eth0").is_err());
        }
        let records = fs::read_dir(self.records().join("podwire/attachments")).unwrap().count();
        assert_eq!(records, 0);
    }
}

#[test]
fn a_full_disk_is_reported_and_pods_keep_running() {
    let mut disk = SmallDisk::new("full");
    let repair_disk = |disk: &SmallDisk| fs::remove_file(disk.records().join("ballast")).unwrap();
    disk.expect(&SmallDisk::fill, &repair_disk, &["full", "free space"]);
}

#[test]
fn a_read_only_run_directory_is_reported_and_pods_keep_running() {
    let mut disk = SmallDisk::new("rostate");
    let repair_disk = |disk: &SmallDisk| disk.remount("remount,rw");
    disk.expect(&|disk| disk.remount("remount,ro"), &repair_disk, &["Read-only file system", "writable"]);
}

#[test]
fn a6_status_shows_a_full_run_directory() {
    let disk = SmallDisk::new("fullshown");
    let severity = || {
        let status = disk.agent.get("/v1/status").unwrap();
        let all = status["conditions"].as_array().unwrap();
        let condition =
            all.iter().find(|condition| condition["code"] == "RunDirFull").cloned().unwrap_or_default();
        (condition["severity"].clone(), status["ready"].clone())
    };
    assert_eq!(severity(), (json!("degraded"), json!(true)), "a disk of 256 KiB is nearly full");
    disk.fill();
    assert_eq!(severity(), (json!("notReady"), json!(false)));
    fs::remove_file(disk.records().join("ballast")).unwrap();
    assert_eq!(severity(), (json!("degraded"), json!(true)));
}

/// Either only the records or the whole run directory are read-only.
#[test]
fn a6_a_read_only_run_directory_is_reported_without_an_event() {
    let disk = SmallDisk::new("roshown");
    let times_begun = || disk.agent.log().unwrap().matches("code=RunDirUnusable").count();
    let is_nearly_full =
        || disk.agent.get("/v1/status").unwrap()["conditions"].to_string().contains("RunDirFull");
    assert!(is_nearly_full(), "the directory must already have another condition");
    let run_dir = disk.agent.run_dir().display().to_string();
    let in_agent_mounts = |line: &str| {
        let pid = disk.agent.pid().unwrap().to_string();
        disk.node.sh(&["nsenter", "--target", &pid, "--mount", "sh", "-c", line]).unwrap();
    };
    let bind = format!("mount --rbind {run_dir} {run_dir} && mount -o remount,bind,ro {run_dir}");
    let unbind = format!("umount -R {run_dir}");
    let expect = |what: &str, fault: &dyn Fn(), end: &dyn Fn()| {
        let before = times_begun();
        fault();
        // No request causes a round.
        wait_until("the condition", DEADLINE, || Ok(times_begun() > before)).unwrap();
        let ready = disk.agent.client().get(api::READY, DEADLINE).unwrap();
        let text = String::from_utf8(ready.body).unwrap();
        assert!(ready.status == 503 && text.contains("Read-only file system"), "{what}: {text}");
        let status = disk.agent.get("/v1/status").unwrap();
        assert_eq!(status["ready"], false, "{what}: {status}");
        let error = disk.plugin.status(&disk.node, &disk.config()).unwrap().error().unwrap();
        assert!(error.code == 50 && error.details.starts_with("RunDirUnusable"), "{what}: {error:?}");
        end();
        wait_until("ready", DEADLINE, || Ok(disk.agent.is_ready())).unwrap();
        assert_eq!(disk.agent.get("/v1/status").unwrap()["ready"], true, "{what}");
    };
    expect("records", &|| disk.remount("remount,ro"), &|| disk.remount("remount,rw"));
    expect("run directory", &|| in_agent_mounts(&bind), &|| in_agent_mounts(&unbind));
}

/// Deleting pods is a way to free space.
#[test]
fn a_pod_can_be_deleted_while_the_disk_is_full() {
    let disk = SmallDisk::new("fulldel");
    let (pod, config) = (disk.node.pod("a").unwrap(), disk.config());
    disk.plugin.add(&pod, &config).unwrap().ok().unwrap();
    disk.fill();
    disk.plugin.del(&pod, &config).unwrap().ok().unwrap();
    assert!(inspect::link(&pod, "eth0").is_err());
    assert_eq!(fs::read_dir(disk.records().join("podwire/attachments")).unwrap().count(), 0);
}
