use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use runtime::{CriPortMapping, CriProtocol, PodSpec};
use testkit::{CableEnd, DEADLINE, wait_until};

use crate::common::{Testbed, Traces, get};
use crate::site::{CONFIG, LOOPBACK, PLUGIN, Programs, Site, start_agent, wait_for_agent};

/// The node's addresses in the default network.
const GATEWAYS: [&str; 2] = ["10.83.0.1", "fd00:88::1"];

#[test]
fn the_config_is_installed_last_and_makes_the_runtime_ready() {
    let testbed = Testbed::without_network("agent-ready");
    let error = format!("{:#}", testbed.cri().ready().unwrap_err());
    assert!(error.contains("NetworkReady is false"), "{error}");
    let programs = Programs::built(&testbed.lab);
    let agent = start_agent(&testbed.machine, &programs).unwrap();

    let host_path = |path: &str| testbed.machine.path(path);
    wait_until("the config", DEADLINE, || Ok(host_path(CONFIG).exists())).unwrap();
    for (path, mode) in [(PLUGIN, 0o700), (LOOPBACK, 0o700), (CONFIG, 0o600)] {
        let meta = fs::metadata(host_path(path)).unwrap();
        assert_eq!(meta.permissions().mode() & 0o7777, mode, "{path}");
    }
    let installed = fs::read(host_path(PLUGIN)).unwrap();
    assert!(installed == fs::read(&programs.plugin).unwrap(), "another plugin is installed");
    wait_for_agent(&testbed.machine).unwrap();
    testbed.wait_until_ready();

    let site = Site { agent, programs, testbed };
    let log = site.log();
    let position = |words: &str| log.find(words).unwrap_or_else(|| panic!("{words:?} is not in {log}"));
    let messages = [
        "plugin /opt/cni/bin/podwire-cni written",
        "loopback plugin /opt/cni/bin/loopback written",
        "config /etc/cni/net.d/10-podwire.conflist written",
        "ready after",
    ];
    assert!(messages.map(position).is_sorted(), "{log}");
}

#[test]
fn pods_are_reachable_and_listed_and_leave_no_objects() {
    let site = Site::new("agent-pods");
    let testbed = &site.testbed;
    let before = Traces::before_pods(testbed);
    let (a, b) = (testbed.run("a"), testbed.run("b"));
    testbed.expect_pings([&a, &b]);
    for gateway in GATEWAYS {
        testbed.expect_ping(&a, gateway.parse().unwrap());
    }

    let mut listed: Vec<[String; 3]> = site
        .pods()
        .iter()
        .map(|pod| {
            [&pod["pod"]["namespace"], &pod["pod"]["name"], &pod["containerId"]]
                .map(|value| value.as_str().unwrap().to_owned())
        })
        .collect();
    listed.sort();
    let expected =
        [("a", &a), ("b", &b)].map(|(name, pod)| ["default", name, &pod.sandbox].map(str::to_owned));
    assert_eq!(listed, expected);
    let table = site.podwire(&["pods", "-o", "wide"]);
    for pod in [&a, &b] {
        let id = &pod.sandbox[..12];
        let line = table.lines().find(|line| line.contains(id)).unwrap_or_else(|| panic!("{table}"));
        for address in testbed.addresses(pod) {
            assert!(line.contains(&address.to_string()), "{table}");
        }
    }
    assert!(table.contains("default/a ") && table.contains("default/b "), "{table}");
    let status = site.status();
    assert_eq!((&status["attachments"]["ready"], &status["network"]["mode"]), (&2.into(), &"routed".into()));

    testbed.remove(&a);
    testbed.remove(&b);
    site.expect_nothing_left(&before);
    let status = site.podwire(&["status"]);
    assert!(status.contains("10.83.0.0/16") && status.contains("fd00:88::/64"), "{status}");
}

#[test]
fn a_host_port_is_forwarded_until_the_pod_is_removed() {
    let site = Site::new("agent-hostport");
    let testbed = &site.testbed;
    let outside = testbed.lab.node("outside").unwrap();
    let here = CableEnd { ns: &testbed.node, dev: "up0", addresses: &["192.0.2.1/24", "2001:db8::1/64"] };
    let there = CableEnd { ns: &outside, dev: "eth0", addresses: &["192.0.2.2/24", "2001:db8::2/64"] };
    testbed.lab.wire(&here, &there).unwrap();
    let before = Traces::before_pods(testbed);
    let mapping = CriPortMapping {
        protocol: CriProtocol::Tcp.into(),
        container_port: 80,
        host_port: 8080,
        host_ip: String::new(),
    };
    let pod = testbed.cri().run_pod(&PodSpec { ports: vec![mapping], ..PodSpec::named("web") }).unwrap();
    testbed.exec(&pod, &["sh", "-c", "echo hello from $(hostname) > /www/index.html; httpd -p 80 -h /www"]);
    let servers = ["192.0.2.1:8080", "[2001:db8::1]:8080"];
    for server in servers {
        let page = get(&outside, server.parse().unwrap()).unwrap();
        assert!(page.ends_with("hello from web\n"), "{server}: {page:?}");
    }
    testbed.remove(&pod);
    site.expect_nothing_left(&before);
    for server in servers {
        let error = get(&outside, server.parse().unwrap()).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused, "{server}");
    }
}
