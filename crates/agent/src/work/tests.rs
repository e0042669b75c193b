use std::sync::Mutex;
use std::sync::mpsc;
use std::thread;

use api::Tombstones;
use engine::state::{NodeState, StateError};
use netconf::{Addresses, NetConf, Network, NetworkSettings};
use serde_json::{Value, json};
use tempfile::TempDir;
use types::Finding;

use super::*;
use crate::conditions::Source;
use crate::membership::command::MembershipCommand;
use crate::membership::{self, AskError};
use crate::tombstones::DrainReport;
use crate::waker::Waker;
use config::{Config, Flags};

impl Work {
    /// A request that has its place among those about the same attachment.
    fn entered(self: &Arc<Self>, call: CniCall) -> Task {
        let task = self.accept(call).unwrap_or_else(|answer| panic!("{answer:?}"));
        self.enter(task, |task| task)
    }
}

impl Task {
    /// Serves the request, and tells of it.
    fn answer(self) -> Answer {
        let (answer, tell) = self.run(&|| false);
        tell();
        answer
    }
}

const SOON: Duration = Duration::from_secs(60);

/// A stand-in for the engine: notes what it is asked, and for marked containers waits until it is told to go on.
#[derive(Default)]
struct Engine {
    log: Mutex<Vec<String>>,
    gates: Mutex<Vec<Gate>>,
    failing: Mutex<Vec<String>>,
}

/// A request's name, where it tells that it began, and where it hears that it may go on.
type Gate = (String, mpsc::Sender<()>, mpsc::Receiver<()>);

impl Engine {
    fn serve(&self, request: &Request, caller: &Caller<'_>) -> Result<Done, Error> {
        let (verb, container) = match request {
            // The network of the request, as the engine has it.
            Request::Add(call) => {
                NetConf::for_call(call, caller.networks.as_ref())?;
                ("ADD", call.container.as_str())
            }
            Request::Del(call) => ("DEL", call.container.as_str()),
            Request::Gc(_) => ("GC", "-"),
            other => panic!("{other:?}"),
        };
        let name = format!("{verb} {container}");
        let mut gates = self.gates.lock().unwrap();
        let gate = gates.iter().position(|gate| gate.0 == name).map(|i| gates.remove(i));
        drop(gates);
        if let Some((_, begun, go)) = gate {
            begun.send(()).unwrap();
            go.recv_timeout(SOON).unwrap();
        }
        if self.failing.lock().unwrap().contains(&name) {
            return Err(Error::new(ErrorCode::Kernel, format!("{name}: on purpose")));
        }
        if (caller.cancelled)() {
            self.log.lock().unwrap().push(format!("{name} undone"));
            return Err(Error::new(ErrorCode::TryAgainLater, "cancelled"));
        }
        self.log.lock().unwrap().push(name);
        Ok(Done::default())
    }

    /// The next such request tells when it begins, and waits.
    fn gate(&self, name: &str) -> (mpsc::Receiver<()>, mpsc::Sender<()>) {
        let ((begun, observed), (go, gone)) = (mpsc::channel(), mpsc::channel());
        self.gates.lock().unwrap().push((name.to_owned(), begun, gone));
        (observed, go)
    }

    fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }
}

struct Site {
    dir: TempDir,
    engine: Arc<Engine>,
    agent_status: Arc<AgentStatus>,
    allocations: Arc<NodeAllocations>,
    work: Arc<Work>,
}

/// A node with some blocks for each of several nodes.
fn config(dir: &std::path::Path) -> Config {
    let mut config = Config::load(&Flags::default(), Vec::new()).unwrap();
    (config.run_dir, config.cluster.margin) = (dir.to_owned(), 8);
    config
}

impl WorkParts {
    /// What stands beside a service in tests. Nothing answers requests for blocks.
    pub(crate) fn alone(
        settings: RequestSettings,
        agent_status: &Arc<AgentStatus>,
        allocations: &Arc<NodeAllocations>,
    ) -> Self {
        let config = Config::load(&Flags::default(), Vec::new()).unwrap();
        Self {
            settings,
            agent_status: Arc::clone(agent_status),
            metrics: Arc::new(Metrics::new()),
            allocations: Arc::clone(allocations),
            blocks: BlockRequests::new(&config, Arc::clone(allocations), membership::commands().0),
            reconciler: ReconcileRequests::new(Waker::new().unwrap()),
        }
    }
}

