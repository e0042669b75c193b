use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::{DEADLINE, Plugin, ping, wait_until};

use crate::common::{Host, has, mode, plugin_config};

#[test]
fn a7_plugin_and_config_are_installed_for_a_ready_agent() {
    let host = Host::new("inst");
    let runtime = host.runtime();
    let agent = host.agent(&["--no-install"]);
    let first = host.install(&[]);
    assert!(first.success(), "{}", first.stderr);
    has(
        &first.stdout,
        &["plugin ", "podwire-cni written", "loopback", "config ", "10-podwire.conflist written"],
    );
    let config = runtime.conf.join("10-podwire.conflist");
    let modes =
        [&runtime.bin.join("podwire-cni"), &runtime.bin.join("loopback"), &config].map(|path| mode(path));
    assert_eq!(modes, [0o700, 0o700, 0o600]);
    assert_eq!(fs::read_dir(&runtime.conf).unwrap().count(), 1, "temporary files are removed");
    assert_eq!(host.install(&[]).stdout, "all files are up to date\n");

    // The installed plugin and config use this agent.
    let list = runtime.config("10-podwire.conflist");
    assert_eq!(list["plugins"][0]["agent"], json!(agent.socket()));
    let pod = host.node.pod("a").unwrap();
    let installed = Plugin { path: runtime.bin.join("podwire-cni") };
    installed.add(&pod, &plugin_config(&list, &host.node)).unwrap().ok().unwrap();
    assert!(ping(&host.node, "10.83.0.2".parse().unwrap(), 1).unwrap().all());
    assert_eq!(agent.get(api::STATUS).unwrap()["attachments"]["ready"], 1);
}

#[test]
fn a7_nothing_is_installed_before_the_agent_is_ready() {
    let host = Host::new("early");
    let runtime = host.runtime();
    let started = Instant::now();
    let outcome = host.install(&["--timeout", "1"]);
    assert!(!outcome.success() && started.elapsed() >= Duration::from_secs(1));
    has(&outcome.stderr, &["waiting for the agent: no agent listens", "nothing was installed", "after 1 s"]);
    assert!(!runtime.bin.exists() && !runtime.conf.exists() && !runtime.state.exists());

    // An agent that is running and not ready.
    let mut agent = host.idle_agent(&["--no-install"]);
    let networks = host.node.run_dir().join("networks");
    fs::create_dir_all(&networks).unwrap();
    fs::write(networks.join("other"), "").unwrap();
    agent.launch().unwrap();
    wait_until("an answer", DEADLINE, || Ok(agent.client().get(api::READY, DEADLINE)?.status == 503))
        .unwrap();
    let outcome = host.install(&["--timeout", "1"]);
    assert!(!outcome.success());
    has(&outcome.stderr, &["not a state directory of Podwire"]);
    assert!(!runtime.bin.exists() && !runtime.conf.exists());

    // The agent becomes ready while the command waits.
    let waiting = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| host.install(&[]));
        fs::remove_dir_all(&networks).unwrap();
        waiting.join().unwrap()
    });
    assert!(waiting.success(), "{}", waiting.stderr);
    assert!(runtime.conf.join("10-podwire.conflist").exists());
}

#[test]
fn a7_a_template_uses_the_network_of_the_running_agent() {
    let host = Host::new("template");
    let runtime = host.runtime();
    let template = host.node.dir().join("template");
    let text = r#"{"cniVersion": "{{ CNI_VERSION }}", "name": "{{ NAME }}", "plugins": [{"type": "{{ TYPE }}",
        "agent": "{{ SOCKET }}", "runDir": "{{ RUN_DIR }}", "subnet": "{{ BLOCK }}", "mtu": {{ MTU }}}, {"type": "tuning"}]}"#;
    fs::write(&template, text).unwrap();
    let _agent = host.agent(&[
        "--no-install",
        "--network-name",
        "blue",
        "--network-subnet",
        "10.9.0.0/24",
        "--network-mtu",
        "1400",
    ]);
    let args = ["--template", template.to_str().unwrap(), "--config-name", "05-blue.conflist"];
    let outcome = host.install(&args);
    assert!(outcome.success(), "{}", outcome.stderr);
    // The network of the running agent, not of the configuration of this command.
    let list = runtime.config("05-blue.conflist");
    assert_eq!((&list["name"], &list["plugins"][0]["subnet"]), (&json!("blue"), &json!("10.9.0.0/24")));
    assert_eq!((&list["plugins"][0]["mtu"], &list["plugins"][1]["type"]), (&json!(1400), &json!("tuning")));
    fs::write(&template, r#"{"name": "{{ UNKNOWN }}"}"#).unwrap();
    let outcome = host.install(&args);
    assert!(!outcome.success());
    has(&outcome.stderr, &["UNKNOWN", template.to_str().unwrap()]);
}

#[test]
fn an_existing_loopback_plugin_is_kept() {
    let host = Host::new("loop");
    let runtime = host.runtime();
    fs::create_dir_all(&runtime.bin).unwrap();
    fs::write(runtime.bin.join("loopback"), "other").unwrap();
    let _agent = host.agent(&["--no-install"]);
    let outcome = host.install(&[]);
    assert!(outcome.success(), "{}", outcome.stderr);
    assert!(!outcome.stdout.contains("loopback"), "{}", outcome.stdout);
    assert_eq!(fs::read(runtime.bin.join("loopback")).unwrap(), b"other");
}

