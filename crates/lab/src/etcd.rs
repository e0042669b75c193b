//! A real etcd cluster with one host per member: start, stop, kill and health checks.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;

use crate::service::{LabProcess, ProcessLifetime, ProgramSpec};
use crate::{DEADLINE, Node, Plan, ProcessIdentity, Tls, uninterrupted};

const CLIENT_PORT: u16 = 2379;
const PEER_PORT: u16 = 2380;
/// Health and metrics endpoint on the member's loopback, without TLS and authentication.
const METRICS: &str = "127.0.0.1:2381";
/// Timeout of one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
const PROGRAM_DIRS: [&str; 2] = ["/usr/bin", "/usr/local/bin"];

/// The members, ordered by number.
#[derive(Debug, Default)]
pub struct EtcdCluster {
    pub members: Vec<EtcdMember>,
}

/// One member. Its process is killed on drop, unless it belongs to a saved lab.
#[derive(Debug)]
pub struct EtcdMember {
    node: Node,
    name: String,
    endpoint: String,
    address: IpAddr,
    args: Vec<String>,
    life: ProcessLifetime,
    process: Option<LabProcess>,
}

impl EtcdCluster {
    /// Creates the members on connected hosts. Starts no process.
    pub(crate) fn new(hosts: Vec<(Node, String, IpAddr)>, plan: &Plan, life: &ProcessLifetime) -> Self {
        let scheme = if plan.etcd_tls.is_some() { "https" } else { "http" };
        let flags: Vec<String> =
            plan.etcd_tls.iter().flat_map(tls_flags).chain(plan.etcd_flags.iter().cloned()).collect();
        let url = |address: &IpAddr, port| format!("{scheme}://{}", SocketAddr::new(*address, port));
        let peers = hosts.iter().map(|(_, name, address)| format!("{name}={}", url(address, PEER_PORT)));
        let peers = peers.collect::<Vec<_>>().join(",");
        let member = |(node, name, address): (Node, String, IpAddr)| {
            let (client, peer) = (url(&address, CLIENT_PORT), url(&address, PEER_PORT));
            let data = node.dir().join("data").display().to_string();
            let metrics = format!("http://{METRICS}");
            let own = [
                ("--name", name.as_str()),
                ("--data-dir", &data),
                ("--listen-client-urls", &client),
                ("--advertise-client-urls", &client),
                ("--listen-peer-urls", &peer),
                ("--initial-advertise-peer-urls", &peer),
                ("--initial-cluster", &peers),
                ("--initial-cluster-state", "new"),
                ("--listen-metrics-urls", &metrics),
                // Short timeouts are safe on one host, and elections complete faster.
                ("--heartbeat-interval", "50"),
                ("--election-timeout", "500"),
                ("--logger", "zap"),
            ];
            let args = own.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value.to_owned()]);
            let args = args.chain(flags.iter().cloned()).collect();
            EtcdMember { node, name, endpoint: client, address, args, life: life.clone(), process: None }
        };
        Self { members: hosts.into_iter().map(member).collect() }
    }

    /// Client URLs of all members.
    pub fn endpoints(&self) -> Vec<String> {
        self.members.iter().map(|member| member.endpoint.clone()).collect()
    }

    /// Index of the leader.
    pub fn leader(&self) -> Result<usize> {
        let leads = |member: &EtcdMember| {
            member
                .get("/metrics")
                .is_ok_and(|text| text.lines().any(|line| line == "etcd_server_is_leader 1"))
        };
        self.members.iter().position(leads).context("etcd has no leader")
    }

    pub fn wait_healthy(&mut self) -> Result<()> {
        self.members.iter_mut().try_for_each(EtcdMember::wait_healthy)
    }
}

