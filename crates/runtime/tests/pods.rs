//! Pods of a real containerd, managed through the CRI as a kubelet does.

#![expect(clippy::unwrap_used, reason = "a test stops at the first error, also in helper functions")]

mod common;

use std::collections::BTreeSet;

use runtime::{CriPortMapping, CriProtocol, PodSpec, Stop};
use testkit::CableEnd;

use common::{Testbed, Traces, get, standalone};

#[test]
fn pods_reach_each_other_in_both_families_and_leave_no_objects() {
    let testbed = Testbed::new("cri-pods", standalone);
    let before = Traces::before_pods(&testbed);
    let (a, b) = (testbed.run("a"), testbed.run("b"));
    testbed.expect_pings([&a, &b]);
    testbed.remove(&a);
    testbed.remove(&b);
    before.expect_same(&testbed);
}

#[test]
fn a_host_port_is_forwarded_in_both_families() {
    let testbed = Testbed::new("cri-hostport", standalone);
    let outside = testbed.lab.node("outside").unwrap();
    let here = CableEnd { ns: &testbed.node, dev: "up0", addresses: &["192.0.2.1/24", "2001:db8::1/64"] };
    let there = CableEnd { ns: &outside, dev: "eth0", addresses: &["192.0.2.2/24", "2001:db8::2/64"] };
    testbed.lab.wire(&here, &there).unwrap();
    let before = Traces::before_pods(&testbed);

    let mapping = CriPortMapping {
        protocol: CriProtocol::Tcp.into(),
        container_port: 80,
        host_port: 8080,
        host_ip: String::new(),
    };
    let pod = testbed.cri().run_pod(&PodSpec { ports: vec![mapping], ..PodSpec::named("web") }).unwrap();
    testbed.exec(&pod, &["sh", "-c", "echo hello from $(hostname) > /www/index.html; httpd -p 80 -h /www"]);
    for node in ["192.0.2.1:8080", "[2001:db8::1]:8080"] {
        let page = get(&outside, node.parse().unwrap()).unwrap();
        assert!(page.ends_with("hello from web\n"), "{node}: {page:?}");
    }

    testbed.remove(&pod);
    before.expect_same(&testbed);
    for node in ["192.0.2.1:8080", "[2001:db8::1]:8080"] {
        let error = get(&outside, node.parse().unwrap()).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused, "{node}");
    }
}

#[test]
fn pods_survive_a_restart_of_containerd() {
    let mut testbed = Testbed::new("cri-restart", standalone);
    let before = Traces::before_pods(&testbed);
    let (a, b) = (testbed.run("a"), testbed.run("b"));
    let addresses = [testbed.addresses(&a), testbed.addresses(&b)];
    for how in [Stop::Sigterm, Stop::Sigkill] {
        testbed.containerd.restart(how).unwrap();
        testbed.wait_until_ready();
        assert_eq!([testbed.addresses(&a), testbed.addresses(&b)], addresses, "{how:?}");
        testbed.expect_pings([&a, &b]);
    }
    let late = testbed.run("late");
    testbed.expect_pings([&a, &late]);
    for pod in [&a, &b, &late] {
        testbed.remove(pod);
    }
    before.expect_same(&testbed);
}

#[test]
fn parallel_pods_have_unique_addresses() {
    const PODS: usize = 8;
    let testbed = Testbed::new("cri-many", standalone);
    let before = Traces::before_pods(&testbed);
    let pods: Vec<_> = std::thread::scope(|scope| {
        let testbed = &testbed;
        let runs: Vec<_> =
            (0..PODS).map(|number| scope.spawn(move || testbed.run(&format!("p{number}")))).collect();
        runs.into_iter().map(|run| run.join().unwrap()).collect()
    });
    let addresses: BTreeSet<_> = pods.iter().flat_map(|pod| testbed.addresses(pod)).collect();
    assert_eq!(addresses.len(), 2 * PODS, "{addresses:?}");
    testbed.expect_pings([&pods[0], &pods[PODS - 1]]);
    std::thread::scope(|scope| {
        for pod in &pods {
            scope.spawn(|| testbed.remove(pod));
        }
    });
    before.expect_same(&testbed);
}
