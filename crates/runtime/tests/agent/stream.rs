//! A continuous ping during restarts.

use std::collections::BTreeSet;
use std::fs;
use std::net::IpAddr;

use runtime::{RunningPod, Service, Stop};
use testkit::{DEADLINE, wait_until};

use crate::site::Site;

/// 50 requests per second from a pod's namespace. Each must get a reply.
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
        let stream = Self { ping: Service::start(&site.testbed.machine, &name, &argv).unwrap(), to };
        stream.wait_for_more();
        stream
    }

    /// Waits for five more replies.
    pub(crate) fn wait_for_more(&self) {
        let expected = self.replied().len() + 5;
        let what = format!("replies to pings of {}", self.to);
        wait_until(&what, DEADLINE, || Ok(self.replied().len() >= expected)).unwrap();
    }

    /// Checks that only requests in flight at the end have no reply.
    pub(crate) fn expect_unbroken(mut self) {
        self.wait_for_more();
        self.ping.expect_running().unwrap();
        self.ping.stop(Stop::Sigkill).unwrap();
        let replied = self.replied();
        let last = replied.last().copied().unwrap();
        let lost: Vec<u32> = (1..=last).filter(|number| !replied.contains(number)).collect();
        assert!(lost.is_empty(), "of {last} pings to {} these got no reply: {lost:?}", self.to);
    }

    fn replied(&self) -> BTreeSet<u32> {
        let log = fs::read_to_string(self.ping.log_file()).unwrap();
        let number = |line: &str| line.split_once("icmp_seq=")?.1.split_once(" ttl=")?.0.parse().ok();
        log.lines().filter_map(number).collect()
    }
}
