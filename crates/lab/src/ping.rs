use std::net::IpAddr;

use anyhow::{Result, bail};

use crate::Ns;

/// Result of a ping. Without a route, `received` is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PingReport {
    pub sent: u32,
    pub received: u32,
}

impl PingReport {
    pub fn all(&self) -> bool {
        self.received >= self.sent
    }

    pub fn any(&self) -> bool {
        self.received > 0
    }
}

/// Sends `count` echo requests, 0.2 s apart, and waits for the last reply, at most 5 s. Pings that must fail take this long.
/// The kernel sends one neighbour solicitation per second, so the timeout allows several of them.
pub fn ping(from: &Ns, to: IpAddr, count: u32) -> Result<PingReport> {
    let family = if to.is_ipv6() { "-6" } else { "-4" };
    let (to_text, count_text) = (to.to_string(), count.to_string());
    let argv = ["ping", family, "-n", "-q", "-c", &count_text, "-i", "0.2", "-W", "5", &to_text];
    let outcome = from.run(&argv, b"")?;
    if let Some(received) = received(&outcome.stdout) {
        return Ok(PingReport { sent: count, received });
    }
    // ping exits with 2 and prints no statistics if the kernel refuses to send.
    if outcome.stderr.contains("unreachable") {
        return Ok(PingReport { sent: count, received: 0 });
    }
    bail!("ping {to} from {} failed: {}", from.name(), outcome.describe())
}

/// From `3 packets transmitted, 2 received, +1 errors, 33% packet loss, time 402ms`.
fn received(stdout: &str) -> Option<u32> {
    let line = stdout.lines().find(|line| line.contains("packets transmitted"))?;
    let count = line.split(", ").find_map(|part| part.strip_suffix(" received"))?;
    count.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_are_parsed_with_and_without_errors() {
        assert_eq!(received("x\n3 packets transmitted, 3 received, 0% packet loss, time 401ms\n"), Some(3));
        assert_eq!(
            received("2 packets transmitted, 0 received, +2 errors, 100% packet loss, time 9ms"),
            Some(0)
        );
        assert_eq!(received("ping: connect: Network is unreachable"), None);
    }
}
