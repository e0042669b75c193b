//! A containerd with other CNI directories than the default, as in Debian, which uses /usr/lib/cni for plugins.

use std::fs;

use serde_json::Value;
use testkit::{DEADLINE, wait_until};

use crate::common::{Testbed, Traces};
use crate::site::{CONFIG, PLUGIN, Programs, Site, start_agent_with};

const DIRECTORIES: &str = r#"[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/opt/distribution/cni"
conf_dir = "/etc/distribution/net.d"
"#;
const INSTALLED: [&str; 2] =
    ["/opt/distribution/cni/podwire-cni", "/etc/distribution/net.d/10-podwire.conflist"];

fn expect_installed(testbed: &Testbed) {
    for (path, exists) in [(INSTALLED[0], true), (INSTALLED[1], true), (PLUGIN, false), (CONFIG, false)] {
        assert_eq!(testbed.machine.path(path).exists(), exists, "{path}");
    }
}

#[test]
fn b17_the_agent_installs_into_containerds_configured_directories() {
    let testbed = Testbed::configured("dirs-agent", DIRECTORIES, |_| Ok(()));
    let programs = Programs::built(&testbed.lab);
    let site = Site::in_testbed(testbed, programs);
    expect_installed(&site.testbed);
    let before = Traces::before_pods(&site.testbed);
    let (a, b) = (site.testbed.run("a"), site.testbed.run("b"));
    site.testbed.expect_pings([&a, &b]);
    site.testbed.remove(&a);
    site.testbed.remove(&b);
    site.expect_nothing_left(&before);
}

/// The message and the fix of a condition that `podwire doctor` reports.
fn reported(testbed: &Testbed, podwire: &str, code: &str) -> Option<[String; 2]> {
    condition(testbed, &[podwire, "doctor"], "checks", code)
}

fn condition(testbed: &Testbed, command: &[&str], list: &str, code: &str) -> Option<[String; 2]> {
    let outcome = testbed.machine.run(&[command, &["-o", "json"]].concat()).unwrap();
    let report: Value = serde_json::from_str(&outcome.stdout).unwrap();
    let entry = report[list].as_array().unwrap().iter().find(|entry| entry["code"] == code)?;
    Some(["message", "fix"].map(|key| entry[key].as_str().unwrap_or_default().to_owned()))
}

/// containerd before 2.0 also needs the `loopback` plugin.
#[test]
fn b17_the_reported_fix_for_missing_plugins_works() {
    const CODE: &str = "InstallIncomplete";
    let testbed = Testbed::configured("dirs-other", DIRECTORIES, |_| Ok(()));
    let programs = Programs::built(&testbed.lab);
    let podwire = programs.podwire.to_str().unwrap();
    let _agent =
        start_agent_with(&testbed.machine, &programs, &["--install-plugin-dir", "/opt/other/cni"]).unwrap();
    let status = || condition(&testbed, &[podwire, "status"], "conditions", CODE);
    wait_until("the condition", DEADLINE, || {
        let exists = testbed.machine.path("/run/podwire/agent.sock").exists();
        Ok(exists && status().is_some())
    })
    .unwrap();
    let [message, fix] = status().unwrap();
    assert_eq!(reported(&testbed, podwire, CODE), Some([message.clone(), fix]));
    for words in
        ["does not find podwire-cni, loopback in /opt/distribution/cni", r#"set bin_dir = "/opt/other/cni""#]
    {
        assert!(message.contains(words), "{words}: {message}");
    }
    let copy = format!("install -D /opt/other/cni/podwire-cni {}", INSTALLED[0]);
    testbed.machine.sh(&["sh", "-c", &copy]).unwrap();
    let [message, fix] = reported(&testbed, podwire, CODE).unwrap();
    assert!(message.contains("does not find loopback in /opt/distribution/cni"), "{message}");
    fs::remove_file(testbed.machine.path(INSTALLED[0])).unwrap();
    let [_, both] = reported(&testbed, podwire, CODE).unwrap();
    assert!(both.ends_with(&fix), "{both} {fix}");
    testbed.machine.sh(&["sh", "-c", &both]).unwrap();
    wait_until("no condition", DEADLINE, || Ok(reported(&testbed, podwire, CODE).is_none())).unwrap();
    assert_eq!(status(), None);
    testbed.wait_until_ready();
    let (a, b) = (testbed.run("a"), testbed.run("b"));
    testbed.expect_pings([&a, &b]);
    testbed.remove(&a);
    testbed.remove(&b);
}

/// With a missing plugin the runtime still reports a ready network, but every pod fails.
fn doctor_reports_a_missing_plugin(testbed: &Testbed, podwire: &str) {
    let plugin = testbed.machine.path(INSTALLED[0]);
    let (problem, moved) =
        (|| reported(testbed, podwire, "InstallIncomplete"), plugin.with_extension("moved"));
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
    let testbed = Testbed::configured("dirs-overlap", DIRECTORIES, |_| Ok(()));
    let programs = Programs::built(&testbed.lab);
    let [podwire, plugin] = [&programs.podwire, &programs.plugin].map(|path| path.to_str().unwrap());
    testbed.machine.sh(&[podwire, "install", "--standalone", "--plugin", plugin]).unwrap();
    let problem = || reported(&testbed, podwire, "SubnetOverlap");
    assert_eq!(problem(), None);
    let commands =
        ["ip link add other type bridge", "ip link set other up", "ip address add 10.83.4.1/24 dev other"];
    for command in commands {
        testbed.machine.sh(&command.split(' ').collect::<Vec<_>>()).unwrap();
    }
    let [message, _] = problem().unwrap();
    for words in ["10.83.4.1/24", "network podwire", r#"set "subnet": "10.84.0.0/16,fd00:88::/64""#] {
        assert!(message.contains(words), "{words}: {message}");
    }
    testbed.machine.sh(&["ip", "link", "del", "other"]).unwrap();
    assert_eq!(problem(), None);
}

#[test]
fn b17_install_standalone_uses_containerds_directories_or_warns() {
    let testbed = Testbed::configured("dirs-alone", DIRECTORIES, |_| Ok(()));
    let programs = Programs::built(&testbed.lab);
    let [podwire, plugin] = [&programs.podwire, &programs.plugin].map(|path| path.to_str().unwrap());
    let install = |extra: &[&str]| {
        let argv = [podwire, "install", "--standalone", "--plugin", plugin];
        let outcome = testbed.machine.run(&[argv.as_slice(), extra].concat()).unwrap();
        assert!(outcome.success(), "{}", outcome.stderr);
        outcome.stderr
    };
    assert_eq!(install(&[]), "");
    expect_installed(&testbed);
    testbed.wait_until_ready();
    let (a, b) = (testbed.run("a"), testbed.run("b"));
    testbed.expect_pings([&a, &b]);
    testbed.remove(&a);
    testbed.remove(&b);
    doctor_reports_a_missing_plugin(&testbed, podwire);

    let warning = install(&["--plugin-dir", "/opt/other"]);
    for words in ["containerd uses /opt/distribution/cni", "set bin_dir = \"/opt/other\"", "config.toml"] {
        assert!(warning.contains(words), "{words}: {warning}");
    }
}
