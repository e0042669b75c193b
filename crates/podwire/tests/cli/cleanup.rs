mod forwarding;
mod run_dirs;

use std::fs;
use std::os::unix::net::UnixListener;

use serde_json::{Value, json};
use testkit::{Agent, Call, DEADLINE, Snapshot, Verb, wait_until};

use crate::common::{Host, has};

fn cleanup(host: &Host) -> testkit::Outcome {
    let state = host.state_dir();
    host.ask(&["cleanup", "--state-dir", state.to_str().unwrap()])
}

/// An agent with installed files and two pods.
fn agent_with_pods(host: &Host, flags: &[&str]) -> Agent {
    let runtime = host.runtime();
    let agent = host.agent(&[&runtime.agent_flags()[..], flags].concat());
    for name in ["a", "b"] {
        let pod = host.node.pod(name).unwrap();
        host.plugin.add(&pod, &agent.config(&json!({}))).unwrap().ok().unwrap();
    }
    let config = runtime.conf.join("10-podwire.conflist");
    wait_until("the config", DEADLINE, || Ok(config.exists())).unwrap();
    agent
}

#[test]
fn f7_cleanup_removes_all_kernel_objects_and_files() {
    for mode in ["routed", "bridge"] {
        let host = Host::new("leave");
        let before = Snapshot::of(&host.node).unwrap();
        let mut agent = agent_with_pods(&host, &["--network-mode", mode]);
        // A killed agent leaves its socket and lock, and a DEL without an agent leaves a tombstone.
        agent.kill().unwrap();
        let pod = host.node.pod("c").unwrap();
        assert!(host.plugin.del(&pod, &agent.config(&json!({}))).unwrap().success());
        let outcome = cleanup(&host);
        assert!(outcome.success(), "{mode}: {}{}", outcome.stdout, outcome.stderr);
        has(
            &outcome.stdout,
            &[
                "2 attachments of podwire removed",
                "bridge podwire0 removed",
                "nftables",
                "ip_forward restored to 0",
                "forwarding restored to 0",
                "10-podwire.conflist removed",
                "podwire-cni removed",
                "loopback removed",
                "state directory",
            ],
        );
        before.wait_for_same(&host.node, DEADLINE).unwrap();
        for path in ["state", "lib", "opt", "etc"].map(|name| host.node.dir().join(name)) {
            assert!(!path.exists(), "{mode}: {} was not removed", path.display());
        }
        let second = cleanup(&host);
        assert_eq!((second.stdout.as_str(), second.success()), ("nothing to remove\n", true));
    }
}

#[test]
fn f7_cleanup_is_refused_while_an_agent_runs() {
    let host = Host::new("refuse");
    let mut agent = agent_with_pods(&host, &[]);
    let before = Snapshot::of(&host.node).unwrap();
    let refused = |outcome: &testkit::Outcome| {
        assert!(!outcome.success());
        has(&outcome.stderr, &["systemctl disable --now podwire"]);
        assert_eq!(outcome.stdout, "");
        before.expect_same(&host.node).unwrap();
        assert!(host.runtime().conf.join("10-podwire.conflist").exists());
    };
    let outcome = cleanup(&host);
    refused(&outcome);
    has(&outcome.stderr, &[&format!("process {}", agent.pid().unwrap())]);
    assert!(agent.stop().unwrap().success());
    // A process listens on the socket, without the lock.
    let socket = agent.socket();
    if socket.exists() {
        fs::remove_file(&socket).unwrap();
    }
    let listener = UnixListener::bind(&socket).unwrap();
    refused(&cleanup(&host));
    drop(listener);
    let outcome = cleanup(&host);
    assert!(outcome.success(), "{}{}", outcome.stdout, outcome.stderr);
}

