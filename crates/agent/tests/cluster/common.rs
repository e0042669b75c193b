//! What the tests of many nodes share.

#![allow(dead_code, reason = "each part uses what it needs")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use testkit::{AttachedPod, Cluster, DEADLINE, PingStream, Plan, wait_until};

/// For every wait of these tests.
pub(crate) const SOON: Duration = DEADLINE;
pub(crate) const TIMEOUT: Duration = DEADLINE;
/// For a matrix in which some pods must not reach others: it takes this long. Pods that must reach each other are probed
/// again until they do.
pub(crate) const BRIEFLY: Duration = Duration::from_millis(300);
/// Between two pings of a stream.
const BEAT: Duration = Duration::from_millis(10);

/// A cluster with one pod on each node, `p1` on `n1` and so on, that all reach each other.
pub(crate) fn up(label: &str, plan: &Plan) -> Cluster {
    let cluster = Cluster::up(label, plan).unwrap();
    cluster.pods_everywhere(1).unwrap();
    expect_reach(&cluster, TIMEOUT);
    cluster
}

pub(crate) fn pod(cluster: &Cluster, name: &str) -> Arc<AttachedPod> {
    cluster.find_pod(name).unwrap()
}

/// Everybody reaches everybody within this time.
#[track_caller]
pub(crate) fn expect_reach(cluster: &Cluster, within: Duration) {
    let matrix = cluster.reach(within).unwrap();
    assert!(matrix.all(), "after {within:?}: {:#?}", matrix.complaints());
}

/// Pings between pods, in every family both have, that go on while something happens.
pub(crate) struct Streams {
    streams: Vec<(String, PingStream)>,
    begun: Instant,
}

impl Streams {
    /// Between pods by their names; they must reach each other already.
    pub(crate) fn between(cluster: &Cluster, pairs: &[(&str, &str)]) -> Self {
        let mut streams = Vec::new();
        for (from, to) in pairs {
            let (a, b) = (pod(cluster, from), pod(cluster, to));
            for address in &b.addresses {
                let stream = PingStream::start(&a.pod, *address).unwrap();
                streams.push((format!("{from} → {to} ({address})"), stream));
            }
        }
        Self { streams, begun: Instant::now() }
    }

    /// Nothing was lost at all.
    #[track_caller]
    pub(crate) fn expect_whole(self) {
        // What is over at once says nothing.
        await_that("some pings", TIMEOUT, || self.begun.elapsed() > BEAT * 20);
        for (name, stream) in self.streams {
            let report = stream.end().unwrap();
            assert!(report.sent > 1, "{name}: nothing was sent");
            assert!(report.lost.is_empty(), "{name}: {:?} of {} lost", report.lost, report.sent);
        }
    }

    /// Requests are answered again after an interruption.
    #[track_caller]
    pub(crate) fn expect_back(self) {
        for (name, stream) in self.streams {
            stream.end().unwrap_or_else(|error| panic!("{name}: {error:#}"));
        }
    }
}

/// Waits for it, at most so long.
#[track_caller]
pub(crate) fn await_that(what: &str, within: Duration, mut holds: impl FnMut() -> bool) {
    wait_until(what, within, || Ok(holds())).unwrap();
}
