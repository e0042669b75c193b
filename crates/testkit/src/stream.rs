//! A continuous ping in the background. At the end it reports lost packets.

use std::fs::File;
use std::net::IpAddr;
use std::os::unix::fs::FileExt as _;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::{DEADLINE, Ns, wait_until};

/// Interval of echo requests in seconds.
const INTERVAL: &str = "0.01";

/// Sends echo requests every 10 ms until `end` is called. It is killed on drop.
#[derive(Debug)]
pub struct PingStream {
    child: Child,
    /// A file, because a pipe would have to be read meanwhile.
    output: File,
    to: IpAddr,
}

/// Sent and lost echo requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamReport {
    pub sent: u32,
    /// Sequence numbers, from 1, of requests without a reply. Requests after the last reply are not included, because they
    /// may have been in flight when the stream ended.
    pub lost: Vec<u32>,
}

impl PingStream {
    pub fn start(from: &Ns, to: IpAddr) -> Result<Self> {
        Self::every(from, to, INTERVAL)
    }

    /// Sends echo requests at this interval in seconds.
    pub fn every(from: &Ns, to: IpAddr, interval: &str) -> Result<Self> {
        let output = tempfile::tempfile().context("cannot create a temporary file")?;
        let mut command = Command::new("ping");
        command.args([if to.is_ipv6() { "-6" } else { "-4" }, "-n", "-i", interval, &to.to_string()]);
        command.env("LC_ALL", "C").stdin(Stdio::null());
        command.stdout(output.try_clone()?).stderr(output.try_clone()?);
        let child = from.enter(|| command.spawn())?;
        let child = child.with_context(|| format!("cannot start a ping of {to} in {}", from.name()))?;
        Ok(Self { child, output, to })
    }

    /// Waits for another reply, stops the stream and counts the losses. Fails if there are no more replies.
    pub fn end(mut self) -> Result<StreamReport> {
        let before = last_reply(&self.text()?)?;
        wait_until(&format!("another reply to the ping of {}", self.to), DEADLINE, || {
            Ok(last_reply(&self.text()?)? > before)
        })?;
        kill_process(Pid::from_child(&self.child), Signal::INT).context("cannot stop the ping")?;
        wait_until("the exit of ping", DEADLINE, || Ok(self.child.try_wait()?.is_some()))?;
        let text = self.text()?;
        report(&text).with_context(|| format!("cannot parse the output of the ping of {}: {text:?}", self.to))
    }
}

impl PingStream {
    /// All output so far. Reads with `pread`, because ping shares the file position.
    fn text(&self) -> Result<String> {
        let mut bytes = vec![0; usize::try_from(self.output.metadata()?.len())?];
        self.output.read_exact_at(&mut bytes, 0).context("cannot read the ping's output")?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

impl Drop for PingStream {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            // Drop cannot report errors.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Sequence numbers from lines such as `64 bytes from 10.0.0.1: icmp_seq=3 ttl=64 time=0.05 ms`. The last line may be incomplete.
fn replies(text: &str) -> impl Iterator<Item = Result<u32>> {
    let lines = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    lines.filter(|line| line.contains(" bytes from ") && line.contains(" time=")).map(|line| {
        let number = line.split_once("icmp_seq=").and_then(|(_, rest)| rest.split(' ').next());
        number.context("a reply has no sequence number")?.parse().context("a sequence number is invalid")
    })
}

fn last_reply(text: &str) -> Result<Option<u32>> {
    replies(text).try_fold(None, |last, number| Ok(last.max(Some(number?))))
}

/// Parses the replies and the statistics line.
fn report(text: &str) -> Result<StreamReport> {
    let statistics = text.lines().find_map(|line| line.split_once(" packets transmitted"));
    let (sent, _) = statistics.context("ping printed no statistics")?;
    let sent: u32 = sent.trim().parse().context("cannot parse the number of requests")?;
    let mut answered = vec![false; sent as usize + 1];
    for number in replies(text) {
        let number = number?;
        // The kernel's counter has 16 bits; test streams are shorter.
        ensure!(number <= sent, "reply to request {number}, but only {sent} were sent");
        answered[number as usize] = true;
    }
    let last = last_reply(text)?.unwrap_or(0);
    let lost = (1..last).filter(|number| !answered[*number as usize]).collect();
    Ok(StreamReport { sent, lost })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_without_reply_are_lost_except_the_last_ones() {
        let line = |n: u32| format!("64 bytes from 10.0.0.1: icmp_seq={n} ttl=64 time=0.05 ms\n");
        let end = "\n--- 10.0.0.1 ping statistics ---\n6 packets transmitted, 3 received, 50% packet loss\n";
        let text =
            [&line(1), &line(2), "From 10.0.0.9 icmp_seq=3 Destination Host Unreachable\n", &line(4), end];
        assert_eq!(report(&text.concat()).unwrap(), StreamReport { sent: 6, lost: vec![3] });
        assert!(report("ping: connect: Network is unreachable\n").is_err());
    }
}
