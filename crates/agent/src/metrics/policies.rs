//! Metrics of the policy thread.

use std::collections::HashSet;
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

/// Objects with a series of their own. Further ones share a series.
const MAX_SAMPLED: usize = 200;
const OTHER: &str = "other";

/// What decided about a logged packet.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct SampledDenial {
    pub(crate) direction: &'static str,
    pub(crate) tier: String,
    /// The object with the rule.
    pub(crate) policy: String,
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
    sampled: Family<SampledDenial, Counter>,
    /// The series of `sampled`.
    sampled_series: Mutex<HashSet<SampledDenial>>,
    seconds: Histogram,
    /// The counters of the firewall at the last count. They restart at zero when the table is applied again.
    counted: Mutex<DeniedPackets>,
}

const REASONS: [&str; 4] = ["ingress", "egress", "invalid", "forbidden"];

impl PolicyMetrics {
    pub(super) fn new(all: &mut Register) -> Self {
        let metrics = Self {
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
            sampled: all.add(
                "podwire_policy_denied_sampled_packets",
                "Denied packets that were logged, by the tier and object that decided. The firewall logs a limited number per \
                 second, so these are samples",
                Family::default(),
            ),
            sampled_series: Mutex::default(),
            seconds: all.add(
                "podwire_policy_apply_duration_seconds",
                "Time to compute and apply a change of policies or pods",
                Histogram::new(BUCKETS),
            ),
            counted: Mutex::default(),
        };
        for reason in REASONS {
            drop(metrics.denied.get_or_create(&ReasonLabel { reason }));
        }
        metrics
    }

    pub(super) fn applied(&self, took: Duration) {
        self.seconds.observe(took.as_secs_f64());
    }

    pub(super) fn sampled_denial(&self, denial: &SampledDenial) {
        let mut series = self.sampled_series.lock().unwrap_or_else(PoisonError::into_inner);
        let has_series = series.contains(denial) || series.len() < MAX_SAMPLED;
        let denial = match has_series {
            true => denial.clone(),
            false => SampledDenial { policy: OTHER.to_owned(), ..denial.clone() },
        };
        self.sampled.get_or_create(&denial).inc();
        series.insert(denial);
    }

    pub(super) fn denied_packets(&self) -> DeniedPackets {
        let [ingress, egress, invalid, forbidden] =
            REASONS.map(|reason| self.denied.get_or_create(&ReasonLabel { reason }).get());
        DeniedPackets { ingress, egress, invalid, forbidden }
    }

    pub(super) fn count(&self, counts: &PolicyUsage) {
        let PolicyUsage { elements, classes, pods, profiles, denied } = *counts;
        self.elements.set(count(elements as u64));
        self.classes.set(count(classes as u64));
        self.pods.set(count(pods as u64));
        self.profiles.set(count(profiles as u64));
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *counted, denied);
        let numbers = |of: DeniedPackets| [of.ingress, of.egress, of.invalid, of.forbidden];
        for ((reason, before), now) in REASONS.into_iter().zip(numbers(before)).zip(numbers(denied)) {
            let new = now.checked_sub(before).unwrap_or(now);
            self.denied.get_or_create(&ReasonLabel { reason }).inc_by(new);
        }
    }
}
