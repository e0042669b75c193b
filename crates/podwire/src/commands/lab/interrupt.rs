//! Handles SIGINT and SIGTERM while a lab is created, so that an interrupted command can remove the lab.

use std::thread;

use anyhow::{Context as _, Result};
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

/// How the work ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Completion {
    Finished,
    /// SIGINT or SIGTERM was received, possibly just before the end.
    Interrupted,
}

/// Runs the work in a thread and waits for its end. On a signal, `stop` must make the work fail soon.
pub(super) fn run_interruptible<T: Send>(
    work: impl FnOnce() -> T + Send,
    stop: impl FnOnce(),
) -> Result<(T, Completion)> {
    let runtime = Builder::new_current_thread().enable_all().build().context("cannot wait for signals")?;
    let inside = runtime.enter();
    // From here on these signals do not end the process.
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot wait for SIGINT")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
    drop(inside);
    thread::scope(|scope| {
        let (end_guard, ended) = oneshot::channel::<()>();
        let worker = scope.spawn(move || {
            // Dropped when the work ends, also after a panic.
            let _end_guard = end_guard;
            work()
        });
        let completion = runtime.block_on(async {
            tokio::select! {
                _ = ended => Completion::Finished,
                _ = interrupt.recv() => Completion::Interrupted,
                _ = terminate.recv() => Completion::Interrupted,
            }
        });
        if completion == Completion::Interrupted {
            stop();
        }
        match worker.join() {
            Ok(result) => Ok((result, completion)),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}
