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
    /// A parsed request that has joined the queue of its attachment.
    fn enter_call(self: &Arc<Self>, call: CniCall) -> Task {
        let task = self.accept(call).unwrap_or_else(|answer| panic!("{answer:?}"));
        self.enter(task, |task| task)
    }
}

impl Task {
    /// Serves the request and reports it.
    fn answer(self) -> Answer {
        let (answer, report) = self.run(&|| false);
        report();
        answer
    }
}

const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Replaces the engine: records the requests, and blocks those that a test pauses.
#[derive(Default)]
struct Engine {
    log: Mutex<Vec<String>>,
    paused: Mutex<Vec<PausedRequest>>,
    failing: Mutex<Vec<String>>,
}

/// The name of a paused request, a sender that reports its start, and a receiver that resumes it.
type PausedRequest = (String, mpsc::Sender<()>, mpsc::Receiver<()>);

impl Engine {
    fn serve(&self, request: &Request, caller: &Caller<'_>) -> Result<Done, Error> {
        let (verb, container) = match request {
            // Checks the network of the request, as the engine does.
            Request::Add(call) => {
                NetConf::for_call(call, caller.networks.as_ref())?;
                ("ADD", call.container.as_str())
            }
            Request::Del(call) => ("DEL", call.container.as_str()),
            Request::Gc(_) => ("GC", "-"),
            request => panic!("{request:?}"),
        };
        let name = format!("{verb} {container}");
        let mut paused = self.paused.lock().unwrap();
        let pause = paused.iter().position(|pause| pause.0 == name).map(|i| paused.remove(i));
        drop(paused);
        if let Some((_, started, resume)) = pause {
            started.send(()).unwrap();
            resume.recv_timeout(TEST_TIMEOUT).unwrap();
        }
        if self.failing.lock().unwrap().contains(&name) {
            return Err(Error::new(ErrorCode::Kernel, format!("{name}: injected failure")));
        }
        if (caller.cancelled)() {
            self.log.lock().unwrap().push(format!("{name} undone"));
            return Err(Error::new(ErrorCode::TryAgainLater, "cancelled"));
        }
        self.log.lock().unwrap().push(name);
        Ok(Done::default())
    }

    /// Pauses the next request of this name. Returns a receiver for its start and a sender that resumes it.
    fn pause(&self, name: &str) -> (mpsc::Receiver<()>, mpsc::Sender<()>) {
        let ((started, started_receiver), (resume, resume_receiver)) = (mpsc::channel(), mpsc::channel());
        self.paused.lock().unwrap().push((name.to_owned(), started, resume_receiver));
        (started_receiver, resume)
    }

    fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }
}

struct Fixture {
    dir: TempDir,
    engine: Arc<Engine>,
    agent_status: Arc<AgentStatus>,
    allocations: Arc<NodeAllocations>,
    work: Arc<Work>,
}

/// A config in which the subnets of the network are divided into blocks, so the node can request another one.
fn config(dir: &std::path::Path) -> Config {
    let mut config = Config::load(&Flags::default(), Vec::new()).unwrap();
    (config.run_dir, config.cluster.margin) = (dir.to_owned(), 8);
    config
}

impl WorkParts {
    /// Parts without a store: requests for blocks get no answer.
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
            policies: Arc::new(Policies::new(
                "n1".try_into().unwrap(),
                Waker::new().unwrap(),
                Arc::clone(agent_status),
            )),
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

impl Fixture {
    fn new() -> Self {
        let (dir, engine) = (TempDir::new().unwrap(), Arc::new(Engine::default()));
        let agent_status = Arc::new(AgentStatus::new());
        agent_status.set_started();
        let served = Arc::clone(&engine);
        let serve: Box<Serve> = Box::new(move |request, caller| served.serve(request, caller));
        let allocations = Arc::new(NodeAllocations::none("no block yet", Vec::new()));
        set_only_block(&allocations, "10.9.0.0/24");
        let work = work_in(dir.path(), &agent_status, &allocations, serve);
        Self { dir, engine, agent_status, allocations, work }
    }

    /// Replaces the engine.
    fn serve_by(&mut self, serve: Box<Serve>) {
        self.work = work_in(self.dir.path(), &self.agent_status, &self.allocations, serve);
    }

