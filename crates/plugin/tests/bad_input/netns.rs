//! CNI_NETNS that is not there, or is something else.

use std::fs;
use std::os::unix::net::UnixListener;

use serde_json::json;
use testkit::{Call, Verb};

use crate::common::{Host, with_previous};
use crate::mounts::Mounts;
use crate::watch::{Watch, dual, refused_with};

#[test]
fn e7_a_namespace_that_is_none_is_refused_and_del_does_not_care() {
    let host = Host::new("netns");
    let config = dual(&host, &json!({}));
    let (running, _) = host.attached("a", &config);
    let (dir, pod) = (host.node.dir(), host.pod("b"));
    let at = |name: &str| dir.join(name).display().to_string();
    fs::write(at("file"), "x").unwrap();
    fs::write(at("empty"), "").unwrap();
    std::os::unix::fs::symlink(at("gone"), at("dangling")).unwrap();
    std::os::unix::fs::symlink(at("loop"), at("loop")).unwrap();
    host.node.sh(&["mkfifo", &at("pipe")]).unwrap();
    let _socket = UnixListener::bind(at("socket")).unwrap();
    let cases: [(String, u32, &str); 13] = [
        (at("gone"), 3, "does not exist"),
        (at("file/below"), 3, "does not exist"),
        (at("dangling"), 3, "does not exist"),
        (at("file"), 3, "not a namespace"),
        (at("empty"), 3, "not a namespace"),
        (at("pipe"), 3, "not a namespace"),
        (at("socket"), 3, "not a namespace"),
        (dir.display().to_string(), 3, "not a namespace"),
        ("/dev/null".to_owned(), 3, "not a namespace"),
        ("/proc/self/ns/mnt".to_owned(), 4, "mount namespace"),
        ("/proc/self/ns/pid".to_owned(), 4, "pid namespace"),
        ("/proc/self/ns/user".to_owned(), 4, "user namespace"),
        (at("loop"), 103, "cannot open"),
    ];
    let watch = Watch::on(&host, &[&running, &pod]);
    let of = |verb, path: &str| Call { netns: Some(path.to_owned()), ..Call::pod(verb, &pod, &config) };
    for (path, code, word) in &cases {
        let outcome = host.plugin.call(&host.node, &of(Verb::Add, path)).unwrap();
        refused_with(path, &outcome, (*code, &[path, word]));
    }
    watch.expect_same("ADD");
    for (path, ..) in &cases {
        host.plugin.call(&host.node, &of(Verb::Del, path)).unwrap().ok().unwrap();
    }
    watch.expect_same("DEL");
}

/// Called from a container whose mounts do not show the pod's namespace.
#[test]
fn f9_a_namespace_that_our_mounts_do_not_show_is_named() {
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

/// The namespace of a pod that runs: CHECK tells what became of it.
#[test]
fn e15_check_of_a_namespace_that_is_none_says_so() {
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
