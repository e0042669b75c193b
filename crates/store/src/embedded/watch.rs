//! A watch: looks when the log changed, when a lease runs out, and now and then anyhow.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::{Errno, read};
use tokio::io::unix::AsyncFd;
use tokio::sync::watch::{Receiver, Sender, channel};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::Embedded;
use super::state::Since;
use crate::Result;
use crate::error::{Error, Operation};
use crate::store::Call;
use crate::types::{Event, Watched};

/// How long one look may wait for the lock.
const PATIENCE: Duration = Duration::from_secs(30);
/// In case the kernel forgot to tell.
const ANYHOW: Duration = Duration::from_secs(10);
/// Where the kernel does not tell: a user may have some hundred inotify instances only.
const UNTOLD: Duration = Duration::from_millis(250);
/// A lease that ran out is looked at a moment later.
const AFTER_THE_END: Duration = Duration::from_millis(2);
/// The log is appended to, written anew, or taken away.
const FLAGS: WatchFlags =
    WatchFlags::MODIFY.union(WatchFlags::MOVED_TO).union(WatchFlags::MOVED_FROM).union(WatchFlags::DELETE);
/// A burst of events is read in this many pieces at most; what is left wakes us again.
const MOST_READS: usize = 64;

/// Tells all watches of a process that the folder changed.
#[derive(Debug)]
pub(super) struct Hub {
    changes: Receiver<u64>,
    /// None: the kernel does not tell.
    task: Option<JoinHandle<()>>,
}

impl Drop for Hub {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

impl Hub {
    fn start(dir: &Path) -> Self {
        let (sender, changes) = channel(0);
        let task = match listen(dir) {
            Ok(inotify) => Some(tokio::spawn(tell(inotify, sender))),
            Err(error) => {
                tracing::warn!("{} is looked at every {UNTOLD:?}: cannot watch it: {error}", dir.display());
                None
            }
        };
        Self { changes, task }
    }

