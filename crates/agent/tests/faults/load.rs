//! ADDs and DELs from several threads, as runtimes send them, during operations on the agent.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde_json::{Value, json};
use testkit::{Call, DEADLINE, Ns, PingStream, Plugin, Pod, Snapshot, Verb, inspect, is_soak, wait_until};

use crate::common::{Host, addresses_of, host_link, ips};

pub(crate) const THREADS: usize = 5;

/// The number of repetitions: `soaking` in `make soak`, else `usual`.
pub(crate) fn rounds(usual: usize, soaking: usize) -> usize {
    if is_soak() { soaking } else { usual }
}

/// The addresses of pods between the answer to their ADD and their DEL.
#[derive(Default)]
pub(crate) struct LiveAddresses(Mutex<BTreeMap<IpAddr, String>>);

impl LiveAddresses {
    #[track_caller]
    pub(crate) fn insert(&self, pod: &str, result: &Value) {
        let mut live_addresses = self.0.lock().unwrap();
        for ip in ips(result) {
            if let Some(other) = live_addresses.insert(ip, pod.to_owned()) {
                panic!("{ip} was allocated to {pod} while {other} has it");
            }
        }
    }

    pub(crate) fn remove(&self, result: &Value) {
        let mut live_addresses = self.0.lock().unwrap();
        for ip in ips(result) {
            live_addresses.remove(&ip);
        }
    }
}

/// Two pods with continuous traffic in both families, and the state of the node before any pod.
pub(crate) struct Scene {
    pub(crate) a: (Pod, Value),
    pub(crate) b: (Pod, Value),
    streams: Vec<PingStream>,
    before: Snapshot,
}

impl Scene {
    pub(crate) fn new(host: &Host) -> Self {
        // The first pod creates tables that remain and must not be counted as a leak.
        let (first, _) = host.attached("first");
        host.del(&first);
        let before = Snapshot::of(&host.node).unwrap();
        assert!(host.state_entries().is_empty(), "{:?}", host.state_entries());
        let (a, b) = (host.attached("talker"), host.attached("listener"));
        host.expect_connectivity((&a.0, &a.1), (&b.0, &b.1));
        let streams = ips(&b.1).into_iter().map(|ip| PingStream::start(&a.0, ip).unwrap()).collect();
        Self { a, b, streams, before }
    }

    /// No packet of the streams was lost.
    pub(crate) fn expect_no_loss(&mut self) {
        assert_eq!(self.streams.len(), 2, "one for each family");
        for stream in self.streams.drain(..) {
            let report = stream.end().unwrap();
            println!("{} echo requests, {} lost", report.sent, report.lost.len());
            assert!(report.lost.is_empty() && report.sent > 20, "{report:?}");
        }
    }

    /// Exactly these pods and the two pods with traffic are attached and complete.
    pub(crate) fn expect_only(&self, host: &Host, pods: &[(Pod, Value)]) {
        let all: Vec<&(Pod, Value)> = [&self.a, &self.b].into_iter().chain(pods).collect();
        wait_until("exactly the records and claims of attached pods", DEADLINE, || {
            let status = host.agent.get("/v1/status")?;
            let counts = json!({"ready": all.len(), "pending": 0, "unreadable": 0});
            ensure_eq(&status["attachments"], &counts)?;
            ensure_eq(&host.state_entries().len(), &(3 * all.len()))?;
            Ok(true)
        })
        .unwrap_or_else(|e| panic!("{e:#}; state: {:#?}", host.state_entries()));
        for (pod, result) in &all {
            expect_attached(pod, result);
            host.check(pod, result);
        }
        for pair in all.windows(2) {
            host.expect_connectivity((&pair[0].0, &pair[0].1), (&pair[1].0, &pair[1].1));
        }
    }

    /// After the DEL of all pods, the node has its initial state.
    pub(crate) fn expect_cleanup(self, host: &Host, pods: &[(Pod, Value)]) {
        let (a, b) = (self.a.0, self.b.0);
        for pod in pods.iter().map(|(pod, _)| pod).chain([&a, &b]) {
            host.del(pod);
        }
        assert!(host.state_entries().is_empty(), "{:?}", host.state_entries());
        self.before.wait_for_same(&host.node, DEADLINE).unwrap();
    }
}

fn ensure_eq<T: PartialEq + std::fmt::Debug>(observed: &T, expected: &T) -> Result<(), std::io::Error> {
    if observed == expected {
        return Ok(());
    }
    Err(std::io::Error::other(format!("{observed:?} instead of {expected:?}")))
}

