//! Metrics and health over TCP, for any client that reaches the address. Clients that hold connections must not block health
//! checks. So at the connection limit, the oldest connection of the address with most connections is closed. If another process
//! already listens on the address, the agent works without metrics and retries.

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

/// Concurrent connections. They do not count as connections of the unix socket.
pub(super) const MAX_CONNECTIONS: usize = 64;

/// Serves on the address. Retries the bind if it failed.
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
        let finding = Finding::new(Code::MetricsUnavailable, format_args!("address {address}"), message);
        server.service.agent_status.set(Source::Tcp, vec![finding.fix(listeners(address))]);
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
                open.close_one_if_full();
                let task = tokio::spawn(serve_connection(
                    stream,
                    (RequestOrigin::Tcp, None),
                    server.connection(None),
                ));
                open.0.push_back((peer.ip(), task.abort_handle()));
                // Yields, so that each connection of a burst runs before the next one can displace it.
                yield_now().await;
            }
            Err(error) => pause(&error).await,
        }
    }
}

async fn pause(error: &io::Error) {
    tracing::warn!(%error, "cannot accept a TCP connection");
    sleep(ACCEPT_PAUSE).await;
}

/// The open connections, oldest first.
#[derive(Default)]
struct TcpConnections(VecDeque<(IpAddr, AbortHandle)>);

impl TcpConnections {
    /// Closes a connection if the limit is reached.
    fn close_one_if_full(&mut self) {
        self.0.retain(|(_, task)| !task.is_finished());
        if self.0.len() < MAX_CONNECTIONS {
            return;
        }
        let addresses: Vec<IpAddr> = self.0.iter().map(|(address, _)| *address).collect();
        if let Some((_, task)) = displaced(&addresses).and_then(|oldest| self.0.remove(oldest)) {
            task.abort();
        }
    }
}

/// The connection to close for a new one: the oldest one of the address with most connections.
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
    fn a3_the_fix_lists_listeners_on_wildcard_addresses() {
        use std::process::Command;
        for any in ["0.0.0.0:0", "[::]:0", "127.0.0.1:0"] {
            let port = std::net::TcpListener::bind(any).unwrap();
            let number = port.local_addr().unwrap().port();
            let command = listeners(SocketAddr::from(([127, 0, 0, 1], number)));
            let output = Command::new("sh").args(["-c", &command]).output().unwrap();
            let output = String::from_utf8(output.stdout).unwrap();
            assert!(output.contains(&format!(":{number} ")), "{any}: {command}: {output}");
            assert!(output.contains(&format!("pid={},", std::process::id())), "{any}: {output}");
        }
    }

    #[test]
    fn the_oldest_connection_of_the_busiest_address_is_closed() {
        let at = |text: &str| -> IpAddr { text.parse().unwrap() };
        let (a, b, c) = (at("192.0.2.1"), at("192.0.2.2"), at("2001:db8::1"));
        assert_eq!(displaced(&[a, b, b, c]), Some(1));
        assert_eq!(displaced(&[a, c, b]), Some(0));
        assert_eq!(displaced(&[a, b, c, c, c, b]), Some(2));
        assert_eq!(displaced(&[]), None);
    }
}