    /// Requests for blocks, and the receiver of their commands.
    fn block_requests(&self) -> (BlockRequests, tokio::sync::mpsc::Receiver<MembershipCommand>) {
        let (commands, received) = membership::commands();
        let state = NodeState::open(self.dir.path()).unwrap();
        state.network(&"podwire".try_into().unwrap(), || Ok::<_, StateError>(Vec::new())).unwrap();
        (BlockRequests::new(&config(self.dir.path()), Arc::clone(&self.allocations), commands), received)
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

    fn write_tombstone(&self, container: &str) {
        self.tombstone_files().write(&call("DEL", container), &key(container)).unwrap();
    }

    fn accept(&self, verb: &str, container: &str) -> Task {
        self.work.enter_call(call(verb, container))
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
    let fixture = Fixture::new();
    let task = fixture.accept("ADD", "a");
    drop(task.client_guard());
    assert_eq!(error(task.answer()).code, ErrorCode::TryAgainLater);
    assert!(fixture.engine.log().is_empty());
}

/// The pod has to be removed, and the runtime may not retry.
#[test]
fn a_del_is_served_after_its_client_hung_up() {
    let fixture = Fixture::new();
    let (started, resume) = fixture.engine.pause("ADD a");
    let add = fixture.accept("ADD", "a");
    let adding = thread::spawn(move || add.answer());
    started.recv_timeout(TEST_TIMEOUT).unwrap();
    // The DEL waits for the ADD, and its client has hung up.
    let del = fixture.accept("DEL", "a");
    drop(del.client_guard());
    let deleting = thread::spawn(move || del.run(&|| true).0);
    resume.send(()).unwrap();
    assert!(matches!(adding.join().unwrap(), Answer::Failed(_)));
    let deleted = deleting.join().unwrap();
    assert!(matches!(deleted, Answer::Done(_)), "{deleted:?}");
    assert_eq!(fixture.engine.log(), ["ADD a undone", "DEL a"]);
}

/// No code watches the connection while the request waits for an earlier one of its attachment.
#[test]
fn a_client_that_hung_up_while_waiting_is_not_served() {
    let fixture = Fixture::new();
    let (started, resume) = fixture.engine.pause("ADD a");
    let (first, second) = (fixture.accept("ADD", "a"), fixture.accept("ADD", "a"));
    let running = thread::spawn(move || first.answer());
    started.recv_timeout(TEST_TIMEOUT).unwrap();
    let waiting = thread::spawn(move || second.run(&|| true).0);
    resume.send(()).unwrap();
    assert!(matches!(running.join().unwrap(), Answer::Done(_)));
    assert!(error(waiting.join().unwrap()).msg.contains("hung up before the request was served"));
    assert_eq!(fixture.engine.log(), ["ADD a"]);
}

#[test]
fn an_add_is_undone_if_its_client_hangs_up_before_the_commit() {
    let fixture = Fixture::new();
    let (started, resume) = fixture.engine.pause("ADD a");
    let task = fixture.accept("ADD", "a");
    let guard = task.client_guard();
    let running = thread::spawn(move || task.answer());
    started.recv_timeout(TEST_TIMEOUT).unwrap();
    drop(guard);
    resume.send(()).unwrap();
    assert_eq!(error(running.join().unwrap()).code, ErrorCode::TryAgainLater);
    assert_eq!(fixture.engine.log(), ["ADD a undone"]);
}

#[test]
fn a_del_cancels_the_add_in_flight_and_runs_after_it() {
    let fixture = Fixture::new();
    let (started, resume) = fixture.engine.pause("ADD a");
    let add = fixture.accept("ADD", "a");
    let adding = thread::spawn(move || add.answer());
    started.recv_timeout(TEST_TIMEOUT).unwrap();
    let del = fixture.accept("DEL", "a");
    let deleting = thread::spawn(move || del.answer());
    resume.send(()).unwrap();
    assert_eq!(error(adding.join().unwrap()).code, ErrorCode::TryAgainLater);
    assert!(matches!(deleting.join().unwrap(), Answer::Done(_)));
    assert_eq!(fixture.engine.log(), ["ADD a undone", "DEL a"]);
}

#[test]
fn a_del_cancels_a_waiting_add_and_runs_first() {
    let fixture = Fixture::new();
    let (add, del) = (fixture.accept("ADD", "a"), fixture.accept("DEL", "a"));
    assert!(matches!(del.answer(), Answer::Done(_)));
    assert!(error(add.answer()).msg.contains("a DEL of the same attachment"));
    assert!(matches!(fixture.run("ADD", "a"), Answer::Done(_)));
    assert_eq!(fixture.engine.log(), ["DEL a", "ADD a"]);
}

#[test]
fn tombstones_are_drained_before_an_add_or_a_gc() {
    for (verb, last) in [("ADD", "ADD c"), ("GC", "GC -")] {
        let fixture = Fixture::new();
        fixture.write_tombstone("a");
        fixture.write_tombstone("b");
        assert!(matches!(fixture.run(verb, "c"), Answer::Done(_)));
        let mut log = fixture.engine.log();
        assert_eq!(log.pop().as_deref(), Some(last));
        log.sort();
        assert_eq!(log, ["DEL a", "DEL b"]);
        assert!(fixture.tombstone_files().is_empty().unwrap());
    }
}

#[test]
fn an_add_succeeds_after_the_tombstone_of_its_attachment() {
    let fixture = Fixture::new();
    fixture.write_tombstone("a");
    assert!(matches!(fixture.run("ADD", "a"), Answer::Done(_)));
    assert_eq!(fixture.engine.log(), ["DEL a", "ADD a"]);
}

#[test]
fn a_tombstone_cancels_the_add_in_flight() {
    let fixture = Fixture::new();
    let (started, resume) = fixture.engine.pause("ADD a");
    let add = fixture.accept("ADD", "a");
    let adding = thread::spawn(move || add.answer());
    started.recv_timeout(TEST_TIMEOUT).unwrap();
    fixture.write_tombstone("a");
    resume.send(()).unwrap();
    assert_eq!(error(adding.join().unwrap()).code, ErrorCode::TryAgainLater);
    // Served by the ADD that it cancelled.
    assert!(fixture.tombstone_files().is_empty().unwrap());
    assert_eq!(fixture.engine.log(), ["ADD a undone", "DEL a"]);
}

/// An ADD with a hanging IPAM plugin, and then a tombstone of the same attachment.
#[test]
fn a_hanging_request_blocks_only_its_attachment() {
    let fixture = Fixture::new();
    let (started, resume) = fixture.engine.pause("ADD a");
    let add = fixture.accept("ADD", "a");
    let adding = thread::spawn(move || add.answer());
    started.recv_timeout(TEST_TIMEOUT).unwrap();
    fixture.write_tombstone("a");
    let report = fixture.work.drain_tombstones();
    assert_eq!(report, DrainReport { pending: 1, ..DrainReport::default() });
    assert!(matches!(fixture.run("ADD", "b"), Answer::Done(_)));
    assert!(matches!(fixture.run("GC", "b"), Answer::Done(_)));
    assert_eq!(fixture.engine.log(), ["ADD b", "GC -"]);
    assert!(
        fixture.tombstone_files().exists(&key("a")).unwrap() && fixture.agent_status.conditions().is_empty()
    );
    // The next ADD of the attachment waits, and finds no state of the first one.
    let next = fixture.accept("ADD", "a");
    let waiting = thread::spawn(move || next.answer());
    resume.send(()).unwrap();
    assert_eq!(error(adding.join().unwrap()).code, ErrorCode::TryAgainLater);
    assert!(matches!(waiting.join().unwrap(), Answer::Done(_)));
    assert_eq!(fixture.engine.log(), ["ADD b", "GC -", "ADD a undone", "DEL a", "ADD a"]);
    assert!(fixture.tombstone_files().is_empty().unwrap());
}

/// The DEL of the tombstone hangs.
#[test]
fn a_hanging_tombstone_blocks_only_its_attachment() {
    let fixture = Fixture::new();
    let (started, resume) = fixture.engine.pause("DEL a");
    fixture.write_tombstone("a");
    let other = fixture.accept("ADD", "b");
    let adding = thread::spawn(move || other.answer());
    started.recv_timeout(TEST_TIMEOUT).unwrap();
    assert!(matches!(adding.join().unwrap(), Answer::Done(_)));
    assert_eq!(fixture.work.drain_tombstones().pending, 1);
    let same = fixture.accept("ADD", "a");
    let waiting = thread::spawn(move || same.answer());
    resume.send(()).unwrap();
    assert!(matches!(waiting.join().unwrap(), Answer::Done(_)));
    assert_eq!(fixture.engine.log(), ["ADD b", "DEL a", "ADD a"]);
}

#[test]
fn a_failing_tombstone_remains_and_blocks_only_its_attachment() {
    let fixture = Fixture::new();
    fixture.engine.failing.lock().unwrap().push("DEL a".to_owned());
    fixture.write_tombstone("a");
    assert!(matches!(fixture.run("ADD", "b"), Answer::Done(_)));
    let refused = error(fixture.run("ADD", "a"));
    assert_eq!(refused.code, ErrorCode::TryAgainLater);
    assert!(refused.msg.contains("DEL a: injected failure"), "{refused}");
    assert!(fixture.tombstone_files().exists(&key("a")).unwrap());
    assert!(
        fixture.agent_status.conditions()[0].message.contains("injected failure"),
        "{:?}",
        fixture.agent_status.conditions()
    );
    assert_eq!(fixture.work.drain_tombstones().failed.len(), 1);
    fixture.engine.failing.lock().unwrap().clear();
    assert_eq!(fixture.work.drain_tombstones().drained, 1);
    assert!(fixture.agent_status.conditions().is_empty());
    assert!(matches!(fixture.run("ADD", "a"), Answer::Done(_)));
    assert_eq!(fixture.engine.log(), ["ADD b", "DEL a", "ADD a"]);
}

#[test]
fn an_unreadable_tombstone_is_put_aside_and_reported() {
    let fixture = Fixture::new();
    fixture.write_tombstone("a");
    let path = std::fs::read_dir(fixture.tombstone_files().dir()).unwrap().next().unwrap().unwrap().path();
    std::fs::write(&path, "{").unwrap();
    assert!(matches!(fixture.run("ADD", "b"), Answer::Done(_)));
    assert!(fixture.tombstone_files().is_empty().unwrap());
    let condition = &fixture.agent_status.conditions()[0];
    let command = condition.fix.as_deref().unwrap();
    assert!(command.starts_with("rm ") && std::path::Path::new(&command[3..]).exists(), "{command}");
    assert_eq!(fixture.engine.log(), ["ADD b"]);
}

#[test]
fn a_tombstone_written_by_its_own_del_is_put_aside() {
    let mut fixture = Fixture::new();
    let (tombstone_files, engine) = (fixture.tombstone_files(), Arc::clone(&fixture.engine));
    // Like an IPAM plugin that runs the same DEL and times out.
    fixture.serve_by(Box::new(move |request, caller| {
        if let Request::Del(del) = request {
            tombstone_files.write(&call("DEL", del.container.as_str()), &del.key()).unwrap();
        }
        engine.serve(request, caller)
    }));
    assert!(matches!(fixture.run("DEL", "a"), Answer::Done(_)));
    for _ in 0..10 {
        fixture.work.drain_tombstones();
    }
    assert!(fixture.tombstone_files().is_empty().unwrap());
    assert_eq!(fixture.engine.log(), ["DEL a"; 4], "one DEL of the runtime and three of the tombstone");
    let problems = fixture.agent_status.conditions();
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(problems[0].message.contains("does its ipam.type run Podwire"), "{problems:?}");
    assert!(problems[0].fix.as_deref().is_some_and(|c| c.starts_with("rm ")), "{problems:?}");
    assert!(
        matches!(fixture.run("ADD", "a"), Answer::Done(_)),
        "a tombstone that was put aside must not block an ADD"
    );
}

#[test]
fn a_tombstone_marked_as_delegated_is_put_aside() {
    let fixture = Fixture::new();
    let mut marked = call("DEL", "a");
    marked.env.insert("CNI_PODWIRE_DELEGATED".to_owned(), "1".to_owned());
    let Err(Answer::Failed(failure)) = fixture.work.accept(marked.clone()) else { panic!() };
    assert_eq!(failure.error.code, ErrorCode::InvalidConfig);
    fixture.tombstone_files().write(&marked, &key("a")).unwrap();
    assert!(matches!(fixture.run("ADD", "b"), Answer::Done(_)));
    assert!(fixture.tombstone_files().is_empty().unwrap());
    assert!(
        fixture.agent_status.conditions()[0].message.contains("leads back to Podwire"),
        "{:?}",
        fixture.agent_status.conditions()
    );
    assert_eq!(fixture.engine.log(), ["ADD b"], "the marked DEL was served");
}

#[test]
fn many_adds_drain_each_tombstone_once() {
    let fixture = Fixture::new();
    (0..50).for_each(|n| fixture.write_tombstone(&format!("old{n}")));
    let adds: Vec<_> = (0..16)
        .map(|n| {
            let add = fixture.accept("ADD", &format!("new{n}"));
            thread::spawn(move || add.answer())
        })
        .collect();
    for add in adds {
        assert!(matches!(add.join().unwrap(), Answer::Done(_)));
    }
    let log = fixture.engine.log();
    let last_del = log.iter().rposition(|line| line.starts_with("DEL")).unwrap();
    let first_add = log.iter().position(|line| line.starts_with("ADD")).unwrap();
    assert!(last_del < first_add, "{log:?}");
    assert_eq!((log.len(), last_del), (66, 49), "{log:?}");
}

#[test]
fn a_node_that_is_not_ready_serves_only_del_and_gc() {
    let fixture = Fixture::new();
    let finding = Finding::new(types::Code::BridgeNameTaken, "link podwire0", "the link is a dummy");
    fixture.agent_status.set(Source::Reconcile, vec![finding.fix("ip link del podwire0")]);
    for (verb, code) in [("ADD", ErrorCode::TryAgainLater), ("STATUS", ErrorCode::NotAvailable)] {
        let Err(Answer::Unavailable(failure)) = fixture.work.accept(call(verb, "a")) else {
            panic!("{verb}")
        };
        assert_eq!(failure.error.code, code, "{verb}");
        assert_eq!(failure.error.msg, "the agent is not ready: the link is a dummy");
        assert_eq!(failure.error.details, "BridgeNameTaken: ip link del podwire0");
    }
    assert!(matches!(fixture.run("DEL", "a"), Answer::Done(_)));
    assert!(matches!(fixture.run("GC", "a"), Answer::Done(_)), "a GC may free space and addresses");
    // A runtime that sends a pod has plugin and config, even if the agent no longer finds them.
    let finding = Finding::new(types::Code::InstallIncomplete, "file a", "the file is missing");
    fixture.agent_status.set(Source::Reconcile, vec![finding]);
    assert!(fixture.work.accept(call("ADD", "a")).is_ok());
    assert!(matches!(fixture.work.accept(call("STATUS", "a")), Err(Answer::Unavailable(_))));
    fixture.agent_status.set_stopping();
    assert!(matches!(fixture.work.accept(call("GC", "a")), Err(Answer::Unavailable(_))));
}

#[test]
fn an_invalid_command_is_answered_immediately() {
    let fixture = Fixture::new();
    let Err(Answer::Failed(failure)) = fixture.work.accept(call("JUMP", "a")) else { panic!() };
    assert_eq!(failure.error.code, ErrorCode::InvalidEnvironment);
}

/// The node owns this block only.
fn set_only_block(allocations: &NodeAllocations, block: &str) {
    allocations.set(vec![block.parse().unwrap()], Ok(allocation_of(block)));
}

/// The allocation of a node that owns this block of 10.9.0.0/16.
fn allocation_of(block: &str) -> NodeAllocation {
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
fn a_withdrawn_block_fails_adds_that_were_already_queued() {
    let fixture = Fixture::new();
    let early = fixture.accept("ADD", "early");
    let reason = NoBlock("the name of this node belongs to another node".to_owned());
    fixture.allocations.set(Vec::new(), Err(reason));
    for task in [early, fixture.accept("ADD", "late")] {
        let error = error(task.answer());
        assert_eq!(error.code, ErrorCode::TryAgainLater);
        assert!(error.msg.contains("belongs to another node"), "{error}");
    }
    assert!(matches!(fixture.run("DEL", "early"), Answer::Done(_)));
    assert_eq!(fixture.engine.log(), ["DEL early"]);
    set_only_block(&fixture.allocations, "10.9.1.0/24");
    assert!(matches!(fixture.run("ADD", "new"), Answer::Done(_)));
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
fn a_request_uses_the_blocks_at_the_time_it_is_served() {
    let mut fixture = Fixture::new();
    let served = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&served);
    fixture.serve_by(Box::new(move |request, caller| {
        log.lock().unwrap().extend(subnets(request, caller));
        Ok(Done::default())
    }));
    let early = fixture.work.enter_call(call("ADD", "c1"));
    set_only_block(&fixture.allocations, "10.9.1.0/24");
    assert!(matches!(early.answer(), Answer::Done(_)));
    assert_eq!(*served.lock().unwrap(), ["10.9.1.0/24"]);
}

#[test]
fn a_full_node_retries_with_a_new_block_unless_ranges_are_configured() {
    let ranges = json!({ "ranges": [[{ "subnet": "10.77.0.0/24" }]] });
    for (key, value, expected) in [
        ("mtu", json!(1400), vec!["10.9.0.0/24", "10.9.1.0/24"]),
        ("ipam", json!({}), vec!["10.9.0.0/24", "10.9.1.0/24"]),
        ("subnet", json!("10.77.0.0/24"), vec!["10.77.0.0/24"]),
        ("ipam", ranges, vec!["10.77.0.0/24"]),
    ] {
        let fixture = Fixture::new();
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
        let (blocks, mut received) = fixture.block_requests();
        let allocations = Arc::clone(&fixture.allocations);
        let store = thread::spawn(move || {
            let Some(MembershipCommand::RequestBlock(request)) = received.blocking_recv() else { return };
            set_only_block(&allocations, "10.9.1.0/24");
            request.answer(Ok(()));
        });
        let work = fixture.work_with(blocks, serve);
        let mut call = call("ADD", "c1");
        let mut config: Value = serde_json::from_str(&call.config).unwrap();
        config[key] = value;
        call.config = config.to_string();
        let answer = work.enter_call(call).answer();
        assert_eq!(matches!(answer, Answer::Done(_)), expected.len() == 2, "{config}: {answer:?}");
        assert_eq!(*served.lock().unwrap(), expected, "{config}");
        // Dropping it closes the channel, which ends the thread.
        drop(work);
        store.join().unwrap();
    }
}

#[test]
fn a_full_node_reports_why_it_gets_no_other_block() {
    let fixture = Fixture::new();
    let full = |_: &Request, _: &Caller<'_>| {
        Err(Error::new(ErrorCode::AddressesExhausted, "no free address left").with_details("5 in use"))
    };
    let (blocks, mut received) = fixture.block_requests();
    let store = thread::spawn(move || {
        let command = received.blocking_recv().unwrap();
        command.refuse(AskError::Unreachable("etcd at http://a:2379 cannot be reached".to_owned()));
    });
    let work = fixture.work_with(blocks, Box::new(full));
    let task = work.enter_call(call("ADD", "c1"));
    let error = error(task.answer());
    assert_eq!(error.code, ErrorCode::AddressesExhausted);
    for part in ["5 in use", "no other block: etcd at http://a:2379 cannot be reached"] {
        assert!(error.details.contains(part), "{error:?}");
    }
    store.join().unwrap();
}

#[test]
fn adds_with_an_ipam_plugin_have_their_own_class() {
    let fixture = Fixture::new();
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
        assert_eq!(fixture.work.accept(call).ok().unwrap().class(), class, "{config}");
    }
}

/// On a node with thousands of pods, a round after each DEL until the last differing pod is restarted would be too expensive.
#[test]
fn f1_only_the_del_of_a_differing_pod_requests_a_round() {
    let fixture = Fixture::new();
    let removed = |request: &Request, _: &Caller<'_>| {
        let Request::Del(call) = request else { panic!("{request:?}") };
        let mode = match call.container.as_str() {
            "bridged" => Some(AttachMode::Bridge),
            "routed" => Some(AttachMode::Routed),
            _ => None,
        };
        Ok(Done { mode, ..Done::default() })
    };
    let work = work_in(fixture.dir.path(), &fixture.agent_status, &fixture.allocations, Box::new(removed));
    let reports_fault = |container: &str| {
        assert!(matches!(work.enter_call(call("DEL", container)).answer(), Answer::Done(_)));
        work.reconciler.take().fault
    };
    assert_eq!(["bridged", "routed", "gone"].map(reports_fault), [false; 3], "no condition is active");
    let finding = Finding::new(types::Code::PodModeDiffers, "network podwire", "1 pod is in mode bridge");
    fixture.agent_status.set(Source::Reconcile, vec![finding]);
    assert_eq!(["bridged", "routed", "gone"].map(reports_fault), [true, false, false]);
}