#[test]
fn files_of_an_installing_agent_are_left_to_the_agent() {
    let host = Host::new("itself");
    let runtime = host.runtime();
    let _agent = host.agent(&runtime.agent_flags());
    // The agent is ready, but may not have installed its files yet.
    let outcome = host.install(&[]);
    assert!(outcome.success(), "{}", outcome.stderr);
    let config = runtime.conf.join("10-podwire.conflist");
    has(&outcome.stdout, &[&format!("{} is managed by the agent", config.display())]);
    assert!(config.exists());
    let elsewhere = host.node.dir().join("elsewhere");
    let other_dir = ["install", "--plugin-dir", elsewhere.to_str().unwrap()];
    let outcome = host.ask(&other_dir);
    assert!(!outcome.success() && !elsewhere.exists() && config.exists());
    has(&outcome.stderr, &["install.plugin_dir"]);
}

#[test]
fn e20_a_standalone_network_needs_no_agent() {
    let host = Host::new("install");
    let runtime = host.runtime();
    let network = ["--standalone", "--name", "blue", "--subnet", "10.51.0.0/24", "--subnet", "fd00:51::/64"];
    // The second run finds all files up to date.
    for _ in 0..2 {
        let outcome = host.install(&network);
        assert!(outcome.success(), "{}", outcome.stderr);
    }
    let file = runtime.conf.join("10-blue.conflist");
    assert_eq!((mode(&runtime.bin.join("podwire-cni")), mode(&file)), (0o700, 0o600));
    assert_eq!(fs::read_dir(&runtime.conf).unwrap().count(), 1, "temporary files are removed");
    assert_eq!(fs::read_dir(&runtime.bin).unwrap().count(), 2);
    let list = runtime.config("10-blue.conflist");
    assert_eq!(list["cniVersion"], "1.0.0");
    assert_eq!(list["cniVersions"], json!(["0.4.0", "1.0.0", "1.1.0"]));
    assert_eq!(list["plugins"].as_array().unwrap().len(), 1);
    let capabilities = &list["plugins"][0]["capabilities"];
    assert!(capabilities["portMappings"] == true && capabilities["bandwidth"] == true);
    assert_eq!(list["plugins"][0]["agent"], Value::Null);

    // The installed plugin and config attach a pod.
    let config = plugin_config(&list, &host.node);
    let installed = Plugin { path: runtime.bin.join("podwire-cni") };
    let pod = host.node.pod("a").unwrap();
    let result = installed.add(&pod, &config).unwrap().ok().unwrap();
    assert_eq!(result["ips"][0]["address"], "10.51.0.2/24");
    assert!(installed.del(&pod, &config).unwrap().success());
}

#[test]
fn e20_an_invalid_config_is_not_installed() {
    let host = Host::new("badinst");
    let runtime = host.runtime();
    let outcome = host.install(&["--standalone", "--subnet", "10.1.0.0/32"]);
    assert!(!outcome.success());
    has(&outcome.stderr, &["/32"]);
    assert!(!runtime.bin.exists() && !runtime.conf.exists());
    // Network settings without --standalone are refused, because the agent has the network.
    let outcome = host.install(&["--subnet", "10.1.0.0/24"]);
    assert!(!outcome.success());
    has(&outcome.stderr, &["--standalone"]);
}

#[test]
fn a8_a_network_whose_first_pod_would_fail_is_not_installed() {
    for mode in ["routed", "bridge"] {
        let host = Host::new("firstpod");
        let runtime = host.runtime();
        let refused = |args: &[&str], words: &[&str]| {
            let outcome = host.install(&[&["--standalone", "--mode", mode], args].concat());
            assert_eq!(outcome.status.code(), Some(1), "{args:?}: {outcome:?}");
            has(&outcome.stderr, words);
            assert!(!runtime.bin.exists() && !runtime.conf.exists(), "{args:?}");
        };
        refused(&["--bridge", "lo"], &["first pod", "lo"]);
        host.node.sh(&["ip", "link", "add", "taken", "type", "veth", "peer", "name", "other"]).unwrap();
        refused(&["--bridge", "taken"], &["first pod", "taken", "veth"]);
        let run_dir = host.node.run_dir();
        fs::create_dir_all(&run_dir).unwrap();
        fs::set_permissions(&run_dir, PermissionsExt::from_mode(0o777)).unwrap();
        refused(&[], &["first pod", "chmod go-w"]);
        fs::set_permissions(&run_dir, PermissionsExt::from_mode(0o700)).unwrap();
        let outcome = host.install(&["--standalone", "--mode", mode]);
        assert!(outcome.success(), "{outcome:?}");
    }
}

/// B10: the command in the error installs a network without an overlap.
#[test]
fn b10_an_overlapping_subnet_is_refused_with_a_working_command() {
    for mode in ["routed", "bridge"] {
        let host = Host::new("overlap");
        let add = "ip link add other type bridge; ip link set other up; ip addr add 10.50.0.9/24 dev other";
        host.node.sh(&["sh", "-c", add]).unwrap();
        let subnets = ["--subnet", "10.50.0.0/24", "--subnet", "fd00:50::/64"];
        let outcome = host.install(&[&["--standalone", "--mode", mode], &subnets[..]].concat());
        assert_eq!(outcome.status.code(), Some(1), "{outcome:?}");
        has(&outcome.stderr, &["SubnetOverlap", "10.50.0.9"]);
        let command = outcome.stderr.lines().find_map(|line| line.strip_prefix("    ")).unwrap();
        assert!(!command.contains("10.50.0.0/24") && command.contains("--subnet fd00:50::/64"), "{command}");
        host.node.sh(&["sh", "-c", command]).unwrap();
        let list = host.runtime().config("10-podwire.conflist");
        let pod = host.node.pod("a").unwrap();
        host.plugin.add(&pod, &plugin_config(&list, &host.node)).unwrap().ok().unwrap();
    }
}
