//! Metrics and health over TCP, for any client that reaches the address. Clients that hold connections must not keep a health
//! check from its answer: when all places are taken, the oldest connection of the address that has the most is closed.
//! Any process may listen at the address before the agent does: then the agent works without metrics, and tries again.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};

use tokio::net::TcpListener;
use tokio::task::{AbortHandle, yield_now};
use tokio::time::sleep;
use types::{Code, Finding, Fix};

use super::listen::{ServerError, bind_tcp};
use super::{ACCEPT_PAUSE, HttpServer, REBIND_PAUSE, RequestOrigin, serve_connection};
use crate::conditions::Source;

/// Connections at once. They do not count as clients of the socket.
pub(super) const MOST: usize = 64;

/// Serves at the address, with a listener that is there already or as soon as there can be one.
pub(super) async fn serve(
    (address, mut bound): (SocketAddr, Result<TcpListener, ServerError>),
    mut server: HttpServer,
) {
    loop {
        let error = match bound {
            Ok(listener) => {
                server.service.agent_status.set(Source::Tcp, Vec::new());
                return accept(listener, server).await;
            }
            Err(error) => error,
        };
        let message = format!("no metrics over TCP: {error}");
        let found = Finding::new(Code::MetricsUnavailable, format_args!("address {address}"), message);
        server.service.agent_status.set(Source::Tcp, vec![found.fix(listeners(address))]);
        if server.unless_stopped(sleep(REBIND_PAUSE)).await.is_none() {
            return;
        }
        bound = bind_tcp(address).await;
    }
}

/// Shows the processes that listen on the port, on this address and on all of them.
fn listeners(address: SocketAddr) -> Fix {
    Fix::words(["ss", "-ltnp", &format!("sport = :{}", address.port())])
}

async fn accept(listener: TcpListener, mut server: HttpServer) {
    let mut open = TcpConnections::default();
    while let Some(accepted) = server.unless_stopped(listener.accept()).await {
        match accepted {
            Ok((stream, peer)) => {
                open.make_room();
                let task = tokio::spawn(serve_connection(
                    stream,
                    (RequestOrigin::Tcp, None),
                    server.connection(None),
                ));
                open.0.push_back((peer.ip(), task.abort_handle()));
                // A burst of connections is not accepted in one go: each one runs before the next can displace it.
                yield_now().await;
            }
            Err(error) => pause(&error).await,
        }
    }
}

async fn pause(error: &io::Error) {
    tracing::warn!("cannot accept a connection: {error}");
    sleep(ACCEPT_PAUSE).await;
}

/// The connections that are open, oldest first.
#[derive(Default)]
struct TcpConnections(VecDeque<(IpAddr, AbortHandle)>);

impl TcpConnections {
    /// Closes a connection if all places are taken.
    fn make_room(&mut self) {
        self.0.retain(|(_, task)| !task.is_finished());
        if self.0.len() < MOST {
            return;
        }
        let addresses: Vec<IpAddr> = self.0.iter().map(|(address, _)| *address).collect();
        if let Some((_, task)) = displaced(&addresses).and_then(|oldest| self.0.remove(oldest)) {
            task.abort();
        }
    }
}

/// Which connection is closed for a new one: the oldest of the address that has the most.
fn displaced(addresses: &[IpAddr]) -> Option<usize> {
    let mut counts: HashMap<IpAddr, usize> = HashMap::new();
    for address in addresses {
        *counts.entry(*address).or_default() += 1;
    }
    let most = counts.values().max()?;
    addresses.iter().position(|address| counts.get(address) == Some(most))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a3_the_command_finds_a_listener_on_all_addresses() {
        use std::process::Command;
        for any in ["0.0.0.0:0", "[::]:0", "127.0.0.1:0"] {
            let port = std::net::TcpListener::bind(any).unwrap();
            let number = port.local_addr().unwrap().port();
            let command = listeners(SocketAddr::from(([127, 0, 0, 1], number)));
            let shown = Command::new("sh").args(["-c", &command]).output().unwrap();
            let shown = String::from_utf8(shown.stdout).unwrap();
            assert!(shown.contains(&format!(":{number} ")), "{any}: {command}: {shown}");
            assert!(shown.contains(&format!("pid={},", std::process::id())), "{any}: {shown}");
        }
    }

    #[test]
    fn the_address_with_most_connections_loses_its_oldest() {
        let at = |text: &str| -> IpAddr { text.parse().unwrap() };
        let (a, b, c) = (at("192.0.2.1"), at("192.0.2.2"), at("2001:db8::1"));
        assert_eq!(displaced(&[a, b, b, c]), Some(1));
        assert_eq!(displaced(&[a, c, b]), Some(0));
        assert_eq!(displaced(&[a, b, c, c, c, b]), Some(2));
        assert_eq!(displaced(&[]), None);
    }
}
