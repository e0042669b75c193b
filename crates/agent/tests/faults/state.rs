//! The agent's files are damaged, lost, or cannot be written.

use std::fs;
use std::io::Write as _;
use std::path::PathBuf;

use serde_json::{Value, json};
use testkit::{Agent, DEADLINE, Lab, Node, Plugin, Pod, Snapshot, inspect, wait_until};

use crate::common::{Host, ips, take_away};
use crate::load::expect_whole;

#[derive(Debug, Clone, Copy)]
enum Damage {
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

fn damage(host: &Host, pod: &Pod, how: Damage) {
    let path = record(host, pod);
    // In place: the claims are links to this very file.
    let open = || fs::File::options().write(true).open(&path).unwrap();
    match how {
        Damage::Truncated => open().set_len(40).unwrap(),
        Damage::Garbage => open().write_all(&[0xfe; 64]).unwrap(),
        Damage::Removed => fs::remove_file(&path).unwrap(),
    }
}

/// The DEL of some pod is news, and makes the agent look at everything on the node.
fn let_it_look(host: &Host) {
    let rounds =
        || Ok::<_, std::io::Error>(host.agent.get("/v1/status").unwrap()["reconcile"]["rounds"].as_u64());
    let before = rounds().unwrap();
    let (pod, _) = host.attached("noise");
    host.del(&pod);
    pod.destroy().unwrap();
    wait_until("another round", DEADLINE, || Ok(rounds()? > before)).unwrap();
}

/// Whatever happened to its record: the pod runs on, its address is nobody else's, and it can be deleted.
fn survives(how: Damage, when: When) {
    let case = format!("{how:?} while {when:?}");
    let mut host = Host::new("damage");
    let neighbour = host.attached("neighbour");
    let (pod, result) = host.attached("victim");
    if when == When::Down {
        host.agent.kill().unwrap();
    }
    damage(&host, &pod, how);
    match when {
        When::Running => let_it_look(&host),
        When::Down => {
            host.agent.launch().unwrap();
            host.agent.wait_ready().unwrap();
        }
    }
    let there = inspect::links(&pod).unwrap().iter().any(|link| link.name == "eth0");
    assert!(there, "{case}: the pod lost its link; {}", host.agent.log().unwrap());
    expect_whole(&pod, &result);
    wait_until("its record to be back", DEADLINE, || Ok(record(&host, &pod).metadata()?.len() > 64)).unwrap();
    let next = host.attached("next");
    let taken: Vec<_> = ips(&result).into_iter().chain(ips(&neighbour.1)).collect();
    assert!(!ips(&next.1).iter().any(|ip| taken.contains(ip)), "{case}: an address was given twice");
    host.expect_talk((&pod, &result), (&neighbour.0, &neighbour.1));
    host.del(&pod);
    assert!(inspect::link(&pod, "eth0").is_err(), "{case}: DEL left the link");
    host.del(&neighbour.0);
    host.del(&next.0);
    let empty = || Ok(host.held().is_empty());
    wait_until("the state to be empty", DEADLINE, empty)
        .unwrap_or_else(|e| panic!("{case}: {e}: {:?}", host.held()));
}

#[test]
fn a_truncated_record_is_written_anew() {
    survives(Damage::Truncated, When::Running);
    survives(Damage::Truncated, When::Down);
}

#[test]
fn a_corrupted_record_is_written_anew() {
    survives(Damage::Garbage, When::Running);
    survives(Damage::Garbage, When::Down);
}

#[test]
fn a_record_that_was_removed_is_relearnt_while_the_agent_runs() {
    survives(Damage::Removed, When::Running);
}

#[test]
fn a_record_that_was_removed_is_relearnt_when_the_agent_starts() {
    survives(Damage::Removed, When::Down);
}

/// An address belongs to who has it, also when somebody removed the claim.
#[test]
fn claims_that_were_removed_are_made_anew() {
    let mut host = Host::new("claims");
    let (pod, result) = host.attached("victim");
    host.agent.kill().unwrap();
    for ip in ips(&result) {
        fs::remove_file(host.agent.run_dir().join(format!("networks/podwire/addresses/{ip}"))).unwrap();
    }
    host.agent.launch().unwrap();
    host.agent.wait_ready().unwrap();
    for ip in ips(&result) {
        let call = host.config(&json!({"runtimeConfig": {"ips": [ip.to_string()]}}));
        let thief = host.pod(&format!("thief{}", u8::from(ip.is_ipv6())));
        let error = host.plugin.add(&thief, &call).unwrap().error().unwrap();
        assert_eq!(error.code, 101, "{error:?}");
    }
    expect_whole(&pod, &result);
}

/// A pod may ask for a MAC: what is relearnt of it must not be the one that it would have had.
#[test]
fn a_pod_with_a_mac_of_its_own_survives_the_loss_of_its_record() {
    for mode in ["routed", "bridge"] {
        let mut host = Host::with_flags("ownmac", &["--network-mode", mode]);
        let neighbour = host.attached("neighbour");
        let config = host.config(&json!({"runtimeConfig": {"mac": "02:11:22:33:44:55"}}));
        let pod = host.pod("victim");
        let result = host.plugin.add(&pod, &config).unwrap().ok().unwrap();
        host.expect_talk((&pod, &result), (&neighbour.0, &neighbour.1));
        host.agent.kill().unwrap();
        fs::remove_dir_all(host.agent.run_dir()).unwrap();
        // The tables are made anew from what is relearnt.
        host.node.sh(&["nft", "flush", "ruleset"]).unwrap();
        host.agent.launch().unwrap();
        host.agent.wait_ready().unwrap();
        let_it_look(&host);
        host.expect_talk((&pod, &result), (&neighbour.0, &neighbour.1));
    }
}

/// The whole run directory goes while pods live: all of it is back, and nobody gets an address that somebody has.
#[test]
fn a_run_directory_that_was_removed_is_relearnt() {
    relearns(|host| take_away(host.agent.run_dir()));
}

/// By hand, which takes its time: the agent may begin to put things back before all is gone.
#[test]
fn a_run_directory_that_is_removed_piece_by_piece_is_relearnt() {
    relearns(|host| {
        // What came back meanwhile is an error of rm's, and as it should be.
        host.node.run(&["rm", "-rf", host.agent.run_dir().to_str().unwrap()], b"").unwrap();
    });
}

fn relearns(remove: impl Fn(&Host)) {
    let host = Host::new("lostrun");
    let pods: Vec<_> = (0..3).map(|n| host.attached(&format!("p{n}"))).collect();
    remove(&host);
    let back = || Ok(host.agent.is_ready() && host.held().len() == 9);
    wait_until("directory, socket and records to be back", DEADLINE, back)
        .unwrap_or_else(|e| panic!("{e}: {:?}", host.held()));
    let next = host.attached("next");
    let taken: Vec<_> = pods.iter().flat_map(|(_, result)| ips(result)).collect();
    assert!(!ips(&next.1).iter().any(|ip| taken.contains(ip)), "{:?}", next.1);
    // It is the only one still.
    let mut second = Agent::new(&host.node, &["--no-install"]).unwrap();
    second.launch().unwrap();
    wait_until("the second agent to end", DEADLINE, || second.has_ended()).unwrap();
    assert!(second.log().unwrap().contains("another agent"));
    for (pod, result) in &pods {
        expect_whole(pod, result);
        host.check(pod, result);
    }
    for (pod, _) in pods.iter().chain([&next]) {
        host.del(pod);
        assert!(inspect::link(pod, "eth0").is_err());
    }
    assert!(host.held().is_empty(), "{:?}", host.held());
}

/// The same with nobody there to notice, and an ADD as soon as somebody is.
#[test]
fn a_run_directory_that_was_removed_while_the_agent_was_down_is_relearnt() {
    let mut host = Host::new("lostdown");
    let pods: Vec<_> = (0..3).map(|n| host.attached(&format!("p{n}"))).collect();
    host.agent.kill().unwrap();
    fs::remove_dir_all(host.agent.run_dir()).unwrap();
    host.agent.launch().unwrap();
    let next = host.attached("next");
    let taken: Vec<_> = pods.iter().flat_map(|(_, result)| ips(result)).collect();
    assert!(!ips(&next.1).iter().any(|ip| taken.contains(ip)), "{:?}", next.1);
    for (pod, result) in &pods {
        expect_whole(pod, result);
        host.expect_talk((pod, result), (&next.0, &next.1));
    }
    for (pod, _) in pods.iter().chain([&next]) {
        host.del(pod);
        assert!(inspect::link(pod, "eth0").is_err());
    }
    assert!(host.held().is_empty(), "{:?}", host.held());
}

/// An agent whose records lie on a small file system of its own, in a mount namespace of its own.
struct Disk {
    agent: Agent,
    plugin: Plugin,
    node: Node,
    _lab: Lab,
}

impl Disk {
    fn new(label: &str) -> Self {
        let lab = Lab::new(label).unwrap();
        let node = lab.node("n1").unwrap();
        // Once without, so that the run directory is there and known as ours.
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

    /// The records as the agent sees them.
    fn records(&self) -> PathBuf {
        let run_dir = self.agent.run_dir().strip_prefix("/").unwrap();
        PathBuf::from(format!("/proc/{}/root", self.agent.pid().unwrap())).join(run_dir).join("networks")
    }

    fn remount(&self, how: &str) {
        let pid = self.agent.pid().unwrap().to_string();
        let dir = self.agent.run_dir().join("networks");
        let remount = ["nsenter", "--target", &pid, "--mount", "mount", "-o", how, dir.to_str().unwrap()];
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

    /// ADD fails with a clear error, nothing is left, the agent lives; and all is well when `cure` was applied.
    fn expect(&mut self, disease: &dyn Fn(&Self), cure: &dyn Fn(&Self), words: &[&str]) {
        let config = self.config();
        let (old, older, new) =
            (self.node.pod("old").unwrap(), self.node.pod("older").unwrap(), self.node.pod("new").unwrap());
        let result = self.plugin.add(&old, &config).unwrap().ok().unwrap();
        self.plugin.add(&older, &config).unwrap().ok().unwrap();
        let before = Snapshot::of(&self.node).unwrap();
        disease(self);
        for _ in 0..2 {
            let error = self.plugin.add(&new, &config).unwrap().error().unwrap();
            let said = format!("{} {}", error.msg, error.details);
            for word in words {
                assert!(said.contains(word), "{word:?} is not in {said:?}");
            }
            before.wait_for_same(&self.node, DEADLINE).unwrap();
        }
        let status = self.plugin.status(&self.node, &config).unwrap().error().unwrap();
        assert_eq!(status.code, 50, "{status:?}");
        assert!(!self.agent.has_ended().unwrap());
        // Pods that run do not notice, and can still go.
        self.plugin.check(&old, &config, &result).unwrap().ok().unwrap();
        cure(self);
        self.plugin.status(&self.node, &config).unwrap().ok().unwrap();
        let added = self.plugin.add(&new, &config).unwrap().ok().unwrap();
        expect_whole(&new, &added);
        for pod in [&old, &older, &new] {
            self.plugin.del(pod, &config).unwrap().ok().unwrap();
            assert!(inspect::link(pod, "eth0").is_err());
        }
        let left = fs::read_dir(self.records().join("podwire/attachments")).unwrap().count();
        assert_eq!(left, 0);
    }
}

#[test]
fn a_full_disk_is_told_and_survived() {
    let mut disk = Disk::new("full");
    let cure = |disk: &Disk| fs::remove_file(disk.records().join("ballast")).unwrap();
    disk.expect(&Disk::fill, &cure, &["full", "free space"]);
}

#[test]
fn a_read_only_state_directory_is_told_and_survived() {
    let mut disk = Disk::new("rostate");
    let cure = |disk: &Disk| disk.remount("remount,rw");
    disk.expect(&|disk| disk.remount("remount,ro"), &cure, &["Read-only file system", "can be written"]);
}

#[test]
fn a6_status_shows_a_full_run_directory() {
    let disk = Disk::new("fullshown");
    let severity = || {
        let status = disk.agent.get("/v1/status").unwrap();
        let all = status["conditions"].as_array().unwrap();
        let found = all.iter().find(|one| one["code"] == "RunDirFull").cloned().unwrap_or_default();
        (found["severity"].clone(), status["ready"].clone())
    };
    assert_eq!(severity(), (json!("degraded"), json!(true)), "it has 256 KiB");
    disk.fill();
    assert_eq!(severity(), (json!("notReady"), json!(false)));
    fs::remove_file(disk.records().join("ballast")).unwrap();
    assert_eq!(severity(), (json!("degraded"), json!(true)));
}

/// Records on a file system of their own, and the whole run directory.
#[test]
fn a6_a_read_only_run_directory_is_a_condition_without_an_event() {
    let disk = Disk::new("roshown");
    let begun = || disk.agent.log().unwrap().matches("code=RunDirUnusable").count();
    let nearly_full =
        || disk.agent.get("/v1/status").unwrap()["conditions"].to_string().contains("RunDirFull");
    assert!(nearly_full(), "a second condition of the same directory");
    let run_dir = disk.agent.run_dir().display().to_string();
    let among = |line: &str| {
        let pid = disk.agent.pid().unwrap().to_string();
        disk.node.sh(&["nsenter", "--target", &pid, "--mount", "sh", "-c", line]).unwrap();
    };
    let bind = format!("mount --rbind {run_dir} {run_dir} && mount -o remount,bind,ro {run_dir}");
    let unbind = format!("umount -R {run_dir}");
    let expect = |what: &str, fault: &dyn Fn(), end: &dyn Fn()| {
        let before = begun();
        fault();
        // No request causes a round.
        wait_until("the agent to find it", DEADLINE, || Ok(begun() > before)).unwrap();
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
    expect("run directory", &|| among(&bind), &|| among(&unbind));
}

/// Whoever wants to free a full disk must be able to remove pods.
#[test]
fn a_pod_can_go_while_the_disk_is_full() {
    let disk = Disk::new("fulldel");
    let (pod, config) = (disk.node.pod("a").unwrap(), disk.config());
    disk.plugin.add(&pod, &config).unwrap().ok().unwrap();
    disk.fill();
    disk.plugin.del(&pod, &config).unwrap().ok().unwrap();
    assert!(inspect::link(&pod, "eth0").is_err());
    assert_eq!(fs::read_dir(disk.records().join("podwire/attachments")).unwrap().count(), 0);
}
