//! A ping that goes on while something else happens, and tells at its end what was lost.

use std::fs::File;
use std::net::IpAddr;
use std::os::unix::fs::FileExt as _;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::{DEADLINE, Ns, wait_until};

/// Between two echo requests, in seconds.
const INTERVAL: &str = "0.01";

/// Echo requests, 10 ms apart, until its end is asked for. Dropped before that, it is killed.
#[derive(Debug)]
pub struct PingStream {
    child: Child,
    /// A file, not a pipe: nobody has to serve it meanwhile.
    output: File,
    to: IpAddr,
}

/// What became of a stream of echo requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamReport {
    pub sent: u32,
    /// The numbers, counted from 1, of those that were not answered although a later one was. Those after the last answer
    /// may have been on their way when the stream ended.
    pub lost: Vec<u32>,
}

impl PingStream {
    pub fn start(from: &Ns, to: IpAddr) -> Result<Self> {
        Self::every(from, to, INTERVAL)
    }

    /// Echo requests so many seconds apart.
    pub fn every(from: &Ns, to: IpAddr, interval: &str) -> Result<Self> {
        let output = tempfile::tempfile().context("cannot make a temporary file")?;
        let mut command = Command::new("ping");
        command.args([if to.is_ipv6() { "-6" } else { "-4" }, "-n", "-i", interval, &to.to_string()]);
        command.env("LC_ALL", "C").stdin(Stdio::null());
        command.stdout(output.try_clone()?).stderr(output.try_clone()?);
        let child = from.enter(|| command.spawn())?;
        let child = child.with_context(|| format!("cannot start a ping of {to} in {}", from.name()))?;
        Ok(Self { child, output, to })
    }

    /// Waits for another answer, ends the stream and counts. A stream that is not answered any more is an error.
    pub fn end(mut self) -> Result<StreamReport> {
        let before = last_answer(&self.text()?)?;
        wait_until(&format!("another answer to the ping of {}", self.to), DEADLINE, || {
            Ok(last_answer(&self.text()?)? > before)
        })?;
        kill_process(Pid::from_child(&self.child), Signal::INT).context("cannot end the ping")?;
        wait_until("the end of the ping", DEADLINE, || Ok(self.child.try_wait()?.is_some()))?;
        let text = self.text()?;
        report(&text).with_context(|| format!("the ping of {} said nothing of use: {text:?}", self.to))
    }
}

impl PingStream {
    /// All output so far. The ping shares the file's position, so it must not be moved.
    fn text(&self) -> Result<String> {
        let mut bytes = vec![0; usize::try_from(self.output.metadata()?.len())?];
        self.output.read_exact_at(&mut bytes, 0).context("cannot read the ping's output")?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

impl Drop for PingStream {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            // Nothing else can be done about it here.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// The numbers of lines such as `64 bytes from 10.0.0.1: icmp_seq=3 ttl=64 time=0.05 ms`. The last line may be incomplete.
fn answers(text: &str) -> impl Iterator<Item = Result<u32>> {
    let lines = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    lines.filter(|line| line.contains(" bytes from ") && line.contains(" time=")).map(|line| {
        let number = line.split_once("icmp_seq=").and_then(|(_, rest)| rest.split(' ').next());
        number.context("an answer has no number")?.parse().context("an odd number")
    })
}

fn last_answer(text: &str) -> Result<Option<u32>> {
    answers(text).try_fold(None, |last, number| Ok(last.max(Some(number?))))
}

/// From the answers and the line of the statistics.
fn report(text: &str) -> Result<StreamReport> {
    let statistics = text.lines().find_map(|line| line.split_once(" packets transmitted"));
    let (sent, _) = statistics.context("there are no statistics")?;
    let sent: u32 = sent.trim().parse().context("the number of requests cannot be read")?;
    let mut answered = vec![false; sent as usize + 1];
    for number in answers(text) {
        let number = number?;
        // The kernel's counter has 16 bits; streams of a test are shorter.
        ensure!(number <= sent, "an answer to request {number}, of {sent}");
        answered[number as usize] = true;
    }
    let last = last_answer(text)?.unwrap_or(0);
    let lost = (1..last).filter(|number| !answered[*number as usize]).collect();
    Ok(StreamReport { sent, lost })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_answered_is_lost_unless_it_came_last() {
        let line = |n: u32| format!("64 bytes from 10.0.0.1: icmp_seq={n} ttl=64 time=0.05 ms\n");
        let end = "\n--- 10.0.0.1 ping statistics ---\n6 packets transmitted, 3 received, 50% packet loss\n";
        let text =
            [&line(1), &line(2), "From 10.0.0.9 icmp_seq=3 Destination Host Unreachable\n", &line(4), end];
        assert_eq!(report(&text.concat()).unwrap(), StreamReport { sent: 6, lost: vec![3] });
        assert!(report("ping: connect: Network is unreachable\n").is_err());
    }
}
