//! A containerd with other CNI directories than the default, as in Debian, which uses /usr/lib/cni for plugins.

use std::fs;

use serde_json::Value;
use testkit::{DEADLINE, wait_until};

use crate::common::{Traces, World};
use crate::site::{CONFIG, PLUGIN, Programs, Site, start_agent_with};

const DIRECTORIES: &str = r#"[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/opt/distribution/cni"
conf_dir = "/etc/distribution/net.d"
"#;
const INSTALLED: [&str; 2] =
    ["/opt/distribution/cni/podwire-cni", "/etc/distribution/net.d/10-podwire.conflist"];

fn expect_installed(world: &World) {
    for (path, exists) in [(INSTALLED[0], true), (INSTALLED[1], true), (PLUGIN, false), (CONFIG, false)] {
        assert_eq!(world.machine.path(path).exists(), exists, "{path}");
    }
}

#[test]
fn b17_the_agent_installs_into_containerds_configured_directories() {
    let world = World::configured("dirs-agent", DIRECTORIES, |_| Ok(()));
    let programs = Programs::built(&world.lab);
    let site = Site::in_world(world, programs);
    expect_installed(&site.world);
    let before = Traces::before_pods(&site.world);
    let (a, b) = (site.world.run("a"), site.world.run("b"));
    site.world.expect_pings([&a, &b]);
    site.world.remove(&a);
    site.world.remove(&b);
    site.expect_nothing_left(&before);
}

/// The message and the fix of a condition that `podwire doctor` reports.
fn reported(world: &World, podwire: &str, code: &str) -> Option<[String; 2]> {
    condition(world, &[podwire, "doctor"], "checks", code)
}

fn condition(world: &World, command: &[&str], list: &str, code: &str) -> Option<[String; 2]> {
    let outcome = world.machine.run(&[command, &["-o", "json"]].concat()).unwrap();
    let report: Value = serde_json::from_str(&outcome.stdout).unwrap();
    let entry = report[list].as_array().unwrap().iter().find(|entry| entry["code"] == code)?;
    Some(["message", "fix"].map(|key| entry[key].as_str().unwrap_or_default().to_owned()))
}

/// containerd before 2.0 also needs the `loopback` plugin.
#[test]
fn b17_the_reported_fix_for_missing_plugins_works() {
    const CODE: &str = "InstallIncomplete";
    let world = World::configured("dirs-other", DIRECTORIES, |_| Ok(()));
    let programs = Programs::built(&world.lab);
    let podwire = programs.podwire.to_str().unwrap();
    let _agent =
        start_agent_with(&world.machine, &programs, &["--install-plugin-dir", "/opt/other/cni"]).unwrap();
    let status = || condition(&world, &[podwire, "status"], "conditions", CODE);
    wait_until("the condition", DEADLINE, || {
        let exists = world.machine.path("/run/podwire/agent.sock").exists();
        Ok(exists && status().is_some())
    })
    .unwrap();
    let [message, fix] = status().unwrap();
    assert_eq!(reported(&world, podwire, CODE), Some([message.clone(), fix]));
    for words in
        ["does not find podwire-cni, loopback in /opt/distribution/cni", r#"set bin_dir = "/opt/other/cni""#]
    {
        assert!(message.contains(words), "{words}: {message}");
    }
    let copy = format!("install -D /opt/other/cni/podwire-cni {}", INSTALLED[0]);
    world.machine.sh(&["sh", "-c", &copy]).unwrap();
    let [message, fix] = reported(&world, podwire, CODE).unwrap();
    assert!(message.contains("does not find loopback in /opt/distribution/cni"), "{message}");
    fs::remove_file(world.machine.path(INSTALLED[0])).unwrap();
    let [_, both] = reported(&world, podwire, CODE).unwrap();
    assert!(both.ends_with(&fix), "{both} {fix}");
    world.machine.sh(&["sh", "-c", &both]).unwrap();
    wait_until("no condition", DEADLINE, || Ok(reported(&world, podwire, CODE).is_none())).unwrap();
    assert_eq!(status(), None);
    world.wait_until_ready();
    let (a, b) = (world.run("a"), world.run("b"));
    world.expect_pings([&a, &b]);
    world.remove(&a);
    world.remove(&b);
}

/// With a missing plugin the runtime still reports a ready network, but every pod fails.
fn doctor_reports_a_missing_plugin(world: &World, podwire: &str) {
    let plugin = world.machine.path(INSTALLED[0]);
    let (problem, moved) = (|| reported(world, podwire, "InstallIncomplete"), plugin.with_extension("moved"));
    assert_eq!(problem(), None);
    fs::rename(&plugin, &moved).unwrap();
    let [message, fix] = problem().unwrap();
    let missing = "containerd uses the configs in /etc/distribution/net.d and does not find podwire-cni in /opt/distribution/cni";
    assert!(message.starts_with(missing), "{message}");
    assert!(fix.starts_with("install ") && fix.ends_with(INSTALLED[0]), "{fix}");
    fs::rename(&moved, &plugin).unwrap();
    assert_eq!(problem(), None);
}

/// Without pods, the subnets are known only from the config.
#[test]
fn b10_doctor_reports_an_overlap_of_a_standalone_network_without_pods() {
    let world = World::configured("dirs-overlap", DIRECTORIES, |_| Ok(()));
    let programs = Programs::built(&world.lab);
    let [podwire, plugin] = [&programs.podwire, &programs.plugin].map(|path| path.to_str().unwrap());
    world.machine.sh(&[podwire, "install", "--standalone", "--plugin", plugin]).unwrap();
    let problem = || reported(&world, podwire, "SubnetOverlap");
    assert_eq!(problem(), None);
    let commands =
        ["ip link add other type bridge", "ip link set other up", "ip address add 10.83.4.1/24 dev other"];
    for command in commands {
        world.machine.sh(&command.split(' ').collect::<Vec<_>>()).unwrap();
    }
    let [message, _] = problem().unwrap();
    for words in ["10.83.4.1/24", "network podwire", r#"set "subnet": "10.84.0.0/16,fd00:88::/64""#] {
        assert!(message.contains(words), "{words}: {message}");
    }
    world.machine.sh(&["ip", "link", "del", "other"]).unwrap();
    assert_eq!(problem(), None);
}

#[test]
fn b17_install_standalone_uses_containerds_directories_or_warns() {
    let world = World::configured("dirs-alone", DIRECTORIES, |_| Ok(()));
    let programs = Programs::built(&world.lab);
    let [podwire, plugin] = [&programs.podwire, &programs.plugin].map(|path| path.to_str().unwrap());
    let install = |extra: &[&str]| {
        let argv = [podwire, "install", "--standalone", "--plugin", plugin];
        let outcome = world.machine.run(&[argv.as_slice(), extra].concat()).unwrap();
        assert!(outcome.success(), "{}", outcome.stderr);
        outcome.stderr
    };
    assert_eq!(install(&[]), "");
    expect_installed(&world);
    world.wait_until_ready();
    let (a, b) = (world.run("a"), world.run("b"));
    world.expect_pings([&a, &b]);
    world.remove(&a);
    world.remove(&b);
    doctor_reports_a_missing_plugin(&world, podwire);

    let warning = install(&["--plugin-dir", "/opt/other"]);
    for words in ["containerd uses /opt/distribution/cni", "set bin_dir = \"/opt/other\"", "config.toml"] {
        assert!(warning.contains(words), "{words}: {warning}");
    }
}