/// The pod has the link and the addresses of its ADD result.
#[track_caller]
pub(crate) fn expect_attached(pod: &Pod, result: &Value) {
    assert_eq!(addresses_of(pod, "eth0"), ips(result).into_iter().collect(), "{}", pod.id());
    inspect::link(pod.node(), host_link(result)).unwrap();
}

/// Threads that add and delete pods until they are stopped. None of their calls may fail.
pub(crate) struct Load {
    node: Ns,
    plugin: Plugin,
    config: Value,
    /// One namespace per thread, for pods that are deleted again.
    sandboxes: Vec<Pod>,
    /// Pods that are added once and not deleted.
    permanent: Mutex<Vec<Pod>>,
    live_addresses: LiveAddresses,
    is_done: AtomicBool,
    cycles: AtomicUsize,
}

/// The result of a load.
pub(crate) struct Done {
    pub(crate) cycles: usize,
    pub(crate) permanent_pods: Vec<(Pod, Value)>,
}

impl Load {
    pub(crate) fn new(host: &Host, permanent: usize) -> Self {
        Self {
            node: (*host.node).clone(),
            plugin: host.plugin.clone(),
            config: host.config(&json!({})),
            sandboxes: (0..THREADS).map(|n| host.pod(&format!("t{n}"))).collect(),
            permanent: Mutex::new((0..permanent).map(|n| host.pod(&format!("stays{n}"))).collect()),
            live_addresses: LiveAddresses::default(),
            is_done: AtomicBool::new(false),
            cycles: AtomicUsize::new(0),
        }
    }

    /// Runs the load while `work` runs.
    pub(crate) fn during(self, work: impl FnOnce(&Self)) -> Done {
        let permanent_pods = std::thread::scope(|scope| {
            let this = &self;
            let start = |n| scope.spawn(move || this.run(&this.sandboxes[n], n));
            let threads: Vec<_> = (0..THREADS).map(start).collect();
            // Also if `work` panics, because the threads would never end otherwise.
            let guard = StopGuard(&self.is_done);
            work(&self);
            drop(guard);
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        Done { cycles: self.cycles.into_inner(), permanent_pods }
    }

    pub(crate) fn cycles(&self) -> usize {
        self.cycles.load(Ordering::Relaxed)
    }

    fn run(&self, sandbox: &Pod, thread: usize) -> Vec<(Pod, Value)> {
        let mut permanent_pods = Vec::new();
        // A bound that is not reached within an hour.
        for cycle in 0..1_000_000 {
            if self.is_done.load(Ordering::Acquire) {
                break;
            }
            if cycle % 7 == 3
                && let Some(pod) = self.next_permanent()
            {
                let result = self.added(&Call::pod(Verb::Add, &pod, &self.config));
                permanent_pods.push((pod, result));
            }
            let name = format!("c{thread}-{cycle}");
            let call =
                |verb| Call { container: Some(name.clone()), ..Call::pod(verb, sandbox, &self.config) };
            let result = self.added(&call(Verb::Add));
            assert_eq!(addresses_of(sandbox, "eth0"), ips(&result).into_iter().collect(), "{name}");
            self.live_addresses.remove(&result);
            let deleted = self.plugin.call(&self.node, &call(Verb::Del)).unwrap();
            assert!(deleted.success(), "DEL of {name}: {deleted:?}");
            self.wait_for_removal(sandbox);
            self.cycles.fetch_add(1, Ordering::Relaxed);
        }
        permanent_pods
    }

    fn next_permanent(&self) -> Option<Pod> {
        self.permanent.lock().unwrap().pop()
    }

    fn added(&self, call: &Call) -> Value {
        let outcome = self.plugin.call(&self.node, call).unwrap();
        let name = call.container.as_deref().unwrap();
        let result =
            outcome.ok().unwrap_or_else(|e| panic!("ADD of {name} after {:?}: {e:#}", outcome.elapsed));
        self.live_addresses.insert(name, &result);
        result
    }

    /// A DEL without an agent is served by the next agent. Runtimes do not reuse a sandbox, but this test does.
    fn wait_for_removal(&self, sandbox: &Pod) {
        let is_removed = || Ok(!inspect::links(sandbox)?.iter().any(|link| link.name == "eth0"));
        wait_until("the pod's link to be removed", DEADLINE, is_removed).unwrap();
    }
}

struct StopGuard<'a>(&'a AtomicBool);

impl Drop for StopGuard<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}