#[test]
fn f7_run_directories_of_earlier_boots_are_removed() {
    let host = Host::new("oldboot");
    let mut agent = host.agent(&["--no-install"]);
    agent.kill().unwrap();
    fs::write(host.node.run_dir().join("boot"), "another boot\n").unwrap();
    let outcome = cleanup(&host);
    assert!(outcome.success(), "{}{}", outcome.stdout, outcome.stderr);
    assert!(!host.node.run_dir().exists(), "{}", outcome.stdout);
    // An agent that failed at its start leaves only a lock.
    fs::create_dir(host.node.run_dir()).unwrap();
    fs::write(host.node.run_dir().join("agent.lock"), "1").unwrap();
    assert!(cleanup(&host).success());
    assert!(!host.node.run_dir().exists());
    // A directory of another program is not removed.
    fs::create_dir(host.node.run_dir()).unwrap();
    fs::write(host.node.run_dir().join("boot.img"), "other").unwrap();
    assert_eq!(cleanup(&host).stdout, "nothing to remove\n");
    assert!(host.node.run_dir().join("boot.img").exists());
}

#[test]
fn f7_files_of_other_programs_are_kept_and_listed() {
    let host = Host::new("otherfiles");
    let mut agent = agent_with_pods(&host, &[]);
    agent.stop().unwrap();
    fs::write(host.node.run_dir().join("notes"), "mine").unwrap();
    fs::write(host.state_dir().join("notes"), "mine").unwrap();
    let plugin = host.runtime().bin.join("podwire-cni");
    fs::write(&plugin, "another").unwrap();
    let outcome = cleanup(&host);
    assert!(!outcome.success(), "{}", outcome.stdout);
    let kept = format!("left: plugin {} stays", plugin.display());
    has(
        &outcome.stdout,
        &[
            "files that Podwire did not write (notes)",
            "files of other programs",
            &kept,
            "bridge podwire0 removed",
        ],
    );
    assert!(plugin.exists() && host.node.run_dir().join("notes").exists());
}

#[test]
fn f7_cleanup_restores_the_node_of_a_standalone_network() {
    let host = Host::new("cleanup");
    let node = &host.node;
    node.sh(&["ip", "link", "add", "other0", "type", "bridge"]).unwrap();
    node.sh(&["nft", "add", "table", "inet", "other"]).unwrap();
    let before = Snapshot::of(node).unwrap();
    let sysctl = |name: &str| node.sh(&["cat", &format!("/proc/sys/net/{name}")]).unwrap().trim().to_owned();
    assert_eq!(
        (sysctl("ipv4/ip_forward"), sysctl("ipv6/conf/all/forwarding")),
        ("0".to_owned(), "0".to_owned())
    );

    let pods: Vec<_> = (0..3).map(|n| node.pod(&format!("p{n}")).unwrap()).collect();
    for pod in &pods {
        host.plugin.add(pod, &host.standalone()).unwrap().ok().unwrap();
    }
    assert_eq!(
        (sysctl("ipv4/ip_forward"), sysctl("ipv6/conf/all/forwarding")),
        ("1".to_owned(), "1".to_owned())
    );
    let state = node.run_dir();
    let outcome = host.ask(&["cleanup"]);
    assert!(outcome.success(), "{}{}", outcome.stdout, outcome.stderr);
    for word in [
        "3 attachments",
        "bridge pw-test0 removed",
        "nftables",
        "ip_forward restored to 0",
        "state directory",
    ] {
        assert!(outcome.stdout.contains(word), "{word} in {}", outcome.stdout);
    }
    before.wait_for_same(node, DEADLINE).unwrap();
    assert!(!state.exists());
    assert_eq!(
        (sysctl("ipv4/ip_forward"), sysctl("ipv6/conf/all/forwarding")),
        ("0".to_owned(), "0".to_owned())
    );
    assert_eq!(host.ask(&["cleanup"]).stdout, "nothing to remove\n");
}

