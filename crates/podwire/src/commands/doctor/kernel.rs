//! Probes kernel features in temporary network namespaces: links of pods, firewall tables and conntrack.

use std::net::{IpAddr, Ipv4Addr};

use anyhow::Result;
use netlink::{AddBridge, AddVxlan, NetNs, NetNsError, Op, RtSocket, Veth};
use nft::{AttachMode, Firewall, Guard, NetworkChain, Structure};
use types::{Code, Finding, Fix, IfName, Mac, NetworkName};

use super::check::Check;
use super::host::sysctl;

const MTU: u32 = 1400;
/// A limit that is sufficient for the pods of a node.
const NAMESPACES: u64 = 1024;

/// The result of a probe. The module is missing if the probe failed.
struct FeatureProbe {
    check: &'static str,
    success: &'static str,
    module: &'static str,
    outcome: Result<()>,
}

pub(super) fn features() -> Vec<Check> {
    match probe_features() {
        Ok(probes) => probes.into_iter().map(result).collect(),
        Err(error) => {
            let message = format!("cannot create a network namespace: {error}");
            let found = Finding::new(Code::KernelFeatureMissing, "feature network-namespaces", message);
            vec![Check::problem("kernel", Finding { fix: raise_limit(&error), ..found })]
        }
    }
}

/// The kernel returns ENOSPC if the limit of namespaces is reached.
fn raise_limit(error: &NetNsError) -> Option<Fix> {
    let limit: u64 = sysctl("user/max_net_namespaces")?.parse().ok()?;
    let is_reached = error.errno() == Some(rustix::io::Errno::NOSPC);
    let setting = format!("user.max_net_namespaces={}", limit.max(NAMESPACES).saturating_mul(2));
    is_reached.then(|| Fix::words(["sysctl", "-w", &setting]))
}

fn result(probe: FeatureProbe) -> Check {
    let FeatureProbe { check, success, module, outcome } = probe;
    match outcome {
        Ok(()) => Check::ok(check, success),
        Err(error) => {
            let missing_program = error.downcast_ref().and_then(nft::Error::missing_program);
            let missing_module = || {
                Finding::new(Code::KernelFeatureMissing, format_args!("module {module}"), error)
                    .fix(Fix::words(["modprobe", module]))
            };
            Check::problem(check, missing_program.unwrap_or_else(missing_module))
        }
    }
}

fn probe_features() -> Result<Vec<FeatureProbe>, NetNsError> {
    let (node, pod) = (NetNs::create()?, NetNs::create()?);
    node.run(|| {
        vec![
            FeatureProbe {
                check: "veth",
                success: "veth pairs can be created",
                module: "veth",
                outcome: veth(&pod),
            },
            FeatureProbe {
                check: "bridge",
                success: "bridges can be created",
                module: "bridge",
                outcome: bridge(),
            },
            FeatureProbe {
                check: "vxlan",
                success: "VXLAN devices can be created",
                module: "vxlan",
                outcome: vxlan(),
            },
            FeatureProbe {
                check: "nftables",
                success: "firewall tables can be created",
                module: "nf_tables",
                outcome: tables(),
            },
            FeatureProbe {
                check: "conntrack",
                success: "conntrack entries can be listed and deleted",
                module: "nf_conntrack_netlink",
                outcome: connections(),
            },
        ]
    })
}

fn name(text: &str) -> Result<IfName> {
    Ok(IfName::try_from(text)?)
}

fn run_op(op: &Op<'_>) -> Result<()> {
    Ok(RtSocket::open().and_then(|mut host| host.run(op))?)
}

fn veth(pod: &NetNs) -> Result<()> {
    let (host, peer) = (name("pwtry")?, name("eth0")?);
    let [host_mac, peer_mac] = [[0, 0, 0, 0, 1], [0, 0, 0, 0, 2]].map(Mac::local);
    run_op(&Op::AddVeth(Veth {
        host: &host,
        host_mac,
        mtu: MTU,
        master: None,
        group: 0,
        peer: &peer,
        peer_mac,
        peer_ns: pod.fd(),
        up: true,
    }))
}

fn bridge() -> Result<()> {
    run_op(&Op::AddBridge(AddBridge {
        name: &name("pwtry0")?,
        mac: Mac::local([0, 0, 0, 0, 3]),
        mtu: MTU,
        up: false,
    }))
}

fn vxlan() -> Result<()> {
    let local = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let mac = Mac::local([0, 0, 0, 0, 4]);
    run_op(&Op::AddVxlan(AddVxlan {
        name: &name("pwtryvx")?,
        mac,
        mtu: MTU,
        vni: 1,
        port: 4789,
        local,
        link: None,
    }))
}

/// Creates both tables of pods, with the chain of a network.
fn tables() -> Result<()> {
    let chain = NetworkChain::new(&NetworkName::try_from("doctor")?, &[]);
    let structure = Structure::default().with(AttachMode::Bridge, Guard::On, Some(&chain));
    Ok(Firewall::open().and_then(|mut firewall| firewall.prepare(&structure))?)
}

fn connections() -> Result<()> {
    let families = [types::Family::V4, types::Family::V6];
    Ok(families.into_iter().try_for_each(|family| nft::conntrack::sweep(family, &|_| false))?)
}