impl EtcdMember {
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// The member's host.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// The client URL.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    pub fn log_file(&self) -> PathBuf {
        self.node.dir().join("etcd.log")
    }

    /// Starts the process with the member's existing data directory.
    pub fn start(&mut self) -> Result<()> {
        ensure!(!self.runs(), "{} is already running", self.name);
        // Reaps a process that exited.
        self.process.take().map(LabProcess::wait).transpose()?;
        // On architectures other than amd64, Debian's etcd starts only with this variable.
        let arch = match std::env::consts::ARCH {
            "aarch64" => "arm64",
            other => other,
        };
        let env = [("ETCD_UNSUPPORTED_ARCH".to_owned(), arch.to_owned())];
        self.process = Some(LabProcess::start(ProgramSpec {
            ns: &self.node,
            program: program()?,
            args: &self.args,
            env: if arch == "x86_64" { &[] } else { &env },
            log: self.log_file(),
            life: self.life.clone(),
        })?);
        Ok(())
    }

    /// Sends SIGKILL and waits for the exit.
    pub fn kill(&mut self) -> Result<()> {
        self.process.take().with_context(|| format!("{} is not running", self.name))?.kill()
    }

    /// Sends SIGTERM and waits for the exit.
    pub fn stop(&mut self) -> Result<()> {
        let process = self.process.take().with_context(|| format!("{} is not running", self.name))?;
        process.signal(Signal::TERM)?;
        process.wait().map(drop)
    }

    pub fn signal(&self, signal: Signal) -> Result<()> {
        self.process.as_ref().with_context(|| format!("{} is not running", self.name))?.signal(signal)
    }

    pub fn runs(&self) -> bool {
        self.process.as_ref().is_some_and(|process| !process.has_ended().unwrap_or(true))
    }

    /// True if the member has a leader and serves reads and writes.
    pub fn is_healthy(&self) -> bool {
        self.get("/health").is_ok_and(|text| text.contains(r#""health":"true""#))
    }

    /// Whether the process answers a health request, also without a leader. A stopped or hanging process does not.
    pub fn answers(&self) -> bool {
        self.get("/health").is_ok()
    }

    /// Waits until the member is healthy. If it exits first, the error contains the end of its log.
    pub fn wait_healthy(&mut self) -> Result<()> {
        let end = Instant::now() + DEADLINE;
        while !self.is_healthy() {
            ensure!(self.runs(), "{} exited: {}", self.name, self.log_tail());
            ensure!(
                Instant::now() < end,
                "{} is not healthy after {DEADLINE:?}: {}",
                self.name,
                self.log_tail()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    pub fn pid(&self) -> Option<u32> {
        self.identity().map(|identity| identity.pid)
    }

    pub(crate) fn identity(&self) -> Option<ProcessIdentity> {
        self.process.as_ref().map(LabProcess::identity)
    }

    pub(crate) fn adopt(&mut self, identity: ProcessIdentity) -> Result<()> {
        self.process = LabProcess::adopt(identity)?;
        Ok(())
    }

    fn get(&self, path: &str) -> Result<String> {
        let answer = self.node.enter(|| get(path))?;
        answer.with_context(|| format!("cannot get {path} from {}", self.name))
    }

    fn log_tail(&self) -> String {
        let log = std::fs::read_to_string(self.log_file()).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(10)..].join("\n")
    }
}

fn tls_flags(tls: &Tls) -> Vec<String> {
    let [ca, cert, key] = [&tls.ca, &tls.cert, &tls.key].map(|path| path.display().to_string());
    let sides = [["", "client"], ["peer-", "peer-client"]];
    let flags = sides.into_iter().flat_map(|[side, auth]| {
        [
            format!("--{side}cert-file={cert}"),
            format!("--{side}key-file={key}"),
            format!("--{side}trusted-ca-file={ca}"),
            format!("--{auth}-cert-auth"),
        ]
    });
    flags.collect()
}

/// Sends a GET to the loopback of the thread's namespace and returns the body.
fn get(path: &str) -> std::io::Result<String> {
    let to: SocketAddr = METRICS.parse().map_err(std::io::Error::other)?;
    let mut stream = TcpStream::connect_timeout(&to, REQUEST_TIMEOUT)?;
    stream.set_read_timeout(Some(REQUEST_TIMEOUT))?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes())?;
    let mut text = String::new();
    uninterrupted(|| stream.read_to_string(&mut text))?;
    Ok(text.split_once("\r\n\r\n").map_or_else(String::new, |(_, body)| body.to_owned()))
}

/// Finds the etcd program in PATH or in the usual directories.
fn program() -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories = std::env::split_paths(&path).chain(PROGRAM_DIRS.iter().map(PathBuf::from));
    // Relative entries of PATH are skipped, because the program starts in another working directory.
    let mut programs =
        directories.filter(|directory| directory.is_absolute()).map(|directory| directory.join("etcd"));
    programs.find(|program| program.is_file()).context(
        "cannot find the program etcd in PATH or in the usual directories: install Debian's package etcd-server, or use one \
         node with the embedded store",
    )
}

/// Checks that etcd is installed. The error says what to install.
pub(crate) fn check_installed() -> Result<()> {
    program().map(drop)
}
