//! The `ping` program.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::process::{Command, Output, Stdio};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketType, bind, ipproto, sendto, socket};
use types::Fix;

/// The exit code of the program if no reply came. Other codes are its own problems.
const NO_REPLY: i32 = 1;
/// Of an echo request.
const HEADER: usize = 8;
/// A line of its statistics. A program that refuses its arguments has none.
const STATISTICS: &str = "packets transmitted";
/// A lost request says nothing about a path: so many more are sent before it counts.
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
    Answered,
    Silence,
    /// This node refused to send the packet: a rule of its own firewall, for example.
    NotSent(String),
    /// The program is missing, or is not permitted to send.
    NotAsked(io::Error),
}

impl Ping {
    /// Ready to paste.
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

    /// In the network namespace of this thread. A request without an answer is repeated. It takes three seconds at most.
    pub(super) fn echo(&self) -> PingResult {
        match self.send(1) {
            PingResult::Silence => self.send(REPEATS),
            echo @ (PingResult::Answered | PingResult::NotSent(_) | PingResult::NotAsked(_)) => echo,
        }
    }

    /// The same for a packet that is probably lost: the requests do not wait for each other.
    pub(super) fn echo_of_several(&self) -> PingResult {
        self.send(1 + REPEATS)
    }

    fn send(&self, count: u32) -> PingResult {
        let words = self.words(count);
        let asked =
            Command::new(&words[0]).args(&words[1..]).env("LC_ALL", "C").stdin(Stdio::null()).output();
        match asked.map_or_else(PingResult::NotAsked, |output| PingResult::of(&output)) {
            PingResult::Silence => {
                self.refused_here().map_or(PingResult::Silence, |why| PingResult::NotSent(why.to_string()))
            }
            echo @ (PingResult::Answered | PingResult::NotSent(_) | PingResult::NotAsked(_)) => echo,
        }
    }

    /// Why this node does not send such a packet. The program reports an error of the kernel only if there was an ICMP error
    /// too, so that a packet that a rule of this node drops looks lost.
    fn refused_here(&self) -> Option<io::Error> {
        let (family, protocol, request) = match self.target {
            IpAddr::V4(_) => (AddressFamily::INET, ipproto::ICMP, 8),
            IpAddr::V6(_) => (AddressFamily::INET6, ipproto::ICMPV6, 128),
        };
        // Without a checksum: no receiver answers it.
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
            Err(why @ (Errno::PERM | Errno::ACCESS | Errno::NETUNREACH | Errno::HOSTUNREACH)) => {
                Some(why.into())
            }
            Ok(_) | Err(_) => None,
        }
    }
}

impl PingResult {
    fn of(Output { status, stdout, stderr }: &Output) -> Self {
        let (stdout, stderr) = (String::from_utf8_lossy(stdout), String::from_utf8_lossy(stderr));
        // One reply is enough, whatever happened to the others.
        if status.success() {
            return Self::Answered;
        }
        if stderr.contains("socket: Operation not permitted") {
            return Self::NotAsked(ErrorKind::PermissionDenied.into());
        }
        if status.code() == Some(NO_REPLY) && stdout.contains(STATISTICS) {
            return refused(&stderr).map_or(Self::Silence, Self::NotSent);
        }
        // As an address that it cannot use as its source.
        let why = stderr.lines().next().unwrap_or("ping failed");
        Self::NotAsked(io::Error::other(why.to_owned()))
    }
}

/// Why the kernel of this node did not send a packet. One that is too large for the path is lost on the path: the kernel
/// learned its MTU from an earlier packet.
fn refused(stderr: &str) -> Option<String> {
    let line = stderr.lines().find_map(|line| line.split_once("sendmsg: ").or(line.split_once("sendto: ")));
    line.map(|(_, why)| why.trim().to_owned()).filter(|why| !why.contains("too long"))
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
    fn f3_only_a_packet_that_was_sent_can_be_lost() {
        let lost = "3 packets transmitted, 0 received, 100% packet loss, time 409ms\n";
        assert!(matches!(echo(0, "3 packets transmitted, 1 received", "x"), PingResult::Answered));
        assert!(matches!(echo(1, lost, ""), PingResult::Silence));
        let known = "ping: local error: message too long, mtu=1390\n";
        assert!(matches!(echo(1, lost, known), PingResult::Silence), "the kernel knows the path");
        let denied = echo(1, lost, "ping: sendmsg: Operation not permitted\n");
        assert!(
            matches!(&denied, PingResult::NotSent(why) if why == "Operation not permitted"),
            "{denied:?}"
        );
        let usage = echo(1, "", "ping: invalid option -- 'M'\n");
        assert!(
            matches!(&usage, PingResult::NotAsked(why) if why.to_string().contains("option")),
            "{usage:?}"
        );
        let socket = echo(2, "", "ping: socket: Operation not permitted\n");
        assert!(matches!(&socket, PingResult::NotAsked(why) if why.kind() == ErrorKind::PermissionDenied));
    }
}
