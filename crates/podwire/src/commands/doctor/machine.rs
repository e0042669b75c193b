//! The machine's own settings: who we are, forwarding, reverse paths, br_netfilter, and room on the disks.

use std::fs;
use std::path::Path;

use rustix::process::geteuid;
use rustix::thread::{CapabilitySet, capabilities};
use types::AttachMode;

use super::finding::Finding;
use super::node::Node;

/// A state folder with thousands of pods needs a few MiB, and a file for each.
const ROOM: u64 = 16 << 20;
const FILES: u64 = 1000;

pub(super) fn privileges() -> Vec<Finding> {
    const CHECK: &str = "privileges";
    let needed = [(CapabilitySet::NET_ADMIN, "CAP_NET_ADMIN"), (CapabilitySet::SYS_ADMIN, "CAP_SYS_ADMIN")];
    let ours = capabilities(None).map(|sets| sets.effective).unwrap_or(CapabilitySet::empty());
    let missing: Vec<&str> =
        needed.iter().filter(|(cap, _)| !ours.contains(*cap)).map(|(_, name)| *name).collect();
    vec![match (geteuid().is_root(), missing.as_slice()) {
        (true, []) => Finding::ok(CHECK, "root, with CAP_NET_ADMIN and CAP_SYS_ADMIN"),
        (_, missing) if !missing.is_empty() => {
            let is = if missing.len() == 1 { "is" } else { "are" };
            let what =
                format!("{} {is} missing, without which most cannot be looked at", missing.join(" and "));
            Finding::problem(CHECK, what).helps("sudo podwire doctor")
        }
        (_, _) => {
            Finding::problem(CHECK, "not root: pods' files cannot be read").helps("sudo podwire doctor")
        }
    }]
}

pub(super) fn forwarding(node: &Node) -> Vec<Finding> {
    const CHECK: &str = "forwarding";
    let addresses = node.addresses();
    let families = [
        ("IPv4", addresses.iter().any(|net| net.addr().is_ipv4()), "net/ipv4/ip_forward"),
        ("IPv6", addresses.iter().any(|net| net.addr().is_ipv6()), "net/ipv6/conf/all/forwarding"),
    ];
    let looked = families.iter().filter(|(_, needed, _)| *needed);
    let mut findings: Vec<Finding> = looked
        .map(|(family, _, key)| match sysctl(key).as_deref() {
            Some("0") => {
                Finding::problem(CHECK, format!("{family} is not forwarded: pods reach this node only"))
                    .helps(format!("sysctl -w {}=1", dotted(key)))
            }
            Some(_) => Finding::ok(CHECK, format!("{family} is forwarded")),
            None => {
                Finding::problem(CHECK, format!("this kernel has no {family}, and pods have such addresses"))
            }
        })
        .collect();
    if findings.is_empty() {
        findings.push(Finding::ok(CHECK, "no pods, and no network that needs it"));
    }
    findings
}

/// Strict is right for pods' links. On a tunnel it drops what comes while transports change (F6); the larger of the
/// machine's value and the device's counts, and 2 is loose.
pub(super) fn reverse_paths(node: &Node) -> Vec<Finding> {
    const CHECK: &str = "reverse paths";
    let mut findings = Vec::new();
    for tunnel in node.tunnels() {
        let value = |link: &str| {
            sysctl(&format!("net/ipv4/conf/{link}/rp_filter")).and_then(|text| text.parse::<u8>().ok())
        };
        let name = &tunnel.name;
        if value("all").max(value(name)) == Some(1) {
            let what = format!(
                "tunnel {name} drops packets whose answer would take another way (rp_filter is strict)"
            );
            findings.push(
                Finding::problem(CHECK, what).helps(format!("sysctl -w net.ipv4.conf.{name}.rp_filter=2")),
            );
        }
    }
    if findings.is_empty() {
        findings.push(Finding::ok(CHECK, "rp_filter is right on all links of ours"));
    }
    findings
}

pub(super) fn bridge_netfilter(node: &Node) -> Vec<Finding> {
    const CHECK: &str = "br_netfilter";
    if !node.has_mode(AttachMode::Bridge) {
        return vec![Finding::ok(CHECK, "not needed: no pod is on a bridge")];
    }
    let keys = ["net/bridge/bridge-nf-call-iptables", "net/bridge/bridge-nf-call-ip6tables"];
    let [v4, v6] = keys.map(|key| sysctl(key).is_some_and(|value| value != "0"));
    vec![match (v4, v6) {
        (true, true) => {
            Finding::ok(CHECK, "what pods on a bridge send each other passes the host's firewall")
        }
        (false, false) => Finding::ok(
            CHECK,
            "off: pods on a bridge reach each other directly; kube-proxy with iptables needs it (modprobe br_netfilter)",
        ),
        (true, false) | (false, true) => {
            let (on, off, key) = if v4 { ("IPv4", "IPv6", keys[1]) } else { ("IPv6", "IPv4", keys[0]) };
            Finding::problem(
                CHECK,
                format!("on for {on} and off for {off}: services work in one family only"),
            )
            .helps(format!("sysctl -w {}=1", dotted(key)))
        }
    }]
}

pub(super) fn disks(node: &Node) -> Vec<Finding> {
    let folders =
        [("run folder", Some(&node.folders.run_dir)), ("state folder", node.folders.state_dir.as_ref())];
    folders.into_iter().filter_map(|(check, folder)| Some(disk(check, folder?))).collect()
}

/// A folder that is not there yet will be on its parent's file system.
fn disk(check: &'static str, folder: &Path) -> Finding {
    let Some(there) = folder.ancestors().find(|path| path.exists()) else {
        return Finding::problem(check, format!("{} is nowhere", folder.display()));
    };
    let df = format!("df -h {0}; df -i {0}", there.display());
    match rustix::fs::statvfs(there) {
        Err(error) => Finding::problem(check, format!("{} cannot be looked at: {error}", there.display())),
        Ok(stat) => {
            let free = stat.f_bavail.saturating_mul(stat.f_frsize);
            let name = folder.display();
            // Some file systems do not count files.
            if free < ROOM || (stat.f_files > 0 && stat.f_favail < FILES) {
                let what =
                    format!("{name} is nearly full: {} MiB and {} files are free", free >> 20, stat.f_favail);
                Finding::problem(check, what).helps(df)
            } else if stat.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY) {
                Finding::problem(check, format!("{name} is on a file system that cannot be written"))
                    .helps(format!("findmnt --target {}", there.display()))
            } else {
                Finding::ok(check, format!("{name}: {} MiB are free", free >> 20))
            }
        }
    }
}

pub(super) fn sysctl(key: &str) -> Option<String> {
    fs::read_to_string(Path::new("/proc/sys").join(key)).ok().map(|text| text.trim().to_owned())
}

fn dotted(key: &str) -> String {
    key.replace('/', ".")
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict;
    use super::*;

    #[test]
    fn a_full_disk_and_one_that_is_not_there_yet() {
        // A file system without any room.
        let full = disk("run folder", Path::new("/proc/podwire"));
        assert_eq!(full.verdict, Verdict::Problem, "{full:?}");
        assert_eq!(full.command.as_deref(), Some("df -h /proc; df -i /proc"));
        let fine = disk("run folder", Path::new("/tmp/podwire/not/there/yet"));
        assert_eq!(fine.verdict, Verdict::Ok, "{fine:?}");
    }
}
