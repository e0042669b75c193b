//! Prometheus metrics. Counters are incremented as events happen; gauges are read for each scrape.

mod policies;

use std::fmt;
use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use api::{BlockUse, Condition, Counts};
use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Metric, Registry};
use rustix::time::{ClockId, clock_gettime};
use types::{Code, Severity};

use policies::PolicyMetrics;
pub(crate) use policies::{PolicyUsage, SampledDenial};

pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// In seconds. An ADD takes about one millisecond. A request that takes ten seconds is probably stuck.
const BUCKETS: [f64; 14] =
    [0.0005, 0.001, 0.0015, 0.002, 0.003, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 2.5, 10.0];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    verb: &'static str,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct VerbLabel {
    verb: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabel {
    kind: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BlockLabels {
    block: String,
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PhaseLabel {
    phase: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ConditionLabels {
    code: &'static str,
    severity: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BuildLabels {
    version: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TransportLabel {
    transport: &'static str,
}

/// The number of peers, of routes to their blocks by transport, and of this node's tunnel devices.
#[derive(Debug, Default)]
pub(crate) struct PeerCounts {
    pub(crate) peers: usize,
    pub(crate) direct: usize,
    pub(crate) vxlan: usize,
    /// Blocks to which there is no route.
    pub(crate) unreachable: usize,
    pub(crate) tunnels: usize,
}

/// Values that are read for a scrape.
#[derive(Debug, Default)]
pub(crate) struct MetricsSnapshot {
    pub(crate) conditions: Vec<Condition>,
    pub(crate) waiting: usize,
    pub(crate) blocks: Vec<BlockUse>,
    /// None: the records cannot be read.
    pub(crate) attachments: Option<Counts>,
    /// Seconds since 1970.
    pub(crate) started: u64,
    pub(crate) is_store_reachable: bool,
    pub(crate) watch_age: Duration,
}

pub(crate) struct Metrics {
    registry: Registry,
    requests: Family<RequestLabels, Counter>,
    seconds: Family<VerbLabel, Histogram>,
    waiting: Gauge,
    addresses: Family<BlockLabels, Gauge>,
    attachments: Family<PhaseLabel, Gauge>,
    rounds: Counter,
    repairs: Family<KindLabel, Counter>,
    round_seconds: Histogram,
    drained: Counter,
    ready: Gauge,
    conditions: Family<ConditionLabels, Gauge>,
    cluster: ClusterMetrics,
    policies: PolicyMetrics,
    process: ProcessMetrics,
    /// Held while a page is rendered, because each page clears and fills the families.
    rendering: Mutex<()>,
}

struct ClusterMetrics {
    peers: Gauge,
    routes: Family<TransportLabel, Gauge>,
    tunnels: Gauge,
    reachable: Gauge,
    watch_age: Gauge<f64, AtomicU64>,
}

struct ProcessMetrics {
    resident_memory: Gauge,
    open_files: Gauge,
    started: Gauge,
    cpu: Counter<f64, AtomicU64>,
}

/// Registers a metric and returns it.
struct Register(Registry);

impl Register {
    fn add<M: Metric + Clone>(&mut self, name: &str, help: &str, metric: M) -> M {
        self.0.register(name, help, metric.clone());
        metric
    }
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let mut all = Register(Registry::default());
        let version = BuildLabels { version: env!("CARGO_PKG_VERSION") };
        all.0.register("podwire_build", "The agent's version", Info::new(version));
        let histogram: fn() -> Histogram = || Histogram::new(BUCKETS);
        let metrics = Self {
            requests: all.add(
                "podwire_requests",
                "CNI requests served, by verb and outcome",
                Family::default(),
            ),
            seconds: all.add(
                "podwire_request_duration_seconds",
                "Time from the arrival of a request to its answer",
                Family::new_with_constructor(histogram),
            ),
            waiting: all.add("podwire_queue_waiting", "Requests waiting for a worker", Gauge::default()),
            addresses: all.add(
                "podwire_addresses",
                "Addresses of the network's blocks, used and free",
                Family::default(),
            ),
            attachments: all.add(
                "podwire_attachments",
                "Attachment records by phase; an unreadable record keeps its addresses",
                Family::default(),
            ),
            rounds: all.add("podwire_reconcile_rounds", "Reconcile rounds", Counter::default()),
            repairs: all.add(
                "podwire_reconcile_repairs",
                "Objects repaired by reconcile rounds",
                Family::default(),
            ),
            round_seconds: all.add(
                "podwire_reconcile_duration_seconds",
                "Duration of a reconcile round with its repairs",
                histogram(),
            ),
            drained: all.add(
                "podwire_tombstones_drained",
                "DELs that were stored while no agent ran and have been served",
                Counter::default(),
            ),
            ready: all.add("podwire_ready", "1 if the node is ready", Gauge::default()),
            conditions: all.add(
                "podwire_conditions",
                "Objects with a condition, by code and severity; 0 if there is none",
                Family::default(),
            ),
            cluster: ClusterMetrics::new(&mut all),
            policies: PolicyMetrics::new(&mut all),
            process: ProcessMetrics::new(&mut all),
            rendering: Mutex::default(),
            registry: Registry::default(),
        };
        Self { registry: all.0, ..metrics }
    }

    pub(crate) fn request(&self, verb: &'static str, outcome: &'static str, took: Duration) {
        self.requests.get_or_create(&RequestLabels { verb, outcome }).inc();
        self.seconds.get_or_create(&VerbLabel { verb }).observe(took.as_secs_f64());
    }

    /// A reconcile round ended.
    pub(crate) fn reconciled(&self, took: Duration) {
        self.rounds.inc();
        self.round_seconds.observe(took.as_secs_f64());
    }

    pub(crate) fn repaired(&self, kind: &str, count: u64) {
        self.repairs.get_or_create(&KindLabel { kind: kind.to_owned() }).inc_by(count);
    }

    pub(crate) fn set_peers(&self, counts: &PeerCounts) {
        let PeerCounts { peers, direct, vxlan, unreachable, tunnels } = *counts;
        self.cluster.peers.set(count(peers as u64));
        self.cluster.tunnels.set(count(tunnels as u64));
        for (transport, number) in [("direct", direct), ("vxlan", vxlan), ("none", unreachable)] {
            self.cluster.routes.get_or_create(&TransportLabel { transport }).set(count(number as u64));
        }
    }

    /// A change of policies or pods was applied.
    pub(crate) fn policies_applied(&self, took: Duration) {
        self.policies.applied(took);
    }

    pub(crate) fn count_policies(&self, counts: &PolicyUsage) {
        self.policies.count(counts);
    }

    /// A denied packet was logged and explained.
    pub(crate) fn sampled_denial(&self, denial: &SampledDenial) {
        self.policies.sampled_denial(denial);
    }

    /// All denied packets since the start, as of the last count.
    pub(crate) fn denied_packets(&self) -> nft::DeniedPackets {
        self.policies.denied_packets()
    }

    pub(crate) fn drained_tombstone(&self) {
        self.drained.inc();
    }

    pub(crate) fn render(&self, observed: &MetricsSnapshot) -> Result<String, fmt::Error> {
        let _rendering = self.rendering.lock().unwrap_or_else(PoisonError::into_inner);
        self.ready.set(i64::from(!observed.conditions.iter().any(Condition::prevents_ready)));
        for &code in Code::ALL.iter().filter(|code| code.is_observed_by_agent()) {
            for severity in [Severity::NotReady, Severity::Degraded] {
                let matches =
                    |condition: &&Condition| condition.code == code && condition.severity == severity;
                let objects = observed.conditions.iter().filter(matches).count();
                let labels = ConditionLabels { code: code.as_str(), severity: severity.as_str() };
                self.conditions.get_or_create(&labels).set(count(objects as u64));
            }
        }
        self.waiting.set(count(observed.waiting as u64));
        self.cluster.reachable.set(i64::from(observed.is_store_reachable));
        self.cluster.watch_age.set(observed.watch_age.as_secs_f64());
        self.set_attachments(observed.attachments);
        self.set_addresses(&observed.blocks);
        self.process.update(observed.started);
        let mut page = String::new();
        text::encode(&mut page, &self.registry)?;
        Ok(page)
    }
}

impl Metrics {
    /// Unknown numbers are not exported.
    fn set_attachments(&self, counts: Option<Counts>) {
        self.attachments.clear();
        let Some(attachments) = counts else { return };
        for (phase, number) in [
            ("ready", attachments.ready),
            ("pending", attachments.pending),
            ("unreadable", attachments.unreadable),
        ] {
            self.attachments.get_or_create(&PhaseLabel { phase }).set(count(number));
        }
    }

    /// Neither unknown numbers nor blocks that the node no longer owns are exported.
    fn set_addresses(&self, blocks: &[BlockUse]) {
        self.addresses.clear();
        for block in blocks {
            for (state, number) in [("used", block.used), ("free", block.free)] {
                let Some(number) = number else { continue };
                let labels = BlockLabels { block: block.block.to_string(), state };
                self.addresses.get_or_create(&labels).set(count(number));
            }
        }
    }
}

impl ClusterMetrics {
    fn new(all: &mut Register) -> Self {
        Self {
            peers: all.add("podwire_peers", "Known peers", Gauge::default()),
            routes: all.add(
                "podwire_peer_routes",
                "Blocks of peers by the transport of their route; none: not reachable",
                Family::default(),
            ),
            tunnels: all.add("podwire_tunnels", "Tunnel devices of this node", Gauge::default()),
            reachable: all.add("podwire_store_reachable", "1 if the store is reachable", Gauge::default()),
            watch_age: all.add(
                "podwire_store_watch_age_seconds",
                "Time since the store watch was last confirmed, or since the start if it never was",
                Gauge::default(),
            ),
        }
    }
}

impl ProcessMetrics {
    fn new(all: &mut Register) -> Self {
        Self {
            resident_memory: all.add(
                "process_resident_memory_bytes",
                "Resident memory size",
                Gauge::default(),
            ),
            open_files: all.add("process_open_fds", "Open file descriptors", Gauge::default()),
            started: all.add("process_start_time_seconds", "Start in seconds since 1970", Gauge::default()),
            cpu: all.add("process_cpu_seconds", "User and system time", Counter::default()),
        }
    }

    fn update(&self, started: u64) {
        self.resident_memory.set(count(resident_bytes()));
        self.open_files.set(count(fs::read_dir("/proc/self/fd").map_or(0, Iterator::count) as u64));
        self.started.set(count(started));
        let used = clock_gettime(ClockId::ProcessCPUTime);
        let seconds =
            Duration::new(used.tv_sec.unsigned_abs(), used.tv_nsec.unsigned_abs() as u32).as_secs_f64();
        self.cpu.inner().store(seconds.to_bits(), Ordering::Relaxed);
    }
}

fn count(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Resident memory of the agent; 0 if /proc cannot be read.
pub(crate) fn resident_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib =
        status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.split_whitespace().next()?.parse().ok());
    kib.unwrap_or(0u64) * 1024
}

#[cfg(test)]
mod reference;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_all_documented_metrics() {
        let metrics = Metrics::new();
        metrics.request("ADD", "ok", Duration::from_micros(1200));
        metrics.request("DEL", "failed", Duration::from_secs(20));
        metrics.reconciled(Duration::from_millis(3));
        metrics.repaired("route", 2);
        metrics.drained_tombstone();
        let blocks = vec![BlockUse { block: "10.9.0.0/24".parse().unwrap(), used: Some(4), free: Some(249) }];
        let attachments = Counts { ready: 4, pending: 1, unreadable: 0 };
        let conditions = ["n2", "n3"].map(|node| {
            let finding = types::Finding::new(Code::PeerConflict, format_args!("node {node}"), "");
            Condition::new(finding, api::Timestamp(1))
        });
        metrics.set_peers(&PeerCounts { peers: 3, direct: 2, vxlan: 4, unreachable: 1, tunnels: 2 });
        // The firewall's counters restarted at zero between the last two counts.
        for ingress in [5, 7, 1] {
            let denied = nft::DeniedPackets { ingress, ..nft::DeniedPackets::default() };
            metrics.count_policies(&PolicyUsage { elements: 9, classes: 2, pods: 4, profiles: 3, denied });
        }
        metrics.policies_applied(Duration::from_millis(1));
        let observed = MetricsSnapshot {
            conditions: conditions.to_vec(),
            waiting: 3,
            blocks,
            attachments: Some(attachments),
            started: 1_700_000_000,
            is_store_reachable: true,
            watch_age: Duration::from_millis(1500),
        };
        let page = metrics.render(&observed).unwrap();
        for line in [
            r#"podwire_requests_total{verb="ADD",outcome="ok"} 1"#,
            r#"podwire_requests_total{verb="DEL",outcome="failed"} 1"#,
            r#"podwire_request_duration_seconds_bucket{le="0.0015",verb="ADD"} 1"#,
            r#"podwire_request_duration_seconds_count{verb="DEL"} 1"#,
            "podwire_queue_waiting 3",
            r#"podwire_addresses{block="10.9.0.0/24",state="used"} 4"#,
            r#"podwire_addresses{block="10.9.0.0/24",state="free"} 249"#,
            r#"podwire_attachments{phase="ready"} 4"#,
            r#"podwire_attachments{phase="pending"} 1"#,
            "podwire_reconcile_rounds_total 1",
            r#"podwire_reconcile_repairs_total{kind="route"} 2"#,
            "podwire_reconcile_duration_seconds_count 1",
            "podwire_tombstones_drained_total 1",
            "podwire_ready 1",
            r#"podwire_conditions{code="PeerConflict",severity="degraded"} 2"#,
            r#"podwire_conditions{code="NftMissing",severity="notReady"} 0"#,
            "podwire_peers 3",
            r#"podwire_peer_routes{transport="direct"} 2"#,
            r#"podwire_peer_routes{transport="vxlan"} 4"#,
            r#"podwire_peer_routes{transport="none"} 1"#,
            "podwire_tunnels 2",
            "podwire_policy_elements 9",
            "podwire_policy_classes 2",
            "podwire_policy_pods 4",
            "podwire_policy_profiles 3",
            r#"podwire_policy_denied_packets_total{reason="ingress"} 8"#,
            "podwire_policy_apply_duration_seconds_count 1",
            "podwire_store_reachable 1",
            "podwire_store_watch_age_seconds 1.5",
            concat!(r#"podwire_build_info{version=""#, env!("CARGO_PKG_VERSION"), r#""} 1"#),
            "process_start_time_seconds 1700000000",
            "# HELP podwire_requests CNI requests served, by verb and outcome.",
        ] {
            assert!(page.lines().any(|l| l == line), "{line} is missing in\n{page}");
        }
        // A 0 would mean that the agent checks for this condition.
        for code in ["GatewayMissing", "AgentUnreachable", "ForwardingDisabled"] {
            assert!(!page.contains(code), "{code} in\n{page}");
        }
        for name in ["process_resident_memory_bytes", "process_open_fds", "process_cpu_seconds_total"] {
            let value = page.lines().find_map(|l| l.strip_prefix(&format!("{name} "))).unwrap();
            assert!(value.parse::<f64>().unwrap() > 0.0, "{name} {value}");
        }
    }

    #[test]
    fn a3_unknown_usage_and_lost_blocks_are_not_exported() {
        let metrics = Metrics::new();
        let page = |cidrs: &[&str], number: Option<u64>| {
            let block = |cidr: &&str| BlockUse { block: cidr.parse().unwrap(), used: number, free: number };
            let (blocks, attachments) =
                (cidrs.iter().map(block).collect(), number.map(|_| Counts::default()));
            metrics.render(&MetricsSnapshot { blocks, attachments, ..MetricsSnapshot::default() }).unwrap()
        };
        let both = page(&["10.9.0.0/24", "fd00:9::/64"], Some(4));
        assert!(both.contains("10.9.0.0/24") && both.contains("fd00:9::/64"), "{both}");
        let one = page(&["fd00:9::/64"], Some(4));
        assert!(!one.contains("10.9.0.0/24") && one.contains("fd00:9::/64"), "{one}");
        assert!(one.contains("podwire_attachments{"), "{one}");
        let unknown = page(&["10.9.0.0/24", "fd00:9::/64"], None);
        assert!(
            !unknown.contains("podwire_addresses{") && !unknown.contains("podwire_attachments{"),
            "{unknown}"
        );
    }
}
