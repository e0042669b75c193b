//! A real agent with many existing flows: a connection that a change forbids, the CPU time of scans, and a flushed firewall.

use std::collections::BTreeSet;
use std::fs;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use testkit::{Agent, DEADLINE, Lab, Node, Plugin, Pod, uninterrupted, wait_until};

use crate::firewall::{Timed, note};
use crate::options::PolicyScale;
use crate::stats::Sample;

pub(crate) struct FlowFigures {
    /// As the kernel counts them.
    pub(crate) flows: usize,
    /// From the change to the last byte that passes.
    pub(crate) stopped: Sample,
    /// CPU time of the thread that judges flows.
    pub(crate) scan_percent: Option<f64>,
    pub(crate) flushed: Sample,
}

const PORT: u16 = 5432;
/// Between two bytes of the observed connection.
const PACE: Duration = Duration::from_millis(2);
/// A byte that takes longer does not arrive.
const LOST: Duration = Duration::from_millis(300);
/// Between two changes during the measurement of scans.
const CHANGES: Duration = Duration::from_millis(100);
/// Ports of one UDP socket.
const PORTS: usize = 60_000;
/// Datagrams that are sent before the kernel's backlog is processed.
const AT_ONCE: usize = 200;

pub(super) fn run(scale: &PolicyScale, times: &mut Timed) -> Result<FlowFigures> {
    let scene = PolicyNode::start("flows", &[])?;
    scene.apply(&objects(false))?;
    let (web, db) = (scene.pod("web", "web", &json!({}))?, scene.pod("db", "db", &json!({}))?);
    let flows = add_flows(&scene, (&web, &db), scale.flows)?;
    let mut figures =
        FlowFigures { flows, stopped: Sample::default(), scan_percent: None, flushed: Sample::default() };
    for _ in 0..scale.faults {
        figures.stopped.note(forbidden(&scene, (&web, &db)));
    }
    figures.scan_percent = Some(scans(&scene, scale.scans)?);
    let before = scene.table()?;
    for _ in 0..scale.faults {
        figures.flushed.note(flushed(&scene, &before));
    }
    for (what, sample) in [
        ("policies: a forbidden connection stops", &figures.stopped),
        ("policies: flush to whole table", &figures.flushed),
    ] {
        sample.ms().iter().for_each(|ms| note(times, what, Duration::from_secs_f64(ms / 1000.0)));
    }
    ensure!(figures.stopped.failures.is_empty(), "{:?}", figures.stopped.failures);
    ensure!(figures.flushed.failures.is_empty(), "{:?}", figures.flushed.failures);
    Ok(figures)
}

/// A node with an agent that enforces policies of groups.
pub(super) struct PolicyNode {
    pub(super) agent: Agent,
    pub(super) node: Node,
    plugin: Plugin,
    _lab: Lab,
}

pub(super) struct PlacedPod {
    pub(super) pod: Pod,
    address: IpAddr,
}