fn settings(dir: &std::path::Path) -> RequestSettings {
    RequestSettings {
        run_dir: dir.to_owned(),
        network: "podwire".try_into().unwrap(),
        mode: AttachMode::Routed,
        delegates: AllowedDelegates::default(),
    }
}

fn work_in(
    dir: &std::path::Path,
    agent_status: &Arc<AgentStatus>,
    allocations: &Arc<NodeAllocations>,
    serve: Box<Serve>,
) -> Arc<Work> {
    Arc::new(Work::new(WorkParts::alone(settings(dir), agent_status, allocations)).with_engine(serve))
}

impl Site {
    fn new() -> Self {
        let (dir, engine) = (TempDir::new().unwrap(), Arc::new(Engine::default()));
        let agent_status = Arc::new(AgentStatus::new());
        agent_status.set_started();
        let served = Arc::clone(&engine);
        let serve: Box<Serve> = Box::new(move |request, caller| served.serve(request, caller));
        let allocations = Arc::new(NodeAllocations::none("no block yet", Vec::new()));
        allocations.set(owning("10.9.0.0/24"));
        let work = work_in(dir.path(), &agent_status, &allocations, serve);
        Self { dir, engine, agent_status, allocations, work }
    }

    /// From now on this is the engine.
    fn serve_by(&mut self, serve: Box<Serve>) {
        self.work = work_in(self.dir.path(), &self.agent_status, &self.allocations, serve);
    }

    /// Requests for blocks, and where they arrive.
    fn block_requests(&self) -> (BlockRequests, tokio::sync::mpsc::Receiver<MembershipCommand>) {
        let (commands, asked) = membership::commands();
        let state = NodeState::open(self.dir.path()).unwrap();
        state.network(&"podwire".try_into().unwrap(), || Ok::<_, StateError>(Vec::new())).unwrap();
        (BlockRequests::new(&config(self.dir.path()), Arc::clone(&self.allocations), commands), asked)
    }

    fn work_with(&self, blocks: BlockRequests, serve: Box<Serve>) -> Arc<Work> {
        let parts = WorkParts {
            blocks,
            ..WorkParts::alone(settings(self.dir.path()), &self.agent_status, &self.allocations)
        };
        Arc::new(Work::new(parts).with_engine(serve))
    }

    fn tombstone_files(&self) -> Tombstones {
        Tombstones::new(self.dir.path())
    }

    fn leave(&self, container: &str) {
        self.tombstone_files().leave(&call("DEL", container), &key(container)).unwrap();
    }

    fn accept(&self, verb: &str, container: &str) -> Task {
        self.work.entered(call(verb, container))
    }

    fn run(&self, verb: &str, container: &str) -> Answer {
        self.accept(verb, container).answer()
    }
}

fn key(container: &str) -> AttachmentKey {
    AttachmentKey {
        network: "podwire".try_into().unwrap(),
        container: container.try_into().unwrap(),
        ifname: "eth0".try_into().unwrap(),
    }
}

fn call(verb: &str, container: &str) -> CniCall {
    let env = [
        ("CNI_COMMAND", verb),
        ("CNI_CONTAINERID", container),
        ("CNI_NETNS", "/run/netns/x"),
        ("CNI_IFNAME", "eth0"),
        ("CNI_PATH", "/opt/cni/bin"),
    ];
    let config = json!({ "cniVersion": "1.1.0", "name": "podwire", "type": "podwire-cni",
                         "cni.dev/valid-attachments": [] });
    CniCall {
        request_id: RequestId::from_random([1; 16]),
        env: env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
        config: config.to_string(),
    }
}

fn error(answer: Answer) -> Error {
    match answer {
        Answer::Done(done) => panic!("{done:?}"),
        Answer::Failed(failure) | Answer::Unavailable(failure) => failure.error,
    }
}

#[test]
fn a_client_that_hung_up_before_the_start_is_not_served() {
    let site = Site::new();
    let task = site.accept("ADD", "a");
    drop(task.line());
    assert_eq!(error(task.answer()).code, ErrorCode::TryAgainLater);
    assert!(site.engine.log().is_empty());
}

