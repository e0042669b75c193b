use std::io::{BufRead as _, BufReader, ErrorKind};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use crate::Ns;

/// How often an unanswered datagram is sent again.
const RESEND: Duration = Duration::from_millis(100);
/// How long an unreachable host is tried again.
const NEIGHBOURS: Duration = Duration::from_secs(10);

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
