//! Ctrl-C while something is made: what is done is stopped in an orderly way instead of left where it is.

use std::thread;

use anyhow::{Context as _, Result};
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

/// How the work came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Course {
    Undisturbed,
    /// By SIGINT or SIGTERM, if only just before its end.
    Interrupted,
}

/// Works in a thread of its own. At a signal, `stop` sees to it that the work fails soon; its end is awaited in any case.
pub(super) fn guarded<T: Send>(work: impl FnOnce() -> T + Send, stop: impl FnOnce()) -> Result<(T, Course)> {
    let runtime = Builder::new_current_thread().enable_all().build().context("cannot wait for signals")?;
    let inside = runtime.enter();
    // From here on they do not end this process.
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot wait for SIGINT")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
    drop(inside);
    thread::scope(|scope| {
        let (ending, ended) = oneshot::channel::<()>();
        let worker = scope.spawn(move || {
            // Dropped at the end, also by a panic.
            let _ending = ending;
            work()
        });
        let course = runtime.block_on(async {
            tokio::select! {
                _ = ended => Course::Undisturbed,
                _ = interrupt.recv() => Course::Interrupted,
                _ = terminate.recv() => Course::Interrupted,
            }
        });
        if course == Course::Interrupted {
            stop();
        }
        match worker.join() {
            Ok(result) => Ok((result, course)),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}
