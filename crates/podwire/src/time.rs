//! Times and ages in the output.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub(crate) use api::utc;

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs()
}

/// The age in one unit: `42s`, `17m`, `5h`, `12d`.
pub(crate) fn age(time: u64, now: u64) -> String {
    match now.saturating_sub(time) {
        seconds @ 0..120 => format!("{seconds}s"),
        seconds @ 120..7200 => format!("{}m", seconds / 60),
        seconds @ 7200..172_800 => format!("{}h", seconds / 3600),
        seconds => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_have_one_unit_and_are_never_negative() {
        let ages = [(100, "0s"), (219, "119s"), (220, "2m"), (7299, "119m"), (7300, "2h"), (180_000, "2d")];
        for (now, text) in ages {
            assert_eq!(age(100, now), text);
        }
        assert_eq!(age(100, 50), "0s");
    }
}
