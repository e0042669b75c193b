use std::io::{BufRead as _, BufReader, ErrorKind};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::Ns;

/// How often an unanswered datagram is sent again.
const RESEND: Duration = Duration::from_millis(100);
/// How long an unreachable host is tried again.
const NEIGHBOURS: Duration = Duration::from_secs(10);

/// What came of a ping. No route at all counts as nothing received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PingReport {
    pub asked: u32,
    pub received: u32,
}

impl PingReport {
    pub fn all(&self) -> bool {
        self.received >= self.asked
    }

    pub fn any(&self) -> bool {
        self.received > 0
    }
}

/// Sends `count` echo requests, 0.2 s apart, and waits for the last answer. The limit is for pings that must not be answered:
/// they take this long. It leaves the kernel time to ask for an IPv6 neighbour several times, once a second.
pub fn ping(from: &Ns, to: IpAddr, count: u32) -> Result<PingReport> {
    let family = if to.is_ipv6() { "-6" } else { "-4" };
    let (to_text, count_text) = (to.to_string(), count.to_string());
    let argv = ["ping", family, "-n", "-q", "-c", &count_text, "-i", "0.2", "-W", "5", &to_text];
    let outcome = from.run(&argv, b"")?;
    if let Some(received) = received(&outcome.stdout) {
        return Ok(PingReport { asked: count, received });
    }
    // ping ends with 2 and without statistics when the kernel refuses to send.
    if outcome.stderr.contains("unreachable") {
        return Ok(PingReport { asked: count, received: 0 });
    }
    bail!("ping {to} from {} failed: {}", from.name(), outcome.story())
}

/// From `3 packets transmitted, 2 received, +1 errors, 33% packet loss, time 402ms`.
fn received(stdout: &str) -> Option<u32> {
    let line = stdout.lines().find(|line| line.contains("packets transmitted"))?;
    let count = line.split(", ").find_map(|part| part.strip_suffix(" received"))?;
    count.parse().ok()
}

/// Connects to a `tcp_echo`. The answer is the address the server sees the client under, or none where no connection
/// comes about in time: refused, unreachable, filtered, or cut before the server's first line.
pub fn tcp_connects(from: &Ns, to: SocketAddr, timeout: Duration) -> Result<Option<SocketAddr>> {
    let line = from.enter(|| tcp_hello(to, timeout))?;
    match line {
        Ok(line) => parse_peer(&line).map(Some),
        Err(e) if means_no_connection(&e) => Ok(None),
        Err(e) => Err(e).with_context(|| format!("cannot try tcp {to} from {}", from.name())),
    }
}

/// Asks a `udp_echo`, again and again until the timeout. Only an answer from the very address asked counts.
pub fn udp_connects(from: &Ns, to: SocketAddr, timeout: Duration) -> Result<Option<SocketAddr>> {
    let answer = from.enter(|| udp_hello(to, timeout))?;
    match answer {
        Ok(Some(text)) => parse_peer(&text).map(Some),
        Ok(None) => Ok(None),
        Err(e) if means_no_connection(&e) => Ok(None),
        Err(e) => Err(e).with_context(|| format!("cannot try udp {to} from {}", from.name())),
    }
}

fn tcp_hello(to: SocketAddr, timeout: Duration) -> std::io::Result<String> {
    let end = Instant::now() + timeout;
    let stream = connected(to, timeout)?;
    // A timeout of zero would mean for ever.
    let left = end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    stream.set_read_timeout(Some(left))?;
    let mut line = String::new();
    match BufReader::new(stream).read_line(&mut line)? {
        0 => Err(ErrorKind::UnexpectedEof.into()),
        _ => Ok(line),
    }
}

/// All namespaces share the kernel's neighbour table. While another process fills it, a neighbour is not found, and the
/// kernel says at once that the host is unreachable.
fn connected(to: SocketAddr, timeout: Duration) -> std::io::Result<TcpStream> {
    let retry_until = Instant::now() + timeout.min(NEIGHBOURS);
    loop {
        match TcpStream::connect_timeout(&to, timeout) {
            Err(e) if e.kind() == ErrorKind::HostUnreachable && Instant::now() < retry_until => {
                std::thread::sleep(RESEND.min(timeout));
            }
            other => return other,
        }
    }
}

fn udp_hello(to: SocketAddr, timeout: Duration) -> std::io::Result<Option<String>> {
    let any: IpAddr = if to.is_ipv6() { [0u8; 16].into() } else { [0u8; 4].into() };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(to)?;
    let end = Instant::now() + timeout;
    let mut buffer = [0; 256];
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        socket.set_read_timeout(Some(left.min(RESEND)))?;
        match socket.send(b"who am i").and_then(|_| socket.recv(&mut buffer)) {
            Ok(count) => return Ok(Some(String::from_utf8_lossy(&buffer[..count]).into_owned())),
            Err(e)
                if matches!(
                    e.kind(),
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                ) => {}
            Err(e) => return Err(e),
        }
    }
}

fn parse_peer(line: &str) -> Result<SocketAddr> {
    line.trim().parse().with_context(|| format!("something else than an echo server answered: {line:?}"))
}

fn means_no_connection(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::TimedOut
            | ErrorKind::WouldBlock
            | ErrorKind::ConnectionRefused
            | ErrorKind::ConnectionReset
            | ErrorKind::ConnectionAborted
            | ErrorKind::UnexpectedEof
            | ErrorKind::HostUnreachable
            | ErrorKind::NetworkUnreachable
            // What a firewall's reject (admin-prohibited) and a prohibit route say.
            | ErrorKind::PermissionDenied
            // What connect says where the namespace has no address of the family to send from.
            | ErrorKind::AddrNotAvailable
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_with_and_without_errors() {
        assert_eq!(received("x\n3 packets transmitted, 3 received, 0% packet loss, time 401ms\n"), Some(3));
        assert_eq!(
            received("2 packets transmitted, 0 received, +2 errors, 100% packet loss, time 9ms"),
            Some(0)
        );
        assert_eq!(received("ping: connect: Network is unreachable"), None);
    }
}
