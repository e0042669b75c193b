//! A monitor of kernel events that is reopened after it failed. The pause between attempts doubles, so that a lasting error does
//! not keep a thread busy. Until then the timer finds drift.

use std::fmt::Display;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use types::{Code, Finding};

/// The first pause, and the longest one.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

pub(crate) struct MonitorSlot<M, E> {
    name: &'static str,
    open: fn() -> Result<M, E>,
    state: MonitorState<M>,
    pause: Duration,
}

enum MonitorState<M> {
    Open { monitor: M, since: Instant },
    Failed { why: String, retry_at: Instant },
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Read<T> {
    Events(T),
    /// The monitor was reopened. Events were lost.
    Reopened,
    Failed,
}

impl<M, E: Display> MonitorSlot<M, E> {
    pub(crate) fn open(name: &'static str, open: fn() -> Result<M, E>) -> Result<Self, E> {
        let state = MonitorState::Open { monitor: open()?, since: Instant::now() };
        Ok(Self { name, open, state, pause: PAUSES.0 })
    }

    /// Like [`Self::open`]. If that fails, it is retried like a failed monitor.
    pub(crate) fn open_or_retry(name: &'static str, open: fn() -> Result<M, E>) -> Self {
        let state = match open() {
            Ok(monitor) => MonitorState::Open { monitor, since: Instant::now() },
            Err(error) => {
                MonitorState::Failed { why: error.to_string(), retry_at: Instant::now() + PAUSES.0 }
            }
        };
        Self { name, open, state, pause: PAUSES.0 }
    }

    /// Reads the events, or reopens the monitor if the pause is over.
    pub(crate) fn read<T>(&mut self, now: Instant, read: fn(&mut M) -> Result<T, E>) -> Read<T> {
        match &mut self.state {
            MonitorState::Open { monitor, since } => match read(monitor) {
                Ok(events) => Read::Events(events),
                Err(error) => {
                    if now.saturating_duration_since(*since) > PAUSES.1 {
                        self.pause = PAUSES.0;
                    }
                    self.failed(&error, now)
                }
            },
            MonitorState::Failed { retry_at, .. } if now < *retry_at => Read::Failed,
            // A socket that can be opened may still fail at its first read.
            MonitorState::Failed { .. } => match (self.open)().and_then(|mut monitor| {
                read(&mut monitor)?;
                Ok(monitor)
            }) {
                Ok(monitor) => {
                    self.state = MonitorState::Open { monitor, since: now };
                    Read::Reopened
                }
                Err(error) => self.failed(&error, now),
            },
        }
    }

    fn failed<T>(&mut self, error: &E, now: Instant) -> Read<T> {
        self.state = MonitorState::Failed { why: error.to_string(), retry_at: now + self.pause };
        self.pause = (self.pause * 2).min(PAUSES.1);
        Read::Failed
    }

    /// None while it is failed.
    pub(crate) fn monitor(&mut self) -> Option<&mut M> {
        match &mut self.state {
            MonitorState::Open { monitor, .. } => Some(monitor),
            MonitorState::Failed { .. } => None,
        }
    }

    pub(crate) fn retry_at(&self) -> Option<Instant> {
        match &self.state {
            MonitorState::Open { .. } => None,
            MonitorState::Failed { retry_at, .. } => Some(*retry_at),
        }
    }

    /// Why it failed. None while it works.
    pub(crate) fn failure(&self) -> Option<&str> {
        match &self.state {
            MonitorState::Open { .. } => None,
            MonitorState::Failed { why, .. } => Some(why),
        }
    }

    pub(crate) fn finding(&self) -> Option<Finding> {
        let why = self.failure()?;
        let message = format!("{why}; until the monitor is reopened, only the timer finds drift");
        Some(Finding::new(Code::MonitorFailed, format_args!("monitor {}", self.name), message))
    }
}

impl<M: AsFd, E> MonitorSlot<M, E> {
    /// None while it is failed.
    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.state {
            MonitorState::Open { monitor, .. } => Some(monitor.as_fd()),
            MonitorState::Failed { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        static BROKEN: Cell<bool> = const { Cell::new(false) };
        static OPENED: Cell<u32> = const { Cell::new(0) };
    }

    fn open() -> Result<(), &'static str> {
        OPENED.set(OPENED.get() + 1);
        Ok(())
    }

    fn read((): &mut ()) -> Result<u8, &'static str> {
        if BROKEN.get() { Err("ENODEV") } else { Ok(7) }
    }

    #[test]
    fn a1_a_failed_monitor_is_a_condition_and_is_reopened_with_back_off() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut monitor = MonitorSlot::open("netlink", open).unwrap();
        assert_eq!((monitor.read(at(0), read), monitor.finding()), (Read::Events(7), None));
        BROKEN.set(true);
        let attempts: Vec<u64> = (0..200)
            .filter(|second| {
                let before = OPENED.get();
                // 25 wake-ups per second.
                for wake in 0..25 {
                    assert_eq!(monitor.read(at(second * 1000 + wake * 40), read), Read::Failed);
                }
                OPENED.get() > before
            })
            .collect();
        assert_eq!(attempts, [1, 3, 7, 15, 31, 63, 123, 183]);
        let found = monitor.finding().unwrap();
        assert_eq!((found.code, found.object.as_str()), (Code::MonitorFailed, "monitor netlink"));
        assert!(found.message.starts_with("ENODEV; ") && monitor.retry_at() == Some(at(243_000)));
        BROKEN.set(false);
        assert_eq!(monitor.read(at(242_999), read), Read::Failed);
        assert_eq!(monitor.read(at(243_000), read), Read::Reopened);
        assert_eq!((monitor.read(at(243_001), read), monitor.finding()), (Read::Events(7), None));
        // After a long time without failures, the first pause applies again.
        BROKEN.set(true);
        assert_eq!(monitor.read(at(400_000), read), Read::Failed);
        assert_eq!(monitor.retry_at(), Some(at(401_000)));
    }
}
