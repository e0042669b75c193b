use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use anyhow::{Context as _, Result, bail, ensure};

use crate::owner::LabOwner;
use crate::{DEADLINE, Node, Ns, RunningProgram, sweep};

/// Labels longer than this are cut: namespace names and socket paths are built from them.
const LABEL_LENGTH: usize = 16;

/// Everything one test makes. Dropped, also by a panic, it takes its namespaces and directories with it.
#[derive(Debug)]
pub struct Lab {
    pub(crate) inner: Arc<LabInner>,
}

/// What nodes and pods share with their lab.
#[derive(Debug)]
pub(crate) struct LabInner {
    prefix: String,
    dir: PathBuf,
    serial: AtomicU32,
    /// Read while something is being made, written to end the lab: nothing can be made behind the back of `Drop`.
    stage: RwLock<LabStage>,
    made: Mutex<BTreeSet<String>>,
    keep: Keep,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keep {
    /// Everything goes with the `Lab`.
    No,
    /// It stays for another run of the program.
    Yes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LabStage {
    Open,
    Over,
}

impl Lab {
    /// A new lab with a prefix nobody else has. First it removes what dead runs left behind.
    pub fn new(label: &str) -> Result<Self> {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        ensure!(rustix::process::geteuid().is_root(), "a lab makes network namespaces: run it as root");
        if let Err(error) = sweep::dead_runs() {
            eprintln!("not all leftovers of earlier runs could be removed: {error:#}");
        }
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let prefix = format!("{}{number}-{}", LabOwner::this_process()?.prefix(), short_label(label));
        let dir = std::env::temp_dir().join(&prefix);
        fs::create_dir(&dir).with_context(|| format!("cannot make the lab's directory {}", dir.display()))?;
        let inner = LabInner {
            prefix,
            dir,
            serial: AtomicU32::new(0),
            stage: RwLock::new(LabStage::Open),
            made: Mutex::new(BTreeSet::new()),
            keep: Keep::No,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// A lab that lives on when this is dropped: a new one, or what an earlier run made under this prefix.
    pub(crate) fn kept(prefix: &str, dir: &std::path::Path, serial: u32) -> Result<Self> {
        let inner = LabInner {
            prefix: prefix.to_owned(),
            dir: dir.to_owned(),
            serial: AtomicU32::new(serial),
            stage: RwLock::new(LabStage::Open),
            made: Mutex::new(sweep::namespaces_of(prefix)?.into_iter().collect()),
            keep: Keep::Yes,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// What the names of all namespaces of this lab begin with.
    pub fn prefix(&self) -> &str {
        &self.inner.prefix
    }

    /// The lab's directory; everything in it goes with the lab.
    pub fn dir(&self) -> &std::path::Path {
        &self.inner.dir
    }

    /// A node: a namespace with loopback up and a directory of its own. A host outside the cluster is one, too.
    pub fn node(&self, name: &str) -> Result<Node> {
        Node::make(&self.inner, name)
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if self.inner.keep == Keep::Yes {
            return;
        }
        for error in self.inner.close() {
            eprintln!("lab {}: {error:#}", self.inner.prefix);
        }
    }
}

impl LabInner {
    pub(crate) fn make_namespace(&self, name: &str) -> Result<Ns> {
        ensure!(
            !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-'),
            "the name {name:?} is invalid here: use letters, digits and '-'"
        );
        let stage = self.stage.read().unwrap_or_else(PoisonError::into_inner);
        if *stage == LabStage::Over {
            bail!("lab {} is over: {name} cannot be made any more", self.prefix);
        }
        let full = format!("{}-{name}", self.prefix);
        ensure!(self.made().insert(full.clone()), "{full} exists already");
        ip(&["netns", "add", &full])?;
        ip(&["-n", &full, "link", "set", "lo", "up"])?;
        Ok(Ns::new(full))
    }

    pub(crate) fn remove_namespace(&self, ns: &Ns) -> Result<()> {
        sweep::remove_namespace(ns.path())?;
        self.made().remove(ns.name());
        Ok(())
    }

    pub(crate) fn owns(&self, ns: &Ns) -> bool {
        self.made().contains(ns.name())
    }

    pub(crate) fn make_directory(&self, name: &str) -> Result<PathBuf> {
        let dir = self.dir.join(name);
        fs::create_dir(&dir).with_context(|| format!("cannot make directory {}", dir.display()))?;
        Ok(dir)
    }

    pub(crate) fn serial(&self) -> u32 {
        self.serial.load(Ordering::Relaxed)
    }

    /// The namespace that has, or would have, this name here.
    pub(crate) fn namespace(&self, name: &str) -> Ns {
        Ns::new(format!("{}-{name}", self.prefix))
    }

    pub(crate) fn directory(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    pub(crate) fn next_serial(&self) -> u32 {
        self.serial.fetch_add(1, Ordering::Relaxed)
    }

    fn made(&self) -> std::sync::MutexGuard<'_, BTreeSet<String>> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&self) -> Vec<anyhow::Error> {
        *self.stage.write().unwrap_or_else(PoisonError::into_inner) = LabStage::Over;
        let names = std::mem::take(&mut *self.made());
        let removed = names.iter().map(|name| sweep::remove_namespace(&sweep::namespace_path(name)));
        removed.chain([sweep::remove_directory(&self.dir)]).filter_map(Result::err).collect()
    }
}

/// Runs `ip` in the namespace this process is in; `-n` is for others.
pub(crate) fn ip(args: &[&str]) -> Result<String> {
    ip_fed(args, "")
}

/// Many commands in one process, one a line, inside a namespace.
pub(crate) fn ip_batch(ns: &Ns, lines: &[String]) -> Result<()> {
    ip_fed(&["-n", ns.name(), "-batch", "-"], &lines.join("\n")).map(drop)
}

fn ip_fed(args: &[&str], input: &str) -> Result<String> {
    let mut command = Command::new("ip");
    command.args(args).env("LC_ALL", "C");
    let running = RunningProgram::start(command, input.as_bytes().to_vec());
    let outcome = running.context("`ip` is needed: install the package iproute2")?.wait(DEADLINE)?;
    ensure!(outcome.success(), "`ip {}` failed: {}\n{input}", args.join(" "), outcome.story());
    Ok(outcome.stdout)
}

fn short_label(label: &str) -> String {
    let tame = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let short: String = label.chars().map(tame).take(LABEL_LENGTH).collect();
    short.trim_matches('-').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_become_short_and_tame() {
        assert_eq!(short_label("e10_results_per_version"), "e10-results-per");
        assert_eq!(short_label("Käse/.."), "k-se");
        assert_eq!(short_label("../.."), "");
    }
}
