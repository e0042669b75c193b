//! What is being done, and how long it took: one line for each step.

use std::fmt::Display;
use std::io::{IsTerminal as _, Write as _};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Prints a line for a person. Nobody may be reading any more (`| head`): that is no reason to leave things half done.
pub(super) fn say(text: impl Display) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// On a terminal a step shows as soon as it begins; elsewhere a line is printed when it is done.
pub(super) struct Progress {
    begun: Instant,
    step: Mutex<Option<(String, Instant)>>,
    is_terminal: bool,
}

impl Progress {
    pub(super) fn new() -> Self {
        let is_terminal = std::io::stdout().is_terminal();
        Self { begun: Instant::now(), step: Mutex::new(None), is_terminal }
    }

    /// The step before is done, and this one begins.
    pub(super) fn step(&self, what: &str) {
        self.done();
        if self.is_terminal {
            let mut out = std::io::stdout();
            let _ = write!(out, "  {what:<60} …").and_then(|()| out.flush());
        }
        *self.current() = Some((what.to_owned(), Instant::now()));
    }

    pub(super) fn done(&self) {
        let step = self.current().take();
        if let Some((what, begun)) = step {
            let back = if self.is_terminal { "\r" } else { "" };
            say(format!("{back}  {what:<60} {:>6.1} s", begun.elapsed().as_secs_f64()));
        }
    }

    /// The step did not come to its end; what happened is told elsewhere.
    pub(super) fn failed(&self) {
        let step = self.current().take();
        if let Some((what, _)) = step {
            let back = if self.is_terminal { "\r" } else { "" };
            say(format!("{back}  {what:<60} failed"));
        }
    }

    fn current(&self) -> MutexGuard<'_, Option<(String, Instant)>> {
        self.step.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn seconds(&self) -> f64 {
        self.begun.elapsed().as_secs_f64()
    }
}
