//! A host, two pods and an outside host, as network namespaces. The outside host has no route to the pods.
//!
//! ```text
//! pod 2 (10.77.0.2, fd77::2) ─┐
//!                             host (10.77.0.1, fd77::1 │ 192.0.2.1, 2001:db8::1) ── outside (192.0.2.2, 2001:db8::2)
//! pod 3 (10.77.0.3, fd77::3) ─┘
//! ```

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use netlink::NetNs;
use nft::{AttachMode, Firewall, Protocol};
use rustix::net::sockopt;
use testkit::uninterrupted;

use crate::common::{Sample, all_elements, run};

/// Long enough for a loaded machine. Only failing tests wait so long.
const TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) struct Lab {
    prefix: String,
    pub(crate) mode: AttachMode,
}

/// One of the namespaces.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum At {
    Host,
    Outside,
    Pod(u16),
}

static LABS: AtomicU32 = AtomicU32::new(0);

impl Drop for Lab {
    fn drop(&mut self) {
        for at in [At::Pod(2), At::Pod(3), At::Outside, At::Host] {
            let _ = std::process::Command::new("ip").args(["netns", "del", &self.name(at)]).output();
        }
    }
}

impl Lab {
    pub(crate) fn new(mode: AttachMode) -> Self {
        let lab = LABS.fetch_add(1, Ordering::Relaxed);
        let lab = Self { prefix: format!("pwt-{}-{lab}", std::process::id()), mode };
        for at in [At::Host, At::Outside, At::Pod(2), At::Pod(3)] {
            run("ip", &["netns", "add", &lab.name(at)]);
            // Duplicate address detection would make every test wait for seconds.
            lab.sysctl(at, "ipv6/conf/all/accept_dad", "0");
            lab.sysctl(at, "ipv6/conf/default/accept_dad", "0");
            // The tests need packets to be dropped by the firewall, not by reverse path filtering.
            lab.sysctl(at, "ipv4/conf/all/rp_filter", "0");
            lab.sysctl(at, "ipv4/conf/default/rp_filter", "0");
            lab.ip(at, "link set lo up");
        }
        lab.host();
        lab.pod(2);
        lab.pod(3);
        lab
    }

    fn name(&self, at: At) -> String {
        match at {
            At::Host => format!("{}-host", self.prefix),
            At::Outside => format!("{}-outside", self.prefix),
            At::Pod(n) => format!("{}-pod{n}", self.prefix),
        }
    }

    pub(crate) fn ip(&self, at: At, args: &str) -> String {
        let name = self.name(at);
        run("ip", &["-n", &name].into_iter().chain(args.split(' ')).collect::<Vec<_>>())
    }

    pub(crate) fn sysctl(&self, at: At, path: &str, value: &str) {
        self.inside(at, || std::fs::write(format!("/proc/sys/net/{path}"), value)).unwrap();
    }

    /// Runs inside one of the namespaces.
    pub(crate) fn inside<T: Send>(&self, at: At, body: impl FnOnce() -> T + Send) -> T {
        let path = format!("/run/netns/{}", self.name(at));
        NetNs::open(Path::new(&path)).unwrap().run(body).unwrap()
    }

    fn host(&self) {
        let (host, outside) = (At::Host, At::Outside);
        self.ip(host, &format!("link add up0 type veth peer name eth0 netns {}", self.name(outside)));
        for (at, link, n) in [(host, "up0", 1), (outside, "eth0", 2)] {
            self.ip(at, &format!("addr add 192.0.2.{n}/24 dev {link}"));
            self.ip(at, &format!("addr add 2001:db8::{n}/64 dev {link} nodad"));
            self.ip(at, &format!("link set {link} up"));
        }
        // In both modes the bridge has the gateway address. In routed mode it has no ports.
        self.ip(host, "link add br0 type bridge mcast_snooping 0");
        let (v4, v6) = match self.mode {
            AttachMode::Bridge => ("24", "64"),
            AttachMode::Routed => ("32", "128"),
        };
        self.ip(host, &format!("addr add 10.77.0.1/{v4} dev br0"));
        self.ip(host, &format!("addr add fd77::1/{v6} dev br0 nodad"));
        self.ip(host, "link set br0 up");
        self.sysctl(host, "ipv4/ip_forward", "1");
        self.sysctl(host, "ipv6/conf/all/forwarding", "1");
        self.sysctl(host, "ipv4/conf/br0/route_localnet", "1");
    }

    fn pod(&self, n: u16) {
        let (host, pod, sample) = (At::Host, At::Pod(n), Sample::new(self.mode, n));
        let (link, mac) = (sample.link, sample.mac);
        let peer = self.name(pod);
        self.ip(host, &format!("link add {link} type veth peer name eth0 address {mac} netns {peer}"));
        match self.mode {
            AttachMode::Bridge => {
                self.ip(host, &format!("link set {link} master br0 up"));
                self.ip(host, &format!("link set {link} type bridge_slave hairpin on"));
                self.ip(pod, &format!("addr add 10.77.0.{n}/24 dev eth0"));
                self.ip(pod, &format!("addr add fd77::{n}/64 dev eth0 nodad"));
                self.ip(pod, "link set eth0 up");
            }
            AttachMode::Routed => {
                self.ip(host, &format!("link set {link} up"));
                self.ip(host, &format!("route add 10.77.0.{n} dev {link} src 10.77.0.1"));
                self.ip(host, &format!("route add fd77::{n} dev {link} src fd77::1"));
                self.ip(host, &format!("neigh add fd77::{n} lladdr {mac} nud permanent dev {link}"));
                self.sysctl(host, &format!("ipv4/conf/{link}/route_localnet"), "1");
                self.ip(pod, &format!("addr add 10.77.0.{n}/32 dev eth0"));
                self.ip(pod, &format!("addr add fd77::{n}/128 dev eth0 nodad"));
                self.ip(pod, "link set eth0 up");
                self.ip(pod, "route add 10.77.0.1 dev eth0");
                self.ip(pod, "route add fd77::1 dev eth0");
                let gateway = self.mac(host, link.as_str());
                self.ip(pod, &format!("neigh add fd77::1 lladdr {gateway} nud permanent dev eth0"));
            }
        }
        self.ip(pod, "route add default via 10.77.0.1");
        self.ip(pod, "route add default via fd77::1");
    }

