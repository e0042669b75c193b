mod forwarding;
mod others;

use std::fs;
use std::os::unix::net::UnixListener;

use serde_json::{Value, json};
use testkit::{Agent, Call, DEADLINE, Snapshot, Verb, wait_until};

use crate::common::{Host, has};

fn cleanup(host: &Host) -> testkit::Outcome {
    let state = host.state_dir();
    host.ask(&["cleanup", "--state-dir", state.to_str().unwrap()])
}

/// An agent with files installed and two pods.
fn busy(host: &Host, flags: &[&str]) -> Agent {
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
fn f7_after_an_agent_nothing_is_left_in_the_kernel_and_on_disk() {
    for mode in ["routed", "bridge"] {
        let host = Host::new("leave");
        let before = Snapshot::of(&host.node).unwrap();
        let mut agent = busy(&host, &["--network-mode", mode]);
        // Killed, it leaves its socket and its lock; what came meanwhile leaves a tombstone.
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
                "ip_forward back to 0",
                "forwarding back to 0",
                "10-podwire.conflist removed",
                "podwire-cni removed",
                "loopback removed",
                "state directory",
            ],
        );
        before.wait_for_same(&host.node, DEADLINE).unwrap();
        for path in ["state", "lib", "opt", "etc"].map(|name| host.node.dir().join(name)) {
            assert!(!path.exists(), "{mode}: {} is left", path.display());
        }
        let again = cleanup(&host);
        assert_eq!((again.stdout.as_str(), again.success()), ("nothing of Podwire is here\n", true));
    }
}

