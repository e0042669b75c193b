//! Progress of `podwire lab up`: one line with a duration for each step.

use std::fmt::Display;
use std::io::{IsTerminal as _, Write as _};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::print;

/// Prints a line. Errors are ignored, because a closed pipe (`| head`) must not stop a change of the lab halfway.
pub(super) fn print_line(text: impl Display) {
    let _ = print::line(text);
}

/// On a terminal a step is shown when it starts. Otherwise its line is printed when it is done.
pub(super) struct Progress {
    started: Instant,
    step: Mutex<Option<(String, Instant)>>,
    is_terminal: bool,
}

impl Progress {
    pub(super) fn new() -> Self {
        let is_terminal = std::io::stdout().is_terminal();
        Self { started: Instant::now(), step: Mutex::new(None), is_terminal }
    }

    /// Ends the previous step and starts this one.
    pub(super) fn step(&self, name: &str) {
        self.done();
        if self.is_terminal {
            let mut out = std::io::stdout();
            let _ = write!(out, "  {name:<0$} …", step_width()).and_then(|()| out.flush());
        }
        *self.current() = Some((name.to_owned(), Instant::now()));
    }

    pub(super) fn done(&self) {
        let step = self.current().take();
        if let Some((name, started)) = step {
            self.finish(&name, &format!("{:>6.1} s", started.elapsed().as_secs_f64()));
        }
    }

    /// Marks the current step as failed. The caller reports the error.
    pub(super) fn failed(&self) {
        let step = self.current().take();
        if let Some((name, _)) = step {
            self.finish(&name, "failed");
        }
    }

    /// On a terminal this replaces the line that `step` wrote.
    fn finish(&self, name: &str, result: &str) {
        if self.is_terminal {
            let _ = write!(std::io::stdout(), "\r");
        }
        print_line(format_args!("  {name:<0$} {result}", step_width()));
    }

    fn current(&self) -> MutexGuard<'_, Option<(String, Instant)>> {
        self.step.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn seconds(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }
}

/// Columns for the name of a step. Its duration needs the other columns.
fn step_width() -> usize {
    print::width() - 20
}
