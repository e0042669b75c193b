//! The store in a folder of this machine, for a node that is alone and for a lab: used by several processes at once, any of
//! which may be killed at any instruction.
//!
//! ```text
//!   DIR/lock      flock, held for one call; DIR/gate is the queue before it
//!   DIR/log       a snapshot, then every commit since: one JSON line each, with a checksum over all lines before
//!   DIR/log.new   the next log while it is written; renamed when it is complete
//! ```
//!
//! Every call locks the folder, reads what the others appended, ends leases that ran out, and does its own. All of it
//! happens in tokio's threads for blocking work. A line that was cut off by a kill is removed by the next who writes.

mod calls;
mod fault;
mod file;
mod lease;
mod lock;
mod log;
mod record;
mod snapshot;
mod state;
mod watch;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};

use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout_at};

use crate::Result;
use crate::error::{Error, Operation};
use crate::store::Call;
use fault::Fault;
use log::Log;
use watch::Hub;

pub(crate) use watch::EmbeddedWatch;

#[derive(Debug)]
pub(crate) struct Embedded {
    dir: PathBuf,
    /// What was read so far. One call at a time in this process, one process at a time by the lock.
    memory: Arc<tokio::sync::Mutex<Memory>>,
    hub: Mutex<Weak<Hub>>,
}

/// Nothing, until it was read; and nothing again after a failure, so that the file alone tells what is true.
#[derive(Debug, Default)]
struct Memory {
    log: Option<Log>,
}

impl Embedded {
    pub(crate) fn open(dir: &Path) -> Result<Self> {
        let operation = || Operation::new("open", format!("the store in {}", dir.display()));
        file::make_folder(dir).map_err(|fault| fault.into_error(operation()))?;
        Ok(Self { dir: dir.to_owned(), memory: Arc::default(), hub: Mutex::default() })
    }

    pub(crate) fn describe(&self) -> String {
        format!("folder {}", self.dir.display())
    }

    /// Does something with the log as it is now, alone.
    async fn run<T: Send + 'static>(
        &self,
        call: &Call,
        work: impl FnOnce(&mut Log) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T> {
        let late = || call.too_late(self.describe());
        // What is quick enough would come in time even after its end.
        if Instant::now() >= call.deadline {
            return Err(late());
        }
        let memory = timeout_at(call.deadline, Arc::clone(&self.memory).lock_owned()).await;
        let mut memory = memory.map_err(|_| late())?;
        let (dir, deadline) = (self.dir.clone(), call.deadline.into_std());
        // A caller that goes away does not interrupt it: it ends by itself, and leaves everything whole.
        let task = spawn_blocking(move || {
            let Some(_lock) = lock::acquire(&dir, deadline)? else { return Ok::<_, Fault>(None) };
            let mut log = Log::refresh(memory.log.take(), &dir)?;
            log.end_leases()?;
            let result = work(&mut log)?;
            memory.log = Some(log);
            Ok(Some(result))
        });
        match timeout_at(call.deadline, task).await {
            Ok(Ok(Ok(Some(result)))) => Ok(result),
            Ok(Ok(Ok(None))) | Err(_) => Err(late()),
            Ok(Ok(Err(fault))) => Err(fault.into_error(call.operation.clone())),
            Ok(Err(join)) => {
                let operation = call.operation.clone();
                Err(Error::Failed { operation, store: self.describe(), source: join.into() })
            }
        }
    }
}