/// The pod is to be removed, and the runtime may not come again.
#[test]
fn a_del_is_served_whether_its_client_waits_or_not() {
    let site = Site::new();
    let (begun, go) = site.engine.gate("ADD a");
    let add = site.accept("ADD", "a");
    let adding = thread::spawn(move || add.answer());
    begun.recv_timeout(SOON).unwrap();
    // It waits for its place, and its client is gone.
    let del = site.accept("DEL", "a");
    drop(del.line());
    let deleting = thread::spawn(move || del.run(&|| true).0);
    go.send(()).unwrap();
    assert!(matches!(adding.join().unwrap(), Answer::Failed(_)));
    let deleted = deleting.join().unwrap();
    assert!(matches!(deleted, Answer::Done(_)), "{deleted:?}");
    assert_eq!(site.engine.log(), ["ADD a undone", "DEL a"]);
}

/// While it waited for its turn nobody looked after its connection.
#[test]
fn a_client_that_hung_up_while_it_waited_is_not_served() {
    let site = Site::new();
    let (begun, go) = site.engine.gate("ADD a");
    let (first, second) = (site.accept("ADD", "a"), site.accept("ADD", "a"));
    let running = thread::spawn(move || first.answer());
    begun.recv_timeout(SOON).unwrap();
    let waiting = thread::spawn(move || second.run(&|| true).0);
    go.send(()).unwrap();
    assert!(matches!(running.join().unwrap(), Answer::Done(_)));
    assert!(error(waiting.join().unwrap()).msg.contains("hung up before the work began"));
    assert_eq!(site.engine.log(), ["ADD a"]);
}

#[test]
fn a_client_that_hangs_up_before_the_commit_is_undone() {
    let site = Site::new();
    let (begun, go) = site.engine.gate("ADD a");
    let task = site.accept("ADD", "a");
    let line = task.line();
    let running = thread::spawn(move || task.answer());
    begun.recv_timeout(SOON).unwrap();
    drop(line);
    go.send(()).unwrap();
    assert_eq!(error(running.join().unwrap()).code, ErrorCode::TryAgainLater);
    assert_eq!(site.engine.log(), ["ADD a undone"]);
}

#[test]
fn a_del_cancels_the_add_in_flight_and_runs_after_it() {
    let site = Site::new();
    let (begun, go) = site.engine.gate("ADD a");
    let add = site.accept("ADD", "a");
    let adding = thread::spawn(move || add.answer());
    begun.recv_timeout(SOON).unwrap();
    let del = site.accept("DEL", "a");
    let deleting = thread::spawn(move || del.answer());
    go.send(()).unwrap();
    assert_eq!(error(adding.join().unwrap()).code, ErrorCode::TryAgainLater);
    assert!(matches!(deleting.join().unwrap(), Answer::Done(_)));
    assert_eq!(site.engine.log(), ["ADD a undone", "DEL a"]);
}

#[test]
fn a_del_cancels_the_add_that_still_waits_and_does_not_wait_for_it() {
    let site = Site::new();
    let (add, del) = (site.accept("ADD", "a"), site.accept("DEL", "a"));
    assert!(matches!(del.answer(), Answer::Done(_)));
    assert!(error(add.answer()).msg.contains("a DEL of the same attachment"));
    assert!(matches!(site.run("ADD", "a"), Answer::Done(_)));
    assert_eq!(site.engine.log(), ["DEL a", "ADD a"]);
}

#[test]
fn tombstones_are_drained_before_an_add_or_a_gc() {
    for (verb, last) in [("ADD", "ADD c"), ("GC", "GC -")] {
        let site = Site::new();
        site.leave("a");
        site.leave("b");
        assert!(matches!(site.run(verb, "c"), Answer::Done(_)));
        let mut log = site.engine.log();
        assert_eq!(log.pop().as_deref(), Some(last));
        log.sort();
        assert_eq!(log, ["DEL a", "DEL b"]);
        assert!(site.tombstone_files().is_empty().unwrap());
    }
}

#[test]
fn an_add_of_the_same_key_comes_after_its_tombstone_and_succeeds() {
    let site = Site::new();
    site.leave("a");
    assert!(matches!(site.run("ADD", "a"), Answer::Done(_)));
    assert_eq!(site.engine.log(), ["DEL a", "ADD a"]);
}

