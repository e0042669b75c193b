//! A ping that goes on while things are restarted around it.

use std::collections::BTreeSet;
use std::fs;
use std::net::IpAddr;

use runtime::{RunningPod, Service, Stop};
use testkit::{DEADLINE, wait_until};

use crate::site::Site;

/// Fifty requests a second out of a pod's namespace; every one must be answered.
pub(crate) struct Stream {
    ping: Service,
    to: IpAddr,
}

impl Stream {
    pub(crate) fn start(site: &Site, from: &RunningPod, to: IpAddr) -> Self {
        let name = format!("ping-{}-{to}", from.sandbox);
        let netns = format!("--net={}", site.netns(from));
        let to_text = to.to_string();
        let argv = ["nsenter", &netns, "ping", "-n", "-i", "0.02", &to_text];
        let stream = Self { ping: Service::start(&site.world.machine, &name, &argv).unwrap(), to };
        stream.wait_for_more();
        stream
    }

    /// Waits until it was answered some times more: what was restarted is up again, or what is down stays so.
    pub(crate) fn wait_for_more(&self) {
        let wanted = self.answered().len() + 5;
        let what = format!("pings to {} to be answered", self.to);
        wait_until(&what, DEADLINE, || Ok(self.answered().len() >= wanted)).unwrap();
    }

    /// Only those that were still under way at the end may be without an answer.
    pub(crate) fn expect_unbroken(mut self) {
        self.wait_for_more();
        self.ping.expect_running().unwrap();
        self.ping.stop(Stop::Killed).unwrap();
        let answered = self.answered();
        let last = answered.last().copied().unwrap();
        let lost: Vec<u32> = (1..=last).filter(|number| !answered.contains(number)).collect();
        assert!(lost.is_empty(), "of {last} pings to {} these got no answer: {lost:?}", self.to);
    }

    fn answered(&self) -> BTreeSet<u32> {
        let log = fs::read_to_string(self.ping.log_file()).unwrap();
        let number = |line: &str| line.split_once("icmp_seq=")?.1.split_once(" ttl=")?.0.parse().ok();
        log.lines().filter_map(number).collect()
    }
}
