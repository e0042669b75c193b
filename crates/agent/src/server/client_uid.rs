//! The user of a client that is connected to the socket.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// The user ID of the client process. Ignores its process ID, which is 0 for a process in another PID namespace, for example a
/// plugin on the node if the agent runs in a pod. rustix rejects a process ID of 0.
pub(super) fn client_uid(socket: BorrowedFd<'_>) -> io::Result<u32> {
    let mut peer = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: pointer and length describe one variable that outlives the call. Every bit pattern is a valid ucred.
    #[expect(unsafe_code, reason = "rustix rejects a ucred with process ID 0")]
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
    fn client_uid_is_the_user_of_the_client() {
        let (a, _b) = UnixStream::pair().unwrap();
        assert_eq!(client_uid(a.as_fd()).unwrap(), rustix::process::geteuid().as_raw());
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        // A TCP socket has no user. It must not be taken for root's.
        assert_ne!(client_uid(tcp.as_fd()).ok(), Some(0));
    }
}
