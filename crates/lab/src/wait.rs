use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

const POLL: Duration = Duration::from_millis(5);

/// Waits until `condition` is true. Errors of the condition are retried; after the timeout the last one is returned.
pub fn wait_until(what: &str, within: Duration, mut condition: impl FnMut() -> Result<bool>) -> Result<()> {
    let end = Instant::now() + within;
    loop {
        let answer = condition();
        if matches!(answer, Ok(true)) {
            return Ok(());
        }
        if Instant::now() >= end {
            let waited = format!("timed out after {within:?} waiting for: {what}");
            return Err(match answer {
                Ok(_) => anyhow!(waited),
                Err(last) => last.context(waited),
            });
        }
        std::thread::sleep(POLL);
    }
}

/// Repeats an operation while it fails with EINTR. The kernel does not restart an operation on a socket with a timeout, even
/// after a signal without a handler (suspend, or a debugger).
pub fn uninterrupted<T>(mut operation: impl FnMut() -> std::io::Result<T>) -> std::io::Result<T> {
    loop {
        match operation() {
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn returns_when_the_condition_is_true() {
        let mut remaining = 3;
        wait_until("the countdown", crate::DEADLINE, || {
            remaining -= 1;
            Ok(remaining == 0)
        })
        .unwrap();
        assert_eq!(remaining, 0);
    }

    #[test]
    fn the_error_names_the_condition_and_the_last_error() {
        let never = wait_until("snow in july", Duration::from_millis(20), || Ok(false)).unwrap_err();
        assert!(never.to_string().contains("snow in july"), "{never}");
        let failing = wait_until("snow", Duration::ZERO, || Err(anyhow!("too warm"))).unwrap_err();
        assert_eq!(format!("{failing:#}"), "timed out after 0ns waiting for: snow: too warm");
    }
}