fn document(kind: &str, (tenant, name): (&str, &str), spec: &Value) -> Value {
    let mut metadata = json!({ "name": name });
    if !tenant.is_empty() {
        metadata["tenant"] = tenant.into();
    }
    json!({ "apiVersion": "podwire.io/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec })
}

/// Two groups of a tenant. Pods of `web` reach the port of `db`, or they do not.
pub(super) fn objects(is_denied: bool) -> Vec<Value> {
    let rule = |port: u16| {
        json!({ "direction": "in", "priority": 10, "peer": { "group": "web" }, "protocol": "tcp", "port": port,
            "action": "deny" })
    };
    let rules: Vec<Value> = [Some(rule(9)), is_denied.then(|| rule(PORT))].into_iter().flatten().collect();
    vec![
        document("Tenant", ("", "blue"), &json!({})),
        document("Network", ("blue", "front"), &json!({ "subnets": ["10.99.0.0/16"] })),
        document("Group", ("blue", "web"), &json!({ "network": "front" })),
        document("Group", ("blue", "db"), &json!({ "network": "front", "policies": ["from-web"] })),
        document("Policy", ("blue", "from-web"), &json!({ "rules": rules })),
    ]
}

impl PolicyNode {
    pub(super) fn start(name: &str, flags: &[&str]) -> Result<Self> {
        let lab = Lab::new(name)?;
        let node = lab.node("n1")?;
        // Only events trigger repairs; the periodic comparison would distort the times.
        let usual = ["--no-install", "--network-mode", "routed", "--reconcile-seconds", "3600"];
        let agent = Agent::start(&node, &[&usual, flags].concat())?;
        Ok(Self { agent, node, plugin: Plugin::podwire()?, _lab: lab })
    }

    /// Applies the objects and waits until the table exists.
    pub(super) fn apply(&self, documents: &[Value]) -> Result<()> {
        self.change(documents)?;
        wait_until("the table of policies", DEADLINE, || Ok(self.table().is_ok()))
    }

    fn change(&self, documents: &[Value]) -> Result<()> {
        let apply: Vec<Value> = documents.iter().map(|body| json!({ "body": body })).collect();
        let body = json!({ "apply": apply, "remove": [], "dryRun": false });
        let answer = self.agent.client().post("/v1/objects", &body, DEADLINE)?;
        let text = String::from_utf8_lossy(&answer.body);
        ensure!(answer.status == 200, "the agent refused the objects: {text}");
        Ok(())
    }

    pub(super) fn pod(&self, name: &str, group: &str, more: &Value) -> Result<PlacedPod> {
        let pod = self.node.pod(name)?;
        let mut config = self.agent.config(more);
        config["tenant"] = "blue".into();
        config["group"] = group.into();
        let result = self.plugin.add(&pod, &config)?.ok()?;
        let mut all = result["ips"].as_array().into_iter().flatten();
        let address = all.find_map(|ip| ip["address"].as_str()?.split('/').next()?.parse().ok());
        Ok(PlacedPod { pod, address: address.context("the pod has no address")? })
    }

    /// All rules and elements of the table, independent of their order.
    fn table(&self) -> Result<BTreeSet<String>> {
        let text = self.node.sh(&["nft", "--stateless", "list", "table", "inet", "podwire-policy"])?;
        Ok(text.split([',', '\n', '{', '}']).map(|part| part.trim().to_owned()).collect())
    }
}

/// UDP flows with distinct ports. Returns the number of flows that the kernel tracks.
fn add_flows(scene: &PolicyNode, (from, to): (&PlacedPod, &PlacedPod), count: usize) -> Result<usize> {
    let timeout = "/proc/sys/net/netfilter/nf_conntrack_udp_timeout";
    scene.node.enter(|| fs::write(timeout, "3600"))?.context("cannot set the timeout of flows")?;
    let sockets = from.pod.enter(|| {
        let sockets = (0..count.div_ceil(PORTS)).map(|_| UdpSocket::bind((from.address, 0)));
        sockets.collect::<std::io::Result<Vec<_>>>()
    })??;
    for (number, index) in (0..count).enumerate() {
        let port = u16::try_from(1024 + index % PORTS)?;
        match sockets[index / PORTS].send_to(b"flow", (to.address, port)) {
            Ok(_) => {}
            // The answer to an earlier datagram: no process listens.
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {}
            Err(error) => return Err(error).context("cannot send a datagram"),
        }
        if number % AT_ONCE == 0 {
            std::thread::yield_now();
        }
    }
    let counted = || -> Result<usize> {
        let text =
            scene.node.enter(|| fs::read_to_string("/proc/sys/net/netfilter/nf_conntrack_count"))??;
        Ok(text.trim().parse()?)
    };
    wait_until("flows", DEADLINE, || Ok(counted()? >= count * 9 / 10))?;
    counted()
}

/// Opens a connection, forbids it, and returns the time until the last byte passed. Then it is allowed again.
fn forbidden(scene: &PolicyNode, (web, db): (&PlacedPod, &PlacedPod)) -> Result<Duration> {
    let listener = db.pod.enter(|| TcpListener::bind((db.address, PORT)))??;
    let at = listener.local_addr()?;
    let mut client = connected(web, at)?;
    let (mut server, _) = uninterrupted(|| listener.accept())?;
    for stream in [&client, &server] {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(LOST))?;
    }
    round_trip(&mut client, &mut server)?.then_some(()).context("the connection does not work")?;
    scene.change(&objects(true))?;
    let (changed, mut last) = (Instant::now(), Instant::now());
    while round_trip(&mut client, &mut server)? {
        last = Instant::now();
        ensure!(changed.elapsed() < DEADLINE, "a forbidden connection continues after {DEADLINE:?}");
        std::thread::sleep(PACE);
    }
    scene.change(&objects(false))?;
    drop((client, server, listener));
    wait_until("the port to be allowed again", DEADLINE, || {
        let _listener = db.pod.enter(|| TcpListener::bind((db.address, PORT)))??;
        Ok(connected_within(web, at, LOST).is_ok())
    })?;
    Ok(last.saturating_duration_since(changed))
}

fn connected(from: &PlacedPod, at: SocketAddr) -> Result<TcpStream> {
    connected_within(from, at, DEADLINE)
}

fn connected_within(from: &PlacedPod, at: SocketAddr, timeout: Duration) -> Result<TcpStream> {
    let stream = from.pod.enter(|| TcpStream::connect_timeout(&at, timeout))?;
    stream.with_context(|| format!("cannot connect to {at}"))
}

/// False if a byte or its answer is lost.
fn round_trip(client: &mut TcpStream, server: &mut TcpStream) -> Result<bool> {
    client.write_all(&[1])?;
    if !is_received(server)? {
        return Ok(false);
    }
    server.write_all(&[1])?;
    is_received(client)
}

fn is_received(stream: &mut TcpStream) -> Result<bool> {
    match uninterrupted(|| stream.read(&mut [0])) {
        Ok(count) => Ok(count == 1),
        Err(error) if [ErrorKind::WouldBlock, ErrorKind::TimedOut].contains(&error.kind()) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// The share of one core that the thread uses while objects change all the time.
fn scans(scene: &PolicyNode, lasting: Duration) -> Result<f64> {
    let pid = scene.agent.pid().context("the agent is not running")?;
    let (before, started) = (thread_time(pid)?, Instant::now());
    let mut is_denied = false;
    while started.elapsed() < lasting {
        is_denied = !is_denied;
        scene.change(&objects(is_denied))?;
        std::thread::sleep(CHANGES);
    }
    let used = thread_time(pid)?.saturating_sub(before);
    let percent = used.as_secs_f64() / started.elapsed().as_secs_f64() * 100.0;
    scene.change(&objects(false))?;
    ensure!(used > Duration::ZERO, "no flow was judged");
    Ok(percent)
}

/// CPU time of the agent's thread that judges flows.
fn thread_time(pid: u32) -> Result<Duration> {
    let path = format!("/proc/{pid}/task");
    for thread in fs::read_dir(&path).with_context(|| format!("cannot read {path}"))?.flatten() {
        // A thread may exit after it was listed.
        let Ok(name) = fs::read_to_string(thread.path().join("comm")) else { continue };
        if name.trim() == "podwire-flows" {
            let text = fs::read_to_string(thread.path().join("schedstat"))?;
            let ran = text.split(' ').next().context("no CPU time")?.parse()?;
            return Ok(Duration::from_nanos(ran));
        }
    }
    anyhow::bail!("the agent has no thread podwire-flows")
}

fn flushed(scene: &PolicyNode, before: &BTreeSet<String>) -> Result<Duration> {
    // Longer than the agent's pause after a repair.
    std::thread::sleep(Duration::from_millis(600));
    scene.node.sh(&["nft", "flush", "ruleset"])?;
    let (flushed, end) = (Instant::now(), Instant::now() + DEADLINE);
    loop {
        let asked = Instant::now();
        // An error: the table does not exist yet.
        if scene.table().is_ok_and(|table| table == *before) {
            return Ok(asked.saturating_duration_since(flushed));
        }
        ensure!(asked < end, "the table is not restored {DEADLINE:?} after the flush");
    }
}
