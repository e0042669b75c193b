//! Requests and their answers on one socket: what rtnetlink and netfilter have in common.

use std::ops::{ControlFlow, Range};

use netlink_packet_core::NLM_F_DUMP_INTR;

use crate::error::Error;
use crate::socket::{Content, Refusal, Reply, Socket};
use crate::wire::Batch;

/// How a dump ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Dump {
    Whole,
    /// Something changed meanwhile: what was seen has gaps, or some of it twice.
    Interrupted,
    Refused(Refusal),
}

impl Socket {
    /// Sends requests with these sequence numbers, and gives every answer to `each` with the place of its request,
    /// until `each` breaks off. The kernel answers in the order of the requests: the last one's answer is the last.
    pub fn exchange(
        &mut self,
        requests: &Batch,
        sequences: Range<u32>,
        mut each: impl FnMut(usize, Reply<'_>) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        self.send(requests.as_bytes())?;
        loop {
            for reply in self.receive()? {
                // Others belong to a request that timed out before, or to nobody.
                if !sequences.contains(&reply.sequence) {
                    continue;
                }
                let place = (reply.sequence - sequences.start) as usize;
                if each(place, reply).is_break() {
                    return Ok(());
                }
            }
        }
    }

    /// Sends one request with `NLM_F_DUMP` and gives `each` everything that it lists.
    pub fn dump(
        &mut self,
        request: &Batch,
        sequences: Range<u32>,
        mut each: impl FnMut(&[u8]),
    ) -> Result<Dump, Error> {
        let (mut interrupted, mut refused) = (false, None);
        self.exchange(request, sequences, |_, reply| {
            interrupted |= reply.flags & NLM_F_DUMP_INTR != 0;
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
            None if interrupted => Dump::Interrupted,
            None => Dump::Whole,
        })
    }
}
