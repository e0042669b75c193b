//! ADD and DEL from several threads, as runtimes send them, while something happens to the agent.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde_json::{Value, json};
use testkit::{Call, DEADLINE, Ns, PingStream, Plugin, Pod, Snapshot, Verb, inspect, soak, wait_until};

use crate::common::{Host, addresses_of, host_link, ips};

pub(crate) const THREADS: usize = 5;

/// So many in `make soak`, else so many.
pub(crate) fn rounds(usual: usize, soaking: usize) -> usize {
    if soak() { soaking } else { usual }
}

/// The addresses of pods whose ADD was answered and whose DEL was not yet sent.
#[derive(Default)]
pub(crate) struct Living(Mutex<BTreeMap<IpAddr, String>>);

impl Living {
    #[track_caller]
    pub(crate) fn enter(&self, who: &str, result: &Value) {
        let mut living = self.0.lock().unwrap();
        for ip in ips(result) {
            if let Some(other) = living.insert(ip, who.to_owned()) {
                panic!("{ip} was given to {who} while {other} has it");
            }
        }
    }

    pub(crate) fn leave(&self, result: &Value) {
        let mut living = self.0.lock().unwrap();
        for ip in ips(result) {
            living.remove(&ip);
        }
    }
}

/// Two pods that talk to each other all the time, in both families; and what the node looked like before any pod.
pub(crate) struct Scene {
    pub(crate) a: (Pod, Value),
    pub(crate) b: (Pod, Value),
    streams: Vec<PingStream>,
    before: Snapshot,
}

impl Scene {
    pub(crate) fn new(host: &Host) -> Self {
        // What the first pod makes for good (tables) is not to be seen as a leak later.
        let (first, _) = host.attached("first");
        host.del(&first);
        let before = Snapshot::of(&host.node).unwrap();
        assert!(host.held().is_empty(), "{:?}", host.held());
        let (a, b) = (host.attached("talker"), host.attached("listener"));
        host.expect_talk((&a.0, &a.1), (&b.0, &b.1));
        let streams = ips(&b.1).into_iter().map(|ip| PingStream::start(&a.0, ip).unwrap()).collect();
        Self { a, b, streams, before }
    }

    /// The streams lost nothing.
    pub(crate) fn expect_no_loss(&mut self) {
        assert_eq!(self.streams.len(), 2, "one for each family");
        for stream in self.streams.drain(..) {
            let report = stream.end().unwrap();
            println!("{} echo requests, {} lost", report.sent, report.lost.len());
            assert!(report.lost.is_empty() && report.sent > 20, "{report:?}");
        }
    }

    /// Exactly these pods and the two talkers are there, and all of them whole; nothing of any other is.
    pub(crate) fn expect_only(&self, host: &Host, kept: &[(Pod, Value)]) {
        let all: Vec<&(Pod, Value)> = [&self.a, &self.b].into_iter().chain(kept).collect();
        wait_until("records and claims of those who live, and no others", DEADLINE, || {
            let status = host.agent.get("/v1/status")?;
            let counts = json!({"ready": all.len(), "pending": 0, "unreadable": 0});
            anyhow_eq(&status["attachments"], &counts)?;
            anyhow_eq(&host.held().len(), &(3 * all.len()))?;
            Ok(true)
        })
        .unwrap_or_else(|e| panic!("{e:#}; held: {:#?}", host.held()));
        for (pod, result) in &all {
            expect_whole(pod, result);
            host.check(pod, result);
        }
        for pair in all.windows(2) {
            host.expect_talk((&pair[0].0, &pair[0].1), (&pair[1].0, &pair[1].1));
        }
    }

    /// All pods go, and the node is as it was before them.
    pub(crate) fn expect_nothing_left(self, host: &Host, kept: &[(Pod, Value)]) {
        let (a, b) = (self.a.0, self.b.0);
        for pod in kept.iter().map(|(pod, _)| pod).chain([&a, &b]) {
            host.del(pod);
        }
        assert!(host.held().is_empty(), "{:?}", host.held());
        self.before.wait_for_same(&host.node, DEADLINE).unwrap();
    }
}

fn anyhow_eq<T: PartialEq + std::fmt::Debug>(found: &T, wanted: &T) -> Result<(), std::io::Error> {
    if found == wanted {
        return Ok(());
    }
    Err(std::io::Error::other(format!("{found:?} instead of {wanted:?}")))
}