#[test]
fn a_tombstone_cancels_the_add_in_flight() {
    let site = Site::new();
    let (begun, go) = site.engine.gate("ADD a");
    let add = site.accept("ADD", "a");
    let adding = thread::spawn(move || add.answer());
    begun.recv_timeout(SOON).unwrap();
    site.leave("a");
    go.send(()).unwrap();
    assert_eq!(error(adding.join().unwrap()).code, ErrorCode::TryAgainLater);
    // By the one that was in its way.
    assert!(site.tombstone_files().is_empty().unwrap());
    assert_eq!(site.engine.log(), ["ADD a undone", "DEL a"]);
}

/// An ADD whose IPAM plugin hangs, and then a DEL of it that nobody could take.
#[test]
fn a_request_that_hangs_holds_nobody_but_those_of_its_own_key() {
    let site = Site::new();
    let (begun, go) = site.engine.gate("ADD a");
    let add = site.accept("ADD", "a");
    let adding = thread::spawn(move || add.answer());
    begun.recv_timeout(SOON).unwrap();
    site.leave("a");
    let report = site.work.drain_tombstones();
    assert_eq!(report, DrainReport { pending: 1, ..DrainReport::default() });
    assert!(matches!(site.run("ADD", "b"), Answer::Done(_)));
    assert!(matches!(site.run("GC", "b"), Answer::Done(_)));
    assert_eq!(site.engine.log(), ["ADD b", "GC -"]);
    assert!(site.tombstone_files().exists(&key("a")).unwrap() && site.agent_status.conditions().is_empty());
    // The next one of the same key waits, and finds nothing of the first.
    let next = site.accept("ADD", "a");
    let waiting = thread::spawn(move || next.answer());
    go.send(()).unwrap();
    assert_eq!(error(adding.join().unwrap()).code, ErrorCode::TryAgainLater);
    assert!(matches!(waiting.join().unwrap(), Answer::Done(_)));
    assert_eq!(site.engine.log(), ["ADD b", "GC -", "ADD a undone", "DEL a", "ADD a"]);
    assert!(site.tombstone_files().is_empty().unwrap());
}

/// It is the DEL itself that hangs.
#[test]
fn a_tombstone_that_takes_long_holds_nobody_but_those_of_its_own_key() {
    let site = Site::new();
    let (begun, go) = site.engine.gate("DEL a");
    site.leave("a");
    let other = site.accept("ADD", "b");
    let adding = thread::spawn(move || other.answer());
    begun.recv_timeout(SOON).unwrap();
    assert!(matches!(adding.join().unwrap(), Answer::Done(_)));
    assert_eq!(site.work.drain_tombstones().pending, 1);
    let same = site.accept("ADD", "a");
    let waiting = thread::spawn(move || same.answer());
    go.send(()).unwrap();
    assert!(matches!(waiting.join().unwrap(), Answer::Done(_)));
    assert_eq!(site.engine.log(), ["ADD b", "DEL a", "ADD a"]);
}

#[test]
fn a_tombstone_that_fails_stays_and_stops_only_its_own_key() {
    let site = Site::new();
    site.engine.failing.lock().unwrap().push("DEL a".to_owned());
    site.leave("a");
    assert!(matches!(site.run("ADD", "b"), Answer::Done(_)));
    let refused = error(site.run("ADD", "a"));
    assert_eq!(refused.code, ErrorCode::TryAgainLater);
    assert!(refused.msg.contains("DEL a: on purpose"), "{refused}");
    assert!(site.tombstone_files().exists(&key("a")).unwrap());
    assert!(
        site.agent_status.conditions()[0].message.contains("on purpose"),
        "{:?}",
        site.agent_status.conditions()
    );
    assert_eq!(site.work.drain_tombstones().failed.len(), 1);
    site.engine.failing.lock().unwrap().clear();
    assert_eq!(site.work.drain_tombstones().drained, 1);
    assert!(site.agent_status.conditions().is_empty());
    assert!(matches!(site.run("ADD", "a"), Answer::Done(_)));
    assert_eq!(site.engine.log(), ["ADD b", "DEL a", "ADD a"]);
}

