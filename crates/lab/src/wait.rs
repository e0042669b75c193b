use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

const POLL: Duration = Duration::from_millis(5);

/// Waits until `condition` holds. An error of the condition counts as "not yet"; the last one is told at the end.
pub fn wait_until(what: &str, within: Duration, mut condition: impl FnMut() -> Result<bool>) -> Result<()> {
    let end = Instant::now() + within;
    loop {
        let answer = condition();
        if matches!(answer, Ok(true)) {
            return Ok(());
        }
        if Instant::now() >= end {
            let waited = format!("waited {within:?} in vain for: {what}");
            return Err(match answer {
                Ok(_) => anyhow!(waited),
                Err(last) => last.context(waited),
            });
        }
        std::thread::sleep(POLL);
    }
}

/// Does it again as long as a signal comes in between: a socket with a timeout is not resumed by the kernel, not even after
/// a signal that nobody handles (a machine that was put to sleep, a debugger that came by).
pub fn uninterrupted<T>(mut act: impl FnMut() -> std::io::Result<T>) -> std::io::Result<T> {
    loop {
        match act() {
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_when_the_condition_holds() {
        let mut left = 3;
        wait_until("the countdown", crate::DEADLINE, || {
            left -= 1;
            Ok(left == 0)
        })
        .unwrap();
        assert_eq!(left, 0);
    }

    #[test]
    fn the_error_names_what_was_waited_for_and_the_last_error() {
        let never = wait_until("snow in july", Duration::from_millis(20), || Ok(false)).unwrap_err();
        assert!(never.to_string().contains("snow in july"), "{never}");
        let failing = wait_until("snow", Duration::ZERO, || Err(anyhow!("too warm"))).unwrap_err();
        assert_eq!(format!("{failing:#}"), "waited 0ns in vain for: snow: too warm");
    }
}
