//! Addresses of an external IPAM plugin are released exactly when no pod uses them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use testkit::{Call, Outcome, Plugin, Pod, Verb, inspect};

use crate::common::{Host, MODES, with};
use crate::delegation::{Recorder, call, recorder_config};

/// A node and a pod with addresses of the IPAM plugin.
struct Leased {
    host: Host,
    recorder: Recorder,
    pod: Pod,
    config: Value,
}

impl Leased {
    fn new(label: &str, mode: &str) -> Self {
        let host = Host::new(label);
        let (recorder, pod) = (Recorder::new(&host), host.pod("a"));
        let config = recorder_config(&host, &json!({ "mode": mode }));
        call(&host, &recorder, Call::pod(Verb::Add, &pod, &config)).ok().unwrap();
        Self { host, recorder, pod, config }
    }

    fn del(&self) -> Outcome {
        call(&self.host, &self.recorder, Call::pod(Verb::Del, &self.pod, &self.config))
    }

    fn gc(&self) -> Outcome {
        let config = with(&self.config, &json!({"cni.dev/valid-attachments": []}));
        call(&self.host, &self.recorder, Call::network(Verb::Gc, &config))
    }

    /// DEL through a shell script that runs podwire-cni as `$plugin`.
    fn del_through(&self, script: &str) -> Outcome {
        let path = self.host.node.dir().join("wrapper");
        let text = format!("#!/bin/sh\nplugin={}\n{script}\n", self.host.plugin.path.display());
        let write = format!("cat >{0} && chmod 755 {0}", path.display());
        assert!(self.host.node.run(&["sh", "-c", &write], text.as_bytes()).unwrap().success());
        let del = Call::pod(Verb::Del, &self.pod, &self.config);
        Plugin { path }.call(&self.host.node, &Call { env: vec![self.recorder.path()], ..del }).unwrap()
    }

    fn attachments(&self) -> PathBuf {
        self.host.node.run_dir().join("networks/blue/attachments")
    }

    fn record(&self, phase: &str) -> PathBuf {
        self.attachments().join(format!("{}@eth0.{phase}", self.pod.id()))
    }

    fn is_empty(&self) -> bool {
        fs::read_dir(self.attachments()).unwrap().next().is_none()
    }

    fn uninstall(&self) -> Uninstalled {
        let (from, to) = (self.recorder.dir.join("recorder"), self.recorder.dir.join("uninstalled"));
        fs::rename(&from, &to).unwrap();
        Uninstalled { from, to }
    }
}

struct Uninstalled {
    from: PathBuf,
    to: PathBuf,
}

impl Uninstalled {
    fn install(self) {
        fs::rename(self.to, self.from).unwrap();
    }
}

/// The DEL fails because the record cannot be changed.
#[test]
fn b11_a_failed_del_does_not_release_the_addresses() {
    for mode in MODES {
        let leased = Leased::new("b11-undo", mode);
        let dir = leased.attachments();
        let read_only = format!(
            "exec unshare --mount sh -ec 'mount --bind {0} {0}; mount -o remount,bind,ro {0}; exec \"$0\"' $plugin",
            dir.display()
        );
        leased.del_through(&read_only).error().unwrap();
        assert_eq!(leased.recorder.verbs(), ["ADD"], "{mode}");
        leased.del().ok().unwrap();
        assert_eq!(leased.recorder.verbs(), ["ADD", "DEL"], "{mode}");
        assert!(leased.is_empty(), "{mode}");
    }
}

/// The config no longer has settings for the old IPAM plugin, so it cannot be called. The runtime would repeat a failed DEL forever,
/// so DEL succeeds with a warning.
#[test]
fn b11_del_warns_if_the_config_has_another_ipam_plugin() {
    for mode in MODES {
        let leased = Leased::new("b11-other", mode);
        let config = leased.host.config(&json!({ "mode": mode }));
        let outcome = call(&leased.host, &leased.recorder, Call::pod(Verb::Del, &leased.pod, &config));
        assert!(
            outcome.stderr.contains("from IPAM plugin recorder, which the config no longer names"),
            "{outcome:?}"
        );
        outcome.ok().unwrap();
        assert_eq!(leased.recorder.verbs(), ["ADD"], "{mode}");
        assert!(leased.is_empty(), "{mode}");
    }
}

