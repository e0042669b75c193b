//! Notifies the service manager through the socket in NOTIFY_SOCKET: `READY=1`, `STOPPING=1`, `STATUS=…`.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

/// Does nothing without NOTIFY_SOCKET. A failure is only logged, because the agent works without a service manager.
pub(crate) fn notify(state: &str) {
    let Some(address) = std::env::var_os("NOTIFY_SOCKET").filter(|address| !address.is_empty()) else {
        return;
    };
    if let Err(error) = send(&address, state) {
        tracing::warn!(state, socket = %address.display(), %error, "cannot notify the service manager");
    }
}

/// A path, or `@NAME` in the abstract namespace.
fn send(address: &OsStr, state: &str) -> io::Result<()> {
    let address = match address.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(address)?,
    };
    let socket = UnixDatagram::unbound()?;
    // A service manager that does not read must not block the agent.
    socket.set_nonblocking(true)?;
    socket.send_to_addr(state.as_bytes(), &address).map(|_| ())
}

/// The service manager's watchdog (`WatchdogSec=`). It restarts the agent if notifications stop.
#[derive(Debug)]
pub(crate) struct Watchdog {
    /// None without a watchdog.
    every: Option<Duration>,
    next: Instant,
}

impl Watchdog {
    pub(crate) fn new() -> Self {
        let text = |name| std::env::var(name).ok();
        Self::of(text("WATCHDOG_USEC").as_deref(), text("WATCHDOG_PID").as_deref())
    }

    /// Half of the watchdog's interval, as sd_watchdog_enabled(3) recommends. The variables may be meant for a parent process.
    fn of(usec: Option<&str>, pid: Option<&str>) -> Self {
        let is_for_this_process = pid.is_none_or(|pid| pid == std::process::id().to_string());
        let usec =
            usec.filter(|_| is_for_this_process).and_then(|usec| usec.parse().ok()).filter(|usec| *usec > 0);
        Self { every: usec.map(|usec: u64| Duration::from_micros(usec) / 2), next: Instant::now() }
    }

    /// When the next notification is due.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.every.map(|_| self.next)
    }

    /// Called by the watched thread as often as it likes.
    pub(crate) fn beat(&mut self) {
        let now = Instant::now();
        if let Some(every) = self.every.filter(|_| self.next <= now) {
            self.next = now + every;
            notify("WATCHDOG=1");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_watchdog_is_used_only_if_meant_for_this_process() {
        let me = std::process::id().to_string();
        assert!(Watchdog::of(None, None).next().is_none());
        assert!(Watchdog::of(Some("0"), Some(&me)).next().is_none());
        assert!(Watchdog::of(Some("120000000"), Some("1")).next().is_none());
        for pid in [None, Some(me.as_str())] {
            let mut watchdog = Watchdog::of(Some("120000000"), pid);
            let first = watchdog.next().unwrap();
            watchdog.beat();
            assert!(watchdog.next().unwrap() >= first + Duration::from_secs(60));
        }
    }

    fn received(socket: &UnixDatagram) -> String {
        let mut buffer = [0; 64];
        let length = socket.recv(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    }

    #[test]
    fn notifications_reach_path_and_abstract_sockets() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        send(path.as_os_str(), "READY=1").unwrap();
        assert_eq!(received(&socket), "READY=1");

        let name = format!("podwire-test-{}", path.display());
        let socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        send(OsStr::new(&format!("@{name}")), "STOPPING=1").unwrap();
        assert_eq!(received(&socket), "STOPPING=1");
    }

    #[test]
    fn a_missing_notify_socket_is_an_error() {
        assert!(send(OsStr::new("/nonexistent/notify"), "READY=1").is_err());
    }
}
