//! Checks whether another process listens on the metrics address.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;

use super::{Note, StartRefusal};
use crate::server::ServerError;

/// The state of a listening socket in /proc/net/tcp.
const LISTEN: &str = "0A";

/// Checks that the agent can listen on the address. An agent whose address is in use starts degraded, so this is only a note.
/// The port of a running agent, with the process ID `agent`, will be free after its restart.
pub(super) fn check(address: SocketAddr, agent: Option<&str>) -> Result<Option<Note>, StartRefusal> {
    match TcpListener::bind(address) {
        Ok(_) => Ok(None),
        Err(source) if source.kind() == io::ErrorKind::AddrInUse => {
            let is_agents_port =
                agent.is_some_and(|pid| is_listener(Path::new("/proc").join(pid).as_path(), address.port()));
            Ok((!is_agents_port).then_some(Note::MetricsTaken(address)))
        }
        Err(source) => Err(ServerError::Tcp { address, source }.into()),
    }
}

/// Whether the process listens on this port. False if the process has ended.
fn is_listener(process: &Path, port: u16) -> bool {
    let links = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    let files = links.filter_map(|link| fs::read_link(link.path()).ok()?.to_str().map(str::to_owned));
    let process_files: BTreeSet<String> = files.collect();
    let tables =
        ["tcp", "tcp6"].map(|name| fs::read_to_string(process.join("net").join(name)).unwrap_or_default());
    tables
        .iter()
        .flat_map(|table| listeners(table, port))
        .any(|inode| process_files.contains(&format!("socket:[{inode}]")))
}

/// The inodes of sockets that listen on a port. `table` has the format of /proc/net/tcp.
fn listeners(table: &str, port: u16) -> impl Iterator<Item = &str> {
    let local = format!(":{port:04X}");
    table.lines().filter_map(move |line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let is_listening = fields.get(1)?.ends_with(&local) && *fields.get(3)? == LISTEN;
        fields.get(9).copied().filter(|_| is_listening)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a8_the_listening_process_of_a_port_is_detected() {
        let itself = Path::new("/proc/self");
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(address).unwrap();
            let address = listener.local_addr().unwrap();
            assert!(is_listener(itself, address.port()), "{address}");
            assert!(!is_listener(Path::new("/proc/1"), address.port()), "{address}");
            assert!(check(address, Some(&std::process::id().to_string())).unwrap().is_none());
            assert!(check(address, None).unwrap().is_some());
            drop(listener);
            assert!(!is_listener(itself, address.port()), "{address}");
        }
    }
}