#[test]
fn f7_while_an_agent_runs_cleanup_refuses() {
    let host = Host::new("refuse");
    let mut agent = busy(&host, &[]);
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
    // Somebody answers there, lock or not.
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
fn f7_a_directory_of_an_earlier_boot_and_one_without_attachments_go_too() {
    let host = Host::new("oldboot");
    let mut agent = host.agent(&["--no-install"]);
    agent.kill().unwrap();
    fs::write(host.node.run_dir().join("boot"), "another boot\n").unwrap();
    let outcome = cleanup(&host);
    assert!(outcome.success(), "{}{}", outcome.stdout, outcome.stderr);
    assert!(!host.node.run_dir().exists(), "{}", outcome.stdout);
    // Only a lock: an agent that ended at its very start.
    fs::create_dir(host.node.run_dir()).unwrap();
    fs::write(host.node.run_dir().join("agent.lock"), "1").unwrap();
    assert!(cleanup(&host).success());
    assert!(!host.node.run_dir().exists());
    // Somebody else's directory stays, with all that is in it.
    fs::create_dir(host.node.run_dir()).unwrap();
    fs::write(host.node.run_dir().join("boot.img"), "theirs").unwrap();
    assert_eq!(cleanup(&host).stdout, "nothing of Podwire is here\n");
    assert!(host.node.run_dir().join("boot.img").exists());
}

#[test]
fn f7_what_is_not_ours_stays_and_is_named() {
    let host = Host::new("theirs");
    let mut agent = busy(&host, &[]);
    agent.stop().unwrap();
    fs::write(host.node.run_dir().join("notes"), "mine").unwrap();
    fs::write(host.state_dir().join("notes"), "mine").unwrap();
    let plugin = host.runtime().bin.join("podwire-cni");
    fs::write(&plugin, "another").unwrap();
    let outcome = cleanup(&host);
    assert!(!outcome.success(), "{}", outcome.stdout);
    let left = format!("left: plugin {} stays", plugin.display());
    has(
        &outcome.stdout,
        &[
            "it holds files that Podwire did not write (notes)",
            "files of other programs",
            &left,
            "bridge podwire0 removed",
        ],
    );
    assert!(plugin.exists() && host.node.run_dir().join("notes").exists());
}

#[test]
fn f7_cleanup_leaves_the_node_as_it_was_and_says_what_it_could_not_restore() {
    let host = Host::new("cleanup");
    let node = &host.node;
    node.sh(&["ip", "link", "add", "foreign0", "type", "bridge"]).unwrap();
    node.sh(&["nft", "add", "table", "inet", "foreign"]).unwrap();
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
    for word in
        ["3 attachments", "bridge pw-test0 removed", "nftables", "ip_forward back to 0", "state directory"]
    {
        assert!(outcome.stdout.contains(word), "{word} in {}", outcome.stdout);
    }
    before.wait_for_same(node, DEADLINE).unwrap();
    assert!(!state.exists());
    assert_eq!(
        (sysctl("ipv4/ip_forward"), sysctl("ipv6/conf/all/forwarding")),
        ("0".to_owned(), "0".to_owned())
    );
    assert_eq!(host.ask(&["cleanup"]).stdout, "nothing of Podwire is here\n");
}

/// It has no config, so that it cannot call the plugin.
#[test]
fn f7_cleanup_names_pods_whose_addresses_another_ipam_plugin_keeps() {
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
fn f7_cleanup_gives_back_a_bridge_that_is_not_ours() {
    for mode in ["bridge", "routed"] {
        let host = Host::new("foreign");
        let node = &host.node;
        for line in [
            "ip link add pw-test0 address 02:00:00:00:00:77 type bridge",
            // Its link-local address would come with its first port.
            "ip link set pw-test0 addrgenmode none",
            "ip link set pw-test0 up",
            "ip addr add 192.0.2.9/24 dev pw-test0",
            "ip addr add fd00:77::9/64 dev pw-test0 nodad",
        ] {
            node.sh(&line.split(' ').collect::<Vec<_>>()).unwrap();
        }
        // The kernel makes the address's own route a little later, in a worker.
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
            "accept_ra back to",
            "ip_forward stays 1: bridge pw-test0 (192.0.2.",
        ] {
            assert!(outcome.stdout.contains(word), "{mode}: {word} in {}", outcome.stdout);
        }
        // It may be a router for what is on the bridge: only forwarding is kept.
        assert_eq!(outcome.stdout.matches("kept: ").count(), 2, "{mode}: {}", outcome.stdout);
        for key in ["net.ipv4.ip_forward=0", "net.ipv6.conf.all.forwarding=0"] {
            node.sh(&["sysctl", "-qw", key]).unwrap();
        }
        before.wait_for_same(node, DEADLINE).unwrap();
        assert_eq!(settings(), settings_before, "{mode}");
    }
}

#[test]
fn f7_an_address_that_another_one_hangs_on_stays_and_is_named() {
    let host = Host::new("hangs");
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
fn f7_a_sysctl_that_somebody_changed_after_us_is_theirs() {
    let host = Host::new("sysctl");
    let node = &host.node;
    let pod = node.pod("a").unwrap();
    let setting = "/proc/sys/net/ipv4/conf/all/route_localnet";
    host.plugin.add(&pod, &host.standalone()).unwrap().ok().unwrap();
    // As if we had set it from 1 to 2, and it reads 0 now.
    let log = node.run_dir().join("sysctls");
    let mut noted: Value = serde_json::from_slice(&fs::read(&log).unwrap()).unwrap();
    noted[setting] = json!({ "before": "1", "ours": "2" });
    fs::write(&log, noted.to_string()).unwrap();
    let outcome = host.ask(&["cleanup"]);
    assert!(!outcome.success());
    assert!(outcome.stdout.contains(&format!("left: {setting} is 0")), "{}", outcome.stdout);
    assert_eq!(node.sh(&["cat", setting]).unwrap().trim(), "0");
}

/// The record of settings is a file: it must not make cleanup write anywhere else.
#[test]
fn a14_cleanup_writes_only_settings_that_podwire_changes() {
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
    let mut noted: Value = serde_json::from_slice(&fs::read(&log).unwrap()).unwrap();
    for path in &paths {
        noted[path] = json!({ "before": "0", "ours": "1" });
    }
    fs::write(&log, noted.to_string()).unwrap();
    let outcome = host.ask(&["cleanup"]);
    assert!(!outcome.success());
    for path in &paths {
        has(&outcome.stdout, &[&format!("left: {path:?} is recorded")]);
    }
    has(&outcome.stdout, &["ip_forward back to 0"]);
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
    // Directories that are given need no configuration.
    let (run_dir, state_dir) = (node.run_dir(), host.state_dir());
    let outcome = run(&["--run-dir", run_dir.to_str().unwrap(), "--state-dir", state_dir.to_str().unwrap()]);
    assert!(outcome.success(), "{}{}", outcome.stdout, outcome.stderr);
    has(&outcome.stdout, &["1 attachment of pods removed"]);
    assert!(!run_dir.exists());
}

#[test]
fn f7_configs_and_plugins_that_an_operator_placed_are_named_and_stay() {
    let host = Host::new("placed");
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
    let kept = |path: &std::path::PathBuf| format!("kept, for you to remove: {}\n", path.display());
    for path in plugins.iter().chain([&by_hand]) {
        has(&outcome.stdout, &[&kept(path)]);
        assert!(path.exists());
    }
    assert!(!outcome.stdout.contains("bridge\n"), "{}", outcome.stdout);
    // A network of another run directory needs the plugin.
    list["plugins"][0]["runDir"] = json!("/run/elsewhere");
    fs::write(&other, list.to_string()).unwrap();
    let again = cleanup(&host).stdout;
    has(&again, &["nothing of Podwire is here", &kept(&by_hand)]);
    assert_eq!(again.matches("kept, for you to remove:").count(), 1, "{again}");
}

#[test]
fn a14_cleanup_in_a_directory_of_another_user_is_refused() {
    let host = Host::new("theirdir");
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
