use std::io::{BufRead as _, BufReader, ErrorKind};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use crate::Ns;

/// Interval of retransmissions.
const RESEND: Duration = Duration::from_millis(100);
/// Time limit of retries for an unreachable host.
const UNREACHABLE_RETRY: Duration = Duration::from_secs(10);

/// Connects to a `tcp_echo` and returns the client's address as the server received it. Returns `None` if there is no connection
/// within the timeout: refused, unreachable, filtered, or closed before the server's first line.
pub fn tcp_connects(from: &Ns, to: SocketAddr, timeout: Duration) -> Result<Option<SocketAddr>> {
    let line = from.enter(|| tcp_hello(to, timeout))?;
    match line {
        Ok(line) => parse_peer(&line).map(Some),
        Err(e) if means_no_connection(&e) => Ok(None),
        Err(e) => Err(e).with_context(|| format!("cannot probe tcp {to} from {}", from.name())),
    }
}

/// Sends datagrams to a `udp_echo` until a reply arrives or the timeout expires. Only replies from the probed address count.
pub fn udp_connects(from: &Ns, to: SocketAddr, timeout: Duration) -> Result<Option<SocketAddr>> {
    let answer = from.enter(|| udp_hello(to, timeout))?;
    match answer {
        Ok(Some(text)) => parse_peer(&text).map(Some),
        Ok(None) => Ok(None),
        Err(e) if means_no_connection(&e) => Ok(None),
        Err(e) => Err(e).with_context(|| format!("cannot probe udp {to} from {}", from.name())),
    }
}

fn tcp_hello(to: SocketAddr, timeout: Duration) -> std::io::Result<String> {
    let end = Instant::now() + timeout;
    let stream = connect(to, timeout)?;
    // Zero would disable the timeout.
    let remaining = end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    stream.set_read_timeout(Some(remaining))?;
    let mut line = String::new();
    match BufReader::new(stream).read_line(&mut line)? {
        0 => Err(ErrorKind::UnexpectedEof.into()),
        _ => Ok(line),
    }
}

/// All namespaces share the kernel's neighbour table. While it is full, neighbour lookups fail and the kernel immediately
/// reports EHOSTUNREACH, so this error is retried.
fn connect(to: SocketAddr, timeout: Duration) -> std::io::Result<TcpStream> {
    let retry_until = Instant::now() + timeout.min(UNREACHABLE_RETRY);
    loop {
        match TcpStream::connect_timeout(&to, timeout) {
            Err(e) if e.kind() == ErrorKind::HostUnreachable && Instant::now() < retry_until => {
                std::thread::sleep(RESEND.min(timeout));
            }
            result => return result,
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
        let remaining = end.saturating_duration_since(Instant::now());
        if remaining.is_zero() {
            return Ok(None);
        }
        socket.set_read_timeout(Some(remaining.min(RESEND)))?;
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
    line.trim().parse().with_context(|| format!("the reply is not from an echo server: {line:?}"))
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
            // ICMP admin-prohibited of a firewall, and prohibit routes.
            | ErrorKind::PermissionDenied
            // The namespace has no source address of the family.
            | ErrorKind::AddrNotAvailable
    )
}
