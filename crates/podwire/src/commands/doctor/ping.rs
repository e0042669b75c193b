//! Runs the `ping` program.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::process::{Command, Output, Stdio};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketType, bind, ipproto, sendto, socket};
use types::Fix;

/// The exit code of `ping` if no reply came. Other codes are errors of the program.
const NO_REPLY: i32 = 1;
/// Bytes of the ICMP header.
const HEADER: usize = 8;
/// Part of the statistics. `ping` does not print them if it refuses its arguments.
const STATISTICS: &str = "packets transmitted";
/// Further requests after a lost one, because a single loss says nothing about a path.
const REPEATS: u32 = 2;

/// One echo request.
#[derive(Clone, Copy)]
pub(super) struct Ping {
    pub(super) target: IpAddr,
    pub(super) source: Option<IpAddr>,
    /// Bytes of data in a packet that must not be fragmented.
    pub(super) size: Option<u32>,
}

#[derive(Debug)]
pub(super) enum PingResult {
    Replied,
    NoReply,
    /// The kernel of this node did not send the packet, for example because of a firewall rule.
    NotSent(String),
    /// The program is missing or lacks permissions.
    NotRun(io::Error),
}

impl Ping {
    /// A shell command.
    pub(super) fn command(&self) -> Fix {
        Fix::words(self.words(1))
    }

    fn words(&self, count: u32) -> Vec<String> {
        let mut words = ["ping", "-c", &count.to_string(), "-W", "1"].map(str::to_owned).to_vec();
        if count > 1 {
            words.extend(["-i", "0.2"].map(str::to_owned));
        }
        words.extend(self.source.into_iter().flat_map(|source| ["-I".to_owned(), source.to_string()]));
        words.extend(
            self.size.into_iter().flat_map(|size| ["-M", "do", "-s", &size.to_string()].map(str::to_owned)),
        );
        words.push(self.target.to_string());
        words
    }

    /// Pings in the network namespace of this thread. A lost request is repeated. It takes at most three seconds.
    pub(super) fn echo(&self) -> PingResult {
        match self.send(1) {
            PingResult::NoReply => self.send(REPEATS),
            echo @ (PingResult::Replied | PingResult::NotSent(_) | PingResult::NotRun(_)) => echo,
        }
    }

    /// The same for packets that are probably lost: all requests are sent at once.
    pub(super) fn echo_parallel(&self) -> PingResult {
        self.send(1 + REPEATS)
    }

    fn send(&self, count: u32) -> PingResult {
        let words = self.words(count);
        let output =
            Command::new(&words[0]).args(&words[1..]).env("LC_ALL", "C").stdin(Stdio::null()).output();
        match output.map_or_else(PingResult::NotRun, |output| PingResult::of(&output)) {
            PingResult::NoReply => {
                self.local_error().map_or(PingResult::NoReply, |error| PingResult::NotSent(error.to_string()))
            }
            echo @ (PingResult::Replied | PingResult::NotSent(_) | PingResult::NotRun(_)) => echo,
        }
    }

    /// The error of the kernel for such a packet. `ping` reports it only together with an ICMP error, so a packet that a local
    /// firewall rule drops would look like a lost packet.
    fn local_error(&self) -> Option<io::Error> {
        let (family, protocol, request) = match self.target {
            IpAddr::V4(_) => (AddressFamily::INET, ipproto::ICMP, 8),
            IpAddr::V6(_) => (AddressFamily::INET6, ipproto::ICMPV6, 128),
        };
        // Without a checksum, so that no receiver replies.
        let mut packet = vec![0; HEADER + self.size.map_or(0, |size| size as usize)];
        packet[0] = request;
        let send = || {
            let socket = socket(family, SocketType::RAW, Some(protocol))?;
            if let Some(source) = self.source {
                bind(&socket, &SocketAddr::new(source, 0))?;
            }
            sendto(&socket, &packet, SendFlags::DONTWAIT, &SocketAddr::new(self.target, 0))
        };
        match send() {
            Err(error @ (Errno::PERM | Errno::ACCESS | Errno::NETUNREACH | Errno::HOSTUNREACH)) => {
                Some(error.into())
            }
            Ok(_) | Err(_) => None,
        }
    }
}

impl PingResult {
    fn of(Output { status, stdout, stderr }: &Output) -> Self {
        let (stdout, stderr) = (String::from_utf8_lossy(stdout), String::from_utf8_lossy(stderr));
        // One reply is sufficient.
        if status.success() {
            return Self::Replied;
        }
        if stderr.contains("socket: Operation not permitted") {
            return Self::NotRun(ErrorKind::PermissionDenied.into());
        }
        if status.code() == Some(NO_REPLY) && stdout.contains(STATISTICS) {
            return send_error(&stderr).map_or(Self::NoReply, Self::NotSent);
        }
        // For example an invalid source address.
        let error = stderr.lines().next().unwrap_or("ping failed");
        Self::NotRun(io::Error::other(error.to_owned()))
    }
}

/// The error of the kernel of this node. A packet that is too large for a known path MTU counts as lost on the path.
fn send_error(stderr: &str) -> Option<String> {
    let line = stderr.lines().find_map(|line| line.split_once("sendmsg: ").or(line.split_once("sendto: ")));
    line.map(|(_, error)| error.trim().to_owned()).filter(|error| !error.contains("too long"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::ExitStatus;

    use super::*;

    fn echo(code: i32, stdout: &str, stderr: &str) -> PingResult {
        let status = ExitStatus::from_raw(code << 8);
        PingResult::of(&Output { status, stdout: stdout.into(), stderr: stderr.into() })
    }

    #[test]
    fn f3_a_packet_that_was_not_sent_is_not_lost() {
        let lost = "3 packets transmitted, 0 received, 100% packet loss, time 409ms\n";
        assert!(matches!(echo(0, "3 packets transmitted, 1 received", "x"), PingResult::Replied));
        assert!(matches!(echo(1, lost, ""), PingResult::NoReply));
        let known = "ping: local error: message too long, mtu=1390\n";
        assert!(matches!(echo(1, lost, known), PingResult::NoReply), "the kernel knows the path");
        let denied = echo(1, lost, "ping: sendmsg: Operation not permitted\n");
        assert!(
            matches!(&denied, PingResult::NotSent(error) if error == "Operation not permitted"),
            "{denied:?}"
        );
        let usage = echo(1, "", "ping: invalid option -- 'M'\n");
        assert!(
            matches!(&usage, PingResult::NotRun(error) if error.to_string().contains("option")),
            "{usage:?}"
        );
        let socket = echo(2, "", "ping: socket: Operation not permitted\n");
        assert!(matches!(&socket, PingResult::NotRun(error) if error.kind() == ErrorKind::PermissionDenied));
    }
}
