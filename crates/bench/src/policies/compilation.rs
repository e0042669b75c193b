//! The engine and the table of policies, without links: full compilation and load, memory, and single changes.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use model::objects::{PortMatch, PortRange};
use netlink::NetNs;
use nft::desired::Table;
use nft::desired::policy::{MarkBit, OwnNode, PolicyOptions, PolicySizes, table};
use nft::{Firewall, Surplus};
use policy::{Delta, PodEntry, PolicyElement, PolicyEngine, World, WorldChange};
use policyproof::worlds::{BenchSize, all_changes, bench_world};
use rustix::time::{ClockId, clock_gettime};

use crate::firewall::{Timed, note};
use crate::options::PolicyScale;
use crate::process::rss_mib;
use crate::stats::{Sample, median};

pub(crate) struct Compilation {
    /// Compilation and load together.
    pub(crate) full: Sample,
    pub(crate) elements: usize,
    /// What the kernel allocated for the table, in MiB.
    pub(crate) kernel_mib: Option<f64>,
    /// Growth of this process by the world and the engine, in MiB.
    pub(crate) engine_mib: f64,
    pub(crate) changes: Vec<PolicyChangeTimes>,
}

/// Times of one kind of change.
pub(crate) struct PolicyChangeTimes {
    pub(crate) what: &'static str,
    /// CPU time of compilation and transactions. The kernel's waits between transactions are not included.
    pub(crate) agent: Sample,
    /// The same for the reversal: the pod leaves, or has its earlier labels.
    pub(crate) reversal: Sample,
    /// The greatest allowed median, in milliseconds.
    pub(crate) limit_ms: f64,
}

/// The world of the bench in proportion to its pods and policies.
pub(super) fn size(scale: &PolicyScale) -> BenchSize {
    let usual = BenchSize::default();
    let part = |of: usize| (of * scale.policies).div_ceil(usual.network_policies);
    BenchSize {
        namespaces: part(usual.namespaces),
        pods: scale.pods,
        local_pods: part(usual.local_pods),
        network_policies: scale.policies,
        open_policies: part(usual.open_policies),
        block_policies: part(usual.block_policies),
        ..usual
    }
}

/// A table that is large enough for the elements.
pub(super) fn policy_table(engine: &PolicyEngine, elements: &[PolicyElement]) -> Result<Table> {
    let own_node = if engine.judges_own_node() { OwnNode::Judged } else { OwnNode::Accepted };
    Ok(table(&PolicyOptions {
        forbidden: MarkBit::new(31).context("marks have 32 bits")?,
        own_node,
        logs_per_second: Some(10),
        sizes: PolicySizes::default().raised_for(elements),
    }))
}

pub(super) fn run(scale: &PolicyScale, times: &mut Timed, remarks: &mut Vec<String>) -> Result<Compilation> {
    let world = bench_world(size(scale));
    let before = rss_mib(std::process::id())?;
    let mut full = Sample::default();
    let (mut engine, mut took) = compiled(&world, times);
    let engine_mib = rss_mib(std::process::id())? - before;
    let elements: Vec<PolicyElement> = engine.elements().collect();
    let table = policy_table(&engine, &elements)?;
    let mut kernel = Vec::new();
    for round in 0..scale.loads {
        if round > 0 {
            (engine, took) = compiled(&world, times);
        }
        let load = NetNs::create()?.run(|| load(&table, &elements))??;
        note(times, LOAD, load.took);
        full.note(Ok(took + load.took));
        kernel.push(load.kernel_mib);
    }
    remarks.push(described(&world, &engine));
    let changes = NetNs::create()?.run(|| changes(&mut engine, &world, &table, scale.changes))??;
    Ok(Compilation { full, elements: elements.len(), kernel_mib: median(&kernel), engine_mib, changes })
}

/// A slow change is repeated less often.
const FEWEST: usize = 5;
const ENOUGH: Duration = Duration::from_secs(5);
const COMPILE: &str = "policies: compile everything";
const LOAD: &str = "policies: load everything into the kernel";

fn compiled(world: &World, times: &mut Timed) -> (PolicyEngine, Duration) {
    let changes = all_changes(world);
    let mut engine = PolicyEngine::new(world.local_node.clone());
    let started = Instant::now();
    engine.apply(changes);
    let took = started.elapsed();
    note(times, COMPILE, took);
    (engine, took)
}

struct Load {
    took: Duration,
    kernel_mib: f64,
}

fn load(table: &Table, elements: &[PolicyElement]) -> Result<Load> {
    let mut firewall = Firewall::open()?;
    let (before, started) = (kernel_mib()?, Instant::now());
    firewall.reconcile_policies(table, elements, Surplus::Remove)?;
    let took = started.elapsed();
    let kernel_mib = kernel_mib()? - before;
    let found = firewall.policy_elements(table)?.len();
    ensure!(found == elements.len(), "the kernel lists {found} of {} elements", elements.len());
    Ok(Load { took, kernel_mib })
}

