//! Sysctls of the host and of links. Those of the host and of unmanaged links are written only if their value differs.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use netlink::{RouteFilter, RtSocket};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use types::{IfName, MIN_MTU_V6};

use crate::state::{Sysctl, SysctlLog, sysctl_key};
use crate::{Error, KernelCache};

const IPV6_CONF: &str = "/proc/sys/net/ipv6/conf";

fn ipv6(link: &str, key: &str) -> PathBuf {
    Path::new(IPV6_CONF).join(link).join(key)
}

fn ipv4(link: &str, key: &str) -> PathBuf {
    Path::new("/proc/sys/net/ipv4/conf").join(link).join(key)
}

/// The owner of the link on which a sysctl is set. Changes on unmanaged links are recorded with the old value (F7).
#[derive(Debug, Clone, Copy)]
pub(crate) enum LinkOwner<'a> {
    Podwire,
    Unmanaged(&'a SysctlLog),
}

/// Sets a sysctl of a managed link. A sysctl that does not exist (kernel without IPv6) needs no protection.
fn set(path: PathBuf, value: &'static str) -> Result<(), Error> {
    match fs::write(&path, value) {
        Ok(()) => Ok(()),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        Err(source) => Err(failed(path, value, source)),
    }
}

/// The IPv6 sysctl directory of one managed link, opened once. Path lookup is slow: the directories of all namespaces have
/// the same name, and the kernel compares them one by one, about 0.1 µs each.
struct LinkSysctls {
    path: PathBuf,
    /// None if the kernel or the link has no IPv6. Then there is nothing to protect.
    directory: Option<OwnedFd>,
}

impl LinkSysctls {
    /// In the network namespace of the calling thread.
    fn of(link: &IfName) -> Result<Self, Error> {
        Self::open_with(link, |path| open_directory(CWD, path))
    }

    fn of_host_end(link: &IfName, host: &HostSettings<'_>) -> Result<Self, Error> {
        match host.dir() {
            Some(all) => Self::open_with(link, |_| open_directory(all, Path::new(link.as_str()))),
            None => Ok(Self { path: Path::new(IPV6_CONF).join(link.as_str()), directory: None }),
        }
    }

    fn open_with(
        link: &IfName,
        open: impl FnOnce(&Path) -> rustix::io::Result<OwnedFd>,
    ) -> Result<Self, Error> {
        let path = Path::new(IPV6_CONF).join(link.as_str());
        let directory = unless_missing(&path, open(&path))?;
        Ok(Self { path, directory })
    }

    fn set(&self, key: &str, value: &'static str) -> Result<(), Error> {
        let Some(directory) = &self.directory else { return Ok(()) };
        let opened = rustix::fs::openat(directory, key, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty());
        match opened.and_then(|file| rustix::io::write(&file, value.as_bytes())) {
            Ok(_) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(failed(self.path.join(key), value, errno.into())),
        }
    }

    /// Nodes and runtimes may disable IPv6 for all new links. Written only if needed: for this sysctl the kernel spins
    /// until the RTNL lock is free.
    fn enable(&self) -> Result<(), Error> {
        let Some(directory) = &self.directory else { return Ok(()) };
        if reads_at(directory, Path::new("disable_ipv6"), *b"0\n") {
            Ok(())
        } else {
            self.set("disable_ipv6", "0")
        }
    }
}

/// The IPv6 sysctl directory of all host links, opened once. Every path lookup below `/proc/sys/net/ipv6` compares the
/// entries of all namespaces one by one, about 0.1 µs each.
pub(crate) enum HostSettings<'a> {
    Cached(&'a OwnedFd),
    Opened(OwnedFd),
    /// The kernel has no IPv6.
    Absent,
}

impl<'a> HostSettings<'a> {
    /// Opens the directory in the network namespace of the calling thread, unless the agent has it open.
    pub(crate) fn open(kernel_cache: Option<&'a KernelCache>) -> Result<Self, Error> {
        Ok(match kernel_cache {
            Some(kernel_cache) => kernel_cache.settings()?.map_or(Self::Absent, Self::Cached),
            None => open_ipv6_conf()?.map_or(Self::Absent, Self::Opened),
        })
    }

    fn dir(&self) -> Option<&OwnedFd> {
        match self {
            Self::Cached(dir) => Some(dir),
            Self::Opened(dir) => Some(dir),
            Self::Absent => None,
        }
    }

    /// Whether a link with this MTU has IPv6. If not, the kernel refuses all IPv6 settings of the link.
    pub(crate) fn has_ipv6(&self, mtu: u32) -> bool {
        mtu >= MIN_MTU_V6 && self.dir().is_some()
    }

    fn is_forwarding(&self) -> bool {
        self.dir().is_some_and(|dir| is_one(dir, Path::new("all/forwarding")))
    }
}

/// Whether a setting reads 1.
fn is_one(at: impl AsFd, path: &Path) -> bool {
    reads_at(at, path, *b"1\n")
}

