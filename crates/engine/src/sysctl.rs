//! Sysctls: read before written, so that nothing is written that is right already.

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

const ALL_SETTINGS: &str = "/proc/sys/net/ipv6/conf";

fn ipv6(link: &str, key: &str) -> PathBuf {
    Path::new(ALL_SETTINGS).join(link).join(key)
}

fn ipv4(link: &str, key: &str) -> PathBuf {
    Path::new("/proc/sys/net/ipv4/conf").join(link).join(key)
}

/// Whose link a sysctl is set on. What we change on somebody else's is recorded with its old value (F7).
#[derive(Debug, Clone, Copy)]
pub(crate) enum LinkOwner<'a> {
    Us,
    OtherOwner(&'a SysctlLog),
}

/// Sets a sysctl of a link of ours. One that does not exist (IPv6 is not in this kernel) has nothing to protect from.
fn set(path: PathBuf, value: &'static str) -> Result<(), Error> {
    match fs::write(&path, value) {
        Ok(()) => Ok(()),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        Err(source) => Err(failed(path, value, source)),
    }
}

/// The IPv6 settings of one link of ours, found once. The way there is long: the directories of all namespaces have the same
/// name, and the kernel goes through them one by one, some 0.1 µs for each.
struct LinkSysctls {
    path: PathBuf,
    /// None: IPv6 is not in this kernel, or not on this link; there is nothing to protect from.
    directory: Option<OwnedFd>,
}

impl LinkSysctls {
    /// In the network namespace of the calling thread.
    fn of(link: &IfName) -> Result<Self, Error> {
        Self::found(link, |path| open_directory(CWD, path))
    }

    fn of_host_end(link: &IfName, host: &HostSettings<'_>) -> Result<Self, Error> {
        match host.dir() {
            Some(all) => Self::found(link, |_| open_directory(all, Path::new(link.as_str()))),
            None => Ok(Self { path: Path::new(ALL_SETTINGS).join(link.as_str()), directory: None }),
        }
    }

    fn found(link: &IfName, open: impl FnOnce(&Path) -> rustix::io::Result<OwnedFd>) -> Result<Self, Error> {
        let path = Path::new(ALL_SETTINGS).join(link.as_str());
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

    /// Nodes and runtimes may switch IPv6 off for all new links. Only written where it must be: for this one the kernel
    /// spins until nobody has the lock over all links.
    fn enable(&self) -> Result<(), Error> {
        let Some(directory) = &self.directory else { return Ok(()) };
        if reads_at(directory, Path::new("disable_ipv6"), *b"0\n") {
            Ok(())
        } else {
            self.set("disable_ipv6", "0")
        }
    }
}

/// The IPv6 settings of all links of the host, as a directory that is opened once. Every path below `/proc/sys/net/ipv6`
/// passes the entries of all namespaces, and the kernel compares them one by one, some 0.1 µs for each.
pub(crate) enum HostSettings<'a> {
    Kept(&'a OwnedFd),
    Opened(OwnedFd),
    /// IPv6 is not in this kernel.
    Absent,
}

impl<'a> HostSettings<'a> {
    /// In the network namespace of the calling thread, unless the agent keeps the directory open.
    pub(crate) fn open(kernel_cache: Option<&'a KernelCache>) -> Result<Self, Error> {
        Ok(match kernel_cache {
            Some(kernel_cache) => kernel_cache.settings()?.map_or(Self::Absent, Self::Kept),
            None => all_settings()?.map_or(Self::Absent, Self::Opened),
        })
    }

    fn dir(&self) -> Option<&OwnedFd> {
        match self {
            Self::Kept(dir) => Some(dir),
            Self::Opened(dir) => Some(dir),
            Self::Absent => None,
        }
    }

    /// Does a link of this size have IPv6 at all? If not, the kernel refuses every setting of it.
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
    let mut found = [0; 2];
    let opened = rustix::fs::openat(at, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    opened.and_then(|file| rustix::io::read(&file, &mut found)).is_ok() && found == value
}

/// Where the IPv6 settings of all links of the calling thread's network namespace are, if IPv6 is in this kernel.
pub(crate) fn all_settings() -> Result<Option<OwnedFd>, Error> {
    let path = Path::new(ALL_SETTINGS);
    unless_missing(path, open_directory(CWD, path))
}

/// Only a directory that does not exist means that there is nothing to set. One that cannot be opened now, for example
/// because the process has too many open files, may hold settings that protect pods.
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
        LinkOwner::Us => set(path, value),
        LinkOwner::OtherOwner(_) if !path.exists() => Ok(()),
        LinkOwner::OtherOwner(log) => change(log, path, value),
    }
}

/// The bridge and host ends take no router advertisements: a pod could send them, and 1 is the kernel's default (F2).
pub(crate) fn refuse_advertisements(link: &IfName, owner: LinkOwner<'_>) -> Result<(), Error> {
    set_for(owner, ipv6(link.as_str(), "accept_ra"), "0")
}

/// The same for a link of ours that has them refused already, unless somebody changed that: then it is told.
pub(crate) fn keep_advertisements_out(link: &IfName) -> Result<Option<PathBuf>, Error> {
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
        LinkOwner::Us => LinkSysctls::of(link)?.enable(),
        LinkOwner::OtherOwner(log) if reads(&disabled, "1") => change(log, disabled, "0"),
        LinkOwner::OtherOwner(_) => Ok(()),
    }
}

/// A link of ours on the host, which nobody else has settings on.
pub(crate) fn protect_host_end(link: &IfName, has_ipv6: bool, host: &HostSettings<'_>) -> Result<(), Error> {
    let settings = LinkSysctls::of_host_end(link, host)?;
    settings.set("accept_ra", "0")?;
    if has_ipv6 { settings.enable() } else { Ok(()) }
}

