//! The agent is replaced under load, as a package manager or an operator does it.

use std::path::PathBuf;

use serde_json::json;
use testkit::{Call, DEADLINE, Verb, copy_program, wait_until};

use crate::common::{Host, ips};
use crate::gate::{Calling, Gate};
use crate::load::{Done, Load, Scene, rounds};

/// The program under another name, as an upgrade brings it.
fn copy_of_program(host: &Host, number: usize) -> PathBuf {
    let copy = host.lab.dir().join(format!("podwire-{number}"));
    copy_program(host.agent.program(), &copy).unwrap();
    copy
}

#[test]
fn an_upgrade_under_load_fails_no_request_and_no_traffic() {
    let mut host = Host::new("upgrade");
    let mut scene = Scene::new(&host);
    let programs = [copy_of_program(&host, 0), copy_of_program(&host, 1)];
    let Done { cycles, stayed } = Load::new(&host, 8).during(|load| {
        for number in 0..rounds(8, 100) {
            let before = load.cycles();
            wait_until("some requests", DEADLINE, || Ok(load.cycles() > before + 1)).unwrap();
            let status = host.agent.stop().unwrap();
            assert!(status.success(), "the agent ended with {status}");
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
    scene.expect_only(&host, &stayed);
    scene.expect_nothing_left(&host, &stayed);
}

/// Requests that are under way when SIGTERM comes get their answers from the agent that took them.
#[test]
fn sigterm_drains() {
    let mut host = Host::new("drains");
    let gate = Gate::new(&host);
    let pods = [host.pod("a"), host.pod("b")];
    let adds: Vec<_> = pods.iter().map(|pod| gate.spawn(&host, Verb::Add, pod)).collect();
    gate.wait_for(2);
    std::thread::scope(|scope| {
        let agent = &mut host.agent;
        let pid = agent.pid().unwrap();
        let stopping = scope.spawn(|| agent.stop().unwrap());
        // It has heard the signal: it says so, and nobody else gets in.
        let log = host.node.dir().join("agent.log");
        let says = || Ok(std::fs::read_to_string(&log)?.contains("asked to stop"));
        wait_until("the agent to say that it stops", DEADLINE, says).unwrap();
        assert!(!stopping.is_finished(), "agent {pid} did not wait for what is under way");
        gate.open();
        for (add, pod) in adds.into_iter().zip(&pods) {
            let result = add.outcome().ok().unwrap();
            assert_eq!(crate::common::addresses_of(pod, "eth0"), ips(&result).into_iter().collect());
        }
        assert!(stopping.join().unwrap().success());
    });
    host.agent.launch().unwrap();
    host.agent.wait_ready().unwrap();
    for pod in &pods {
        gate.call(&host, Verb::Del, pod).ok().unwrap();
    }
    assert!(host.held().is_empty(), "{:?}", host.held());
}

/// Nobody need be ready for it: whoever asks while the agent stops waits for the next one.
#[test]
fn an_add_while_the_agent_stops_is_served_by_the_next_one() {
    let mut host = Host::new("stopping");
    let gate = Gate::new(&host);
    let (held, pod) = (host.pod("held"), host.pod("late"));
    let held_add = gate.spawn(&host, Verb::Add, &held);
    gate.wait_for(1);
    host.agent.signal(rustix::process::Signal::TERM).unwrap();
    let late = Calling::start(&host, Call::pod(Verb::Add, &pod, &host.config(&json!({}))));
    gate.open();
    held_add.outcome().ok().unwrap();
    wait_until("the end of the agent", DEADLINE, || host.agent.has_ended()).unwrap();
    host.agent.kill().unwrap();
    host.agent.launch().unwrap();
    late.outcome().ok().unwrap();
}
