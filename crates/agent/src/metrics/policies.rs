//! Metrics of the policy thread.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use nft::DeniedPackets;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;

use super::{BUCKETS, Register, count};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

/// The policies of this node as the firewall has them.
#[derive(Debug, Default)]
pub(crate) struct PolicyUsage {
    pub(crate) elements: usize,
    pub(crate) classes: usize,
    pub(crate) pods: usize,
    /// Different sets of rules.
    pub(crate) profiles: usize,
    pub(crate) denied: DeniedPackets,
}

pub(super) struct PolicyMetrics {
    elements: Gauge,
    classes: Gauge,
    pods: Gauge,
    profiles: Gauge,
    denied: Family<ReasonLabel, Counter>,
    seconds: Histogram,
    /// The counters of the firewall at the last count. They restart at zero when the table is applied again.
    counted: Mutex<DeniedPackets>,
}

impl PolicyMetrics {
    pub(super) fn new(all: &mut Register) -> Self {
        Self {
            elements: all.add(
                "podwire_policy_elements",
                "Elements of the firewall's table of policies",
                Gauge::default(),
            ),
            classes: all.add(
                "podwire_policy_classes",
                "Sets of addresses that policies distinguish",
                Gauge::default(),
            ),
            pods: all.add("podwire_policy_pods", "Pods of this node that policies judge", Gauge::default()),
            profiles: all.add(
                "podwire_policy_profiles",
                "Sets of rules that apply to pods of this node",
                Gauge::default(),
            ),
            denied: all.add(
                "podwire_policy_denied_packets",
                "Packets that policies dropped: first packets of flows to pods (ingress) and from pods (egress), packets \
                 that belong to no flow, and packets of flows that a later change forbids",
                Family::default(),
            ),
            seconds: all.add(
                "podwire_policy_apply_duration_seconds",
                "Time to compute and apply a change of policies or pods",
                Histogram::new(BUCKETS),
            ),
            counted: Mutex::default(),
        }
    }

    pub(super) fn applied(&self, took: Duration) {
        self.seconds.observe(took.as_secs_f64());
    }

    pub(super) fn count(&self, counts: &PolicyUsage) {
        let PolicyUsage { elements, classes, pods, profiles, denied } = *counts;
        self.elements.set(count(elements as u64));
        self.classes.set(count(classes as u64));
        self.pods.set(count(pods as u64));
        self.profiles.set(count(profiles as u64));
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *counted, denied);
        for (reason, before, now) in [
            ("ingress", before.ingress, denied.ingress),
            ("egress", before.egress, denied.egress),
            ("invalid", before.invalid, denied.invalid),
            ("forbidden", before.forbidden, denied.forbidden),
        ] {
            let new = now.checked_sub(before).unwrap_or(now);
            self.denied.get_or_create(&ReasonLabel { reason }).inc_by(new);
        }
    }
}
