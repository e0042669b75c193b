use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use anyhow::{Context as _, Result, bail, ensure};

use crate::owner::LabOwner;
use crate::{DEADLINE, Node, Ns, RunningProgram, sweep};

/// Labels are truncated to this length, because namespace names and socket paths contain them.
const LABEL_LENGTH: usize = 16;

/// The namespaces and directories of one test. They are removed on drop, also after a panic.
#[derive(Debug)]
pub struct Lab {
    pub(crate) inner: Arc<LabInner>,
}

/// State that nodes and pods share with their lab.
#[derive(Debug)]
pub(crate) struct LabInner {
    prefix: String,
    dir: PathBuf,
    /// Number of the next pod, so that container IDs are unique.
    serial: AtomicU32,
    /// Locked for reading while an object is created and for writing by `Drop`, so that no object is created after it.
    stage: RwLock<LabStage>,
    namespaces: Mutex<BTreeSet<String>>,
    persistence: Persistence,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Persistence {
    /// Everything is removed with the `Lab`.
    Temporary,
    /// The lab remains for another run of the program.
    Saved,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LabStage {
    Open,
    Closed,
}

impl Lab {
    /// Creates a lab with a unique prefix, after removing the leftovers of dead runs.
    pub fn new(label: &str) -> Result<Self> {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        ensure!(
            rustix::process::geteuid().is_root(),
            "creating network namespaces requires root: run this as root"
        );
        if let Err(error) = sweep::dead_runs() {
            eprintln!("cannot remove all leftovers of earlier runs: {error:#}");
        }
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let prefix = format!("{}{number}-{}", LabOwner::this_process()?.prefix(), short_label(label));
        let dir = std::env::temp_dir().join(&prefix);
        fs::create_dir(&dir)
            .with_context(|| format!("cannot create the lab's directory {}", dir.display()))?;
        let inner = LabInner {
            prefix,
            dir,
            serial: AtomicU32::new(0),
            stage: RwLock::new(LabStage::Open),
            namespaces: Mutex::new(BTreeSet::new()),
            persistence: Persistence::Temporary,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// A lab that remains after the drop: a new one, or the one that an earlier run created with this prefix.
    pub(crate) fn saved(prefix: &str, dir: &std::path::Path, serial: u32) -> Result<Self> {
        let inner = LabInner {
            prefix: prefix.to_owned(),
            dir: dir.to_owned(),
            serial: AtomicU32::new(serial),
            stage: RwLock::new(LabStage::Open),
            namespaces: Mutex::new(sweep::namespaces_of(prefix)?.into_iter().collect()),
            persistence: Persistence::Saved,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Prefix of the names of all namespaces of this lab.
    pub fn prefix(&self) -> &str {
        &self.inner.prefix
    }

    /// The lab's directory; it is removed with the lab.
    pub fn dir(&self) -> &std::path::Path {
        &self.inner.dir
    }

    /// Creates a node: a namespace with loopback up and a directory. Also used for hosts outside the cluster.
    pub fn node(&self, name: &str) -> Result<Node> {
        Node::create(&self.inner, name)
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if self.inner.persistence == Persistence::Saved {
            return;
        }
        for error in self.inner.close() {
            eprintln!("lab {}: {error:#}", self.inner.prefix);
        }
    }
}

impl LabInner {
    pub(crate) fn create_namespace(&self, name: &str) -> Result<Ns> {
        ensure!(
            !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-'),
            "invalid name {name:?}: use letters, digits and '-'"
        );
        let stage = self.stage.read().unwrap_or_else(PoisonError::into_inner);
        if *stage == LabStage::Closed {
            bail!("cannot create {name}: lab {} is closed", self.prefix);
        }
        let full = format!("{}-{name}", self.prefix);
        ensure!(self.namespaces().insert(full.clone()), "{full} already exists");
        ip(&["netns", "add", &full])?;
        ip(&["-n", &full, "link", "set", "lo", "up"])?;
        Ok(Ns::new(full))
    }

    pub(crate) fn remove_namespace(&self, ns: &Ns) -> Result<()> {
        sweep::remove_namespace(ns.path())?;
        self.namespaces().remove(ns.name());
        Ok(())
    }

    pub(crate) fn owns(&self, ns: &Ns) -> bool {
        self.namespaces().contains(ns.name())
    }

    pub(crate) fn create_directory(&self, name: &str) -> Result<PathBuf> {
        let dir = self.dir.join(name);
        fs::create_dir(&dir).with_context(|| format!("cannot create directory {}", dir.display()))?;
        Ok(dir)
    }

    pub(crate) fn serial(&self) -> u32 {
        self.serial.load(Ordering::Relaxed)
    }

    /// The namespace with this name in the lab, whether it exists or not.
    pub(crate) fn namespace(&self, name: &str) -> Ns {
        Ns::new(format!("{}-{name}", self.prefix))
    }

    pub(crate) fn directory(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    pub(crate) fn next_serial(&self) -> u32 {
        self.serial.fetch_add(1, Ordering::Relaxed)
    }

    fn namespaces(&self) -> std::sync::MutexGuard<'_, BTreeSet<String>> {
        self.namespaces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&self) -> Vec<anyhow::Error> {
        *self.stage.write().unwrap_or_else(PoisonError::into_inner) = LabStage::Closed;
        let names = std::mem::take(&mut *self.namespaces());
        let removed = names.iter().map(|name| sweep::remove_namespace(&sweep::namespace_path(name)));
        removed.chain([sweep::remove_directory(&self.dir)]).filter_map(Result::err).collect()
    }
}

/// Runs `ip` in the namespace of this process; pass `-n` for another namespace.
pub(crate) fn ip(args: &[&str]) -> Result<String> {
    ip_with_input(args, "")
}

/// Runs several `ip` commands inside a namespace with one process.
pub(crate) fn ip_batch(ns: &Ns, lines: &[String]) -> Result<()> {
    ip_with_input(&["-n", ns.name(), "-batch", "-"], &lines.join("\n")).map(drop)
}

fn ip_with_input(args: &[&str], input: &str) -> Result<String> {
    let mut command = Command::new("ip");
    command.args(args).env("LC_ALL", "C");
    let running = RunningProgram::start(command, input.as_bytes().to_vec());
    let outcome = running.context("cannot run `ip`: install the package iproute2")?.wait(DEADLINE)?;
    ensure!(outcome.success(), "`ip {}` failed: {}\n{input}", args.join(" "), outcome.describe());
    Ok(outcome.stdout)
}

fn short_label(label: &str) -> String {
    let replaced = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let short: String = label.chars().map(replaced).take(LABEL_LENGTH).collect();
    short.trim_matches('-').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_truncated_and_sanitised() {
        assert_eq!(short_label("e10_results_per_version"), "e10-results-per");
        assert_eq!(short_label("Käse/.."), "k-se");
        assert_eq!(short_label("../.."), "");
    }
}
