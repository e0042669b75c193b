//! Conditions, metrics, and the records of peers for the disk.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use model::{PeerChanges, PeerPath};
use tracing::{debug, info};
use types::{Code, Finding};

use super::super::inputs::PeerRecords;
use super::{RETRY, Routes};
use crate::conditions::Source;
use crate::metrics::PeerCounts;

/// The shortest time between two reports: each walks over all nodes.
const REPORT_PAUSE: Duration = Duration::from_millis(200);

/// Reported and pending conditions.
#[derive(Debug, Default)]
pub(crate) struct PeerReportState {
    reported_at: Option<Instant>,
    /// When the next report is due.
    pub(super) at: Option<Instant>,
    /// Why the kernel refused changes, by object.
    refused: BTreeMap<String, String>,
    /// Refused changes that follow from the records. When they succeed later, they are not counted as repairs.
    pub(super) outstanding: PeerChanges,
    /// Why the routes could not be compared or changed at all.
    pub(super) failure: Option<String>,
    /// The last pause before a retry. It doubles with each failure.
    pause: Option<Duration>,
}

impl PeerReportState {
    /// The next pause, at most `most`.
    fn next_pause(&mut self, most: Duration) -> Duration {
        let pause = self.pause.map_or(RETRY, |pause| (pause * 2).min(most.max(RETRY)));
        self.pause = Some(pause);
        pause
    }

    fn make_due(&mut self) {
        let earliest = self.reported_at.map_or_else(Instant::now, |last| last + REPORT_PAUSE);
        self.at.get_or_insert(earliest);
    }

    fn findings(&self) -> impl Iterator<Item = Finding> {
        let found = |object: &str, message: &String| Finding::new(Code::PeerRouteFailed, object, message);
        let failure = self.failure.iter().map(move |why| found("routes to other nodes", why));
        self.refused.iter().map(move |(object, why)| found(object, why)).chain(failure)
    }
}

/// Which desired objects were sent to the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AppliedPart {
    /// Only new changes. Changes that were refused earlier were not retried.
    Changes,
    All,
}

impl Routes {
    /// Keeps the reasons of refused changes for the report, and schedules a retry.
    pub(super) fn record_refusals(&mut self, refused: BTreeMap<String, String>, part: AppliedPart) {
        let report_state = &mut self.known.report_state;
        let failed = !refused.is_empty();
        if part == AppliedPart::All {
            report_state.refused.clear();
        }
        report_state.refused.extend(refused);
        if failed {
            self.retry();
        }
    }

    /// Reports why nothing was compared or changed, and retries.
    pub(super) fn record_failure(&mut self, why: String) {
        debug!("{why}");
        self.known.report_state.failure = Some(why);
        self.retry();
        self.report_soon();
    }

    /// Compares everything again after a failure, each time later.
    pub(super) fn retry(&mut self) {
        let pause = self.known.report_state.next_pause(self.config.reconcile);
        self.compare_within(pause);
    }

    /// Called after a comparison without a failure.
    pub(super) fn reset_retry_pause(&mut self) {
        self.known.report_state.pause = None;
    }

    pub(super) fn has_refusals(&self) -> bool {
        let report_state = &self.known.report_state;
        !report_state.refused.is_empty() || report_state.failure.is_some()
    }

    pub(super) fn report_soon(&mut self) {
        self.known.report_state.make_due();
    }

    /// Reports repairs of drift. Kinds without a repair are counted as 0.
    pub(super) fn record_repairs(&self, kind: &str, count: usize, sentences: &[String]) {
        self.metrics.repaired(kind, count as u64);
        if count > 0 {
            sentences.iter().for_each(|what| info!(kind, "repaired: {what}"));
            self.agent_status.repaired(count as u64, sentences);
        }
    }

    /// Sets gauges of the peers and their paths.
    pub(super) fn update_metrics(&self) {
        let mesh = &self.known.mesh;
        let mut counts = PeerCounts {
            peers: mesh.peers().count(),
            tunnels: super::indexes(&self.known.tunnels).len(),
            ..PeerCounts::default()
        };
        for (_, _, path) in mesh.paths() {
            match path {
                PeerPath::Direct { .. } => counts.direct += 1,
                PeerPath::Vxlan { .. } => counts.vxlan += 1,
                PeerPath::None(_) => counts.unreachable += 1,
            }
        }
        self.metrics.set_peers(&counts);
    }

    pub(super) fn report(&mut self) {
        let mut findings = Vec::new();
        if !self.is_alone {
            findings.extend(self.known.findings());
            findings.extend(self.known.position.problems.iter().cloned());
            findings.extend(self.known.tunnel_findings.iter().cloned());
            findings.extend(self.known.report_state.findings());
            findings.extend(self.monitor_findings());
        }
        let report_state = &mut self.known.report_state;
        (report_state.at, report_state.reported_at) = (None, Some(Instant::now()));
        self.agent_status.set(Source::Routes, findings);
    }

    /// Passes the peers to membership, which writes them to disk.
    pub(super) fn report_records(&mut self) {
        self.known.save_at = None;
        let records = Arc::new(self.known.mesh.admitted());
        let awaited = self.known.awaited.keys().cloned().collect();
        self.reports.records.send_replace(PeerRecords { records, awaited });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_between_retries_double() {
        let mut report_state = PeerReportState::default();
        let most = Duration::from_secs(30);
        let pauses: Vec<u64> = (0..7).map(|_| report_state.next_pause(most).as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30]);
        report_state.pause = None;
        assert_eq!(report_state.next_pause(most), RETRY);
        assert_eq!(
            report_state.next_pause(Duration::from_millis(1)),
            RETRY,
            "the pause is never shorter than RETRY"
        );
    }

    #[test]
    fn reports_are_rate_limited() {
        let now = Instant::now();
        let mut report_state = PeerReportState { reported_at: Some(now), ..PeerReportState::default() };
        for _ in 0..1000 {
            report_state.make_due();
        }
        assert_eq!(report_state.at, Some(now + REPORT_PAUSE));
        let mut first = PeerReportState::default();
        first.make_due();
        assert!(first.at < Some(now + REPORT_PAUSE), "the first report is due at once");
    }

    #[test]
    fn a1_each_refused_object_is_a_separate_condition() {
        let refused =
            (0..7).map(|i| (format!("route 10.2.{i}.0/24"), format!("cannot add it: {i}"))).collect();
        let failure = Some("routes to other nodes cannot be compared: EIO".to_owned());
        let report_state = PeerReportState { refused, failure, ..PeerReportState::default() };
        let found: Vec<Finding> = report_state.findings().collect();
        assert_eq!((found.len(), found[6].object.as_str()), (8, "route 10.2.6.0/24"));
        assert_eq!(found[7].object, "routes to other nodes");
        assert!(found.iter().all(|one| one.code == Code::PeerRouteFailed), "{found:?}");
    }
}
