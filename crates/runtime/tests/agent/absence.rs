use runtime::{PodSpec, Stop};
use testkit::wait_until;

use crate::common::Traces;
use crate::site::{SOON, Site};

#[test]
fn without_an_agent_pods_can_go_and_cannot_come_and_nothing_stays() {
    let mut site = Site::new("agent-away");
    let before = Traces::before_pods(&site.world);
    let pod = site.world.run("a");
    let addresses: Vec<String> = site.world.addresses(&pod).iter().map(ToString::to_string).collect();
    site.agent.stop(Stop::Killed).unwrap();

    let cri = site.world.cri().clone();
    let refused = std::thread::spawn(move || cri.run_sandbox(&PodSpec::named("never")).unwrap_err());
    site.world.remove(&pod);
    // Stopping a pod needs no agent, and does not wait for one: it is over before the ADD gives up.
    assert!(!refused.is_finished());
    assert_eq!(site.tombstones().len(), 1);
    assert_eq!(site.claims(), addresses, "only the agent gives addresses back");
    let error = format!("{:#}", refused.join().unwrap());
    for words in ["podwire-cni", "agent", "/run/podwire/agent.sock", "tried", "times in 10 s"] {
        assert!(error.contains(words), "{words:?} is not in {error}");
    }

    site.agent.launch().unwrap();
    site.wait_until_ready();
    wait_until("the addresses to be free again", SOON, || Ok(site.claims().is_empty())).unwrap();
    site.expect_nothing_left(&before);
    let next = site.world.run("next");
    site.world.remove(&next);
    site.expect_nothing_left(&before);
}
