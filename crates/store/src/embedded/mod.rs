//! The store in a directory of this machine, for one node. One process owns it, the agent, which may be killed at any
//! instruction.
//!
//! ```text
//!   DIR/lock   held by the owner for as long as it lives; contains its process id
//!   DIR/log    a snapshot, then every commit since: one JSON line each, with a checksum over all lines before
//! ```
//!
//! The log is read once. From then on every call works on the state in memory, ends leases that ran out, and appends its
//! own change, in tokio's threads for blocking work. A line that was cut off by a kill is removed by the next write.

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

/// One call at a time has it. A call whose caller is gone keeps it, and the lock with it, until its write is complete.
#[derive(Debug)]
struct Memory {
    lock: LockFile,
    /// None until it was read, and after a failure: then the file alone shows what was written.
    log: Option<EmbeddedLog>,
    /// How often the directory was lost. What is read after that is another store.
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

    pub(crate) fn describe(&self) -> String {
        format!("directory {}", self.dir.display())
    }

    /// Calls `work` with the log, alone.
    async fn run<T: Send + 'static>(
        &self,
        call: &StoreCall,
        work: impl FnOnce(&mut EmbeddedLog) -> Result<T, EmbeddedFault> + Send + 'static,
    ) -> Result<T> {
        let late = || call.too_late(self.describe());
        // What is quick enough would come in time even after its end.
        if Instant::now() >= call.deadline {
            return Err(late());
        }
        let memory = timeout_at(call.deadline, Arc::clone(&self.memory).lock_owned()).await;
        let mut memory = memory.map_err(|_| late())?;
        let (dir, revision) = (self.dir.clone(), Arc::clone(&self.revision));
        // A caller that goes away does not interrupt it: it ends by itself, and leaves everything whole.
        let task = spawn_blocking(move || {
            if let Err(fault) = memory.check_lock(&dir) {
                // Watches find out that they watched another store.
                revision.send_replace(0);
                return Err(fault);
            }
            let mut log = match memory.log.take() {
                Some(log) => log,
                None => memory.read(&dir)?,
            };
            let result = log.end_leases().and_then(|()| work(&mut log));
            let now = log.state.revision;
            revision.send_if_modified(|known| std::mem::replace(known, now) != now);
            memory.log = result.is_ok().then_some(log);
            result
        });
        match timeout_at(call.deadline, task).await {
            Ok(Ok(Ok(result))) => Ok(result),
            Err(_) => Err(late()),
            Ok(Ok(Err(fault))) => Err(fault.into_error(call.operation.clone())),
            Ok(Err(join)) => {
                let operation = call.operation.clone();
                Err(Error::Failed { operation, store: self.describe(), source: join.into() })
            }
        }
    }
}

impl Memory {
    /// Fails once after the directory was removed, and as long as another process owns the one that has its name now: the log
    /// there is not this process's, and must not be rewritten from memory.
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
