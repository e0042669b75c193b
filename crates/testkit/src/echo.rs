//! Servers that report to every client its source address as received. With masquerade it differs from the client's own.

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

/// A client that neither reads nor closes must not block the server.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A server inside a namespace. On drop it closes its sockets and joins its threads.
#[derive(Debug)]
pub struct Echo {
    address: SocketAddr,
    /// Closing this end stops the threads.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

/// A TCP server. It sends a line with the client's address, then echoes all data until the client closes.
pub fn tcp_echo(ns: &Ns, address: SocketAddr) -> Result<Echo> {
    let listener = ns.enter(|| TcpListener::bind(address))?;
    let listener = listener.with_context(|| format!("cannot listen on tcp {address} in {}", ns.name()))?;
    let address = listener.local_addr().context("cannot read the server's address")?;
    Echo::start(address, move |stop| serve_tcp(&listener, &stop))
}

/// A UDP server. It replies to every datagram with the sender's address. If it is bound to `::` or `0.0.0.0`, routing selects
/// the source address of the reply; bind the address under test if the source matters.
pub fn udp_echo(ns: &Ns, address: SocketAddr) -> Result<Echo> {
    let socket = ns.enter(|| UdpSocket::bind(address))?;
    let socket = socket.with_context(|| format!("cannot listen on udp {address} in {}", ns.name()))?;
    let address = socket.local_addr().context("cannot read the server's address")?;
    Echo::start(address, move |stop| serve_udp(&socket, &stop))
}

impl Echo {
    fn start(address: SocketAddr, serve: impl FnOnce(Arc<UnixStream>) + Send + 'static) -> Result<Self> {
        let (stop, stopped) = UnixStream::pair().context("cannot create the server's stop socket")?;
        let thread = std::thread::spawn(move || serve(Arc::new(stopped)));
        Ok(Self { address, stop: Some(stop), thread: Some(thread) })
    }

    /// The address that the server listens on, with the actual port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread is already printed. A second panic during drop would abort the test run.
            let _ = thread.join();
        }
    }
}

#[derive(PartialEq, Eq)]
enum PollResult {
    Ready,
    Stop,
}

fn poll_socket(socket: BorrowedFd<'_>, stop: &UnixStream) -> PollResult {
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
    while poll_socket(listener.as_fd(), stop) == PollResult::Ready {
        // The client may have closed the connection before accept.
        let Ok((stream, peer)) = listener.accept() else { continue };
        let stop = Arc::clone(stop);
        clients.push(std::thread::spawn(move || serve_client(stream, peer, &stop)));
    }
    for client in clients {
        let _ = client.join();
    }
}

/// An error ends the connection. The probe on the client side reports it.
fn serve_client(mut stream: TcpStream, peer: SocketAddr, stop: &UnixStream) {
    let hello = format!("{}\n", canonical(peer));
    let ready = stream.set_write_timeout(Some(TIMEOUT)).and_then(|()| stream.write_all(hello.as_bytes()));
    if ready.is_err() {
        return;
    }
    let mut buffer = [0; 16 * 1024];
    while poll_socket(stream.as_fd(), stop) == PollResult::Ready {
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
    while poll_socket(socket.as_fd(), stop) == PollResult::Ready {
        // Errors are ICMP errors of earlier replies and do not affect the next datagram.
        if let Ok((_, peer)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(canonical(peer).to_string().as_bytes(), peer);
        }
    }
}

/// A server on `::` receives IPv4 clients as `::ffff:a.b.c.d`.
fn canonical(peer: SocketAddr) -> SocketAddr {
    SocketAddr::new(peer.ip().to_canonical(), peer.port())
}
