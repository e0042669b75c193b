//! Helpers of the kernel tests: temporary network namespaces, and listings of their tables.

use std::net::IpAddr;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use netlink::NetNs;
use nft::{AttachMode, Firewall, FirewallPod, Guard, HostPort, NetworkChain, Protocol, Structure};
use types::{IfName, Mac};

/// Runs `body` in a temporary network namespace.
pub(crate) fn in_netns<T: Send>(body: impl FnOnce() -> T + Send) -> T {
    NetNs::create().expect("tests of the firewall need root").run(body).expect("a new namespace")
}

/// The output of a program, which must succeed.
pub(crate) fn run(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).stdin(Stdio::null()).output().expect(program);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {}: {stderr}", args.join(" "));
    String::from_utf8(output.stdout).expect("text")
}

pub(crate) fn nft(args: &str) -> String {
    run("nft", &args.split(' ').collect::<Vec<_>>())
}

/// The elements of a set as nft lists them. Empty without elements.
pub(crate) fn elements(table: &str, set: &str) -> String {
    let kind = if set.starts_with("hostport") { "map" } else { "set" };
    let listed = run("nft", &["list", kind, table, "podwire", set]);
    listed
        .split_once("elements = {")
        .map(|(_, rest)| rest.split('}').next().unwrap_or("").trim().to_owned())
        .unwrap_or_default()
}

/// All tables without the elements of named sets, which the kernel lists in no particular order.
pub(crate) fn structure() -> String {
    run("nft", &["-t", "list", "ruleset"])
}

/// The drift of the pod tables, for these pods.
pub(crate) fn drift(pods: &[FirewallPod<'_>]) -> Vec<String> {
    Firewall::open().expect("open").drift(&Structure::of(pods)).expect("drift")
}

pub(crate) fn repair(pods: &[FirewallPod<'_>]) {
    Firewall::open().expect("open").repair(&Structure::of(pods), pods).expect("repair");
}

/// The limit of a wait for the kernel, which only ends a test that hangs.
const DEADLINE: Duration = Duration::from_secs(60);

/// All elements of managed tables, set by set, after expired ones are removed.
pub(crate) fn all_elements() -> String {
    let deadline = Instant::now() + DEADLINE;
    loop {
        let found = listed_elements();
        if !found.contains("expires:") {
            return found;
        }
        assert!(Instant::now() < deadline, "elements that should have expired: {found}");
        std::thread::yield_now();
    }
}

fn listed_elements() -> String {
    let json: serde_json::Value = serde_json::from_str(&nft("-j list ruleset")).expect("json");
    let mut lines: Vec<String> = Vec::new();
    for object in json["nftables"].as_array().expect("a list") {
        let set = object.get("set").or_else(|| object.get("map"));
        let Some(set) = set.filter(|s| s["name"] != "revision" && s["name"] != "applied") else { continue };
        for element in set["elem"].as_array().into_iter().flatten() {
            lines.push(format!("{} {} {element}", set["family"], set["name"]).replace('"', ""));
        }
    }
    lines.sort();
    lines.join("\n")
}

/// The owned data of a `FirewallPod`.
pub(crate) struct Sample {
    pub(crate) link: IfName,
    pub(crate) mac: Mac,
    pub(crate) mode: AttachMode,
    pub(crate) bridge: Option<IfName>,
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) chain: Option<NetworkChain>,
    pub(crate) guard: Guard,
    pub(crate) ports: Vec<HostPort>,
}

impl Sample {
    /// A dual-stack pod with all features, number `n` of its network.
    pub(crate) fn new(mode: AttachMode, n: u16) -> Self {
        let [hi, lo] = n.to_be_bytes();
        Self {
            // Every second name begins like that of a tunnel device. It must not match rules for tunnels.
            link: IfName::try_from(if n.is_multiple_of(2) {
                format!("pwvx4pod{n}")
            } else {
                format!("pwpod{n}")
            })
            .expect("a name"),
            mac: Mac::local([0, 0, 0, hi, lo]),
            mode,
            bridge: Some(IfName::try_from("br0").expect("a name")),
            addresses: vec![
                format!("10.77.{hi}.{lo}").parse().expect("v4"),
                format!("fd77::{n:x}").parse().expect("v6"),
            ],
            chain: Some(chain("blue", &["10.77.0.0/16", "fd77::/48"])),
            guard: Guard::On,
            ports: Vec::new(),
        }
    }

    pub(crate) fn pod(&self) -> FirewallPod<'_> {
        FirewallPod {
            link: &self.link,
            mac: self.mac,
            mode: self.mode,
            bridge: self.bridge.as_ref(),
            addresses: &self.addresses,
            masquerade: self.chain.as_ref(),
            guard: self.guard,
            ports: &self.ports,
        }
    }

    /// Publishes `host_port` for each of the pod's addresses.
    pub(crate) fn publish(mut self, protocol: Protocol, host_port: u16, pod_port: u16) -> Self {
        for &pod in &self.addresses {
            self.ports.push(HostPort { host_ip: None, host_port, protocol, pod, pod_port });
        }
        self
    }

    pub(crate) fn add_pod(&self) {
        Firewall::open().expect("open").add_pod(&self.pod()).expect("add the pod");
    }
}

pub(crate) fn chain(name: &str, cidrs: &[&str]) -> NetworkChain {
    let cidrs: Vec<ipnet::IpNet> = cidrs.iter().map(|c| c.parse().expect("a cidr")).collect();
    NetworkChain::new(&name.try_into().expect("a name"), &cidrs)
}
