//! The host and the versions of the measured programs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;

use crate::contender::Plugins;

#[derive(Debug, Serialize)]
pub(crate) struct MachineInfo {
    pub(crate) cpu: String,
    pub(crate) cores: usize,
    pub(crate) memory_mib: u64,
    pub(crate) kernel: String,
    /// Load average of the last minute before the run.
    pub(crate) load_before: String,
    pub(crate) versions: Versions,
    pub(crate) binary: Binary,
}

#[derive(Debug, Serialize)]
pub(crate) struct Versions {
    pub(crate) podwire: String,
    pub(crate) reference: String,
    pub(crate) rustc: String,
}

#[derive(Debug, Serialize)]
pub(crate) struct Binary {
    pub(crate) path: PathBuf,
    pub(crate) bytes: u64,
    pub(crate) linkage: Linkage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Linkage {
    Static,
    Dynamic,
}

/// The host in one line, with the load average of the last minute.
pub(crate) fn summary() -> String {
    let cpu = field("/proc/cpuinfo", "model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let (kernel, load) = (read("/proc/sys/kernel/osrelease"), read("/proc/loadavg"));
    let load = load.split(' ').next().unwrap_or_default();
    format!("{cpu}, {cores} cores, {} MiB, Linux {kernel}, load {load}", memory_mib())
}

impl MachineInfo {
    pub(crate) fn read(plugins: &Plugins) -> Result<Self> {
        Ok(Self {
            cpu: field("/proc/cpuinfo", "model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_mib: memory_mib(),
            kernel: read("/proc/sys/kernel/osrelease"),
            load_before: read("/proc/loadavg").split(' ').next().unwrap_or_default().to_owned(),
            versions: Versions {
                podwire: about(&plugins.podwire)?,
                reference: format!("{}{}", about(&plugins.reference)?, package()),
                rustc: first_line(Command::new("rustc").arg("--version"))
                    .unwrap_or_else(|| "unknown".to_owned()),
            },
            binary: Binary::read(&plugins.built)?,
        })
    }
}

impl Binary {
    fn read(path: &Path) -> Result<Self> {
        let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let linkage =
            linkage(&bytes).with_context(|| format!("{} is not a 64-bit ELF file", path.display()))?;
        Ok(Self { path: path.to_owned(), bytes: bytes.len() as u64, linkage })
    }
}

/// A program that needs a loader names it in a program header of type PT_INTERP (ELF-64).
fn linkage(elf: &[u8]) -> Option<Linkage> {
    const PT_INTERP: u32 = 3;
    if elf.get(..5)? != b"\x7fELF\x02" {
        return None;
    }
    let half = |at: usize| Some(usize::from(u16::from_ne_bytes(elf.get(at..at + 2)?.try_into().ok()?)));
    let table = usize::try_from(u64::from_ne_bytes(elf.get(0x20..0x28)?.try_into().ok()?)).ok()?;
    let (size, count) = (half(0x36)?, half(0x38)?);
    for number in 0..count {
        let at = table.checked_add(number * size)?;
        let kind = u32::from_ne_bytes(elf.get(at..at.checked_add(4)?)?.try_into().ok()?);
        if kind == PT_INTERP {
            return Some(Linkage::Dynamic);
        }
    }
    Some(Linkage::Static)
}

/// The first line that a plugin prints on stderr when it is started without a command.
fn about(plugin: &Path) -> Result<String> {
    let mut command = Command::new(plugin);
    let output = command.env_clear().stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot start {}", plugin.display()))?;
    ensure!(
        output.status.success(),
        "{} exited with {} when started without a command",
        plugin.display(),
        output.status
    );
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let first = stderr.lines().next().unwrap_or_default();
    Ok(first.split(": ").next().unwrap_or_default().to_owned())
}

/// Debian's build of the plugins does not contain its version, so it is read from the package.
fn package() -> String {
    let mut query = Command::new("dpkg-query");
    query.args(["-W", "-f=${Version}", "containernetworking-plugins"]);
    first_line(&mut query).map(|version| format!(" (package {version})")).unwrap_or_default()
}

fn first_line(command: &mut Command) -> Option<String> {
    let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}

fn memory_mib() -> u64 {
    let total = field("/proc/meminfo", "MemTotal").unwrap_or_default();
    total.split(' ').next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) / 1024
}

/// The first line `key : value` of a file of /proc.
fn field(path: &str, key: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let mut lines = text.lines().filter_map(|line| line.split_once(':'));
    lines.find(|(name, _)| name.trim() == key).map(|(_, value)| value.trim().to_owned())
}

fn read(path: &str) -> String {
    fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn elf(kinds: &[u32]) -> Vec<u8> {
        let mut bytes = vec![0u8; 64];
        bytes[..5].copy_from_slice(b"\x7fELF\x02");
        bytes[0x20..0x28].copy_from_slice(&64u64.to_ne_bytes());
        bytes[0x36..0x38].copy_from_slice(&56u16.to_ne_bytes());
        bytes[0x38..0x3a].copy_from_slice(&u16::try_from(kinds.len()).unwrap().to_ne_bytes());
        for kind in kinds {
            bytes.extend(kind.to_ne_bytes());
            bytes.extend([0; 52]);
        }
        bytes
    }

    #[test]
    fn a_program_with_an_interpreter_is_dynamic() {
        assert_eq!(linkage(&elf(&[6, 3, 1])), Some(Linkage::Dynamic));
        assert_eq!(linkage(&elf(&[6, 1, 2])), Some(Linkage::Static));
        assert_eq!(linkage(&elf(&[6, 3])[..100]), None);
        assert_eq!(linkage(b"#!/bin/sh"), None);
        let own = fs::read(std::env::current_exe().unwrap()).unwrap();
        assert!(linkage(&own).is_some());
    }
}