/// Cleanup has no config, so it cannot call the IPAM plugin.
#[test]
fn f7_cleanup_lists_addresses_of_external_ipam_plugins() {
    let host = Host::new("leased");
    let dir = host.node.dir().join("cni");
    let answer =
        json!({"cniVersion": "1.0.0", "ips": [{"address": "10.66.0.7/24"}, {"address": "fd00:66::7/64"}]});
    let script = format!("#!/bin/sh\ncat >/dev/null\n[ $CNI_COMMAND = ADD ] && echo '{answer}'\nexit 0\n");
    let write = format!("mkdir {0} && cat >{0}/scribe && chmod 755 {0}/scribe", dir.display());
    assert!(host.node.run(&["sh", "-c", &write], script.as_bytes()).unwrap().success());
    let mut config = host.standalone();
    let object = config.as_object_mut().unwrap();
    object.remove("subnet");
    object.insert("ipam".to_owned(), json!({"type": "scribe"}));
    let pod = host.node.pod("a").unwrap();
    let env = vec![("CNI_PATH".to_owned(), dir.display().to_string())];
    host.plugin.call(&host.node, &Call { env, ..Call::pod(Verb::Add, &pod, &config) }).unwrap().ok().unwrap();
    let outcome = host.ask(&["cleanup"]);
    has(&outcome.stdout, &["left: IPAM plugin scribe", pod.id(), "10.66.0.7", "fd00:66::7"]);
}