/// The record is also unavailable while an ADD of another process holds its lock.
#[test]
fn b11_del_without_access_to_the_record_releases_no_addresses() {
    for mode in MODES {
        let leased = Leased::new("b11-busy", mode);
        let (record, aside) = (leased.record("ready"), leased.host.node.dir().join("aside"));
        fs::rename(&record, &aside).unwrap();
        fs::create_dir(&record).unwrap();
        leased.del().error().unwrap();
        assert_eq!(leased.recorder.verbs(), ["ADD"], "{mode}");
        assert!(inspect::link(&leased.pod, "eth0").is_ok(), "{mode}");
        fs::remove_dir(&record).unwrap();
        fs::rename(&aside, &record).unwrap();
        leased.del().ok().unwrap();
        assert_eq!(leased.recorder.verbs(), ["ADD", "DEL"], "{mode}");
    }
}

#[test]
fn b11_a_record_stays_pending_until_the_plugin_released_its_addresses() {
    let finish: [fn(&Leased) -> Outcome; 3] = [Leased::gc, Leased::del, |leased| {
        call(&leased.host, &leased.recorder, Call::pod(Verb::Add, &leased.pod, &leased.config))
    }];
    for (first, is_missing) in
        [(Leased::del as fn(&Leased) -> Outcome, false), (Leased::del, true), (Leased::gc, true)]
    {
        for (finish, verbs) in finish.iter().zip([&["DEL", "GC"][..], &["DEL"], &["DEL", "ADD"]]) {
            let leased = Leased::new("b11-missing", "bridge");
            let uninstalled = is_missing.then(|| leased.uninstall());
            leased.recorder.set_failure("DEL", r#"{"cniVersion":"1.1.0","code":11,"msg":"failed"}"#);
            let error = first(&leased).error().unwrap();
            assert!(error.msg.contains("recorder"), "{error:?}");
            assert!(inspect::link(&leased.pod, "eth0").is_err(), "the link was not removed");
            // The record has no addresses: the plugin may assign them to another pod as soon as it is called.
            let record: Value = serde_json::from_slice(&fs::read(leased.record("pending")).unwrap()).unwrap();
            assert_eq!((&record["addresses"], &record["ipam_plugin"]), (&json!([]), &json!("recorder")));
            if let Some(uninstalled) = uninstalled {
                uninstalled.install();
            }
            leased.recorder.set_script("DEL", "");
            fs::remove_file(leased.recorder.dir.join("verbs")).unwrap();
            finish(&leased).ok().unwrap();
            assert_eq!(leased.recorder.verbs(), verbs);
            assert!(!leased.record("pending").exists());
        }
    }
}

#[test]
fn b11_gc_calls_the_ipam_plugin_for_an_unreadable_record() {
    for mode in MODES {
        let leased = Leased::new("b11-unreadable", mode);
        fs::write(leased.record("ready"), "{").unwrap();
        let uninstalled = leased.uninstall();
        assert!(leased.gc().error().unwrap().msg.contains("recorder"), "{mode}");
        assert!(inspect::link(&leased.pod, "eth0").is_err() && !leased.is_empty(), "{mode}");
        uninstalled.install();
        leased.gc().ok().unwrap();
        assert_eq!(leased.recorder.verbs(), ["ADD", "DEL", "GC"], "{mode}");
        let environment = leased.recorder.read("env-DEL");
        for variable in [format!("CNI_CONTAINERID={}", leased.pod.id()), "CNI_IFNAME=eth0".to_owned()] {
            assert!(environment.lines().any(|line| line == variable), "{mode}: {environment}");
        }
        assert!(leased.is_empty(), "{mode}");
    }
}

#[test]
fn b11_a_del_killed_before_truncating_the_record_keeps_it_readable() {
    if !Path::new("/usr/bin/strace").exists() || Command::new("strace").arg("-V").output().is_err() {
        eprintln!("strace is not installed; test skipped");
        return;
    }
    let leased = Leased::new("b11-shorten", "bridge");
    let killed = leased.del_through("exec strace -f -o /dev/null -e inject=ftruncate:signal=KILL $plugin");
    assert!(killed.killed(), "{killed:?}");
    let record = fs::read(leased.record("pending")).unwrap();
    let parsed = serde_json::from_slice::<Value>(&record);
    assert!(parsed.is_ok(), "{parsed:?}: {}", String::from_utf8_lossy(&record));
    leased.del().ok().unwrap();
    assert_eq!(leased.recorder.verbs(), ["ADD", "DEL"]);
}
