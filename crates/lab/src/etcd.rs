//! A real etcd, each member a host of its own: started, killed, ended, started again, asked for its health.

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
/// Health and metrics without TLS and without a user, on the member's own loopback.
const METRICS: &str = "127.0.0.1:2381";
/// How long one question may take.
const QUESTION: Duration = Duration::from_secs(2);
const PLACES: [&str; 2] = ["/usr/bin", "/usr/local/bin"];

/// The members, in the order of their numbers.
#[derive(Debug, Default)]
pub struct EtcdCluster {
    pub members: Vec<EtcdMember>,
}

/// One member. Dropped, its process is killed, if it does not belong to a lab that lives on.
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
    /// Hosts that are wired, with their addresses; no process is started yet.
    pub(crate) fn new(hosts: Vec<(Node, String, IpAddr)>, plan: &Plan, life: &ProcessLifetime) -> Self {
        let scheme = if plan.etcd_tls.is_some() { "https" } else { "http" };
        let flags: Vec<String> =
            plan.etcd_tls.iter().flat_map(tls_flags).chain(plan.etcd_flags.iter().cloned()).collect();
        let url = |address: &IpAddr, port| format!("{scheme}://{}", SocketAddr::new(*address, port));
        let peers = hosts.iter().map(|(_, name, at)| format!("{name}={}", url(at, PEER_PORT)));
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
                // On one machine a lost leader is noticed soon, and a lab is up sooner.
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

    /// Where clients ask, all members.
    pub fn endpoints(&self) -> Vec<String> {
        self.members.iter().map(|member| member.endpoint.clone()).collect()
    }

    /// Which member leads, counted from 0.
    pub fn leader(&self) -> Result<usize> {
        let leads = |member: &EtcdMember| {
            member
                .get("/metrics")
                .is_ok_and(|text| text.lines().any(|line| line == "etcd_server_is_leader 1"))
        };
        self.members.iter().position(leads).context("no member of etcd leads")
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

    /// The host it runs on.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// Where clients ask.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    pub fn log_file(&self) -> PathBuf {
        self.node.dir().join("etcd.log")
    }

    /// Starts the process; what it had on disk it has again.
    pub fn start(&mut self) -> Result<()> {
        ensure!(!self.runs(), "{} runs already", self.name);
        // What ended by itself is reaped here.
        self.process.take().map(LabProcess::wait).transpose()?;
        // Debian's etcd on other machines than amd64 wants to be told that it is meant.
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

    /// SIGKILL, and the end awaited.
    pub fn kill(&mut self) -> Result<()> {
        self.process.take().with_context(|| format!("{} does not run", self.name))?.kill()
    }

    /// SIGTERM, and the end awaited.
    pub fn stop(&mut self) -> Result<()> {
        let process = self.process.take().with_context(|| format!("{} does not run", self.name))?;
        process.signal(Signal::TERM)?;
        process.wait().map(drop)
    }

    pub fn signal(&self, signal: Signal) -> Result<()> {
        self.process.as_ref().with_context(|| format!("{} does not run", self.name))?.signal(signal)
    }

    pub fn runs(&self) -> bool {
        self.process.as_ref().is_some_and(|process| !process.has_ended().unwrap_or(true))
    }

    /// Serves reads and writes: it has a leader.
    pub fn is_healthy(&self) -> bool {
        self.get("/health").is_ok_and(|text| text.contains(r#""health":"true""#))
    }

    /// One that ended meanwhile is an error that tells its log.
    pub fn wait_healthy(&mut self) -> Result<()> {
        let end = Instant::now() + DEADLINE;
        while !self.is_healthy() {
            ensure!(self.runs(), "{} ended: {}", self.name, self.log_tail());
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
        answer.with_context(|| format!("cannot ask {} for {path}", self.name))
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

/// A question to the thread's own loopback; the body is all that comes after the head.
fn get(path: &str) -> std::io::Result<String> {
    let to: SocketAddr = METRICS.parse().map_err(std::io::Error::other)?;
    let mut stream = TcpStream::connect_timeout(&to, QUESTION)?;
    stream.set_read_timeout(Some(QUESTION))?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes())?;
    let mut text = String::new();
    uninterrupted(|| stream.read_to_string(&mut text))?;
    Ok(text.split_once("\r\n\r\n").map_or_else(String::new, |(_, body)| body.to_owned()))
}

/// The program, which a package brings: as the shell would find it, or where it usually is.
fn program() -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories = std::env::split_paths(&path).chain(PLACES.iter().map(PathBuf::from));
    // A relative directory of PATH means another place for whoever runs it later.
    let mut programs =
        directories.filter(|directory| directory.is_absolute()).map(|directory| directory.join("etcd"));
    programs.find(|program| program.is_file()).context(
        "there is no program etcd on this machine, neither in PATH nor where it usually is: install Debian's package \
         etcd-server, or use one node with the embedded store",
    )
}

/// Whether an etcd could be started here; what to install if not.
pub(crate) fn check_installed() -> Result<()> {
    program().map(drop)
}