#[test]
fn an_unreadable_tombstone_is_put_aside_and_reported() {
    let site = Site::new();
    site.leave("a");
    let path = std::fs::read_dir(site.tombstone_files().dir()).unwrap().next().unwrap().unwrap().path();
    std::fs::write(&path, "{").unwrap();
    assert!(matches!(site.run("ADD", "b"), Answer::Done(_)));
    assert!(site.tombstone_files().is_empty().unwrap());
    let problem = &site.agent_status.conditions()[0];
    let command = problem.fix.as_deref().unwrap();
    assert!(command.starts_with("rm ") && std::path::Path::new(&command[3..]).exists(), "{command}");
    assert_eq!(site.engine.log(), ["ADD b"]);
}

#[test]
fn a_tombstone_that_its_own_del_leaves_is_put_aside() {
    let mut site = Site::new();
    let (tombstone_files, engine) = (site.tombstone_files(), Arc::clone(&site.engine));
    // As an IPAM plugin that asks for the same DEL and cannot wait for it.
    site.serve_by(Box::new(move |request, caller| {
        if let Request::Del(asked) = request {
            tombstone_files.leave(&call("DEL", asked.container.as_str()), &asked.key()).unwrap();
        }
        engine.serve(request, caller)
    }));
    assert!(matches!(site.run("DEL", "a"), Answer::Done(_)));
    for _ in 0..10 {
        site.work.drain_tombstones();
    }
    assert!(site.tombstone_files().is_empty().unwrap());
    assert_eq!(site.engine.log(), ["DEL a"; 4], "the runtime's one, and three of the tombstone");
    let problems = site.agent_status.conditions();
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(problems[0].message.contains("does its ipam.type run Podwire"), "{problems:?}");
    assert!(problems[0].fix.as_deref().is_some_and(|c| c.starts_with("rm ")), "{problems:?}");
    assert!(matches!(site.run("ADD", "a"), Answer::Done(_)), "it blocks no ADD");
}

#[test]
fn a_tombstone_with_the_mark_of_delegates_is_put_aside() {
    let site = Site::new();
    let mut marked = call("DEL", "a");
    marked.env.insert("CNI_PODWIRE_DELEGATED".to_owned(), "1".to_owned());
    let Err(Answer::Failed(failure)) = site.work.accept(marked.clone()) else { panic!() };
    assert_eq!(failure.error.code, ErrorCode::InvalidConfig);
    site.tombstone_files().leave(&marked, &key("a")).unwrap();
    assert!(matches!(site.run("ADD", "b"), Answer::Done(_)));
    assert!(site.tombstone_files().is_empty().unwrap());
    assert!(
        site.agent_status.conditions()[0].message.contains("leads back to Podwire"),
        "{:?}",
        site.agent_status.conditions()
    );
    assert_eq!(site.engine.log(), ["ADD b"], "nothing of it was served");
}

#[test]
fn many_adds_drain_each_tombstone_once() {
    let site = Site::new();
    (0..50).for_each(|n| site.leave(&format!("old{n}")));
    let adds: Vec<_> = (0..16)
        .map(|n| {
            let add = site.accept("ADD", &format!("new{n}"));
            thread::spawn(move || add.answer())
        })
        .collect();
    for add in adds {
        assert!(matches!(add.join().unwrap(), Answer::Done(_)));
    }
    let log = site.engine.log();
    let last_del = log.iter().rposition(|line| line.starts_with("DEL")).unwrap();
    let first_add = log.iter().position(|line| line.starts_with("ADD")).unwrap();
    assert!(last_del < first_add, "{log:?}");
    assert_eq!((log.len(), last_del), (66, 49), "{log:?}");
}

