//! The store in a local directory, for a single node. One process, the agent, owns it. The agent may be killed at any
//! instruction.
//!
//! ```text
//!   DIR/lock   held by the owner while it runs; contains its process ID
//!   DIR/log    a snapshot, then every later commit: one JSON line each, with a checksum over all previous lines
//! ```
//!
//! The log is read once. After that every call works on the state in memory, removes expired leases, and appends its change,
//! on tokio's threads for blocking work. An incomplete line left by a kill is removed by the next write.

mod calls;
mod fault;
mod lease;
mod log;
mod record;
mod snapshot;
mod state;
mod watch;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use files::{Attempt, LockFailed, LockFile};
use tokio::sync::{Mutex, watch::Sender};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout_at};

use crate::Result;
use crate::error::{Error, Operation};
use crate::store::StoreCall;
use fault::{EmbeddedFault, io_fault};
use log::EmbeddedLog;

pub(crate) use watch::EmbeddedWatch;

const LOCK: &str = "lock";

#[derive(Debug)]
pub(crate) struct Embedded {
    dir: PathBuf,
    memory: Arc<Mutex<Memory>>,
    /// The store's revision. Watches wait for it to change.
    revision: Arc<Sender<u64>>,
}

/// One call at a time holds this. A cancelled call keeps it, and the lock with it, until its write is complete.
#[derive(Debug)]
struct Memory {
    lock: LockFile,
    /// None before the first read, and after a failure: then only the file shows which data was written.
    log: Option<EmbeddedLog>,
    /// How often the directory was lost. Each later read is of a different store.
    losses: u64,
}

impl Embedded {
    pub(crate) fn open(dir: &Path) -> Result<Self> {
        let operation = || Operation::new("open", format!("the store in {}", dir.display()));
        let is_new = !dir.exists();
        let lock = take_lock(dir).map_err(|fault| fault.into_error(operation()))?;
        // A relative path may have no parent.
        if let Some(parent) = dir.parent().filter(|parent| is_new && !parent.as_os_str().is_empty()) {
            let synced = files::sync_dir(parent).map_err(io_fault("flush", parent));
            synced.map_err(|fault| fault.into_error(operation()))?;
        }
        let memory = Arc::new(Mutex::new(Memory { lock, log: None, losses: 0 }));
        Ok(Self { dir: dir.to_owned(), memory, revision: Arc::new(Sender::new(0)) })
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn describe(&self) -> String {
        format!("directory {}", self.dir.display())
    }

    /// Runs `work` with exclusive access to the log.
    async fn run<T: Send + 'static>(
        &self,
        call: &StoreCall,
        work: impl FnOnce(&mut EmbeddedLog) -> Result<T, EmbeddedFault> + Send + 'static,
    ) -> Result<T> {
        let timed_out = || call.timed_out(self.describe());
        // Without this check, a fast call could still succeed after its deadline.
        if Instant::now() >= call.deadline {
            return Err(timed_out());
        }
        let memory = timeout_at(call.deadline, Arc::clone(&self.memory).lock_owned()).await;
        let mut memory = memory.map_err(|_| timed_out())?;
        let (dir, revision) = (self.dir.clone(), Arc::clone(&self.revision));
        // A caller that is cancelled does not interrupt the task, so writes are always complete.
        let task = spawn_blocking(move || {
            if let Err(fault) = memory.check_lock(&dir) {
                // Wakes the watches, which then detect that their store is lost.
                revision.send_replace(0);
                return Err(fault);
            }
            let mut log = match memory.log.take() {
                Some(log) => log,
                None => memory.read(&dir)?,
            };
            let result = log.expire_leases().and_then(|()| work(&mut log));
            let current = log.state.revision;
            revision.send_if_modified(|known| std::mem::replace(known, current) != current);
            memory.log = result.is_ok().then_some(log);
            result
        });
        match timeout_at(call.deadline, task).await {
            Ok(Ok(Ok(result))) => Ok(result),
            Err(_) => Err(timed_out()),
            Ok(Ok(Err(fault))) => Err(fault.into_error(call.operation.clone())),
            Ok(Err(join)) => {
                let operation = call.operation.clone();
                Err(Error::Failed { operation, store: self.describe(), source: join.into() })
            }
        }
    }
}

impl Memory {
    /// Fails once after the directory was removed, and as long as another process owns the directory that replaced it: that log
    /// must not be rewritten from memory.
    fn check_lock(&mut self, dir: &Path) -> Result<(), EmbeddedFault> {
        if !self.lock.is_lost() {
            return Ok(());
        }
        self.losses += u64::from(self.log.take().is_some());
        self.lock = take_lock(dir)?;
        let source = io::Error::other("the directory was removed or replaced");
        Err(EmbeddedFault::Io { verb: "keep the lock of", path: dir.to_owned(), source })
    }

    fn read(&self, dir: &Path) -> Result<EmbeddedLog, EmbeddedFault> {
        EmbeddedLog::open(dir, self.losses)
    }
}

fn take_lock(dir: &Path) -> Result<LockFile, EmbeddedFault> {
    match LockFile::take(dir, LOCK, &format!("process {}", std::process::id())) {
        Ok(Attempt::Locked(lock)) => Ok(lock),
        Ok(Attempt::Held(holder)) => Err(EmbeddedFault::Held { dir: dir.to_owned(), holder }),
        Err(LockFailed { operation, path, source }) => {
            Err(EmbeddedFault::Io { verb: operation, path, source })
        }
    }
}
