//! Servers that tell every client which address they see it under: behind masquerade that is not the client's own.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::event::{PollFd, PollFlags, poll};

use crate::Ns;

/// A client that neither reads nor leaves must not hold the server.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A server inside a namespace. Dropped, it closes its sockets and its threads end.
#[derive(Debug)]
pub struct Echo {
    address: SocketAddr,
    /// Closing this end is what tells the threads to stop.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

/// A TCP server: a line with the client's address, then everything comes back until the client closes.
pub fn tcp_echo(ns: &Ns, address: SocketAddr) -> Result<Echo> {
    let listener = ns.enter(|| TcpListener::bind(address))?;
    let listener = listener.with_context(|| format!("cannot listen on tcp {address} in {}", ns.name()))?;
    let address = listener.local_addr().context("cannot read the server's address")?;
    Echo::start(address, move |stop| serve_tcp(&listener, &stop))
}

/// A UDP server: every datagram is answered with the sender's address. Bound to `::` or `0.0.0.0` it answers from the
/// address that its routing picks, so bind the one under test where the answer's source matters.
pub fn udp_echo(ns: &Ns, address: SocketAddr) -> Result<Echo> {
    let socket = ns.enter(|| UdpSocket::bind(address))?;
    let socket = socket.with_context(|| format!("cannot listen on udp {address} in {}", ns.name()))?;
    let address = socket.local_addr().context("cannot read the server's address")?;
    Echo::start(address, move |stop| serve_udp(&socket, &stop))
}

impl Echo {
    fn start(address: SocketAddr, serve: impl FnOnce(Arc<UnixStream>) + Send + 'static) -> Result<Self> {
        let (stop, stopped) = UnixStream::pair().context("cannot make the server's stop signal")?;
        let thread = std::thread::spawn(move || serve(Arc::new(stopped)));
        Ok(Self { address, stop: Some(stop), thread: Some(thread) })
    }

    /// Where it listens; the real port if 0 was asked for.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // A panic in there has been printed; a second one while dropping would abort the test run.
            let _ = thread.join();
        }
    }
}

#[derive(PartialEq, Eq)]
enum PollResult {
    Ready,
    Stop,
}

fn next(socket: BorrowedFd<'_>, stop: &UnixStream) -> PollResult {
    let mut fds = [PollFd::from_borrowed_fd(socket, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
    loop {
        match poll(&mut fds, None) {
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return PollResult::Stop,
            Ok(_) if !fds[1].revents().is_empty() => return PollResult::Stop,
            Ok(_) => return PollResult::Ready,
        }
    }
}

fn serve_tcp(listener: &TcpListener, stop: &Arc<UnixStream>) {
    let mut clients = Vec::new();
    while next(listener.as_fd(), stop) == PollResult::Ready {
        // A client may have gone between the wake-up and here.
        let Ok((stream, peer)) = listener.accept() else { continue };
        let stop = Arc::clone(stop);
        clients.push(std::thread::spawn(move || serve_client(stream, peer, &stop)));
    }
    for client in clients {
        let _ = client.join();
    }
}

/// Any error is the client's leaving: the probe on the other side reports what it means.
fn serve_client(mut stream: TcpStream, peer: SocketAddr, stop: &UnixStream) {
    let hello = format!("{}\n", canonical(peer));
    let ready = stream.set_write_timeout(Some(TIMEOUT)).and_then(|()| stream.write_all(hello.as_bytes()));
    if ready.is_err() {
        return;
    }
    let mut buffer = [0; 16 * 1024];
    while next(stream.as_fd(), stop) == PollResult::Ready {
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => return,
            Ok(count) => {
                if stream.write_all(&buffer[..count]).is_err() {
                    return;
                }
            }
        }
    }
}

fn serve_udp(socket: &UdpSocket, stop: &UnixStream) {
    let mut buffer = [0; 2048];
    while next(socket.as_fd(), stop) == PollResult::Ready {
        // Errors are about earlier answers that nobody took (ICMP); the next datagram may be fine.
        if let Ok((_, peer)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(canonical(peer).to_string().as_bytes(), peer);
        }
    }
}

/// A server on `::` sees IPv4 clients as `::ffff:a.b.c.d`.
fn canonical(peer: SocketAddr) -> SocketAddr {
    SocketAddr::new(peer.ip().to_canonical(), peer.port())
}
