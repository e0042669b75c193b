//! Signals that end a process by default, and that operators send to daemons for other purposes.

use rustix::process::Signal;
use testkit::{DEADLINE, wait_until};

use crate::common::Host;

/// SIGHUP, SIGUSR1 and SIGUSR2 as a signal mask.
const ALL: u64 = 1 | 1 << 9 | 1 << 11;

#[test]
fn sighup_and_sigusr_do_not_end_the_agent() {
    let host = Host::new("signals");
    let pid = host.agent.pid().unwrap();
    let (first, result) = host.attached("a");
    let signals = [(Signal::HUP, "SIGHUP"), (Signal::USR1, "SIGUSR1"), (Signal::USR2, "SIGUSR2")];
    for (signal, name) in signals {
        for round in 1..=3 {
            host.agent.signal(signal).unwrap();
            // Each one is awaited, because the kernel merges pending signals.
            let line = format!("signal=\"{name}\"");
            let is_logged = || Ok(host.agent.log()?.matches(&line).count() >= round);
            wait_until(&format!("{name} number {round} to be logged"), DEADLINE, is_logged).unwrap();
        }
        assert!(!host.agent.has_ended().unwrap(), "{name} ended the agent");
        let (pod, _) = host.attached(&name.to_lowercase());
        host.del(&pod);
    }
    assert_eq!(host.agent.pid(), Some(pid));
    host.check(&first, &result);
}

/// The handlers are installed before slow operations such as waiting for a lock or a store.
#[test]
fn signals_during_start_do_not_end_the_agent() {
    let mut host = Host::new("signalstart");
    for _ in 0..20 {
        host.agent.kill().unwrap();
        host.agent.launch().unwrap();
        // The process exists, but these signals end it until its handlers are installed.
        let status = format!("/proc/{}/status", host.agent.pid().unwrap());
        wait_until("the agent to handle signals", DEADLINE, || {
            let text = std::fs::read_to_string(&status)?;
            let caught = text.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap_or_default();
            Ok(u64::from_str_radix(caught.trim(), 16)? & ALL == ALL)
        })
        .unwrap();
        for signal in [Signal::HUP, Signal::USR1, Signal::USR2] {
            host.agent.signal(signal).unwrap();
        }
        host.agent.wait_ready().unwrap();
    }
}
