use runtime::{PodSpec, Stop};
use testkit::wait_until;

use crate::common::Traces;
use crate::site::{Site, TIMEOUT};

#[test]
fn without_an_agent_del_succeeds_and_add_fails_cleanly() {
    let mut site = Site::new("agent-stopped");
    let before = Traces::before_pods(&site.testbed);
    let pod = site.testbed.run("a");
    let addresses: Vec<String> = site.testbed.addresses(&pod).iter().map(ToString::to_string).collect();
    site.agent.stop(Stop::Sigkill).unwrap();

    let cri = site.testbed.cri().clone();
    let refused = std::thread::spawn(move || cri.run_sandbox(&PodSpec::named("never")).unwrap_err());
    site.testbed.remove(&pod);
    // Stopping a pod does not wait for the agent, so it returns before the ADD times out.
    assert!(!refused.is_finished());
    assert_eq!(site.tombstones().len(), 1);
    assert_eq!(site.claims(), addresses, "only the agent releases addresses");
    let error = format!("{:#}", refused.join().unwrap());
    for words in ["podwire-cni", "agent", "/run/podwire/agent.sock", "tried", "times in 10 s"] {
        assert!(error.contains(words), "{words:?} is not in {error}");
    }

    site.agent.launch().unwrap();
    site.wait_until_ready();
    wait_until("release of the addresses", TIMEOUT, || Ok(site.claims().is_empty())).unwrap();
    site.expect_nothing_left(&before);
    let next = site.testbed.run("next");
    site.testbed.remove(&next);
    site.expect_nothing_left(&before);
}
