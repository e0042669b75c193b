//! Settings of the host: privileges, forwarding, reverse path filter, br_netfilter and free disk space.

use std::fs;
use std::path::Path;

use agent::{Capability, missing_capabilities};
use engine::Space;
use types::{AttachMode, Code, Finding, Fix};

use super::check::Check;
use super::node::CheckedNode;

pub(super) const PRIVILEGES: &str = "privileges";

pub(super) fn privileges() -> Vec<Check> {
    const CHECK: &str = PRIVILEGES;
    let missing = missing_capabilities(&[Capability::NetAdmin, Capability::SysAdmin]);
    let missing: Vec<&str> = missing.into_iter().map(Capability::name).collect();
    if missing.is_empty() {
        return vec![Check::ok(CHECK, "root, with CAP_NET_ADMIN and CAP_SYS_ADMIN")];
    }
    // The command refuses other users before. Root without capabilities is usually in a container.
    let verb = if missing.len() == 1 { "is" } else { "are" };
    let message = format!(
        "{} {verb} missing, and most checks need them: {}",
        missing.join(" and "),
        Code::PermissionDenied.advice()
    );
    vec![Check::problem(CHECK, Finding::new(Code::PermissionDenied, "process", message))]
}

pub(super) fn forwarding(node: &CheckedNode) -> Vec<Check> {
    const CHECK: &str = "forwarding";
    let addresses = node.addresses();
    let families = [
        ("IPv4", addresses.iter().any(|net| net.addr().is_ipv4()), "net/ipv4/ip_forward"),
        ("IPv6", addresses.iter().any(|net| net.addr().is_ipv6()), "net/ipv6/conf/all/forwarding"),
    ];
    // No pod traffic is lost before the first pod.
    let is_pending = node.attachments.is_empty() && node.status().is_some_and(|status| !status.ready);
    let needed = families.iter().filter(|(_, needed, _)| *needed);
    let mut findings: Vec<Check> = needed
        .map(|(family, _, key)| match sysctl(key).as_deref() {
            Some("0") if is_pending => {
                Check::ok(CHECK, format!("{family} forwarding is off; the agent enables it when it is ready"))
            }
            Some("0") => {
                let message = format!("{family} forwarding is off: pods reach only this node");
                let found = Finding::new(Code::ForwardingDisabled, format_args!("family {family}"), message);
                Check::problem(CHECK, found.fix(enable(key)))
            }
            Some(_) => Check::ok(CHECK, format!("{family} forwarding is on")),
            None => {
                let message =
                    format!("the kernel does not support {family}, and pods have {family} addresses");
                Check::problem(
                    CHECK,
                    Finding::new(Code::KernelFeatureMissing, format_args!("family {family}"), message),
                )
            }
        })
        .collect();
    if findings.is_empty() {
        findings.push(Check::ok(CHECK, "not needed: no pods and no network"));
    }
    findings
}

/// Strict mode (1) is correct for pod links. On a tunnel it drops packets while the transport of a peer changes (F6). The kernel
/// uses the larger of the values for all links and for the device. Loose mode is 2.
pub(super) fn reverse_paths(node: &CheckedNode) -> Vec<Check> {
    const CHECK: &str = "reverse paths";
    let mut findings = Vec::new();
    for tunnel in node.tunnels() {
        let value = |link: &str| {
            sysctl(&format!("net/ipv4/conf/{link}/rp_filter")).and_then(|text| text.parse::<u8>().ok())
        };
        let name = &tunnel.name;
        if value("all").max(value(name)) == Some(1) {
            let message =
                format!("rp_filter of tunnel {name} is strict: packets with an asymmetric path are dropped");
            let found = Finding::new(Code::ReversePathStrict, format_args!("link {name}"), message);
            // With slashes, because the name of a link may contain dots.
            let fix = Fix::words(["sysctl", "-w", &format!("net/ipv4/conf/{name}/rp_filter=2")]);
            findings.push(Check::problem(CHECK, found.fix(fix)));
        }
    }
    if findings.is_empty() {
        findings.push(Check::ok(CHECK, "no tunnel has a strict rp_filter"));
    }
    findings
}