#[test]
fn not_ready_is_told_and_a_del_is_served_nevertheless() {
    let site = Site::new();
    let found = Finding::new(types::Code::BridgeNameTaken, "link podwire0", "it is a dummy");
    site.agent_status.set(Source::Reconcile, vec![found.fix("ip link del podwire0")]);
    for (verb, code) in [("ADD", ErrorCode::TryAgainLater), ("STATUS", ErrorCode::NotAvailable)] {
        let Err(Answer::Unavailable(failure)) = site.work.accept(call(verb, "a")) else { panic!("{verb}") };
        assert_eq!(failure.error.code, code, "{verb}");
        assert_eq!(failure.error.msg, "the agent is not ready: it is a dummy");
        assert_eq!(failure.error.details, "BridgeNameTaken: ip link del podwire0");
    }
    assert!(matches!(site.run("DEL", "a"), Answer::Done(_)));
    assert!(matches!(site.run("GC", "a"), Answer::Done(_)), "it may free what is missing");
    // A runtime that sends a pod has the files, whatever became of them since.
    let found = Finding::new(types::Code::InstallIncomplete, "file a", "it is missing");
    site.agent_status.set(Source::Reconcile, vec![found]);
    assert!(site.work.accept(call("ADD", "a")).is_ok());
    assert!(matches!(site.work.accept(call("STATUS", "a")), Err(Answer::Unavailable(_))));
    site.agent_status.set_stopping();
    assert!(matches!(site.work.accept(call("GC", "a")), Err(Answer::Unavailable(_))));
}

#[test]
fn a_call_that_makes_no_sense_is_answered_at_once() {
    let site = Site::new();
    let Err(Answer::Failed(failure)) = site.work.accept(call("JUMP", "a")) else { panic!() };
    assert_eq!(failure.error.code, ErrorCode::InvalidEnvironment);
}

/// The allocation of a node that owns this block of 10.9.0.0/16.
fn owning(block: &str) -> NodeAllocation {
    let settings = NetworkSettings {
        name: "podwire".try_into().unwrap(),
        mode: AttachMode::Routed,
        bridge: "pw0".try_into().unwrap(),
        subnets: vec!["10.9.0.0/16".parse().unwrap()],
        mtu: None,
        connections_per_pod: None,
        masquerade: true,
    };
    let network = Network::new(&settings, vec![block.parse().unwrap()], None).unwrap();
    NodeAllocation::of_default(Arc::new(network))
}

#[test]
fn a_node_without_blocks_gives_no_address_also_to_requests_that_came_before() {
    let site = Site::new();
    let early = site.accept("ADD", "early");
    site.allocations.withdraw("its name belongs to another machine");
    for task in [early, site.accept("ADD", "late")] {
        let error = error(task.answer());
        assert_eq!(error.code, ErrorCode::TryAgainLater);
        assert!(error.msg.contains("belongs to another machine"), "{error}");
    }
    assert!(matches!(site.run("DEL", "early"), Answer::Done(_)));
    assert_eq!(site.engine.log(), ["DEL early"]);
    site.allocations.set(owning("10.9.1.0/24"));
    assert!(matches!(site.run("ADD", "again"), Answer::Done(_)));
}

/// The subnets that a request's addresses come from.
fn subnets(request: &Request, caller: &Caller<'_>) -> Vec<String> {
    let Request::Add(call) = request else { panic!("{request:?}") };
    let Addresses::Own(pools) = NetConf::for_call(call, caller.networks.as_ref()).unwrap().addresses else {
        panic!("{request:?}")
    };
    pools.sets().iter().flat_map(ipam::RangeSet::ranges).map(|range| range.subnet().to_string()).collect()
}

#[test]
fn a_request_gets_addresses_of_the_blocks_at_the_time_it_is_served() {
    let mut site = Site::new();
    let served = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&served);
    site.serve_by(Box::new(move |request, caller| {
        log.lock().unwrap().extend(subnets(request, caller));
        Ok(Done::default())
    }));
    let early = site.work.entered(call("ADD", "c1"));
    site.allocations.set(owning("10.9.1.0/24"));
    assert!(matches!(early.answer(), Answer::Done(_)));
    assert_eq!(*served.lock().unwrap(), ["10.9.1.0/24"]);
}

