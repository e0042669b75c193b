//! Memory and CPU time of a process according to the kernel.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result};

/// The unit of times in /proc/PID/stat, USER_HZ: the same on all supported hosts.
const TICK: Duration = Duration::from_millis(10);

pub(crate) fn rss_mib(pid: u32) -> Result<f64> {
    let path = format!("/proc/{pid}/status");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    Ok(kib.with_context(|| format!("{path} has no VmRSS"))? / 1024.0)
}

/// CPU time in ticks, including exited threads.
pub(crate) fn cpu_time(pid: u32) -> Result<Duration> {
    let path = format!("/proc/{pid}/stat");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    let ticks = ticks(&text).with_context(|| format!("{path} has no CPU times"))?;
    Ok(TICK * ticks)
}

/// CPU time of the running threads in nanoseconds, for operations shorter than a tick.
pub(crate) fn fine_cpu_time(pid: u32) -> Result<Duration> {
    let path = format!("/proc/{pid}/task");
    let threads = fs::read_dir(&path).with_context(|| format!("cannot read {path}"))?;
    let mut all = Duration::ZERO;
    for thread in threads.flatten() {
        // A thread may exit after it was listed.
        let Ok(text) = fs::read_to_string(thread.path().join("schedstat")) else { continue };
        let ran = text.split(' ').next().and_then(|nanoseconds| nanoseconds.parse().ok());
        all += Duration::from_nanos(ran.with_context(|| format!("{path} cannot be parsed"))?);
    }
    Ok(all)
}

/// utime and stime are fields 14 and 15. Field 2, the name, is in parentheses and may contain any character.
fn ticks(stat: &str) -> Option<u32> {
    let mut after_name = stat.rsplit_once(") ")?.1.split(' ').skip(11);
    let mut next = || after_name.next()?.parse::<u32>().ok();
    Some(next()? + next()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_times_are_parsed_with_parentheses_in_the_name() {
        let stat = "42 (a) b) S 1 42 42 0 -1 4194560 100 0 0 0 7 5 0 0 20 0 9 0 1 1 1";
        assert_eq!(ticks(stat), Some(12));
        assert_eq!(ticks("42 (a"), None);
    }

    #[test]
    fn memory_and_cpu_time_of_this_process_are_read() {
        let own = std::process::id();
        assert!(rss_mib(own).unwrap() > 0.5);
        cpu_time(own).unwrap();
        assert!(fine_cpu_time(own).unwrap() > Duration::ZERO);
        assert!(cpu_time(0).is_err() && fine_cpu_time(0).is_err());
    }
}
