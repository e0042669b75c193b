//! Addresses of another IPAM plugin go back to it exactly when no pod uses them any more.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use testkit::{Call, Outcome, Plugin, Pod, Verb, inspect};

use crate::common::{Host, MODES, with};
use crate::delegation::{Scribe, call, scribe_config};

/// A node with a pod whose addresses the plugin gave.
struct Leased {
    host: Host,
    scribe: Scribe,
    pod: Pod,
    config: Value,
}

impl Leased {
    fn new(label: &str, mode: &str) -> Self {
        let host = Host::new(label);
        let (scribe, pod) = (Scribe::new(&host), host.pod("a"));
        let config = scribe_config(&host, &json!({ "mode": mode }));
        call(&host, &scribe, Call::pod(Verb::Add, &pod, &config)).ok().unwrap();
        Self { host, scribe, pod, config }
    }

    fn del(&self) -> Outcome {
        call(&self.host, &self.scribe, Call::pod(Verb::Del, &self.pod, &self.config))
    }

    fn gc(&self) -> Outcome {
        let config = with(&self.config, &json!({"cni.dev/valid-attachments": []}));
        call(&self.host, &self.scribe, Call::network(Verb::Gc, &config))
    }

    /// DEL by a plugin that a shell starts in this way.
    fn del_through(&self, script: &str) -> Outcome {
        let path = self.host.node.dir().join("wrapper");
        let text = format!("#!/bin/sh\nplugin={}\n{script}\n", self.host.plugin.path.display());
        let write = format!("cat >{0} && chmod 755 {0}", path.display());
        assert!(self.host.node.run(&["sh", "-c", &write], text.as_bytes()).unwrap().success());
        let del = Call::pod(Verb::Del, &self.pod, &self.config);
        Plugin { path }.call(&self.host.node, &Call { env: vec![self.scribe.path()], ..del }).unwrap()
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
        let (from, to) = (self.scribe.dir.join("scribe"), self.scribe.dir.join("away"));
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

/// The record cannot be marked, so that the undo fails.
#[test]
fn b11_the_plugin_keeps_the_addresses_of_a_pod_that_could_not_be_undone() {
    for mode in MODES {
        let leased = Leased::new("b11-undo", mode);
        let dir = leased.attachments();
        let read_only = format!(
            "exec unshare --mount sh -ec 'mount --bind {0} {0}; mount -o remount,bind,ro {0}; exec \"$0\"' $plugin",
            dir.display()
        );
        leased.del_through(&read_only).error().unwrap();
        assert_eq!(leased.scribe.verbs(), ["ADD"], "{mode}");
        leased.del().ok().unwrap();
        assert_eq!(leased.scribe.verbs(), ["ADD", "DEL"], "{mode}");
        assert!(leased.is_empty(), "{mode}");
    }
}

/// The config has no part for the old plugin any more: it cannot be called. A DEL that failed would be repeated for ever.
#[test]
fn b11_a_del_whose_config_names_another_plugin_says_what_was_not_given_back() {
    for mode in MODES {
        let leased = Leased::new("b11-other", mode);
        let config = leased.host.config(&json!({ "mode": mode }));
        let outcome = call(&leased.host, &leased.scribe, Call::pod(Verb::Del, &leased.pod, &config));
        assert!(
            outcome.stderr.contains("from IPAM plugin scribe, which the config no longer names"),
            "{outcome:?}"
        );
        outcome.ok().unwrap();
        assert_eq!(leased.scribe.verbs(), ["ADD"], "{mode}");
        assert!(leased.is_empty(), "{mode}");
    }
}

/// As while an ADD of another process works on it: then the record cannot be had either.
#[test]
fn b11_the_plugin_keeps_the_addresses_of_a_pod_whose_record_cannot_be_had() {
    for mode in MODES {
        let leased = Leased::new("b11-busy", mode);
        let (record, aside) = (leased.record("ready"), leased.host.node.dir().join("aside"));
        fs::rename(&record, &aside).unwrap();
        fs::create_dir(&record).unwrap();
        leased.del().error().unwrap();
        assert_eq!(leased.scribe.verbs(), ["ADD"], "{mode}");
        assert!(inspect::link(&leased.pod, "eth0").is_ok(), "{mode}");
        fs::remove_dir(&record).unwrap();
        fs::rename(&aside, &record).unwrap();
        leased.del().ok().unwrap();
        assert_eq!(leased.scribe.verbs(), ["ADD", "DEL"], "{mode}");
    }
}

#[test]
fn b11_a_pod_whose_plugin_fails_or_is_missing_stays_pending_until_the_plugin_got_its_addresses() {
    let finish: [fn(&Leased) -> Outcome; 3] = [Leased::gc, Leased::del, |leased| {
        call(&leased.host, &leased.scribe, Call::pod(Verb::Add, &leased.pod, &leased.config))
    }];
    for (first, is_missing) in
        [(Leased::del as fn(&Leased) -> Outcome, false), (Leased::del, true), (Leased::gc, true)]
    {
        for (finish, verbs) in finish.iter().zip([&["DEL", "GC"][..], &["DEL"], &["DEL", "ADD"]]) {
            let leased = Leased::new("b11-missing", "bridge");
            let uninstalled = is_missing.then(|| leased.uninstall());
            leased.scribe.fails("DEL", r#"{"cniVersion":"1.1.0","code":11,"msg":"away"}"#);
            let error = first(&leased).error().unwrap();
            assert!(error.msg.contains("scribe"), "{error:?}");
            assert!(inspect::link(&leased.pod, "eth0").is_err(), "the kernel's part is removed");
            // Its addresses may be another pod's as soon as the plugin is called.
            let record: Value = serde_json::from_slice(&fs::read(leased.record("pending")).unwrap()).unwrap();
            assert_eq!((&record["addresses"], &record["ipam_plugin"]), (&json!([]), &json!("scribe")));
            if let Some(uninstalled) = uninstalled {
                uninstalled.install();
            }
            leased.scribe.does("DEL", "");
            fs::remove_file(leased.scribe.dir.join("verbs")).unwrap();
            finish(&leased).ok().unwrap();
            assert_eq!(leased.scribe.verbs(), verbs);
            assert!(!leased.record("pending").exists());
        }
    }
}

#[test]
fn b11_gc_calls_the_plugin_for_a_record_that_cannot_be_read() {
    for mode in MODES {
        let leased = Leased::new("b11-unreadable", mode);
        fs::write(leased.record("ready"), "{").unwrap();
        let uninstalled = leased.uninstall();
        assert!(leased.gc().error().unwrap().msg.contains("scribe"), "{mode}");
        assert!(inspect::link(&leased.pod, "eth0").is_err() && !leased.is_empty(), "{mode}");
        uninstalled.install();
        leased.gc().ok().unwrap();
        assert_eq!(leased.scribe.verbs(), ["ADD", "DEL", "GC"], "{mode}");
        let environment = leased.scribe.read("env-DEL");
        for variable in [format!("CNI_CONTAINERID={}", leased.pod.id()), "CNI_IFNAME=eth0".to_owned()] {
            assert!(environment.lines().any(|line| line == variable), "{mode}: {environment}");
        }
        assert!(leased.is_empty(), "{mode}");
    }
}

#[test]
fn b11_a_del_killed_before_it_shortens_the_record_leaves_one_that_can_be_read() {
    if !Path::new("/usr/bin/strace").exists() || Command::new("strace").arg("-V").output().is_err() {
        eprintln!("strace is not installed: the kill is not tested");
        return;
    }
    let leased = Leased::new("b11-shorten", "bridge");
    let killed = leased.del_through("exec strace -f -o /dev/null -e inject=ftruncate:signal=KILL $plugin");
    assert!(killed.killed(), "{killed:?}");
    let record = fs::read(leased.record("pending")).unwrap();
    let parsed = serde_json::from_slice::<Value>(&record);
    assert!(parsed.is_ok(), "{parsed:?}: {}", String::from_utf8_lossy(&record));
    leased.del().ok().unwrap();
    assert_eq!(leased.scribe.verbs(), ["ADD", "DEL"]);
}