#[test]
fn a_full_node_serves_the_request_again_with_another_block_unless_the_config_has_ranges() {
    let ranges = json!({ "ranges": [[{ "subnet": "10.77.0.0/24" }]] });
    for (key, value, wanted) in [
        ("mtu", json!(1400), vec!["10.9.0.0/24", "10.9.1.0/24"]),
        ("ipam", json!({}), vec!["10.9.0.0/24", "10.9.1.0/24"]),
        ("subnet", json!("10.77.0.0/24"), vec!["10.77.0.0/24"]),
        ("ipam", ranges, vec!["10.77.0.0/24"]),
    ] {
        let site = Site::new();
        let served = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&served);
        let serve: Box<Serve> = Box::new(move |request, caller| {
            let mut log = log.lock().unwrap();
            log.extend(subnets(request, caller));
            match log.len() {
                1 => Err(Error::new(ErrorCode::AddressesExhausted, "no free address left")),
                _ => Ok(Done::default()),
            }
        });
        let (blocks, mut asked) = site.block_requests();
        let allocations = Arc::clone(&site.allocations);
        let store = thread::spawn(move || {
            let Some(MembershipCommand::Grow(wish)) = asked.blocking_recv() else { return };
            allocations.set(owning("10.9.1.0/24"));
            wish.answer(Ok(()));
        });
        let work = site.work_with(blocks, serve);
        let mut call = call("ADD", "c1");
        let mut config: Value = serde_json::from_str(&call.config).unwrap();
        config[key] = value;
        call.config = config.to_string();
        let answer = work.entered(call).answer();
        assert_eq!(matches!(answer, Answer::Done(_)), wanted.len() == 2, "{config}: {answer:?}");
        assert_eq!(*served.lock().unwrap(), wanted, "{config}");
        // Without it no request can come any more.
        drop(work);
        store.join().unwrap();
    }
}

#[test]
fn a_full_node_says_why_it_gets_no_other_block() {
    let site = Site::new();
    let full = |_: &Request, _: &Caller<'_>| {
        Err(Error::new(ErrorCode::AddressesExhausted, "no free address left").with_details("5 in use"))
    };
    let (blocks, mut asked) = site.block_requests();
    let store = thread::spawn(move || {
        let command = asked.blocking_recv().unwrap();
        command.refuse(AskError::Unreachable("etcd at http://a:2379 cannot be reached".to_owned()));
    });
    let work = site.work_with(blocks, Box::new(full));
    let task = work.entered(call("ADD", "c1"));
    let error = error(task.answer());
    assert_eq!(error.code, ErrorCode::AddressesExhausted);
    for part in ["5 in use", "no other block: etcd at http://a:2379 cannot be reached"] {
        assert!(error.details.contains(part), "{error:?}");
    }
    store.join().unwrap();
}

#[test]
fn adds_that_call_an_ipam_plugin_have_a_class_of_their_own() {
    let site = Site::new();
    let with_ipam = |ipam: Value| {
        let mut call = call("ADD", "a");
        let mut config: Value = serde_json::from_str(&call.config).unwrap();
        config["ipam"] = ipam;
        call.config = config.to_string();
        call
    };
    for (call, class) in [
        (call("ADD", "a"), RequestClass::Add),
        (with_ipam(json!({"type": "slow"})), RequestClass::DelegatedAdd),
        (call("DEL", "a"), RequestClass::Del),
    ] {
        let config = call.config.clone();
        assert_eq!(site.work.accept(call).ok().unwrap().class(), class, "{config}");
    }
}

/// A node with thousands of pods must not be inspected after each DEL until the last differing pod is restarted.
#[test]
fn f1_only_a_pod_that_differs_wakes_the_reconciler_when_it_leaves() {
    let site = Site::new();
    let removed = |request: &Request, _: &Caller<'_>| {
        let Request::Del(call) = request else { panic!("{request:?}") };
        let mode = match call.container.as_str() {
            "bridged" => Some(AttachMode::Bridge),
            "routed" => Some(AttachMode::Routed),
            _ => None,
        };
        Ok(Done { mode, ..Done::default() })
    };
    let work = work_in(site.dir.path(), &site.agent_status, &site.allocations, Box::new(removed));
    let wakes = |container: &str| {
        assert!(matches!(work.entered(call("DEL", container)).answer(), Answer::Done(_)));
        work.reconciler.take().fault
    };
    assert_eq!(["bridged", "routed", "gone"].map(wakes), [false; 3], "there is no such condition");
    let found = Finding::new(types::Code::PodModeDiffers, "network podwire", "1 pod is in mode bridge");
    site.agent_status.set(Source::Reconcile, vec![found]);
    assert_eq!(["bridged", "routed", "gone"].map(wakes), [true, false, false]);
}
