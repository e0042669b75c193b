//! What is being done, and how long it took: one line for each step.

use std::fmt::Display;
use std::io::{IsTerminal as _, Write as _};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::print;

/// Prints a line. Errors are ignored, because a closed pipe (`| head`) must not stop a change of the lab halfway.
pub(super) fn say(text: impl Display) {
    let _ = print::say(text);
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
            let _ = write!(out, "  {what:<0$} …", step_width()).and_then(|()| out.flush());
        }
        *self.current() = Some((what.to_owned(), Instant::now()));
    }

    pub(super) fn done(&self) {
        let step = self.current().take();
        if let Some((what, begun)) = step {
            self.finish(&what, &format!("{:>6.1} s", begun.elapsed().as_secs_f64()));
        }
    }

    /// The step did not come to its end; what happened is told elsewhere.
    pub(super) fn failed(&self) {
        let step = self.current().take();
        if let Some((what, _)) = step {
            self.finish(&what, "failed");
        }
    }

    /// On a terminal this replaces the line that `step` wrote.
    fn finish(&self, what: &str, result: &str) {
        if self.is_terminal {
            let _ = write!(std::io::stdout(), "\r");
        }
        say(format_args!("  {what:<0$} {result}", step_width()));
    }

    fn current(&self) -> MutexGuard<'_, Option<(String, Instant)>> {
        self.step.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn seconds(&self) -> f64 {
        self.begun.elapsed().as_secs_f64()
    }
}

/// Columns for the name of a step. Its duration needs the other columns.
fn step_width() -> usize {
    print::width() - 20
}