#[test]
fn f7_cleanup_restores_an_unmanaged_bridge() {
    for mode in ["bridge", "routed"] {
        let host = Host::new("unmanaged");
        let node = &host.node;
        for line in [
            "ip link add pw-test0 address 02:00:00:00:00:77 type bridge",
            // Otherwise the kernel adds a link-local address with the first port.
            "ip link set pw-test0 addrgenmode none",
            "ip link set pw-test0 up",
            "ip addr add 192.0.2.9/24 dev pw-test0",
            "ip addr add fd00:77::9/64 dev pw-test0 nodad",
        ] {
            node.sh(&line.split(' ').collect::<Vec<_>>()).unwrap();
        }
        // The kernel adds the local route of the address asynchronously.
        wait_until("the bridge's own address", DEADLINE, || {
            Ok(node.sh(&["ip", "-6", "route", "show", "table", "local"])?.contains("fd00:77::9"))
        })
        .unwrap();
        let settings = || {
            ["ipv4/conf/pw-test0/route_localnet", "ipv6/conf/pw-test0/accept_ra"]
                .map(|key| node.sh(&["cat", &format!("/proc/sys/net/{key}")]).unwrap())
        };
        let (before, settings_before) = (Snapshot::of(node).unwrap(), settings());
        let mut config = host.standalone();
        config["mode"] = json!(mode);
        config["runtimeConfig"] =
            json!({"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]});
        let pod = node.pod("a").unwrap();
        host.plugin.add(&pod, &config).unwrap().ok().unwrap();
        assert_ne!(settings(), settings_before, "{mode}");
        let outcome = host.ask(&["cleanup"]);
        assert!(outcome.success(), "{mode}: {}{}", outcome.stdout, outcome.stderr);
        for word in [
            "address 10.50.0.1/24 of bridge pw-test0 removed",
            "fd00:50::1/64",
            "accept_ra restored to",
            "ip_forward stays 1: bridge pw-test0 (192.0.2.",
        ] {
            assert!(outcome.stdout.contains(word), "{mode}: {word} in {}", outcome.stdout);
        }
        // Only forwarding is kept, because the node may route for hosts on the bridge.
        assert_eq!(outcome.stdout.matches("kept: ").count(), 2, "{mode}: {}", outcome.stdout);
        for key in ["net.ipv4.ip_forward=0", "net.ipv6.conf.all.forwarding=0"] {
            node.sh(&["sysctl", "-qw", key]).unwrap();
        }
        before.wait_for_same(node, DEADLINE).unwrap();
        assert_eq!(settings(), settings_before, "{mode}");
    }
}

#[test]
fn f7_an_address_with_a_secondary_address_is_kept() {
    let host = Host::new("secondary");
    let node = &host.node;
    node.sh(&["ip", "link", "add", "pw-test0", "type", "bridge"]).unwrap();
    let pod = node.pod("a").unwrap();
    host.plugin.add(&pod, &host.standalone()).unwrap().ok().unwrap();
    node.sh(&["ip", "addr", "add", "10.50.0.77/24", "dev", "pw-test0"]).unwrap();
    let outcome = host.ask(&["cleanup"]);
    assert!(!outcome.success());
    assert!(outcome.stdout.contains("left: address 10.50.0.1/24 of bridge pw-test0"), "{}", outcome.stdout);
    let shown = node.sh(&["ip", "addr", "show", "dev", "pw-test0"]).unwrap();
    assert!(shown.contains("10.50.0.77/24") && !shown.contains("fd00:50::1"), "{shown}");
}

#[test]
fn f7_a_sysctl_that_another_program_changed_is_kept() {
    let host = Host::new("sysctl");
    let node = &host.node;
    let pod = node.pod("a").unwrap();
    let setting = "/proc/sys/net/ipv4/conf/all/route_localnet";
    host.plugin.add(&pod, &host.standalone()).unwrap().ok().unwrap();
    // The record says that Podwire changed it from 1 to 2. Its value is 0 now.
    let log = node.run_dir().join("sysctls");
    let mut recorded: Value = serde_json::from_slice(&fs::read(&log).unwrap()).unwrap();
    recorded[setting] = json!({ "before": "1", "ours": "2" });
    fs::write(&log, recorded.to_string()).unwrap();
    let outcome = host.ask(&["cleanup"]);
    assert!(!outcome.success());
    assert!(outcome.stdout.contains(&format!("left: {setting} is 0")), "{}", outcome.stdout);
    assert_eq!(node.sh(&["cat", setting]).unwrap().trim(), "0");
}

/// A manipulated record of sysctls must not make cleanup write to other files.
#[test]
fn a14_cleanup_writes_only_sysctls_of_podwire() {
    let host = Host::new("evilsysctl");
    let node = &host.node;
    let pod = node.pod("a").unwrap();
    host.plugin.add(&pod, &host.standalone()).unwrap().ok().unwrap();
    let victim = node.dir().join("victim");
    fs::write(&victim, "1").unwrap();
    let up = "../".repeat(victim.components().count());
    let paths = [
        victim.display().to_string(),
        format!("/proc/sys/net/ipv4/conf/{up}{}", victim.display()),
        "/proc/sys/net/ipv4/conf/all/send_redirects".to_owned(),
    ];
    let log = node.run_dir().join("sysctls");
    let mut recorded: Value = serde_json::from_slice(&fs::read(&log).unwrap()).unwrap();
    for path in &paths {
        recorded[path] = json!({ "before": "0", "ours": "1" });
    }
    fs::write(&log, recorded.to_string()).unwrap();
    let outcome = host.ask(&["cleanup"]);
    assert!(!outcome.success());
    for path in &paths {
        has(&outcome.stdout, &[&format!("left: {path:?} is recorded")]);
    }
    has(&outcome.stdout, &["ip_forward restored to 0"]);
    assert_eq!(fs::read_to_string(&victim).unwrap(), "1");
    assert_eq!(node.sh(&["cat", &paths[2]]).unwrap().trim(), "1");
}

#[test]
fn a14_cleanup_with_an_invalid_configuration_removes_nothing() {
    let host = Host::new("badconfig");
    let node = &host.node;
    let pod = node.pod("a").unwrap();
    host.plugin.add(&pod, &host.standalone()).unwrap().ok().unwrap();
    let before = Snapshot::of(node).unwrap();
    let config = node.dir().join("agent.toml");
    fs::write(&config, "run_dir = \"/run/other\"\nworkers = \"many\"\n").unwrap();
    let run = |more: &[&str]| {
        let variable = format!("PODWIRE_CONFIG={}", config.display());
        let line = [&["env", &variable, host.tool.to_str().unwrap(), "cleanup"], more].concat();
        node.run(&line, b"").unwrap()
    };
    for more in [&[][..], &["--all"], &["--state-dir", "/nonexistent/podwire"]] {
        let outcome = run(more);
        assert_eq!(outcome.status.code(), Some(2), "{outcome:?}");
        has(&outcome.stderr, &[config.to_str().unwrap(), "workers", "--run-dir"]);
        assert_eq!(outcome.stdout, "");
        before.expect_same(node).unwrap();
    }
    // With explicit directories the configuration is not needed.
    let (run_dir, state_dir) = (node.run_dir(), host.state_dir());
    let outcome = run(&["--run-dir", run_dir.to_str().unwrap(), "--state-dir", state_dir.to_str().unwrap()]);
    assert!(outcome.success(), "{}{}", outcome.stdout, outcome.stderr);
    has(&outcome.stdout, &["1 attachment of pods removed"]);
    assert!(!run_dir.exists());
}

#[test]
fn f7_configs_and_plugins_of_the_operator_are_kept_and_listed() {
    let host = Host::new("operator");
    let runtime = host.runtime();
    for dir in [&runtime.bin, &runtime.conf] {
        fs::create_dir_all(dir).unwrap();
    }
    let config = host.standalone();
    let mut list = json!({"cniVersion": "1.0.0", "name": "pods", "plugins": [config]});
    let [by_hand, other] = ["20-hand.conflist", "30-other.conflist"].map(|name| runtime.conf.join(name));
    fs::write(&by_hand, list.to_string()).unwrap();
    let plugins = ["podwire-cni", "loopback"].map(|name| runtime.bin.join(name));
    for plugin in &plugins {
        testkit::copy_program(&host.plugin.path, plugin).unwrap();
    }
    fs::write(runtime.bin.join("bridge"), "another program").unwrap();
    let pod = host.node.pod("a").unwrap();
    host.plugin.add(&pod, &config).unwrap().ok().unwrap();
    let outcome = cleanup(&host);
    assert!(outcome.success(), "{outcome:?}");
    let kept = |path: &std::path::PathBuf| format!("kept, remove it manually: {}\n", path.display());
    for path in plugins.iter().chain([&by_hand]) {
        has(&outcome.stdout, &[&kept(path)]);
        assert!(path.exists());
    }
    assert!(!outcome.stdout.contains("bridge\n"), "{}", outcome.stdout);
    // A config of another run directory needs the plugin.
    list["plugins"][0]["runDir"] = json!("/run/elsewhere");
    fs::write(&other, list.to_string()).unwrap();
    let second = cleanup(&host).stdout;
    has(&second, &["nothing to remove", &kept(&by_hand)]);
    assert_eq!(second.matches("kept, remove it manually:").count(), 1, "{second}");
}

#[test]
fn a14_cleanup_of_another_users_directory_is_refused() {
    let host = Host::new("otheruser");
    let pod = host.node.pod("a").unwrap();
    host.plugin.add(&pod, &host.standalone()).unwrap().ok().unwrap();
    let before = Snapshot::of(&host.node).unwrap();
    fs::create_dir_all(host.state_dir()).unwrap();
    for dir in [host.node.run_dir(), host.state_dir()] {
        std::os::unix::fs::chown(&dir, Some(1000), None).unwrap();
        let outcome = cleanup(&host);
        assert!(!outcome.success());
        has(&outcome.stderr, &[&format!("chown 0 {}", dir.display())]);
        before.expect_same(&host.node).unwrap();
        std::os::unix::fs::chown(&dir, Some(0), None).unwrap();
    }
    assert!(cleanup(&host).success());
}