    fn pause(&self) -> Duration {
        match &self.task {
            Some(task) if !task.is_finished() => ANYHOW,
            _ => UNTOLD,
        }
    }
}

fn listen(dir: &Path) -> io::Result<AsyncFd<OwnedFd>> {
    let inotify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
    inotify::add_watch(&inotify, dir, FLAGS)?;
    #[expect(deprecated, reason = "an OwnedFd keeps its number; what takes its place needs unsafe code")]
    AsyncFd::new(inotify)
}

async fn tell(inotify: AsyncFd<OwnedFd>, changes: Sender<u64>) {
    loop {
        let ready = match inotify.readable().await {
            Ok(mut guard) => guard.try_io(|fd| drain(fd.get_ref()).map_err(io::Error::from)),
            Err(error) => Ok(Err(error)),
        };
        match ready {
            // Nothing was there after all.
            Err(_would_block) => {}
            Ok(Ok(())) => changes.send_modify(|count| *count += 1),
            Ok(Err(error)) => {
                tracing::warn!(
                    "the store's folder is looked at every {UNTOLD:?}: cannot read its changes: {error}"
                );
                return;
            }
        }
    }
}

/// What happened does not matter, only that something did. Read until nothing is left, else readiness is not told again.
fn drain(inotify: &OwnedFd) -> Result<(), Errno> {
    let mut buffer = [MaybeUninit::<u8>::uninit(); 4096];
    for round in 0..MOST_READS {
        match read(inotify, &mut buffer) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(Errno::WOULDBLOCK) if round == 0 => return Err(Errno::WOULDBLOCK),
            Err(Errno::WOULDBLOCK) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[derive(Debug)]
pub(crate) struct EmbeddedWatch {
    embedded: Arc<Embedded>,
    prefix: String,
    /// The first revision that was not told yet.
    from: u64,
    /// The last revision of the store that we know of. One that is older now is another store.
    known: u64,
    hub: Arc<Hub>,
    changes: Receiver<u64>,
    end: End,
    is_progress_requested: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Open,
    Ended,
}

/// What one look finds.
#[derive(Debug)]
enum Look {
    Forgotten,
    News(Vec<Event>),
    /// Look again after this time at the latest.
    Nothing {
        revision: u64,
        until: Option<Duration>,
    },
}

impl Embedded {
    pub(crate) async fn watch(
        self: &Arc<Self>,
        call: &Call,
        prefix: &str,
        from: u64,
    ) -> Result<EmbeddedWatch> {
        // The folder is watched before it is looked at: nothing can happen between the two.
        let hub = self.hub();
        let known = self.run(call, |log| Ok(log.state.revision)).await?;
        let changes = hub.changes.clone();
        let (embedded, prefix) = (Arc::clone(self), prefix.to_owned());
        Ok(EmbeddedWatch {
            embedded,
            prefix,
            from: from.max(1),
            known,
            hub,
            changes,
            end: End::Open,
            is_progress_requested: false,
        })
    }

    /// Of this process, while there are watches.
    fn hub(&self) -> Arc<Hub> {
        let mut known = self.hub.lock().unwrap_or_else(PoisonError::into_inner);
        known.upgrade().unwrap_or_else(|| {
            let hub = Arc::new(Hub::start(&self.dir));
            *known = Arc::downgrade(&hub);
            hub
        })
    }
}

impl EmbeddedWatch {
    pub(crate) fn request_progress(&mut self) {
        self.is_progress_requested = true;
    }

    pub(crate) async fn next(&mut self) -> Result<Watched> {
        if self.end == End::Ended {
            let ended = io::Error::other("it has ended before");
            return Err(Error::WatchBroke { prefix: self.prefix.clone(), source: ended.into() });
        }
        loop {
            // Whatever changes from here on wakes us below.
            self.changes.borrow_and_update();
            match self.look().await? {
                Look::Forgotten => {
                    self.end = End::Ended;
                    return Ok(Watched::Compacted);
                }
                Look::News(events) => {
                    let revision = events.last().map_or(self.from, Event::revision);
                    (self.from, self.known) = (revision + 1, revision);
                    return Ok(Watched::Events { events, revision });
                }
                Look::Nothing { revision, until } => {
                    self.known = revision;
                    if std::mem::take(&mut self.is_progress_requested) {
                        return Ok(Watched::Current);
                    }
                    self.wait(until).await;
                }
            }
        }
    }

    async fn look(&self) -> Result<Look> {
        let operation = Operation::new("watch", self.prefix.clone());
        let call = Call { operation, deadline: Instant::now() + PATIENCE, patience: PATIENCE };
        let (prefix, from, known) = (self.prefix.clone(), self.from, self.known);
        let work = move |log: &mut super::Log| match log.state.since(&prefix, from) {
            _ if log.state.revision < known => Ok(Look::Forgotten),
            Since::Forgotten => Ok(Look::Forgotten),
            Since::Events(events) if events.is_empty() => {
                let mut next = None;
                for lease in log.state.leases.values() {
                    let left = lease.left()?.unwrap_or_default();
                    next = Some(next.map_or(left, |next: Duration| next.min(left)));
                }
                Ok(Look::Nothing {
                    revision: log.state.revision,
                    until: next.map(|left| left + AFTER_THE_END),
                })
            }
            Since::Events(events) => Ok(Look::News(events)),
        };
        self.embedded.run(&call, work).await
    }

    async fn wait(&mut self, until: Option<Duration>) {
        let pause = self.hub.pause();
        let pause = until.map_or(pause, |until| until.min(pause));
        tokio::select! {
            changed = self.changes.changed() => {
                // Nobody tells any more: the pause is short then.
                if changed.is_err() {
                    sleep(pause.min(UNTOLD)).await;
                }
            }
            () = sleep(pause) => {}
        }
    }
}
