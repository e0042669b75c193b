//! Requests and answers on one socket, for rtnetlink and netfilter.

use std::ops::{ControlFlow, Range};

use netlink_packet_core::NLM_F_DUMP_INTR;

use crate::error::Error;
use crate::socket::{Content, Refusal, Reply, Socket};
use crate::wire::Batch;

/// The result of a dump.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Dump {
    Whole,
    /// An object changed during the dump: entries may be missing or duplicated.
    Interrupted,
    Refused(Refusal),
}

impl Socket {
    /// Sends requests with these sequence numbers, and passes every answer to `each` with the index of its request, until
    /// `each` breaks. The kernel answers in the order of the requests.
    pub fn exchange(
        &mut self,
        requests: &Batch,
        sequences: Range<u32>,
        mut each: impl FnMut(usize, Reply<'_>) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        self.send(requests.as_bytes())?;
        loop {
            for reply in self.receive()? {
                // Other answers belong to a request that timed out, or are notifications.
                if !sequences.contains(&reply.sequence) {
                    continue;
                }
                let index = (reply.sequence - sequences.start) as usize;
                if each(index, reply).is_break() {
                    return Ok(());
                }
            }
        }
    }

    /// Sends one request with `NLM_F_DUMP` and passes all listed objects to `each`.
    pub fn dump(
        &mut self,
        request: &Batch,
        sequences: Range<u32>,
        mut each: impl FnMut(&[u8]),
    ) -> Result<Dump, Error> {
        let (mut is_interrupted, mut refused) = (false, None);
        self.exchange(request, sequences, |_, reply| {
            is_interrupted |= reply.flags & NLM_F_DUMP_INTR != 0;
            match reply.content {
                Content::Data(message) => each(message),
                Content::Ack => {}
                Content::Done => return ControlFlow::Break(()),
                Content::Refused(refusal) => {
                    refused = Some(refusal);
                    return ControlFlow::Break(());
                }
            }
            ControlFlow::Continue(())
        })?;
        Ok(match refused {
            Some(refusal) => Dump::Refused(refusal),
            None if is_interrupted => Dump::Interrupted,
            None => Dump::Whole,
        })
    }
}
