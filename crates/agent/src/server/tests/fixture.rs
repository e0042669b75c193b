//! A server with a replacement for the engine, and simple clients.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream as Client;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use api::{CniCall, NetworkStatus};
use cni::{Error, ErrorCode, Request};
use engine::{Caller, Done};
use netconf::{Network, NetworkSettings, NodeAllocation};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::oneshot;
use types::{AttachMode, RequestId};

use super::super::*;
use crate::waker::Waker;
use crate::work::{RequestSettings, Serve, WorkParts};

/// Only a failing test waits this long.
pub(super) const TEST_TIMEOUT: Duration = Duration::from_secs(60);
pub(super) const SHORT: ClientTimeouts = ClientTimeouts {
    head: Duration::from_millis(150),
    body: Duration::from_millis(150),
    answer: Duration::from_millis(150),
};

/// An agent's server with a replacement for the engine, on its own thread.
pub(super) struct Fixture {
    pub(super) dir: TempDir,
    pub(super) socket: PathBuf,
    pub(super) tcp: SocketAddr,
    pub(super) agent_status: Arc<AgentStatus>,
    pub(super) watch: Arc<SocketWatch>,
    pub(super) queue: Arc<Queue>,
    pub(super) stop: Option<oneshot::Sender<Duration>>,
    pub(super) thread: Option<JoinHandle<UnfinishedRequests>>,
}

pub(super) struct Options {
    pub(super) users: AllowedUsers,
    pub(super) timeouts: ClientTimeouts,
    pub(super) queue: Queue,
    pub(super) serve: Box<Serve>,
    /// The address for metrics. None: any free port.
    pub(super) tcp: Option<SocketAddr>,
}

impl Default for Options {
    fn default() -> Self {
        let serve = Box::new(|request: &Request, _: &Caller<'_>| fixed_result(request));
        Self {
            users: AllowedUsers::root_and_self(),
            timeouts: ClientTimeouts::default(),
            queue: Queue::start(8).unwrap(),
            serve,
            tcp: None,
        }
    }
}

/// Waits until the engine's caller is cancelled, and returns whether it was.
pub(super) fn wait_for_cancel(caller: &Caller<'_>) -> bool {
    let end = Instant::now() + TEST_TIMEOUT;
    while !(caller.cancelled)() && Instant::now() < end {
        thread::sleep(Duration::from_millis(1));
    }
    (caller.cancelled)()
}

/// The `details` of the response if [`fixed_result`] reports that no address is left: the agent adds why it has no other block.
pub(super) const EXHAUSTED: &str = "254 in use; no other block: this node already has the whole network";

/// The replacement for the engine. An ADD of container `bad` finds no address.
pub(super) fn fixed_result(request: &Request) -> Result<Done, Error> {
    match request {
        Request::Add(call) if call.container.as_str() == "bad" => {
            Err(Error::new(ErrorCode::AddressesExhausted, "no address left").with_details("254 in use"))
        }
        Request::Add(_) => {
            let ips = json!([{ "address": "10.9.0.5/24" }, { "address": "fd00:9::5/64" }]);
            Ok(Done { answer: Some(json!({ "cniVersion": "1.1.0", "ips": ips })), ..Done::default() })
        }
        _ => Ok(Done::default()),
    }
}

impl Fixture {
    pub(super) fn report_missing_bridge(&self) {
        let finding = Finding::new(Code::BridgeMissing, "bridge podwire0", "the bridge is missing");
        self.agent_status.set(Source::Reconcile, vec![finding.fix("ip link add")]);
    }