    fn mac(&self, at: At, link: &str) -> String {
        let shown = self.ip(at, &format!("-o link show dev {link}"));
        shown.split(' ').skip_while(|word| *word != "link/ether").nth(1).unwrap().to_owned()
    }

    pub(crate) fn add_pod(&self, sample: &Sample) {
        self.inside(At::Host, || sample.add_pod());
    }

    pub(crate) fn remove_pod(&self, sample: &Sample) {
        self.inside(At::Host, || {
            Firewall::open().unwrap().remove_pod(&sample.pod()).unwrap();
            // Waits until the elements expired, at the next tick of the kernel.
            all_elements();
        });
    }

    pub(crate) fn serve(&self, at: At, protocol: Protocol, address: &str) -> Server {
        let address: SocketAddr = address.parse().unwrap();
        self.inside(at, move || match protocol {
            Protocol::Tcp => {
                let listener = bind_when_available(|| TcpListener::bind(address));
                sockopt::set_socket_timeout(&listener, sockopt::Timeout::Recv, Some(TIMEOUT)).unwrap();
                Server::Tcp(listener)
            }
            Protocol::Udp => {
                let socket = bind_when_available(|| UdpSocket::bind(address));
                socket.set_read_timeout(Some(TIMEOUT)).unwrap();
                Server::Udp(socket)
            }
            Protocol::Sctp => unreachable!("no test opens SCTP sockets"),
        })
    }

    pub(crate) fn sender(&self, at: At, source: &str) -> Sender {
        Sender(self.inside(at, || bind_when_available(|| UdpSocket::bind(source))))
    }

    /// Connects to `target` from `from`. Returns the source address that the server observed. Answers from an address other than
    /// `target` are ignored.
    pub(crate) fn ask(&self, from: At, target: &str, server: &Server) -> std::io::Result<IpAddr> {
        let target: SocketAddr = target.parse().unwrap();
        std::thread::scope(|scope| {
            let answering = scope.spawn(|| server.answer_one());
            let asked = self.inside(from, || match server {
                Server::Tcp(_) => ask_tcp(target),
                Server::Udp(_) => ask_udp(target),
            });
            answering.join().unwrap();
            Ok(asked?.parse::<SocketAddr>().map_err(std::io::Error::other)?.ip())
        })
    }
}

fn ask_tcp(target: SocketAddr) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&target, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

fn ask_udp(target: SocketAddr) -> std::io::Result<String> {
    let any: SocketAddr = if target.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }.parse().unwrap();
    let socket = UdpSocket::bind(any)?;
    socket.set_read_timeout(Some(TIMEOUT))?;
    // A connected socket receives nothing from other addresses.
    socket.connect(target)?;
    socket.send(b"request")?;
    let mut answer = [0; 100];
    let length = uninterrupted(|| socket.recv(&mut answer))?;
    Ok(String::from_utf8_lossy(&answer[..length]).into_owned())
}

/// A socket in a namespace. Threads of other namespaces can use it.
pub(crate) enum Server {
    Tcp(TcpListener),
    Udp(UdpSocket),
}

impl Server {
    /// Sends one client the source address of its connection.
    fn answer_one(&self) {
        match self {
            Self::Tcp(listener) => {
                if let Ok((mut stream, peer)) = uninterrupted(|| listener.accept()) {
                    stream.write_all(peer.to_string().as_bytes()).unwrap();
                }
            }
            Self::Udp(socket) => {
                if let Ok((_, peer)) = uninterrupted(|| socket.recv_from(&mut [0; 100])) {
                    let _ = socket.send_to(peer.to_string().as_bytes(), peer);
                }
            }
        }
    }

    /// The next datagram, as text.
    pub(crate) fn receive(&self) -> String {
        let Self::Udp(socket) = self else { unreachable!("only UDP servers receive datagrams") };
        let mut datagram = [0; 100];
        let length = uninterrupted(|| socket.recv(&mut datagram)).unwrap();
        String::from_utf8_lossy(&datagram[..length]).into_owned()
    }
}

/// Sends datagrams from one address.
pub(crate) struct Sender(UdpSocket);

impl Sender {
    /// Sends to every host on the link.
    pub(crate) fn broadcast(&self, text: &str, port: u16) {
        self.0.set_broadcast(true).unwrap();
        self.0.send_to(text.as_bytes(), ("255.255.255.255", port)).unwrap();
    }

    pub(crate) fn send(&self, text: &str, target: &str) {
        self.0.send_to(text.as_bytes(), target).unwrap();
    }
}

/// Retries: an IPv6 address can be bound only some time after the kernel acknowledged it.
fn bind_when_available<T>(bind: impl Fn() -> std::io::Result<T>) -> T {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        match bind() {
            Err(e) if e.kind() == std::io::ErrorKind::AddrNotAvailable && Instant::now() < deadline => {
                std::thread::yield_now();
            }
            other => return other.unwrap(),
        }
    }
}