pub(super) fn bridge_netfilter(node: &CheckedNode) -> Vec<Check> {
    const CHECK: &str = "br_netfilter";
    if !node.has_mode(AttachMode::Bridge) {
        return vec![Check::ok(CHECK, "not needed: no pods in mode bridge")];
    }
    let keys = ["net/bridge/bridge-nf-call-iptables", "net/bridge/bridge-nf-call-ip6tables"];
    let [v4, v6] = keys.map(|key| sysctl(key).is_some_and(|value| value != "0"));
    vec![match (v4, v6) {
        (true, true) => {
            Check::ok(CHECK, "on: traffic between pods of a bridge passes the firewall of the host")
        }
        (false, false) => {
            Check::ok(CHECK, "off: only kube-proxy with iptables needs it (modprobe br_netfilter)")
        }
        (true, false) | (false, true) => {
            let (on, off, key) = if v4 { ("IPv4", "IPv6", keys[1]) } else { ("IPv6", "IPv4", keys[0]) };
            let message = format!("on for {on} and off for {off}: services work in one family only");
            let found = Finding::new(Code::BridgeNetfilterPartial, format_args!("family {off}"), message);
            Check::problem(CHECK, found.fix(enable(key)))
        }
    }]
}

pub(super) fn disks(node: &CheckedNode) -> Vec<Check> {
    let directories = [
        ("run directory", Code::RunDirFull, Some(&node.directories.run_dir)),
        ("state directory", Code::StateDirFull, node.directories.state_dir.as_ref()),
    ];
    directories
        .into_iter()
        .filter_map(|(check, code, directory)| Some(disk(check, code, directory?)))
        .collect()
}

fn disk(check: &'static str, code: Code, directory: &Path) -> Check {
    let name = directory.display();
    let problem = |code: Code, message: String, fix: Fix| {
        Check::problem(check, Finding::new(code, format_args!("directory {name}"), message).fix(fix))
    };
    let space = match Space::of(directory) {
        Ok(space) => space,
        Err(error) => return Check::unknown(check, format!("cannot read the free space of {name}: {error}")),
    };
    match engine::run_dir_space(directory) {
        Some(found) if code == Code::RunDirFull => Check::problem(check, found),
        _ if space.is_short() => {
            let free = space.bytes >> 20;
            problem(code, format!("{name} is nearly full: {free} MiB free"), engine::show_space(directory))
        }
        _ if space.is_read_only => {
            let code = if code == Code::RunDirFull { Code::RunDirUnusable } else { code };
            let message = format!("{name} is on a read-only file system");
            let path = directory.to_string_lossy();
            problem(code, message, Fix::words(["findmnt", "--target", &path]))
        }
        _ => Check::ok(check, format!("{name}: {} MiB free", space.bytes >> 20)),
    }
}

pub(super) fn sysctl(key: &str) -> Option<String> {
    fs::read_to_string(Path::new("/proc/sys").join(key)).ok().map(|text| text.trim().to_owned())
}

fn enable(key: &str) -> Fix {
    Fix::words(["sysctl", "-w", &format!("{}=1", key.replace('/', "."))])
}

#[cfg(test)]
mod tests {
    use super::super::check::Verdict;
    use super::*;

    #[test]
    fn a_full_disk_is_a_problem_and_a_missing_directory_is_not() {
        // A file system without free space.
        let full = disk("run directory", Code::RunDirFull, Path::new("/proc/podwire"));
        assert!(full.verdict == Verdict::Problem && full.has(Code::RunDirFull), "{full:?}");
        assert_eq!(full.fix.as_deref(), Some("df -h /proc/podwire; df -i /proc/podwire"));
        let full = disk("run directory", Code::RunDirFull, Path::new("/proc/pod wire"));
        assert_eq!(full.fix.as_deref(), Some("df -h '/proc/pod wire'; df -i '/proc/pod wire'"));
        let ok = disk("run directory", Code::RunDirFull, Path::new("/tmp/podwire/not/there/yet"));
        assert_eq!(ok.verdict, Verdict::Ok, "{ok:?}");
    }
}
