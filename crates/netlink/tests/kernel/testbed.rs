//! Two temporary namespaces, and the output of `ip -j` and `tc -j` in them. The namespaces have no names: the kernel removes
//! them with their last file descriptor, also if a test fails.

use std::process::Command;
use std::time::{Duration, Instant};

use netlink::{AddBridge, LinkRef, NetNs, Op, RtSocket, SetLink, Veth};
use serde_json::Value;
use types::{IfName, Mac};

pub(crate) struct Testbed {
    pub(crate) host: NetNs,
    pub(crate) pod: NetNs,
    pub(crate) host_socket: RtSocket,
    pub(crate) pod_socket: RtSocket,
}

pub(crate) fn name(text: &str) -> IfName {
    IfName::try_from(text).unwrap()
}

pub(crate) fn mac(tail: u8) -> Mac {
    Mac::local([0, 0, 0, 0, tail])
}

/// Runs a command inside a namespace, and returns its output as JSON.
pub(crate) fn command(ns: &NetNs, line: &str) -> Value {
    let mut words = line.split_whitespace();
    let program = words.next().unwrap();
    let args: Vec<_> = words.collect();
    let out = ns.run(|| Command::new(program).args(&args).output()).unwrap().unwrap();
    assert!(out.status.success(), "{line}: {}", String::from_utf8_lossy(&out.stderr));
    if out.stdout.is_empty() {
        Value::Array(Vec::new())
    } else {
        serde_json::from_slice(&out.stdout).unwrap()
    }
}

/// A veth with its peer in the pod's namespace.
pub(crate) fn pair<'a>(pod: &'a NetNs, host: &'a IfName, peer: &'a IfName) -> Veth<'a> {
    let (host_mac, peer_mac) = (mac(7), mac(8));
    Veth { host, host_mac, mtu: 1500, master: None, group: 0, peer, peer_mac, peer_ns: pod.fd(), up: true }
}

/// Waits until an asynchronous kernel operation has happened.
pub(crate) fn eventually(what: &str, mut happened: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !happened() {
        assert!(Instant::now() < deadline, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(1));
    }
}

impl Testbed {
    pub(crate) fn new() -> Self {
        let (host, pod) = (NetNs::create().unwrap(), NetNs::create().unwrap());
        let (host_socket, pod_socket) = (RtSocket::open_in(&host).unwrap(), RtSocket::open_in(&pod).unwrap());
        Self { host, pod, host_socket, pod_socket }
    }

    pub(crate) fn bridge(&mut self, text: &str) -> u32 {
        let n = name(text);
        self.host_socket
            .run(&Op::AddBridge(AddBridge { name: &n, mac: mac(1), mtu: 1500, up: true }))
            .unwrap();
        self.host_socket.link(&n).unwrap().unwrap().index
    }

    /// Creates a veth with its peer in the pod's namespace, sets both up, and returns their indices.
    pub(crate) fn veth(&mut self, host: &str, peer: &str) -> (u32, u32) {
        let (host, peer) = (name(host), name(peer));
        let veth = Veth { host_mac: mac(2), peer_mac: mac(3), ..pair(&self.pod, &host, &peer) };
        self.host_socket.run(&Op::AddVeth(veth)).unwrap();
        self.pod_socket
            .run(&Op::SetLink(SetLink { up: Some(true), ..SetLink::of(LinkRef::Name(&peer)) }))
            .unwrap();
        (
            self.host_socket.link(&host).unwrap().unwrap().index,
            self.pod_socket.link(&peer).unwrap().unwrap().index,
        )
    }
}
