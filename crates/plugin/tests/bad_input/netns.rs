//! A CNI_NETNS that does not exist or is not a network namespace.

use std::fs;
use std::os::unix::net::UnixListener;

use serde_json::json;
use testkit::{Call, Verb};

use crate::common::{Host, with_previous};
use crate::mounts::Mounts;
use crate::watch::{Watch, dual, refused_with};

#[test]
fn e7_add_refuses_invalid_namespaces_and_del_ignores_them() {
    let host = Host::new("netns");
    let config = dual(&host, &json!({}));
    let (running, _) = host.attached("a", &config);
    let (dir, pod) = (host.node.dir(), host.pod("b"));
    let path_of = |name: &str| dir.join(name).display().to_string();
    fs::write(path_of("file"), "x").unwrap();
    fs::write(path_of("empty"), "").unwrap();
    std::os::unix::fs::symlink(path_of("gone"), path_of("dangling")).unwrap();
    std::os::unix::fs::symlink(path_of("loop"), path_of("loop")).unwrap();
    host.node.sh(&["mkfifo", &path_of("pipe")]).unwrap();
    let _socket = UnixListener::bind(path_of("socket")).unwrap();
    let cases: [(String, u32, &str); 13] = [
        (path_of("gone"), 3, "does not exist"),
        (path_of("file/below"), 3, "does not exist"),
        (path_of("dangling"), 3, "does not exist"),
        (path_of("file"), 3, "not a namespace"),
        (path_of("empty"), 3, "not a namespace"),
        (path_of("pipe"), 3, "not a namespace"),
        (path_of("socket"), 3, "not a namespace"),
        (dir.display().to_string(), 3, "not a namespace"),
        ("/dev/null".to_owned(), 3, "not a namespace"),
        ("/proc/self/ns/mnt".to_owned(), 4, "mount namespace"),
        ("/proc/self/ns/pid".to_owned(), 4, "pid namespace"),
        ("/proc/self/ns/user".to_owned(), 4, "user namespace"),
        (path_of("loop"), 103, "cannot open"),
    ];
    let watch = Watch::on(&host, &[&running, &pod]);
    let call_with =
        |verb, path: &str| Call { netns: Some(path.to_owned()), ..Call::pod(verb, &pod, &config) };
    for (path, code, reason) in &cases {
        let outcome = host.plugin.call(&host.node, &call_with(Verb::Add, path)).unwrap();
        refused_with(path, &outcome, (*code, &[path, reason]));
    }
    watch.expect_same("ADD");
    for (path, ..) in &cases {
        host.plugin.call(&host.node, &call_with(Verb::Del, path)).unwrap().ok().unwrap();
    }
    watch.expect_same("DEL");
}

/// The plugin runs in a mount namespace without the pod's network namespace.
#[test]
fn f9_the_error_names_a_namespace_that_is_not_mounted() {
    let host = Host::new("f9");
    let config = dual(&host, &json!({}));
    let (running, _) = host.attached("a", &config);
    let pod = host.pod("b");
    let watch = Watch::on(&host, &[&running, &pod]);
    let mounts = Mounts::new(&host, "mount -t tmpfs hidden /run/netns");
    let path = pod.netns_path().display().to_string();
    let outcome = mounts.plugin.call(&host.node, &Call::pod(Verb::Add, &pod, &config)).unwrap();
    refused_with("hidden", &outcome, (3, &[&path, "does not exist"]));
    drop(mounts);
    watch.expect_same("ADD");
    host.add(&pod, &config);
}

#[test]
fn e15_check_reports_an_invalid_namespace() {
    let host = Host::new("netnscheck");
    let config = dual(&host, &json!({}));
    let (pod, result) = host.attached("a", &config);
    let other = host.pod("b");
    let previous = with_previous(&config, &result);
    let elsewhere = other.netns_path().display().to_string();
    let cases =
        [("/no/such/netns", 3), ("/dev/null", 3), ("/proc/self/ns/mnt", 4), (elsewhere.as_str(), 105)];
    for (path, code) in cases {
        let call = Call { netns: Some(path.to_owned()), ..Call::pod(Verb::Check, &pod, &previous) };
        refused_with(path, &host.plugin.call(&host.node, &call).unwrap(), (code, &[path]));
    }
    host.check(&pod, &config, &result).unwrap();
}
