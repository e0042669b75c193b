use runtime::{PodSpec, RunningPod, Stop};

use crate::common::Traces;
use crate::site::Site;
use crate::stream::Stream;

/// Pods on a machine where services are restarted, with continuous pings between them.
struct Scene {
    site: Site,
    before: Traces,
    pods: [RunningPod; 2],
    streams: Vec<Stream>,
}

impl Scene {
    fn new(label: &str) -> Self {
        let site = Site::new(label);
        let before = Traces::before_pods(&site.testbed);
        let pods = ["a", "b"].map(|name| site.testbed.run(name));
        let streams = site.testbed.addresses(&pods[1]).into_iter();
        let streams = streams.map(|to| Stream::start(&site, &pods[0], to)).collect();
        Self { site, before, pods, streams }
    }

    /// The pods are unchanged and new pods can be created.
    fn expect_unchanged(&self, name: &str, addresses: &[Vec<std::net::IpAddr>; 2]) {
        self.site.wait_until_ready();
        let testbed = &self.site.testbed;
        assert_eq!(self.pods.each_ref().map(|pod| testbed.addresses(pod)), *addresses, "{name}");
        let late = testbed.run(name);
        testbed.expect_pings([&self.pods[0], &late]);
        testbed.remove(&late);
        self.streams.iter().for_each(Stream::wait_for_more);
    }

    fn end(self) {
        for stream in self.streams {
            stream.expect_unbroken();
        }
        for pod in &self.pods {
            self.site.testbed.remove(pod);
        }
        self.site.expect_nothing_left(&self.before);
    }
}

#[test]
fn agent_restarts_lose_no_packets_of_pods() {
    let mut scene = Scene::new("agent-restart");
    let addresses = scene.pods.each_ref().map(|pod| scene.site.testbed.addresses(pod));
    for (name, how) in [("after-term", Stop::Sigterm), ("after-kill", Stop::Sigkill)] {
        let status = scene.site.agent.stop(how).unwrap();
        assert_eq!(status.success(), how == Stop::Sigterm, "{how:?}: {status}");
        // The plugin waits for the agent to start.
        let cri = scene.site.testbed.cri().clone();
        let meanwhile = std::thread::spawn(move || cri.run_pod(&PodSpec::named(&format!("{name}-early"))));
        scene.streams.iter().for_each(Stream::wait_for_more);
        scene.site.agent.launch().unwrap();
        let early = meanwhile.join().unwrap().unwrap();
        scene.site.testbed.expect_pings([&scene.pods[1], &early]);
        scene.site.testbed.remove(&early);
        scene.expect_unchanged(name, &addresses);
    }
    scene.end();
}

#[test]
fn restarts_of_containerd_and_agent_lose_no_packets_of_pods() {
    let mut scene = Scene::new("agent-containerd");
    let addresses = scene.pods.each_ref().map(|pod| scene.site.testbed.addresses(pod));
    for (name, how) in [("after-term", Stop::Sigterm), ("after-kill", Stop::Sigkill)] {
        scene.site.testbed.containerd.restart(how).unwrap();
        scene.expect_unchanged(name, &addresses);
    }
    for (name, how) in [("both-term", Stop::Sigterm), ("both-kill", Stop::Sigkill)] {
        scene.site.testbed.containerd.stop(how).unwrap();
        scene.site.agent.stop(how).unwrap();
        scene.streams.iter().for_each(Stream::wait_for_more);
        // The runtime starts before the agent, as after a boot.
        scene.site.testbed.containerd.launch().unwrap();
        scene.site.agent.launch().unwrap();
        scene.expect_unchanged(name, &addresses);
    }
    scene.end();
}