/// Memory of the kernel for objects and large arrays. Other programs change it, too.
fn kernel_mib() -> Result<f64> {
    let text = fs::read_to_string("/proc/meminfo").context("cannot read /proc/meminfo")?;
    let kib = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok())
    };
    let all = kib("SUnreclaim:").zip(kib("VmallocUsed:"));
    all.map(|(slab, arrays)| (slab + arrays) / 1024.0).context("/proc/meminfo lacks a size")
}

fn described(world: &World, engine: &PolicyEngine) -> String {
    let counts = engine.counts();
    let kinds: Vec<String> =
        counts.elements.iter().map(|(kind, number)| format!("{kind} {number}")).collect();
    format!(
        "policies: {} pods, {} NetworkPolicies, {} ClusterNetworkPolicies, {} classes, {} local profiles, {} elements ({})",
        world.pods.len(),
        world.network_policies.len(),
        world.cluster_policies.len(),
        counts.classes,
        counts.profiles,
        counts.total(),
        kinds.join(", ")
    )
}

/// Changes and their reversals, applied in the order of the agent.
fn changes(
    engine: &mut PolicyEngine,
    world: &World,
    table: &Table,
    rounds: usize,
) -> Result<Vec<PolicyChangeTimes>> {
    let mut firewall = Firewall::open()?;
    let elements: Vec<PolicyElement> = engine.elements().collect();
    firewall.reconcile_policies(table, &elements, Surplus::Remove)?;
    let mut all = Vec::new();
    for (what, limit_ms, change, reversal) in kinds(world)? {
        let (mut agent, mut reversed) = (Sample::default(), Sample::default());
        let started = Instant::now();
        for round in 0..rounds {
            if round >= FEWEST && started.elapsed() > ENOUGH {
                break;
            }
            let (there, back) =
                (apply(engine, &mut firewall, &change)?, apply(engine, &mut firewall, &reversal)?);
            agent.note(Ok(there));
            reversed.note(Ok(back));
        }
        all.push(PolicyChangeTimes { what, agent, reversal: reversed, limit_ms });
    }
    let drift =
        firewall.reconcile_policies(table, &engine.elements().collect::<Vec<_>>(), Surplus::Remove)?;
    ensure!(drift.is_empty(), "the table differs after the changes: {drift:?}");
    Ok(all)
}

/// Name, limit in milliseconds, change and reversal.
type ChangeKind = (&'static str, f64, WorldChange, WorldChange);

fn kinds(world: &World) -> Result<Vec<ChangeKind>> {
    let is_local = |pod: &&PodEntry| pod.node == world.local_node;
    let local = world.pods.values().find(is_local).context("no local pod")?;
    let remote = world.pods.values().find(|pod| !is_local(pod)).context("no pod of another node")?;
    let joins = |pod: &PodEntry, addresses: [&str; 2]| -> Result<(WorldChange, WorldChange)> {
        let addresses = addresses.iter().map(|text| text.parse()).collect::<Result<_, _>>()?;
        let new = PodEntry { uid: "new".into(), addresses: Some(addresses), ..pod.clone() };
        Ok((WorldChange::SetPod(new), WorldChange::RemovePod("new".into())))
    };
    let labelled = |pod: &PodEntry| {
        let mut identity = (*pod.identity).clone();
        let app = if identity.labels.get("app").is_some_and(|app| app == "a1") { "a2" } else { "a1" };
        identity.labels.insert("app".to_owned(), app.to_owned());
        let changed = PodEntry { identity: Arc::new(identity), ..pod.clone() };
        (WorldChange::SetPod(changed), WorldChange::SetPod(pod.clone()))
    };
    let policy = world.network_policies.values().last().context("no NetworkPolicy")?;
    let mut changed = policy.clone();
    let port = changed.ingress.iter_mut().flatten().flat_map(|rule| &mut rule.ports).next();
    port.context("no rule with a port")?.port = PortMatch::Range(PortRange::single(4711));
    let rule = (WorldChange::SetNetworkPolicy(changed), WorldChange::SetNetworkPolicy(policy.clone()));
    let kind = |what, limit, (change, reversal)| (what, limit, change, reversal);
    Ok(vec![
        kind("a pod of another node joins", 1.0, joins(remote, ["10.83.200.9", "fd00:88::c8:0:9"])?),
        kind("a pod of this node joins", 1.0, joins(local, ["10.83.0.251", "fd00:88::fb"])?),
        kind("a pod of another node changes labels", 1.0, labelled(remote)),
        kind("a pod of this node changes labels", 1.0, labelled(local)),
        kind("one rule changes", 20.0, rule),
    ])
}

/// CPU time of this thread, with its system calls.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or_default())
}

fn apply(engine: &mut PolicyEngine, firewall: &mut Firewall, change: &WorldChange) -> Result<Duration> {
    let change = change.clone();
    let started = cpu_time();
    let Delta { replaced, set, profiles: _, removed } = engine.apply([change]);
    firewall.apply_policy(&replaced, &set)?;
    if !removed.is_empty() {
        firewall.remove_policy(&removed)?;
    }
    Ok(cpu_time().saturating_sub(started))
}