/// The pod's link, called inside its namespace, before the link is up (F2).
pub(crate) fn protect_pod_link(link: &IfName, has_ipv6: bool) -> Result<(), Error> {
    let settings = LinkSysctls::of(link)?;
    for key in ["accept_ra", "autoconf", "accept_redirects"] {
        settings.set(key, "0")?;
    }
    if has_ipv6 { settings.enable() } else { Ok(()) }
}

/// The kernel tells the neighbours when the link's MAC is set, called inside the pod's namespace.
pub(crate) fn announce_addresses(link: &IfName) -> Result<(), Error> {
    set(ipv4(link.as_str(), "arp_notify"), "1")?;
    set(ipv6(link.as_str(), "ndisc_notify"), "1")
}

/// Does the link neither answer nor learn by ARP, as [`ignore_arp`] makes it?
pub(crate) fn ignores_arp(link: &str) -> bool {
    reads(&ipv4(link, "arp_ignore"), "8") && reads(&ipv4(link, "arp_accept"), "0") && !may_accept_arp()
}

/// Links may learn from unsolicited ARP, whatever their own settings are.
pub(crate) fn may_accept_arp() -> bool {
    !reads(&ipv4("all", "arp_accept"), "0")
}

/// For a managed link that is in use: setting NOARP would remove its neighbours.
pub(crate) fn ignore_arp(link: &IfName) -> Result<(), Error> {
    set(ipv4(link.as_str(), "arp_accept"), "0")?;
    set(ipv4(link.as_str(), "arp_ignore"), "8")
}

/// Connections from 127.0.0.1 to a hostPort leave through this link with a loopback source, until they are masqueraded.
pub(crate) fn allow_loopback_source(link: &IfName, owner: LinkOwner<'_>) -> Result<(), Error> {
    set_for(owner, ipv4(link.as_str(), "route_localnet"), "1")
}

/// A device that leads to other nodes; says what was changed. Loose, because what comes through it may be answered by another way
/// while transports change (F6): of the device's and the machine's value the larger counts, so strict machines are
/// covered. No IPv6 in the kernel is nothing to set.
pub(crate) fn prepare_tunnel(link: &IfName) -> Result<Vec<String>, Error> {
    let name = link.as_str();
    let wanted = [
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
    for (path, value) in wanted {
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

/// Which families a network needs to have forwarded.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ForwardedFamilies {
    pub(crate) ipv4: bool,
    pub(crate) ipv6: bool,
}

/// Forwarding is the machine's own setting: what we change is recorded with its old value (F7). Returns what was changed.
pub(crate) fn enable_forwarding(
    host: &mut RtSocket,
    log: &SysctlLog,
    families: ForwardedFamilies,
    settings: &HostSettings<'_>,
) -> Result<Vec<PathBuf>, Error> {
    let mut changed = Vec::new();
    let forwarding = PathBuf::from("/proc/sys/net/ipv4/ip_forward");
    if families.ipv4 && !is_one(CWD, &forwarding) {
        note_forwarding_links(log, "/proc/sys/net/ipv4/conf")?;
        change(log, forwarding.clone(), "1")?;
        changed.push(forwarding);
    }
    let forwarding = ipv6("all", "forwarding");
    if families.ipv6 && !settings.is_forwarding() {
        keep_learnt_routes(host, log)?;
        note_forwarding_links(log, ALL_SETTINGS)?;
        change(log, forwarding.clone(), "1")?;
        changed.push(forwarding);
    }
    Ok(changed)
}

/// Links that forward although the machine does not: the kernel sets all of them with the machine's setting, and cleanup
/// has to know.
fn note_forwarding_links(log: &SysctlLog, settings: &str) -> Result<(), Error> {
    for link in fs::read_dir(settings).into_iter().flatten().flatten() {
        let path = link.path().join("forwarding");
        let is_link = !matches!(link.file_name().to_str(), Some("all" | "default") | None);
        let Some(sysctl) = path.to_str().filter(|_| is_link && reads(&path, "1")).and_then(Sysctl::parse)
        else {
            continue;
        };
        log.note(&sysctl, "1", "1")?;
    }
    Ok(())
}

/// A forwarding host ignores router advertisements unless accept_ra is 2: a default route that was learnt would expire
/// some time later (F1).
fn keep_learnt_routes(host: &mut RtSocket, log: &SysctlLog) -> Result<(), Error> {
    const PROTOCOL_RA: u8 = 9;
    let learnt = RouteFilter { protocol: Some(PROTOCOL_RA), ..RouteFilter::default() };
    let mut links: Vec<u32> = host.routes(learnt)?.iter().filter_map(|route| route.link).collect();
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
        let source = std::io::Error::other("it is not among the settings that cleanup can restore");
        return Err(failed(path, value, source));
    };
    log.note(&sysctl, &before, value)?;
    fs::write(&path, value).map_err(|source| failed(path, value, source))
}

fn failed(path: PathBuf, value: &str, source: std::io::Error) -> Error {
    Error::Sysctl { path, value: value.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a1_settings_that_cannot_be_opened_are_not_taken_for_missing() {
        let path = Path::new(ALL_SETTINGS);
        assert!(unless_missing(path, Err(Errno::NOENT)).unwrap().is_none());
        for errno in [Errno::MFILE, Errno::NFILE, Errno::ACCESS, Errno::NOMEM] {
            let error = unless_missing(path, Err(errno)).unwrap_err();
            assert!(error.to_string().contains(ALL_SETTINGS), "{error}");
        }
    }
}