    pub(super) fn new(options: Options) -> Self {
        let dir = TempDir::new().unwrap();
        let socket = dir.path().join("in/agent.sock");
        let (agent_status, metrics) = (Arc::new(AgentStatus::new()), Arc::new(Metrics::new()));
        agent_status.set_started();
        let settings = RequestSettings {
            run_dir: dir.path().join("run"),
            network: "podwire".try_into().unwrap(),
            mode: AttachMode::Routed,
            delegates: engine::AllowedDelegates::default(),
        };
        let network = NetworkStatus {
            name: "podwire".to_owned(),
            mode: "routed".to_owned(),
            bridge: "pw0".to_owned(),
            mtu: None,
            masquerade: true,
            subnets: vec!["10.9.0.0/24".parse().unwrap(), "fd00:9::/64".parse().unwrap()],
            blocks: Vec::new(),
        };
        let network_settings = NetworkSettings {
            name: "podwire".try_into().unwrap(),
            mode: AttachMode::Routed,
            bridge: "pw0".try_into().unwrap(),
            subnets: vec!["10.9.0.0/24".parse().unwrap(), "fd00:9::/64".parse().unwrap()],
            mtu: None,
            connections_per_pod: None,
            masquerade: true,
        };
        let allocations = Arc::new(NodeAllocations::none("", Vec::new()));
        let work =
            Work::new(WorkParts::alone(settings, &agent_status, &allocations)).with_engine(options.serve);
        let whole = NodeAllocation::of_default(Arc::new(Network::whole(&network_settings).unwrap()));
        allocations.set(network_settings.subnets.clone(), Ok(whole));
        let queue = Arc::new(options.queue);
        let service = ApiService {
            agent_status: Arc::clone(&agent_status),
            metrics,
            work: Arc::new(work),
            queue: Arc::clone(&queue),
            description: NodeDescription {
                node: "n1".to_owned(),
                store: "embedded".to_owned(),
                run_dir: dir.path().join("run"),
                socket: socket.clone(),
                network,
            },
            allocations,
            reconciler: ReconcileRequests::new(Waker::new().unwrap()),
            cluster: None,
            // Larger than the kernel's socket buffers, for a client that does not read.
            cni_config: Box::new(|| Ok(" ".repeat(16 << 20))),
        };
        let (stop, stop_receiver) = oneshot::channel();
        let (ready, bound) = mpsc::channel();
        let (path, users, timeouts, tcp_address) =
            (socket.clone(), options.users, options.timeouts, options.tcp);
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let mut socket = bind(&path).unwrap();
                socket.timeouts = timeouts;
                let tcp = bind_tcp(tcp_address.unwrap_or(([127, 0, 0, 1], 0).into())).await;
                let address = tcp.as_ref().ok().map(|tcp| tcp.local_addr().unwrap()).or(tcp_address).unwrap();
                ready.send((socket.watch(), address)).unwrap();
                let endpoints = Endpoints { socket, tcp: Some((address, tcp)), users };
                run(endpoints, Arc::new(service), async { stop_receiver.await.unwrap_or_default() }).await
            })
        });
        let (watch, tcp) = bound.recv_timeout(TEST_TIMEOUT).unwrap();
        Self { dir, socket, tcp, agent_status, watch, queue, stop: Some(stop), thread: Some(thread) }
    }

    pub(super) fn connect(&self) -> Client {
        let client = Client::connect(&self.socket).unwrap();
        client.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        client
    }

    pub(super) fn request(&self, request: &str) -> (u16, Value) {
        let mut client = self.connect();
        client.write_all(request.as_bytes()).unwrap();
        answer(&mut client)
    }

    pub(super) fn get(&self, path: &str) -> (u16, Value) {
        self.request(&format!("GET {path} HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n\r\n"))
    }

    pub(super) fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        self.request(&post(path, body))
    }

    pub(super) fn stop(&mut self, limit: Duration) -> UnfinishedRequests {
        self.stop.take().unwrap().send(limit).unwrap();
        self.thread.take().unwrap().join().unwrap()
    }
}

pub(super) fn post(path: &str, body: &Value) -> String {
    let body = body.to_string();
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nHost: agent\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    )
}

/// Status and body. A body that is not JSON is returned as text.
pub(super) fn answer(client: &mut impl Read) -> (u16, Value) {
    let mut bytes = Vec::new();
    client.read_to_end(&mut bytes).unwrap();
    let text = String::from_utf8(bytes).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text:?}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, serde_json::from_str(body).unwrap_or_else(|_| body.into()))
}

pub(super) fn call(verb: &str, container: &str) -> Value {
    let env = [
        ("CNI_COMMAND", verb),
        ("CNI_CONTAINERID", container),
        ("CNI_NETNS", "/run/netns/x"),
        ("CNI_IFNAME", "eth0"),
    ];
    let env: BTreeMap<String, String> = env.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
    let config = json!({ "cniVersion": "1.1.0", "name": "podwire", "type": "podwire-cni" }).to_string();
    serde_json::to_value(CniCall { request_id: RequestId::from_random([3; 16]), env, config }).unwrap()
}

pub(super) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + TEST_TIMEOUT;
    while !condition() {
        assert!(Instant::now() < end, "{what} did not happen");
        thread::sleep(Duration::from_millis(2));
    }
}
