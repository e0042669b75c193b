//! A continuous ping that counts lost packets.

use std::fs::{self, File};
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use lab::{DEADLINE, Ns, wait_until};
use rustix::process::{Pid, Signal, kill_process};

const INTERVAL: &str = "0.01";
/// Seconds after which `ping` ends, also if the demo is killed.
const MAX_SECONDS: &str = "120";

pub(super) struct Stream {
    pub(super) to: IpAddr,
    child: Child,
    /// Output of `ping`: one line for each reply.
    output: PathBuf,
}

pub(super) struct DemoStreamReport {
    pub(super) sent: u32,
    pub(super) received: u32,
}

impl Stream {
    pub(super) fn start(from: &Ns, directory: &std::path::Path, to: IpAddr) -> Result<Self> {
        let output = directory.join(format!("ping-{}", if to.is_ipv6() { "6" } else { "4" }));
        let file = File::create(&output).with_context(|| format!("cannot create {}", output.display()))?;
        let mut command = Command::new("ping");
        command.args(["-n", "-i", INTERVAL, "-w", MAX_SECONDS, &to.to_string()]);
        command.stdin(Stdio::null()).stdout(file).stderr(Stdio::null());
        let child = from.enter(|| command.spawn())?.context("cannot start ping")?;
        Ok(Self { to, child, output })
    }

    pub(super) fn replies(&self) -> Result<usize> {
        Ok(fs::read_to_string(&self.output)?.matches("icmp_seq=").count())
    }

    pub(super) fn wait_for(&self, replies: usize) -> Result<()> {
        wait_until(&format!("replies from {}", self.to), DEADLINE, || Ok(self.replies()? >= replies))
    }

    /// Stops `ping` and counts its replies.
    pub(super) fn end(mut self) -> Result<DemoStreamReport> {
        kill_process(Pid::from_child(&self.child), Signal::INT).context("cannot stop ping")?;
        wait_until("the end of ping", DEADLINE, || Ok(self.child.try_wait()?.is_some()))?;
        let text = fs::read_to_string(&self.output)?;
        // Requests after the last reply were in flight when ping ended, so they are not counted as lost.
        let numbers: Vec<u32> = text
            .lines()
            .filter_map(|line| line.split("icmp_seq=").nth(1)?.split(' ').next()?.parse().ok())
            .collect();
        let sent = numbers.iter().max().copied().with_context(|| format!("{} never replied", self.to))?;
        let received = u32::try_from(numbers.len()).unwrap_or(u32::MAX);
        Ok(DemoStreamReport { sent, received })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // The process may have ended already. A destructor cannot return errors.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
