//! Tells the service manager how far we are: `READY=1`, `STOPPING=1`, `STATUS=…` to the socket in NOTIFY_SOCKET.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

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

/// The manager's watchdog: it restarts us where it does not hear from us (`WatchdogSec=`).
#[derive(Debug)]
pub(crate) struct Watchdog {
    /// None: there is none.
    every: Option<Duration>,
    next: Instant,
}

impl Watchdog {
    pub(crate) fn new() -> Self {
        let text = |name| std::env::var(name).ok();
        Self::of(text("WATCHDOG_USEC").as_deref(), text("WATCHDOG_PID").as_deref())
    }

    /// Twice in its interval, as its manual page asks. The variables may be meant for a parent of ours.
    fn of(usec: Option<&str>, pid: Option<&str>) -> Self {
        let ours = pid.is_none_or(|pid| pid == std::process::id().to_string());
        let usec = usec.filter(|_| ours).and_then(|usec| usec.parse().ok()).filter(|usec| *usec > 0);
        Self { every: usec.map(|usec: u64| Duration::from_micros(usec) / 2), next: Instant::now() }
    }

    /// When it wants to hear from us again.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.every.map(|_| self.next)
    }

    /// To be called by whoever would hang, as often as it likes.
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
    fn the_watchdog_is_heard_only_where_it_is_ours() {
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

    fn observed(socket: &UnixDatagram) -> String {
        let mut buffer = [0; 64];
        let length = socket.recv(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    }

    #[test]
    fn the_manager_hears_it_under_a_path_and_under_a_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        send(path.as_os_str(), "READY=1").unwrap();
        assert_eq!(observed(&socket), "READY=1");

        let name = format!("podwire-test-{}", path.display());
        let socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        send(OsStr::new(&format!("@{name}")), "STOPPING=1").unwrap();
        assert_eq!(observed(&socket), "STOPPING=1");
    }

    #[test]
    fn a_manager_that_is_gone_is_an_error() {
        assert!(send(OsStr::new("/nonexistent/notify"), "READY=1").is_err());
    }
}
