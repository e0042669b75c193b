//! Tells the service manager how far we are: `READY=1`, `STOPPING=1`, `STATUS=…` to the socket in NOTIFY_SOCKET.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Where nobody wants to know, nothing happens; a manager that cannot be told is no reason to stop working.
pub(crate) fn notify(state: &str) {
    let Some(address) = std::env::var_os("NOTIFY_SOCKET").filter(|address| !address.is_empty()) else {
        return;
    };
    if let Err(error) = send(&address, state) {
        tracing::warn!("cannot tell the service manager {state} at {}: {error}", address.display());
    }
}

/// A path, or `@NAME` in the abstract namespace.
fn send(address: &OsStr, state: &str) -> io::Result<()> {
    let address = match address.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(address)?,
    };
    let socket = UnixDatagram::unbound()?;
    // A manager that does not read must not hold us up.
    socket.set_nonblocking(true)?;
    socket.send_to_addr(state.as_bytes(), &address).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(socket: &UnixDatagram) -> String {
        let mut buffer = [0; 64];
        let length = socket.recv(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    }

    #[test]
    fn the_manager_hears_it_under_a_path_and_under_a_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        send(path.as_os_str(), "READY=1").unwrap();
        assert_eq!(heard(&socket), "READY=1");

        let name = format!("podwire-test-{}", path.display());
        let socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        send(OsStr::new(&format!("@{name}")), "STOPPING=1").unwrap();
        assert_eq!(heard(&socket), "STOPPING=1");
    }

    #[test]
    fn a_manager_that_is_gone_is_an_error() {
        assert!(send(OsStr::new("/nonexistent/notify"), "READY=1").is_err());
    }
}
