//! Maps errors to conditions.

use std::io;
use std::net::IpAddr;
use std::path::Path;

use files::UnsafeDir;
use ipnet::IpNet;
use netlink::{Link, RouteFilter, RtSocket};
use rustix::fs::StatVfsMountFlags;
use types::{Code, Finding, Fix, IfName};

use crate::Error;
use crate::state::StateError;

/// The failed operation, for errors without a condition code.
pub(crate) struct FailureContext<'a> {
    pub(crate) code: Code,
    pub(crate) object: &'a str,
    pub(crate) run_dir: &'a Path,
}

impl Error {
    /// The condition of the failed operation. A known cause has its own code and object, independent of the operation.
    pub(crate) fn finding(self, failed: &FailureContext<'_>) -> Finding {
        let (text, advice) = (self.chain(), self.advice());
        let cause = self.cause(failed.run_dir);
        let finding = cause.unwrap_or_else(|| Finding::new(failed.code, failed.object, ""));
        let is_fix = finding.fix.as_deref() == Some(advice);
        let message = if is_fix || advice.is_empty() { text } else { format!("{text}: {advice}") };
        Finding { message, ..finding }
    }

    /// Code, object and fix of a known cause.
    fn cause(&self, run_dir: &Path) -> Option<Finding> {
        let finding = |code, object: String| Some(Finding::new(code, object, ""));
        match self {
            Self::NotReady(finding) | Self::Degraded(finding) => Some(finding.clone()),
            Self::Firewall(error @ (nft::Error::NftMissing | nft::Error::NftNotExecutable { .. })) => {
                error.missing_program()
            }
            Self::Firewall(error @ nft::Error::Unsupported { option, .. }) => {
                let finding =
                    Finding::new(Code::KernelFeatureMissing, format_args!("kernel option {option}"), "");
                let load = error.module().map(|module| Fix::words(["modprobe", &module]));
                Some(Finding { fix: load, ..finding })
            }
            Self::Firewall(nft::Error::Permission { .. }) | Self::Privileges(_) => {
                finding(Code::PermissionDenied, "process".to_owned())
            }
            Self::State(error) if error.is_full() => {
                let object = format_args!("directory {}", run_dir.display());
                Some(Finding::new(Code::RunDirFull, object, "").fix(show_space(run_dir)))
            }
            Self::State(StateError::Unsafe(unsafe_dir)) => {
                let object = format_args!("directory {}", run_dir.display());
                Some(Finding::new(Code::RunDirUnusable, object, "").fix(unsafe_dir_fix(unsafe_dir)))
            }
            Self::Unreadable { record } => {
                finding(Code::RecordUnreadable, format!("file {}", record.display()))
            }
            Self::NewerRecord { record, .. } => {
                finding(Code::RecordNewer, format!("file {}", record.display()))
            }
            Self::NotABridge { name, link_use, .. } => {
                let finding = Finding::new(Code::BridgeNameTaken, format_args!("link {name}"), "");
                Some(match link_use {
                    LinkUse::Unused => finding.fix(rename_command(name)),
                    LinkUse::Possible => finding,
                })
            }
            Self::Several(errors) => errors.iter().find_map(|error| error.cause(run_dir)),
            _ => None,
        }
    }
}

/// The command that makes the directory safe.
fn unsafe_dir_fix(unsafe_dir: &UnsafeDir) -> Fix {
    let text = |dir: &Path| dir.to_string_lossy().into_owned();
    match unsafe_dir {
        UnsafeDir::Symlink(dir) => Fix::words(["rm", &text(dir)]),
        UnsafeDir::Owner { dir, euid, .. } => Fix::words(["chown", &euid.to_string(), &text(dir)]),
        UnsafeDir::Mode { dir, .. } => Fix::words(["chmod", "go-w", &text(dir)]),
    }
}

/// With less free space than this, a condition is reported. A run directory with thousands of pods needs a few MiB and one file per pod.
const MIN_FREE_BYTES: u64 = 16 << 20;
const MIN_FREE_FILES: u64 = 1000;

/// Free space of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    pub bytes: u64,
    /// None if the file system does not count files.
    pub files: Option<u64>,
    pub is_read_only: bool,
}

