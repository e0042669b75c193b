//! Which condition an error is a sign of.

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

/// What failed, for errors that have no code of their own.
pub(crate) struct FailureContext<'a> {
    pub(crate) code: Code,
    pub(crate) object: &'a str,
    pub(crate) run_dir: &'a Path,
}

impl Error {
    /// The condition of the failed operation. Known causes have their own codes and objects, whichever operation they stop.
    pub(crate) fn finding(self, failed: &FailureContext<'_>) -> Finding {
        let (text, advice) = (self.chain(), self.advice());
        let known = self.cause(failed.run_dir);
        let found = known.unwrap_or_else(|| Finding::new(failed.code, failed.object, ""));
        let is_fix = found.fix.as_deref() == Some(advice);
        let message = if is_fix || advice.is_empty() { text } else { format!("{text}: {advice}") };
        Finding { message, ..found }
    }

    /// Code, object and fix of a known cause.
    fn cause(&self, run_dir: &Path) -> Option<Finding> {
        let found = |code, object: String| Some(Finding::new(code, object, ""));
        match self {
            Self::NotReady(finding) | Self::Degraded(finding) => Some(finding.clone()),
            Self::Firewall(error @ (nft::Error::NftMissing | nft::Error::NftNotExecutable { .. })) => {
                error.missing_program()
            }
            Self::Firewall(error @ nft::Error::Unsupported { option, .. }) => {
                let found =
                    Finding::new(Code::KernelFeatureMissing, format_args!("kernel option {option}"), "");
                let load = error.module().map(|module| Fix::words(["modprobe", &module]));
                Some(Finding { fix: load, ..found })
            }
            Self::Firewall(nft::Error::Permission { .. }) | Self::Privileges(_) => {
                found(Code::PermissionDenied, "process".to_owned())
            }
            Self::State(error) if error.is_full() => {
                let object = format_args!("directory {}", run_dir.display());
                Some(Finding::new(Code::RunDirFull, object, "").fix(show_space(run_dir)))
            }
            Self::State(StateError::Unsafe(unsafe_dir)) => {
                let object = format_args!("directory {}", run_dir.display());
                Some(Finding::new(Code::RunDirUnusable, object, "").fix(make_safe(unsafe_dir)))
            }
            Self::Unreadable { record } => {
                found(Code::RecordUnreadable, format!("file {}", record.display()))
            }
            Self::NewerRecord { record, .. } => {
                found(Code::RecordNewer, format!("file {}", record.display()))
            }
            Self::NotABridge { name, link_use, .. } => {
                let found = Finding::new(Code::BridgeNameTaken, format_args!("link {name}"), "");
                Some(match link_use {
                    LinkUse::Unused => found.fix(renaming(name)),
                    LinkUse::Possible => found,
                })
            }
            Self::Several(errors) => errors.iter().find_map(|error| error.cause(run_dir)),
            _ => None,
        }
    }
}

/// The command that an [`UnsafeDir`] asks for.
fn make_safe(found: &UnsafeDir) -> Fix {
    let text = |dir: &Path| dir.to_string_lossy().into_owned();
    match found {
        UnsafeDir::Symlink(dir) => Fix::words(["rm", &text(dir)]),
        UnsafeDir::Owner { dir, euid, .. } => Fix::words(["chown", &euid.to_string(), &text(dir)]),
        UnsafeDir::Mode { dir, .. } => Fix::words(["chmod", "go-w", &text(dir)]),
    }
}

/// A run directory with thousands of pods needs a few MiB, and a file for each. So little left is reported.
const SPACE: u64 = 16 << 20;
const FILES: u64 = 1000;

/// What is left on a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    pub bytes: u64,
    /// None where the file system does not count files.
    pub files: Option<u64>,
    pub is_read_only: bool,
}

impl Space {
    /// Of the file system of a directory. One that does not exist yet will be on its parent's.
    pub fn of(dir: &Path) -> io::Result<Self> {
        let there = dir.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
        let stat = rustix::fs::statvfs(there)?;
        Ok(Self {
            bytes: stat.f_bavail.saturating_mul(stat.f_frsize),
            files: (stat.f_files > 0).then_some(stat.f_favail),
            is_read_only: stat.f_flag.contains(StatVfsMountFlags::RDONLY),
        })
    }

    pub fn is_short(self) -> bool {
        self.bytes < SPACE || self.files.is_some_and(|files| files < FILES)
    }

    fn is_used_up(self) -> bool {
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
    let (dir, how) = (run_dir.display(), if space.is_used_up() { "full" } else { "nearly full" });
    let files = space.files.map_or(String::new(), |files| format!(" and {files} files"));
    let message = format!("{dir} is {how}: {} KiB{files} are free", space.bytes >> 10);
    let found = Finding::new(Code::RunDirFull, format_args!("directory {dir}"), message);
    let found = found.fix(show_space(run_dir));
    Some(if space.is_used_up() { found } else { found.degraded() })
}

/// Repairs tables and bridges without an agent.
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
    /// It may be the link that the node is reached by.
    Possible,
}

impl LinkUse {
    fn of(host: &mut RtSocket, link: &Link) -> Result<Self, netlink::Error> {
        let is_virtual = matches!(link.kind.as_deref(), Some("dummy" | "ifb" | "veth" | "vxlan"));
        if !is_virtual || link.master.is_some() {
            return Ok(Self::Possible);
        }
        let is_own = |net: &IpNet| match net.addr() {
            IpAddr::V4(_) => false,
            IpAddr::V6(addr) => addr.is_unicast_link_local() || addr.is_multicast(),
        };
        let over = RouteFilter { link: Some(link.index), ..RouteFilter::default() };
        let is_idle = host.addresses(Some(link.index))?.iter().all(|address| is_own(&address.addr))
            && host.routes(over)?.iter().all(|route| is_own(&route.dst));
        Ok(if is_idle { Self::Unused } else { Self::Possible })
    }
}

/// The error about a link that is no bridge and has the name of one.
pub(crate) fn not_a_bridge(host: &mut RtSocket, name: &IfName, link: Link) -> Error {
    // A link that cannot be inspected may be in use.
    let link_use = LinkUse::of(host, &link).unwrap_or(LinkUse::Possible);
    let kind = link.kind.unwrap_or_else(|| "physical link".to_owned());
    Error::NotABridge { name: name.clone(), kind, link_use }
}

/// Frees the name and keeps the link.
fn renaming(name: &IfName) -> Fix {
    let kept: String = name.as_str().chars().take(11).collect();
    let set = |words: &[&str]| Fix::words([&["ip", "link", "set", "dev", name.as_str()], words].concat());
    set(&["down"]).and(set(&["name", &format!("old-{kept}")]))
}
