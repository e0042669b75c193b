//! A FIFO or device replaces a state file. No call may block (the test harness kills a plugin that does). Each call repairs the
//! file or names it in its error.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;
use testkit::{Call, Outcome, Verb};

use crate::common::{Host, ips, with, with_previous};
use crate::watch::dual;

/// Commands that create special files: a FIFO, /dev/zero (endless), /dev/full (no space) and a symlink to a device.
const KINDS: [(&str, &str); 4] =
    [("mkfifo", ""), ("mknod", "c 1 5"), ("mknod", "c 1 7"), ("ln -s /dev/zero", "")];

fn replace_with(host: &Host, kind: (&str, &str), path: &Path) {
    if path.is_file() {
        fs::remove_file(path).unwrap();
    }
    let line = format!("{} {} {}", kind.0, path.display(), kind.1);
    host.node.sh(&["sh", "-c", &line]).unwrap();
}

fn expect_named(outcome: &Outcome, path: &Path, case: &str) {
    if !outcome.success() {
        let text = outcome.error().unwrap().msg;
        let is_named = text.contains(path.to_str().unwrap()) && text.contains("not a regular file");
        assert!(is_named, "{case}: {text}");
    }
}

#[test]
fn a10_a_fifo_or_device_in_the_run_directory_blocks_no_call() {
    let host = Host::new("special");
    for (number, kind) in KINDS.into_iter().enumerate() {
        for file in ["record", "claim", "lock", "boot", "sysctls", "podwire.lock", "index", "last"] {
            let run_dir = host.node.dir().join(format!("run-{number}-{file}"));
            let more = json!({"runDir": run_dir, "name": "special", "bridge": "pw9", "subnet": "10.9.0.0/24,fd00:9::/64"});
            let config = dual(&host, &more);
            let (pod, result) = host.attached(&format!("a{number}{}", file.replace('.', "-")), &config);
            let network = run_dir.join("networks/special");
            let index = || {
                let all = fs::read_dir(network.join("index")).unwrap().map(|entry| entry.unwrap().path());
                all.into_iter().find(|path| path.to_str().unwrap().ends_with(".used")).unwrap()
            };
            let path: PathBuf = match file {
                "record" => network.join(format!("attachments/{}@eth0.ready", pod.id())),
                "claim" => network.join(format!("addresses/{}", ips(&result)[0])),
                "lock" => network.join("lock"),
                "index" => index(),
                "last" => network.join("index/last"),
                other => run_dir.join(other),
            };
            replace_with(&host, kind, &path);
            let other = host.pod(&format!("b{number}{}", file.replace('.', "-")));
            for call in [
                Call::pod(Verb::Add, &other, &config),
                Call::pod(Verb::Check, &pod, &with_previous(&config, &result)),
                Call::network(Verb::Status, &config),
                Call::pod(Verb::Del, &other, &config),
                Call::pod(Verb::Del, &pod, &config),
                Call::network(Verb::Gc, &with(&config, &json!({"cni.dev/valid-attachments": []}))),
            ] {
                let case = format!("{} with {} {} as {file}", call.verb.as_str(), kind.0, kind.1);
                // This fails if the harness killed the plugin because it did not exit.
                let outcome = host.plugin.call(&host.node, &call).unwrap_or_else(|e| panic!("{case}: {e:#}"));
                // CHECK may report other errors first.
                if call.verb != Verb::Check {
                    expect_named(&outcome, &path, &case);
                }
            }
            // Without the special file the pods can be removed.
            if fs::symlink_metadata(&path).is_ok_and(|meta| !meta.is_file()) {
                fs::remove_file(&path).unwrap();
            }
            for pod in [&pod, &other] {
                host.del(pod, &config);
                pod.destroy().unwrap();
            }
        }
    }
}
