//! Who is at the other end of a connection.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// The user who connected. Of the process nothing is asked: one in another pid namespace (a plugin of the node, while the
/// agent runs in a pod) has the number 0 here, which rustix takes for an error.
pub(super) fn uid(socket: BorrowedFd<'_>) -> io::Result<u32> {
    let mut peer = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the pointer and the length are of one variable, which lives until the call is over; any bytes make a ucred.
    #[expect(unsafe_code, reason = "rustix reads the process as well, and cannot take 0 for it")]
    let failed = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut length,
        )
    };
    if failed != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(peer.uid)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn the_user_of_the_other_end_is_told() {
        let (a, _b) = UnixStream::pair().unwrap();
        assert_eq!(uid(a.as_fd()).unwrap(), rustix::process::geteuid().as_raw());
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        // A socket without such an end has nobody who could be taken for root.
        assert_ne!(uid(tcp.as_fd()).ok(), Some(0));
    }
}
