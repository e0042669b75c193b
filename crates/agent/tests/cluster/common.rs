//! Shared by the tests with several nodes.

#![allow(dead_code, reason = "each module uses only a part of this one")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use testkit::{AttachedPod, Cluster, DEADLINE, PingStream, Plan, wait_until};

/// The timeout of all waits in these tests.
pub(crate) const TIMEOUT: Duration = DEADLINE;
/// The duration of a reachability check in which some pods must not reach others. Pods that must reach each other are probed
/// repeatedly.
pub(crate) const PROBE_TIME: Duration = Duration::from_millis(300);
/// The interval between two pings of a stream.
const PING_INTERVAL: Duration = Duration::from_millis(10);

/// A cluster with one pod on each node (`p1` on `n1` and so on) that reach each other.
pub(crate) fn up(label: &str, plan: &Plan) -> Cluster {
    let cluster = Cluster::up(label, plan).unwrap();
    cluster.pods_everywhere(1).unwrap();
    expect_reach(&cluster, TIMEOUT);
    cluster
}

pub(crate) fn pod(cluster: &Cluster, name: &str) -> Arc<AttachedPod> {
    cluster.find_pod(name).unwrap()
}

/// All pods reach each other within this time.
#[track_caller]
pub(crate) fn expect_reach(cluster: &Cluster, within: Duration) {
    let matrix = cluster.reach(within).unwrap();
    assert!(matrix.all(), "after {within:?}: {:#?}", matrix.failures());
}

/// Continuous pings between pods, in every family that both have.
pub(crate) struct Streams {
    streams: Vec<(String, PingStream)>,
    started: Instant,
}

impl Streams {
    /// Streams between pods, by name. The pods must reach each other already.
    pub(crate) fn between(cluster: &Cluster, pairs: &[(&str, &str)]) -> Self {
        let mut streams = Vec::new();
        for (from, to) in pairs {
            let (a, b) = (pod(cluster, from), pod(cluster, to));
            for address in &b.addresses {
                let stream = PingStream::start(&a.pod, *address).unwrap();
                streams.push((format!("{from} → {to} ({address})"), stream));
            }
        }
        Self { streams, started: Instant::now() }
    }

    /// No ping was lost.
    #[track_caller]
    pub(crate) fn expect_no_loss(self) {
        // A stream that ends immediately proves nothing.
        await_that("some pings", TIMEOUT, || self.started.elapsed() > PING_INTERVAL * 20);
        for (name, stream) in self.streams {
            let report = stream.end().unwrap();
            assert!(report.sent > 1, "{name}: nothing was sent");
            assert!(report.lost.is_empty(), "{name}: {:?} of {} lost", report.lost, report.sent);
        }
    }

    /// Pings are answered again after an interruption.
    #[track_caller]
    pub(crate) fn expect_recovery(self) {
        for (name, stream) in self.streams {
            stream.end().unwrap_or_else(|error| panic!("{name}: {error:#}"));
        }
    }
}

/// Waits until the condition holds, at most `within`.
#[track_caller]
pub(crate) fn await_that(what: &str, within: Duration, mut condition: impl FnMut() -> bool) {
    wait_until(what, within, || Ok(condition())).unwrap();
}
