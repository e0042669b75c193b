//! Upgrades of the agent under load, by a package manager or an operator.

use std::path::PathBuf;

use serde_json::json;
use testkit::{Call, DEADLINE, Verb, copy_program, wait_until};

use crate::blocking_ipam::{BlockingIpam, RunningCall};
use crate::common::{Host, ips};
use crate::load::{Done, Load, Scene, rounds};

/// A copy of the program under another name, like a new version.
fn copy_of_program(host: &Host, number: usize) -> PathBuf {
    let copy = host.lab.dir().join(format!("podwire-{number}"));
    copy_program(host.agent.program(), &copy).unwrap();
    copy
}

#[test]
fn an_upgrade_under_load_loses_no_request_and_no_packet() {
    let mut host = Host::new("upgrade");
    let mut scene = Scene::new(&host);
    let programs = [copy_of_program(&host, 0), copy_of_program(&host, 1)];
    let Done { cycles, permanent_pods } = Load::new(&host, 8).during(|load| {
        for number in 0..rounds(8, 100) {
            let before = load.cycles();
            wait_until("some requests", DEADLINE, || Ok(load.cycles() > before + 1)).unwrap();
            let status = host.agent.stop().unwrap();
            assert!(status.success(), "the agent exited with {status}");
            let program = &programs[number % 2];
            host.agent.set_program(program);
            host.agent.launch().unwrap();
            host.agent.wait_ready().unwrap();
            let pid = host.agent.pid().unwrap();
            assert_eq!(std::fs::read_link(format!("/proc/{pid}/exe")).unwrap(), *program);
        }
    });
    println!("{cycles} cycles");
    scene.expect_no_loss();
    scene.expect_only(&host, &permanent_pods);
    scene.expect_cleanup(&host, &permanent_pods);
}

/// The agent answers in-flight requests after SIGTERM.
#[test]
fn sigterm_waits_for_requests_in_flight() {
    let mut host = Host::new("drains");
    let ipam = BlockingIpam::new(&host);
    let pods = [host.pod("a"), host.pod("b")];
    let adds: Vec<_> = pods.iter().map(|pod| ipam.spawn(&host, Verb::Add, pod)).collect();
    ipam.wait_for(2);
    std::thread::scope(|scope| {
        let agent = &mut host.agent;
        let pid = agent.pid().unwrap();
        let stopping = scope.spawn(|| agent.stop().unwrap());
        // The agent has received SIGTERM and accepts no more requests.
        let log = host.node.dir().join("agent.log");
        let is_logged =
            || Ok(std::fs::read_to_string(&log)?.contains("stopping; finishing in-flight requests"));
        wait_until("the agent to log its stop", DEADLINE, is_logged).unwrap();
        assert!(!stopping.is_finished(), "agent {pid} did not wait for requests in flight");
        ipam.unblock();
        for (add, pod) in adds.into_iter().zip(&pods) {
            let result = add.outcome().ok().unwrap();
            assert_eq!(crate::common::addresses_of(pod, "eth0"), ips(&result).into_iter().collect());
        }
        assert!(stopping.join().unwrap().success());
    });
    host.agent.launch().unwrap();
    host.agent.wait_ready().unwrap();
    for pod in &pods {
        ipam.call(&host, Verb::Del, pod).ok().unwrap();
    }
    assert!(host.state_entries().is_empty(), "{:?}", host.state_entries());
}

/// A request that is sent while the agent stops waits for the next agent.
#[test]
fn an_add_during_the_stop_is_served_by_the_next_agent() {
    let mut host = Host::new("stopping");
    let ipam = BlockingIpam::new(&host);
    let (early, pod) = (host.pod("early"), host.pod("late"));
    let early_add = ipam.spawn(&host, Verb::Add, &early);
    ipam.wait_for(1);
    host.agent.signal(rustix::process::Signal::TERM).unwrap();
    let late = RunningCall::start(&host, Call::pod(Verb::Add, &pod, &host.config(&json!({}))));
    ipam.unblock();
    early_add.outcome().ok().unwrap();
    wait_until("the end of the agent", DEADLINE, || host.agent.has_ended()).unwrap();
    host.agent.kill().unwrap();
    host.agent.launch().unwrap();
    late.outcome().ok().unwrap();
}