/// The pod has the link and the addresses that its ADD answered.
#[track_caller]
pub(crate) fn expect_whole(pod: &Pod, result: &Value) {
    assert_eq!(addresses_of(pod, "eth0"), ips(result).into_iter().collect(), "{}", pod.id());
    inspect::link(pod.node(), host_link(result)).unwrap();
}

/// Threads that add and delete pods until they are told to stop. None of their calls may fail.
pub(crate) struct Load {
    node: Ns,
    plugin: Plugin,
    config: Value,
    /// For the passers-by: one namespace a thread.
    sandboxes: Vec<Pod>,
    /// For pods that are added once and stay.
    stayers: Mutex<Vec<Pod>>,
    living: Living,
    over: AtomicBool,
    cycles: AtomicUsize,
}

/// What a load did until it was over.
pub(crate) struct Done {
    pub(crate) cycles: usize,
    pub(crate) stayed: Vec<(Pod, Value)>,
}

impl Load {
    pub(crate) fn new(host: &Host, stayers: usize) -> Self {
        Self {
            node: (*host.node).clone(),
            plugin: host.plugin.clone(),
            config: host.config(&json!({})),
            sandboxes: (0..THREADS).map(|n| host.pod(&format!("t{n}"))).collect(),
            stayers: Mutex::new((0..stayers).map(|n| host.pod(&format!("stays{n}"))).collect()),
            living: Living::default(),
            over: AtomicBool::new(false),
            cycles: AtomicUsize::new(0),
        }
    }

    /// Runs the load while `work` does what the test is about.
    pub(crate) fn during(self, work: impl FnOnce(&Self)) -> Done {
        let stayed = std::thread::scope(|scope| {
            let this = &self;
            let start = |n| scope.spawn(move || this.run(&this.sandboxes[n], n));
            let threads: Vec<_> = (0..THREADS).map(start).collect();
            // Also if the work fails: or the threads would never end.
            let over = Over(&self.over);
            work(&self);
            drop(over);
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        Done { cycles: self.cycles.into_inner(), stayed }
    }

    pub(crate) fn cycles(&self) -> usize {
        self.cycles.load(Ordering::Relaxed)
    }

    fn run(&self, sandbox: &Pod, thread: usize) -> Vec<(Pod, Value)> {
        let mut stayed = Vec::new();
        // Bounded by what a run of an hour could do.
        for cycle in 0..1_000_000 {
            if self.over.load(Ordering::Acquire) {
                break;
            }
            if cycle % 7 == 3
                && let Some(pod) = self.next_stayer()
            {
                let result = self.added(&Call::pod(Verb::Add, &pod, &self.config));
                stayed.push((pod, result));
            }
            let name = format!("c{thread}-{cycle}");
            let call =
                |verb| Call { container: Some(name.clone()), ..Call::pod(verb, sandbox, &self.config) };
            let result = self.added(&call(Verb::Add));
            assert_eq!(addresses_of(sandbox, "eth0"), ips(&result).into_iter().collect(), "{name}");
            self.living.leave(&result);
            let deleted = self.plugin.call(&self.node, &call(Verb::Del)).unwrap();
            assert!(deleted.success(), "DEL of {name}: {deleted:?}");
            self.wait_gone(sandbox);
            self.cycles.fetch_add(1, Ordering::Relaxed);
        }
        stayed
    }

    fn next_stayer(&self) -> Option<Pod> {
        self.stayers.lock().unwrap().pop()
    }

    fn added(&self, call: &Call) -> Value {
        let outcome = self.plugin.call(&self.node, call).unwrap();
        let name = call.container.as_deref().unwrap();
        let result =
            outcome.ok().unwrap_or_else(|e| panic!("ADD of {name} after {:?}: {e:#}", outcome.elapsed));
        self.living.enter(name, &result);
        result
    }

    /// A DEL that found no agent is served when one is back; a runtime would not use the sandbox again, but we do.
    fn wait_gone(&self, sandbox: &Pod) {
        let gone = || Ok(!inspect::links(sandbox)?.iter().any(|link| link.name == "eth0"));
        wait_until("the pod's link to go", DEADLINE, gone).unwrap();
    }
}

struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}
