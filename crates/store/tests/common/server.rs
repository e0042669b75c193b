//! A real etcd on its own loopback address. It ends when it is dropped, or with the thread that started it.

use std::fs::{self, File};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::{Certs, TIMEOUT};

const PORT: u16 = 2379;
const PEER_PORT: u16 = 2380;
const MAX_TRIES: u32 = 5;

#[derive(Debug, Default, Clone)]
pub(crate) struct Options {
    /// The addresses of all members of the cluster. Empty for a single member.
    members: Vec<String>,
    /// CA, certificate and key for TLS. Clients must have a certificate, too.
    pub(crate) certs: Option<(PathBuf, PathBuf, PathBuf)>,
}

pub(crate) struct Etcd {
    pub(crate) address: String,
    options: Options,
    child: Child,
    dir: TempDir,
}

/// Each server gets its own address in 127.0.0.0/8, so its ports are free.
fn own_address() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let n = COUNT.fetch_add(1, Ordering::Relaxed);
    let pid = std::process::id();
    format!("127.{}.{}.{}", 64 + (pid >> 8) % 128, pid % 256, 1 + n % 250)
}

impl Etcd {
    pub(crate) fn start(options: &Options) -> Self {
        Self::start_at(&own_address(), options)
    }

    /// Starts a server with TLS, and creates certificates for its address.
    pub(crate) fn start_tls() -> (Self, Certs) {
        let address = own_address();
        let certs = Certs::new(&address);
        let (ca, cert, key) = (certs.path("ca.pem"), certs.path("server.pem"), certs.path("server.key"));
        (Self::start_at(&address, &Options { certs: Some((ca, cert, key)), ..Options::default() }), certs)
    }

    /// Starts the members of one cluster.
    pub(crate) fn start_cluster(size: usize) -> Vec<Self> {
        let members: Vec<String> = (0..size).map(|_| own_address()).collect();
        let options = Options { members: members.clone(), ..Options::default() };
        members.iter().map(|address| Self::start_at(address, &options)).collect()
    }

    fn start_at(address: &str, options: &Options) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let child = start_and_wait(address, options, &dir);
        Self { address: address.to_owned(), options: options.clone(), child, dir }
    }

    /// One server for all tests that do not disturb it.
    pub(crate) fn shared() -> &'static Self {
        static SHARED: OnceLock<Etcd> = OnceLock::new();
        SHARED.get_or_init(|| {
            let (sender, started) = mpsc::channel();
            // The server ends with the thread that started it, so this thread must not end.
            thread::spawn(move || {
                sender.send(Self::start(&Options::default())).unwrap();
                loop {
                    thread::park();
                }
            });
            started.recv().unwrap()
        })
    }

    pub(crate) fn url(&self) -> String {
        let scheme = if self.options.certs.is_some() { "https" } else { "http" };
        format!("{scheme}://{}:{PORT}", self.address)
    }

    /// Kills the server. It must have answered before: an etcd that is killed before its data directory is complete cannot start
    /// again.
    pub(crate) fn stop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts the server again with the same data.
    pub(crate) fn restart(&mut self) {
        self.child = start_and_wait(&self.address, &self.options, &self.dir);
    }

    /// Sends SIGSTOP: the kernel still accepts connections, but the server does not answer.
    pub(crate) fn freeze(&self) {
        kill_process(Pid::from_child(&self.child), Signal::STOP).unwrap();
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Starts the process and waits until it accepts connections.
fn start_and_wait(address: &str, options: &Options, dir: &TempDir) -> Child {
    for _ in 0..MAX_TRIES {
        let mut child = spawn(address, options, dir);
        let deadline = Instant::now() + TIMEOUT;
        loop {
            if TcpStream::connect((address, PORT)).is_ok() {
                return child;
            }
            if let Some(status) = child.try_wait().unwrap() {
                let stderr = fs::read_to_string(dir.path().join("stderr")).unwrap();
                eprintln!("etcd ended ({status}): {stderr}");
                break;
            }
            assert!(Instant::now() < deadline, "etcd does not listen on {address}");
            thread::sleep(Duration::from_millis(10));
        }
    }
    panic!("etcd does not start on {address}");
}

fn spawn(address: &str, options: &Options, dir: &TempDir) -> Child {
    let scheme = if options.certs.is_some() { "https" } else { "http" };
    let (client, peer) = (format!("{scheme}://{address}:{PORT}"), format!("http://{address}:{PEER_PORT}"));
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", "KILL", "etcd", "--name", address, "--data-dir"])
        .arg(dir.path().join("data"));
    command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
    command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
    let single = [address.to_owned()];
    let members = if options.members.is_empty() { &single[..] } else { &options.members[..] };
    let all: Vec<String> =
        members.iter().map(|member| format!("{member}=http://{member}:{PEER_PORT}")).collect();
    command.args(["--initial-cluster", &all.join(","), "--logger", "zap", "--log-level", "error"]);
    command.args(["--heartbeat-interval", "50", "--election-timeout", "250"]);
    // A short lifetime, so that tests can wait for the expiry of tokens.
    command.args(["--auth-token-ttl", "1"]);
    if let Some((ca, cert, key)) = &options.certs {
        command.arg("--client-cert-auth").arg("--trusted-ca-file").arg(ca);
        command.arg("--cert-file").arg(cert).arg("--key-file").arg(key);
    }
    let stderr = File::options().create(true).append(true).open(dir.path().join("stderr")).unwrap();
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr);
    command.spawn().expect("etcd and setpriv are installed (tools/setup test)")
}