impl Space {
    /// Free space of the directory's file system. If the directory does not exist, that of its closest existing parent.
    pub fn of(dir: &Path) -> io::Result<Self> {
        let existing = dir.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
        let stat = rustix::fs::statvfs(existing)?;
        Ok(Self {
            bytes: stat.f_bavail.saturating_mul(stat.f_frsize),
            files: (stat.f_files > 0).then_some(stat.f_favail),
            is_read_only: stat.f_flag.contains(StatVfsMountFlags::RDONLY),
        })
    }

    pub fn is_short(self) -> bool {
        self.bytes < MIN_FREE_BYTES || self.files.is_some_and(|files| files < MIN_FREE_FILES)
    }

    fn is_full(self) -> bool {
        self.bytes == 0 || self.files == Some(0)
    }
}

/// The command that shows how full a file system is.
pub fn show_space(dir: &Path) -> Fix {
    let dir = dir.to_string_lossy();
    Fix::words(["df", "-h", &dir]).then(Fix::words(["df", "-i", &dir]))
}

/// The condition of a run directory that is full or nearly full.
pub fn run_dir_space(run_dir: &Path) -> Option<Finding> {
    let space = Space::of(&run_dir.join("networks")).ok().filter(|space| space.is_short())?;
    let (dir, level) = (run_dir.display(), if space.is_full() { "full" } else { "nearly full" });
    let files = space.files.map_or(String::new(), |files| format!(" and {files} files"));
    let message = format!("{dir} is {level}: {} KiB{files} are free", space.bytes >> 10);
    let finding = Finding::new(Code::RunDirFull, format_args!("directory {dir}"), message);
    let finding = finding.fix(show_space(run_dir));
    Some(if space.is_full() { finding } else { finding.degraded() })
}

/// The command that repairs tables and bridges without an agent.
pub(crate) fn repair_command(run_dir: &Path) -> Fix {
    let mut words = vec!["podwire", "doctor", "--repair"];
    let dir = run_dir.to_string_lossy();
    if run_dir != Path::new(netconf::DEFAULT_RUN_DIR) {
        words.extend(["--run-dir", &dir]);
    }
    Fix::words(words)
}

/// Whether traffic may depend on a link that has the name of a bridge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkUse {
    /// A virtual link without addresses, routes and master.
    Unused,
    /// It may be the node's uplink.
    Possible,
}

impl LinkUse {
    fn of(host: &mut RtSocket, link: &Link) -> Result<Self, netlink::Error> {
        let is_virtual = matches!(link.kind.as_deref(), Some("dummy" | "ifb" | "veth" | "vxlan"));
        if !is_virtual || link.master.is_some() {
            return Ok(Self::Possible);
        }
        let is_automatic = |net: &IpNet| match net.addr() {
            IpAddr::V4(_) => false,
            IpAddr::V6(addr) => addr.is_unicast_link_local() || addr.is_multicast(),
        };
        let through_link = RouteFilter { link: Some(link.index), ..RouteFilter::default() };
        let is_idle = host.addresses(Some(link.index))?.iter().all(|address| is_automatic(&address.addr))
            && host.routes(through_link)?.iter().all(|route| is_automatic(&route.dst));
        Ok(if is_idle { Self::Unused } else { Self::Possible })
    }
}

/// The error for a link that has the name of the bridge but is not a bridge.
pub(crate) fn not_a_bridge(host: &mut RtSocket, name: &IfName, link: Link) -> Error {
    // A link that cannot be inspected may be in use.
    let link_use = LinkUse::of(host, &link).unwrap_or(LinkUse::Possible);
    let kind = link.kind.unwrap_or_else(|| "physical link".to_owned());
    Error::NotABridge { name: name.clone(), kind, link_use }
}

/// The command that frees the name and preserves the link.
fn rename_command(name: &IfName) -> Fix {
    let prefix: String = name.as_str().chars().take(11).collect();
    let set = |words: &[&str]| Fix::words([&["ip", "link", "set", "dev", name.as_str()], words].concat());
    set(&["down"]).and(set(&["name", &format!("old-{prefix}")]))
}
