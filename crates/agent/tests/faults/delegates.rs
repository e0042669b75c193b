//! An IPAM plugin that the agent runs in the plugin's place.

use testkit::Verb;

use crate::common::Host;
use crate::gate::Gate;

/// The spec: a delegate gets the environment of who delegates. The agent's own is none of its business.
#[test]
fn a_delegate_gets_the_variables_of_the_request() {
    let host = Host::new("delegate");
    let (gate, pod) = (Gate::new(&host), host.pod("a"));
    gate.open();
    gate.call(&host, Verb::Add, &pod).ok().unwrap();
    gate.call(&host, Verb::Del, &pod).ok().unwrap();
    for verb in [Verb::Add, Verb::Del] {
        let environment = gate.environment(verb);
        let wanted = [
            format!("CNI_COMMAND={}", verb.as_str()),
            format!("CNI_CONTAINERID={}", pod.id()),
            format!("CNI_NETNS={}", pod.netns_path().display()),
            "CNI_IFNAME=eth0".to_owned(),
        ];
        for line in &wanted {
            assert!(environment.lines().any(|has| has == line), "{line} is missing in:\n{environment}");
        }
        assert!(environment.lines().any(|line| line.starts_with("CNI_PATH=")), "{environment}");
    }
}