fn reads_at(at: impl AsFd, path: &Path, value: [u8; 2]) -> bool {
    let mut content = [0; 2];
    let opened = rustix::fs::openat(at, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    opened.and_then(|file| rustix::io::read(&file, &mut content)).is_ok() && content == value
}

/// The IPv6 sysctl directory of the calling thread's network namespace. None if the kernel has no IPv6.
pub(crate) fn open_ipv6_conf() -> Result<Option<OwnedFd>, Error> {
    let path = Path::new(IPV6_CONF);
    unless_missing(path, open_directory(CWD, path))
}

/// Only a missing directory means that there is nothing to set. If opening fails for another reason, for example too many
/// open files, the directory may contain settings that protect pods.
fn unless_missing(path: &Path, opened: rustix::io::Result<OwnedFd>) -> Result<Option<OwnedFd>, Error> {
    match opened {
        Ok(directory) => Ok(Some(directory)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(failed(path.to_owned(), "0", errno.into())),
    }
}

fn open_directory(at: impl AsFd, path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(at, path, flags, Mode::empty())
}

fn set_for(owner: LinkOwner<'_>, path: PathBuf, value: &'static str) -> Result<(), Error> {
    match owner {
        LinkOwner::Podwire => set(path, value),
        LinkOwner::Unmanaged(_) if !path.exists() => Ok(()),
        LinkOwner::Unmanaged(log) => change(log, path, value),
    }
}

/// Bridges and host ends ignore router advertisements: a pod could send them, and the kernel's default is 1 (F2).
pub(crate) fn refuse_router_advertisements(link: &IfName, owner: LinkOwner<'_>) -> Result<(), Error> {
    set_for(owner, ipv6(link.as_str(), "accept_ra"), "0")
}

/// Restores accept_ra of a managed link to 0. Returns the path if another process had changed it.
pub(crate) fn restore_accept_ra(link: &IfName) -> Result<Option<PathBuf>, Error> {
    let path = ipv6(link.as_str(), "accept_ra");
    if reads(&path, "0") || !path.exists() {
        return Ok(None);
    }
    set(path.clone(), "0")?;
    Ok(Some(path))
}

/// For a link that needs IPv6: see [`LinkSysctls::enable`].
pub(crate) fn enable_ipv6(link: &IfName, owner: LinkOwner<'_>) -> Result<(), Error> {
    let disabled = ipv6(link.as_str(), "disable_ipv6");
    match owner {
        LinkOwner::Podwire => LinkSysctls::of(link)?.enable(),
        LinkOwner::Unmanaged(log) if reads(&disabled, "1") => change(log, disabled, "0"),
        LinkOwner::Unmanaged(_) => Ok(()),
    }
}

/// For the host end of a pod. Other programs do not configure this link, so nothing is recorded.
pub(crate) fn protect_host_end(link: &IfName, has_ipv6: bool, host: &HostSettings<'_>) -> Result<(), Error> {
    let settings = LinkSysctls::of_host_end(link, host)?;
    settings.set("accept_ra", "0")?;
    if has_ipv6 { settings.enable() } else { Ok(()) }
}

/// For the pod's link. Called inside its namespace before the link is up (F2).
pub(crate) fn protect_pod_link(link: &IfName, has_ipv6: bool) -> Result<(), Error> {
    let settings = LinkSysctls::of(link)?;
    for key in ["accept_ra", "autoconf", "accept_redirects"] {
        settings.set(key, "0")?;
    }
    if has_ipv6 { settings.enable() } else { Ok(()) }
}

/// Makes the kernel announce the addresses when the link's MAC is set. Called inside the pod's namespace.
pub(crate) fn announce_addresses(link: &IfName) -> Result<(), Error> {
    set(ipv4(link.as_str(), "arp_notify"), "1")?;
    set(ipv6(link.as_str(), "ndisc_notify"), "1")
}

/// Whether [`ignore_arp`] is in effect: the link neither answers nor learns from ARP.
pub(crate) fn ignores_arp(link: &str) -> bool {
    reads(&ipv4(link, "arp_ignore"), "8") && reads(&ipv4(link, "arp_accept"), "0") && !may_accept_arp()
}

/// Whether `conf/all` lets links learn from unsolicited ARP, independent of their own settings.
pub(crate) fn may_accept_arp() -> bool {
    !reads(&ipv4("all", "arp_accept"), "0")
}

/// For a managed link in use. Setting NOARP instead would remove its neighbours.
pub(crate) fn ignore_arp(link: &IfName) -> Result<(), Error> {
    set(ipv4(link.as_str(), "arp_accept"), "0")?;
    set(ipv4(link.as_str(), "arp_ignore"), "8")
}

/// Connections from 127.0.0.1 to a hostPort leave through this link with a loopback source, until they are masqueraded.
pub(crate) fn allow_loopback_source(link: &IfName, owner: LinkOwner<'_>) -> Result<(), Error> {
    set_for(owner, ipv4(link.as_str(), "route_localnet"), "1")
}

/// For a tunnel device. Returns the changed settings. The reverse path filter is loose because replies may take another path
/// while transports change (F6). The kernel uses the larger of the device's and the host's value, so strict hosts are
/// covered. Without IPv6 in the kernel there is nothing to set for it.
pub(crate) fn prepare_tunnel(link: &IfName) -> Result<Vec<String>, Error> {
    let name = link.as_str();
    let settings = [
        (ipv4(name, "rp_filter"), "2"),
        (ipv4(name, "send_redirects"), "0"),
        (ipv4(name, "accept_redirects"), "0"),
        (ipv4(name, "forwarding"), "1"),
        (ipv6(name, "disable_ipv6"), "0"),
        (ipv6(name, "accept_ra"), "0"),
        (ipv6(name, "accept_redirects"), "0"),
        (ipv6(name, "forwarding"), "1"),
    ];
    let mut changed = Vec::new();
    for (path, value) in settings {
        let is_ipv6 = path.starts_with("/proc/sys/net/ipv6");
        if reads(&path, value) || (is_ipv6 && !path.exists()) {
            continue;
        }
        let key = sysctl_key(&path);
        fs::write(&path, value).map_err(|source| failed(path, value, source))?;
        changed.push(format!("{key} set to {value}"));
    }
    Ok(changed)
}

/// Address families that a network needs forwarded.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ForwardedFamilies {
    pub(crate) ipv4: bool,
    pub(crate) ipv6: bool,
}

/// Forwarding is a setting of the host, so the old value is recorded (F7). Returns the changed paths.
pub(crate) fn enable_forwarding(
    host: &mut RtSocket,
    log: &SysctlLog,
    families: ForwardedFamilies,
    settings: &HostSettings<'_>,
) -> Result<Vec<PathBuf>, Error> {
    let mut changed = Vec::new();
    let forwarding = PathBuf::from("/proc/sys/net/ipv4/ip_forward");
    if families.ipv4 && !is_one(CWD, &forwarding) {
        record_forwarding_links(log, "/proc/sys/net/ipv4/conf")?;
        change(log, forwarding.clone(), "1")?;
        changed.push(forwarding);
    }
    let forwarding = ipv6("all", "forwarding");
    if families.ipv6 && !settings.is_forwarding() {
        preserve_learned_routes(host, log)?;
        record_forwarding_links(log, IPV6_CONF)?;
        change(log, forwarding.clone(), "1")?;
        changed.push(forwarding);
    }
    Ok(changed)
}

/// Records links that forward while the host does not. Changing the host's setting changes all links, and cleanup has to
/// restore them.
fn record_forwarding_links(log: &SysctlLog, settings: &str) -> Result<(), Error> {
    for link in fs::read_dir(settings).into_iter().flatten().flatten() {
        let path = link.path().join("forwarding");
        let is_link = !matches!(link.file_name().to_str(), Some("all" | "default") | None);
        let Some(sysctl) = path.to_str().filter(|_| is_link && reads(&path, "1")).and_then(Sysctl::parse)
        else {
            continue;
        };
        log.record(&sysctl, "1", "1")?;
    }
    Ok(())
}

/// A forwarding host ignores router advertisements unless accept_ra is 2. A learned default route would expire (F1).
fn preserve_learned_routes(host: &mut RtSocket, log: &SysctlLog) -> Result<(), Error> {
    const PROTOCOL_RA: u8 = 9;
    let learned = RouteFilter { protocol: Some(PROTOCOL_RA), ..RouteFilter::default() };
    let mut links: Vec<u32> = host.routes(learned)?.iter().filter_map(|route| route.link).collect();
    links.sort_unstable();
    links.dedup();
    for index in links {
        let Some(link) = host.link_at(index)? else { continue };
        let path = ipv6(&link.name, "accept_ra");
        if reads(&path, "1") {
            change(log, path, "2")?;
        }
    }
    Ok(())
}

fn reads(path: &Path, value: &str) -> bool {
    fs::read_to_string(path).is_ok_and(|text| text.trim() == value)
}

fn change(log: &SysctlLog, path: PathBuf, value: &'static str) -> Result<(), Error> {
    let before = match fs::read_to_string(&path) {
        Ok(text) => text.trim().to_owned(),
        Err(source) => return Err(failed(path, value, source)),
    };
    if before == value {
        return Ok(());
    }
    let Some(sysctl) = path.to_str().and_then(Sysctl::parse) else {
        let source = std::io::Error::other("cleanup cannot restore this setting");
        return Err(failed(path, value, source));
    };
    log.record(&sysctl, &before, value)?;
    fs::write(&path, value).map_err(|source| failed(path, value, source))
}

fn failed(path: PathBuf, value: &str, source: std::io::Error) -> Error {
    Error::Sysctl { path, value: value.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a1_settings_that_cannot_be_opened_are_an_error() {
        let path = Path::new(IPV6_CONF);
        assert!(unless_missing(path, Err(Errno::NOENT)).unwrap().is_none());
        for errno in [Errno::MFILE, Errno::NFILE, Errno::ACCESS, Errno::NOMEM] {
            let error = unless_missing(path, Err(errno)).unwrap_err();
            assert!(error.to_string().contains(IPV6_CONF), "{error}");
        }
    }
}
