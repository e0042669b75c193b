//! The other nodes in this kernel: routes, neighbours, tunnels and the firewall's table of peers, as the records say.
//!
//! ```text
//! membership ── records ──► Known (mesh: what they mean) ──► Routes ──► kernel
//! ```

pub(crate) mod kernel;
pub(crate) mod known;
pub(crate) mod routes;
pub(crate) mod trial;
pub(crate) mod tunnel;
pub(crate) mod underlay;

pub(crate) use kernel::Kernel;
pub(crate) use known::Known;
pub(crate) use routes::{Question, Routes};

fn io_error(operation: &str, source: &std::io::Error) -> netlink::Error {
    let errno = rustix::io::Errno::from_io_error(source).unwrap_or(rustix::io::Errno::IO);
    netlink::Error::Socket { operation: operation.to_owned(), errno }
}
