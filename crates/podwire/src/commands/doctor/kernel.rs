//! What the kernel can do, tried in a network namespace of its own: the links that pods have, the firewall's tables as they
//! are, and conntrack.

use std::net::{IpAddr, Ipv4Addr};

use anyhow::Result;
use netlink::{AddBridge, AddVxlan, NetNs, NetNsError, Op, RtSocket, Veth};
use nft::{AttachMode, Firewall, Guard, NetworkChain, Structure};
use types::{Code, Finding, Fix, IfName, Mac, NetworkName};

use super::finding::Check;
use super::machine::sysctl;

const MTU: u32 = 1400;
/// Enough for the pods of a node.
const NAMESPACES: u64 = 1024;

/// One try: what it is for, how it ended, and the module that is missing if it is.
struct FeatureProbe {
    check: &'static str,
    what: &'static str,
    module: &'static str,
    outcome: Result<()>,
}

pub(super) fn features() -> Vec<Check> {
    match tries() {
        Ok(tries) => tries.into_iter().map(finding).collect(),
        Err(error) => {
            let message = format!("no network namespace can be made: {error}");
            let found = Finding::new(Code::KernelFeatureMissing, "feature network-namespaces", message);
            vec![Check::problem("kernel", Finding { fix: raise_limit(&error), ..found })]
        }
    }
}

/// The kernel says that no space is left when the limit of namespaces is reached.
fn raise_limit(error: &NetNsError) -> Option<Fix> {
    let limit: u64 = sysctl("user/max_net_namespaces")?.parse().ok()?;
    let is_reached = error.errno() == Some(rustix::io::Errno::NOSPC);
    let setting = format!("user.max_net_namespaces={}", limit.max(NAMESPACES).saturating_mul(2));
    is_reached.then(|| Fix::words(["sysctl", "-w", &setting]))
}

fn finding(tried: FeatureProbe) -> Check {
    let FeatureProbe { check, what, module, outcome } = tried;
    match outcome {
        Ok(()) => Check::ok(check, what),
        Err(error) => {
            let program = error.downcast_ref().and_then(nft::Error::missing_program);
            let lacking = || {
                Finding::new(Code::KernelFeatureMissing, format_args!("module {module}"), error)
                    .fix(Fix::words(["modprobe", module]))
            };
            Check::problem(check, program.unwrap_or_else(lacking))
        }
    }
}

fn tries() -> Result<Vec<FeatureProbe>, NetNsError> {
    let (here, there) = (NetNs::create()?, NetNs::create()?);
    here.run(|| {
        vec![
            FeatureProbe { check: "veth", what: "pods can be wired", module: "veth", outcome: veth(&there) },
            FeatureProbe {
                check: "bridge",
                what: "a bridge can be made",
                module: "bridge",
                outcome: bridge(),
            },
            FeatureProbe { check: "vxlan", what: "a tunnel can be made", module: "vxlan", outcome: vxlan() },
            FeatureProbe {
                check: "nftables",
                what: "the firewall's tables can be made",
                module: "nf_tables",
                outcome: tables(),
            },
            FeatureProbe {
                check: "conntrack",
                what: "connections are tracked, and can be forgotten",
                module: "nf_conntrack_netlink",
                outcome: connections(),
            },
        ]
    })
}

fn name(text: &str) -> Result<IfName> {
    Ok(IfName::try_from(text)?)
}

fn make(op: &Op<'_>) -> Result<()> {
    Ok(RtSocket::open().and_then(|mut host| host.run(op))?)
}

fn veth(there: &NetNs) -> Result<()> {
    let (host, peer) = (name("pwtry")?, name("eth0")?);
    let [host_mac, peer_mac] = [[0, 0, 0, 0, 1], [0, 0, 0, 0, 2]].map(Mac::local);
    make(&Op::AddVeth(Veth {
        host: &host,
        host_mac,
        mtu: MTU,
        master: None,
        peer: &peer,
        peer_mac,
        peer_ns: there.fd(),
        up: true,
    }))
}

fn bridge() -> Result<()> {
    make(&Op::AddBridge(AddBridge {
        name: &name("pwtry0")?,
        mac: Mac::local([0, 0, 0, 0, 3]),
        mtu: MTU,
        up: false,
    }))
}

fn vxlan() -> Result<()> {
    let local = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let mac = Mac::local([0, 0, 0, 0, 4]);
    make(&Op::AddVxlan(AddVxlan {
        name: &name("pwtryvx")?,
        mac,
        mtu: MTU,
        vni: 1,
        port: 4789,
        local,
        link: None,
    }))
}

/// Both tables of pods, with the chain of a network.
fn tables() -> Result<()> {
    let chain = NetworkChain::new(&NetworkName::try_from("doctor")?, &[]);
    let structure = Structure::default().with(AttachMode::Bridge, Guard::On, Some(&chain));
    Ok(Firewall::open().and_then(|mut firewall| firewall.prepare(&structure))?)
}

fn connections() -> Result<()> {
    let families = [types::Family::V4, types::Family::V6];
    Ok(families.into_iter().try_for_each(|family| nft::conntrack::sweep(family, &|_| false))?)
}
