//! What we changed on the machine outside our own links: each sysctl once, with the value it had before (F7).

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use files::Replacement;
use serde::{Deserialize, Serialize};

use super::file::{self, StateError, io, optional};

/// One sysctl that we changed: cleanup restores `before` if it still reads `ours`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changed {
    pub before: String,
    pub ours: String,
}

impl Changed {
    /// It is as it was, and noted because another setting overwrites it.
    pub fn is_kept(&self) -> bool {
        self.before == self.ours
    }
}

/// The path of a setting that Podwire records when it changes it. Nothing else is ever read or written because a file
/// names it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sysctl(PathBuf);

impl Sysctl {
    const ROOT: &str = "/proc/sys/net/";
    const OF_LINKS: [&str; 4] = ["accept_ra", "disable_ipv6", "forwarding", "route_localnet"];

    /// None for every path that Podwire does not write to.
    pub fn parse(path: &str) -> Option<Self> {
        let parts: Vec<&str> = path.strip_prefix(Self::ROOT)?.split('/').collect();
        let is_known = match parts.as_slice() {
            ["ipv4", "ip_forward"] => true,
            ["ipv4" | "ipv6", "conf", link, key] => {
                let is_link = (1..16).contains(&link.len()) && !matches!(*link, "." | "..");
                is_link && Self::OF_LINKS.contains(key)
            }
            _ => false,
        };
        is_known.then(|| Self(PathBuf::from(path)))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn key(&self) -> String {
        sysctl_key(&self.0)
    }

    /// Whether the kernel sets the same of every link with it.
    pub fn is_of_all_links(&self) -> bool {
        self.link().is_none_or(|link| link == "all")
    }

    fn link(&self) -> Option<&str> {
        let parent = self.0.parent()?;
        parent.file_name()?.to_str().filter(|_| parent.parent().is_some_and(|conf| conf.ends_with("conf")))
    }

    pub fn purpose(&self) -> SysctlUse<'_> {
        let is_v4 = self.0.starts_with(Path::new(Self::ROOT).join("ipv4"));
        let key = self.0.file_name().and_then(|key| key.to_str()).unwrap_or_default();
        match key {
            "accept_ra" => SysctlUse::Advertisements,
            "disable_ipv6" => SysctlUse::Ipv6(self.link().unwrap_or_default()),
            "route_localnet" => SysctlUse::LoopbackSource,
            _ if is_v4 => SysctlUse::Forwarding4,
            _ => SysctlUse::Forwarding6,
        }
    }
}

/// As the program `sysctl` names it. A dot in a link's name is a slash there.
pub(crate) fn sysctl_key(path: &Path) -> String {
    let swapped = |c: char| match c {
        '/' => '.',
        '.' => '/',
        other => other,
    };
    path.strip_prefix("/proc/sys").unwrap_or(path).to_string_lossy().chars().map(swapped).collect()
}

/// What a setting that Podwire changes is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SysctlUse<'a> {
    Forwarding4,
    Forwarding6,
    /// Router advertisements that the link takes.
    Advertisements,
    /// Whether this link has IPv6.
    Ipv6(&'a str),
    /// Connections from 127.0.0.1 that leave through the link.
    LoopbackSource,
}

/// What a log of changes holds.
#[derive(Debug, Default)]
pub struct SysctlChanges {
    pub known: Vec<(Sysctl, Changed)>,
    /// Entries that no version of Podwire writes, by path.
    pub refused: Vec<String>,
}

#[derive(Debug)]
pub struct SysctlLog {
    path: PathBuf,
}

impl SysctlLog {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// What was changed. An unreadable log is reported, not guessed at.
    pub fn read(&self) -> Result<SysctlChanges, StateError> {
        let mut changes = SysctlChanges::default();
        for (path, changed) in self.entries()? {
            // All of these settings are small numbers.
            let is_number = [&changed.before, &changed.ours].iter().all(|value| value.parse::<i32>().is_ok());
            match Sysctl::parse(&path).filter(|_| is_number) {
                Some(sysctl) => changes.known.push((sysctl, changed)),
                None => changes.refused.push(path),
            }
        }
        Ok(changes)
    }

    fn entries(&self) -> Result<BTreeMap<String, Changed>, StateError> {
        let Some(bytes) = optional(files::read(&self.path)).map_err(io("read", &self.path))? else {
            return Ok(BTreeMap::new());
        };
        serde_json::from_slice(&bytes).map_err(|e| io("decode", &self.path)(e.into()))
    }

    /// Notes a change before it is made. The first `before` of a sysctl stays: it is what the machine had without us.
    pub fn note(&self, sysctl: &Sysctl, before: &str, ours: &str) -> Result<(), StateError> {
        let lock_path = self.path.with_extension("lock");
        let lock = files::open(&lock_path, File::options().create(true).append(true).mode(0o600));
        let lock = lock.map_err(io("open", &lock_path))?;
        file::lock(&lock, &lock_path, file::LOCK_TIMEOUT)?;
        let mut all = self.entries()?;
        all.entry(sysctl.path().display().to_string())
            .and_modify(|changed| ours.clone_into(&mut changed.ours))
            .or_insert_with(|| Changed { before: before.to_owned(), ours: ours.to_owned() });
        let text = serde_json::to_vec_pretty(&all).map_err(|e| io("encode", &self.path)(e.into()))?;
        files::replace(&self.path, &text, Replacement::STATE).map_err(io("write", &self.path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a14_only_settings_that_podwire_changes_are_taken_from_a_file() {
        for good in [
            "/proc/sys/net/ipv4/ip_forward",
            "/proc/sys/net/ipv6/conf/all/forwarding",
            "/proc/sys/net/ipv6/conf/eth0.100/accept_ra",
            "/proc/sys/net/ipv6/conf/br0/disable_ipv6",
            "/proc/sys/net/ipv4/conf/br0/route_localnet",
        ] {
            assert_eq!(Sysctl::parse(good).unwrap().path(), Path::new(good));
        }
        for bad in [
            "",
            "/etc/passwd",
            "/proc/sys/kernel/core_pattern",
            "/proc/sys/net/../kernel/core_pattern",
            "/proc/sys/net/ipv4/conf/../../../kernel/core_pattern",
            "/proc/sys/net/ipv4/conf/../ip_forward",
            "/proc/sys/net/ipv4/conf/./route_localnet",
            "/proc/sys/net/ipv4/conf/br0/route_localnet/",
            "/proc/sys/net//ipv4/ip_forward",
            "/proc/sys/net/ipv4/tcp_syncookies",
            "proc/sys/net/ipv4/ip_forward",
        ] {
            assert_eq!(Sysctl::parse(bad), None, "{bad}");
        }
    }
}
