//! Carries out operations, with one result for each.

use std::fmt;
use std::ops::ControlFlow;

use rustix::io::Errno;

use crate::encode::encode;
use crate::error::Error;
use crate::netns::{self, NetNs};
use crate::op::Op;
use crate::socket::{Content, NetlinkProtocol, Refusal, Socket};
use crate::wire::Batch;

/// Limits per send: 128 answers of about 800 bytes of kernel memory each fit into the default receive buffer of 208 KiB.
const MAX_MESSAGES: usize = 128;
const MAX_BYTES: usize = 32 * 1024;

/// An rtnetlink socket of the namespace in which it was opened. Any thread can use it afterwards.
pub struct RtSocket {
    pub(crate) socket: Socket,
    pub(crate) batch: Batch,
}

impl RtSocket {
    /// Opens a socket in the namespace of the calling thread.
    pub fn open() -> Result<Self, Error> {
        Ok(Self { socket: Socket::open(NetlinkProtocol::Route)?, batch: Batch::new() })
    }

    pub fn open_in(netns: &NetNs) -> Result<Self, Error> {
        netns.run(Self::open)?
    }

    /// The cookie of the socket's namespace, without entering it.
    pub fn netns_cookie(&self) -> Result<u64, Error> {
        use std::os::fd::AsFd as _;
        Ok(netns::cookie_of(self.socket.as_fd())?)
    }

    pub fn run(&mut self, op: &Op<'_>) -> Result<(), Error> {
        self.run_all(std::slice::from_ref(op))?.pop().unwrap_or(Ok(()))
    }

    /// Sends all operations at once. The kernel processes them in order and does not stop at a failure. Result i belongs to
    /// operation i. If the socket itself fails (outer error), it is unknown which operations were carried out.
    pub fn run_all(&mut self, ops: &[Op<'_>]) -> Result<Vec<Result<(), Error>>, Error> {
        let mut results = Vec::with_capacity(ops.len());
        while results.len() < ops.len() {
            self.run_chunk(&ops[results.len()..], &mut results)?;
        }
        Ok(results)
    }

    /// Like `run_all`, but returns the first failure only.
    pub fn run_every(&mut self, ops: &[Op<'_>]) -> Result<(), Error> {
        self.run_all(ops)?.into_iter().collect()
    }

    /// Carries out as many of the first `ops` as fit into one send.
    fn run_chunk(&mut self, ops: &[Op<'_>], results: &mut Vec<Result<(), Error>>) -> Result<(), Error> {
        let start = results.len();
        let ops = &ops[..ops.len().min(MAX_MESSAGES)];
        let sequences = self.socket.take_sequences(ops.len());
        let mut last = None;
        self.batch.clear();
        for (i, (op, sequence)) in ops.iter().zip(sequences.clone()).enumerate() {
            if self.batch.as_bytes().len() > MAX_BYTES {
                break;
            }
            let written = encode(&mut self.batch, op, sequence);
            last = if written.is_ok() { Some(i) } else { last };
            results.push(written);
        }
        let Some(last) = last else { return Ok(()) };
        let answered = self.socket.exchange(&self.batch, sequences, |i, reply| {
            if let (Content::Refused(refusal), Some(result)) = (reply.content, results.get_mut(start + i)) {
                *result = Err(refused(&ops[i], refusal));
            }
            if i < last { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        let more = if ops.len() > 1 { " and the following operations" } else { "" };
        answered.map_err(|e| e.during(format_args!("{}{more}", ops[0])))
    }
}

fn refused(op: &Op<'_>, refusal: Refusal) -> Error {
    let is_shaping = matches!(op, Op::AddTbf(_) | Op::AddIngress { .. } | Op::RedirectIngress { .. });
    let operation = op.to_string();
    // A missing link is ENODEV and a missing parent is EINVAL, so ENOENT means a missing module.
    if is_shaping && refusal.errno == Errno::NOENT {
        Error::Lacking { operation, refusal }
    } else {
        Error::Refused { operation, refusal }
    }
}

impl fmt::Debug for RtSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RtSocket").field("socket", &self.socket).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use types::IfName;

    use super::*;
    use crate::op::{AddTbf, Tbf};
    use crate::wire::{Head, NLM_F_REQUEST};

    #[test]
    fn answers_with_unknown_sequence_numbers_are_skipped() {
        let mut socket = RtSocket::open_in(&NetNs::create().unwrap()).unwrap();
        let name = IfName::try_from("ifb9").unwrap();
        let mut stale = Batch::new();
        for sequence in [0, 5_000_000] {
            // Too short to be valid: the kernel answers with an error.
            let head = Head { kind: libc::RTM_GETLINK, flags: NLM_F_REQUEST, sequence };
            stale.message(head, |_| {}).unwrap();
        }
        socket.socket.send(stale.as_bytes()).unwrap();
        socket.run(&Op::AddIfb { name: &name, mtu: 1500 }).unwrap();
        socket.socket.send(stale.as_bytes()).unwrap();
        assert!(socket.link(&name).unwrap().is_some());
        socket.socket.send(stale.as_bytes()).unwrap();
        assert!(socket.links().unwrap().iter().any(|l| l.name == "ifb9"));
        socket.socket.send(stale.as_bytes()).unwrap();
        assert!(socket.route_to([192, 0, 2, 1].into()).unwrap_err().is_unreachable());
    }

    #[test]
    fn a_missing_module_is_reported_as_unsupported() {
        let refusal = || Refusal { errno: Errno::NOENT, message: None };
        let tbf = Tbf { rate_bytes: 1, burst_bytes: 1, limit_bytes: 1 };
        let error = refused(&Op::AddTbf(AddTbf { link: 1, handle: 0, tbf }), refusal());
        assert!(error.is_unsupported() && !error.is_missing(), "{error}");
        let error = refused(&Op::DelLink(1), refusal());
        assert!(error.is_missing() && !error.is_unsupported(), "{error}");
    }
}
