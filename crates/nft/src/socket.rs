//! A synchronous nfnetlink socket: transactions, questions and dumps. One request is one send; the kernel works it off
//! before the send returns, so that its answers are there at once.

use std::time::Duration;

use netlink_sys::protocols::NETLINK_NETFILTER;
use rustix::net::{RecvFlags, recv, sockopt};

use crate::error::Error;
use crate::wire::{self, Attributes, Head, Message, number};

const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_ACK: u16 = 0x4;
const NLM_F_DUMP_INTR: u16 = 0x10;
const NLM_F_DUMP: u16 = 0x300;
pub(crate) const NLM_F_CREATE: u16 = 0x400;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;

const TIMEOUT: Duration = Duration::from_secs(10);
/// The kernel fills a dump's datagrams up to this.
const DATAGRAM: usize = 32 * 1024;
/// More messages than this in one send may need more room than sockets have by default, for them and their answers.
const FEW: usize = 32;
const ROOM: usize = 8 << 20;
/// Answers to questions are larger than acknowledgements: ask no more at a time than the default room holds.
const QUESTIONS: usize = 16;
/// A dump that was overtaken by a change is begun again, this often.
const DUMPS: usize = 10;

const TALK: &str = "talk to netfilter";

pub(crate) struct Socket {
    inner: netlink_sys::Socket,
    seq: u32,
    buffer: Vec<u8>,
    roomy: bool,
}

/// A request the kernel did not take.
#[derive(Debug, Clone)]
pub(crate) struct Refusal {
    pub(crate) errno: i32,
    /// The extended acknowledgement, or nothing.
    pub(crate) reason: String,
}

/// What kind of request, for whom.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Verb {
    pub(crate) kind: u16,
    pub(crate) flags: u16,
    pub(crate) family: u8,
    pub(crate) version: u8,
}

#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) verb: Verb,
    pub(crate) attributes: Attributes,
}

impl Socket {
    pub(crate) fn open() -> Result<Self, Error> {
        let open = |e| Error::io("open a netfilter socket", e);
        let inner = netlink_sys::Socket::new(NETLINK_NETFILTER).map_err(open)?;
        inner.set_ext_ack(true).map_err(open)?;
        inner.set_cap_ack(true).map_err(open)?;
        sockopt::set_socket_timeout(&inner, sockopt::Timeout::Recv, Some(TIMEOUT))
            .map_err(|e| open(e.into()))?;
        Ok(Self { inner, seq: 0, buffer: Vec::new(), roomy: false })
    }

    /// All or nothing. The answer holds each request that was refused, by its place; none means done. With a
    /// generation, the kernel also refuses all when anything changed since (ERESTART).
    pub(crate) fn transact(
        &mut self,
        requests: &[Request],
        generation: Option<u32>,
    ) -> Result<Result<(), Refused>, Error> {
        if requests.is_empty() {
            return Ok(Ok(()));
        }
        self.make_room(requests.len())?;
        let begin = self.seq.wrapping_add(1);
        let last = begin.wrapping_add(u32::try_from(requests.len()).unwrap_or(u32::MAX));
        let mut out = Attributes::default();
        self.bracket(&mut out, number::BATCH_BEGIN, generation);
        for (place, request) in requests.iter().enumerate() {
            // Refusals come without being asked for. The acknowledgement of the last request ends our reading; the
            // brackets themselves are acknowledged only since Linux 6.10.
            let ack = if place + 1 == requests.len() { NLM_F_ACK } else { 0 };
            let head = self.head(request.verb, ack);
            out.message(head, &request.attributes);
        }
        self.bracket(&mut out, number::BATCH_END, None);
        self.send(&out)?;
        self.verdict(begin, last)
    }

    fn bracket(&mut self, out: &mut Attributes, kind: u16, generation: Option<u32>) {
        let verb = Verb { kind, flags: 0, family: 0, version: 0 };
        let head = Head { resource: number::SUBSYS_NFTABLES >> 8, ..self.head(verb, 0) };
        let mut attributes = Attributes::default();
        if let Some(generation) = generation {
            attributes.put(number::BATCH_GENID, &generation.to_be_bytes());
        }
        out.message(head, &attributes);
    }

    fn verdict(&mut self, begin: u32, last: u32) -> Result<Result<(), Refused>, Error> {
        let mut refused = Refused::default();
        let mut ended = false;
        while !ended {
            self.receive(|message| {
                let place = message.seq.wrapping_sub(begin);
                if message.kind != NLMSG_ERROR || place > last.wrapping_sub(begin) {
                    return;
                }
                // An error of the opening bracket is one of the whole transaction, and may be all that comes.
                ended |= message.seq == last || message.seq == begin;
                let (errno, reason) = message.error();
                if errno == 0 {
                    return;
                }
                let refusal = Refusal { errno, reason };
                match place.checked_sub(1) {
                    Some(place) => refused.requests.push((place as usize, refusal)),
                    None => refused.whole = Some(refusal),
                }
            })?;
        }
        Ok(if refused.whole.is_none() && refused.requests.is_empty() { Ok(()) } else { Err(refused) })
    }

    /// Asks many things at once; for each the attributes of the answer, empty for a mere acknowledgement.
    pub(crate) fn ask(&mut self, requests: &[Request]) -> Result<Vec<Result<Vec<u8>, Refusal>>, Error> {
        let mut answers = Vec::with_capacity(requests.len());
        for some in requests.chunks(QUESTIONS) {
            self.ask_some(some, &mut answers)?;
        }
        Ok(answers)
    }

    fn ask_some(
        &mut self,
        requests: &[Request],
        answers: &mut Vec<Result<Vec<u8>, Refusal>>,
    ) -> Result<(), Error> {
        let first = self.seq.wrapping_add(1);
        let mut out = Attributes::default();
        for request in requests {
            let head = self.head(request.verb, NLM_F_ACK);
            out.message(head, &request.attributes);
        }
        self.send(&out)?;
        let mut some: Vec<Result<Vec<u8>, Refusal>> = requests.iter().map(|_| Ok(Vec::new())).collect();
        let mut open = requests.len();
        while open > 0 {
            self.receive(|message| {
                let Some(answer) = some.get_mut(message.seq.wrapping_sub(first) as usize) else { return };
                if message.kind != NLMSG_ERROR {
                    *answer = Ok(message.attributes().to_vec());
                    return;
                }
                open = open.saturating_sub(1);
                let (errno, reason) = message.error();
                if errno != 0 {
                    *answer = Err(Refusal { errno, reason });
                }
            })?;
        }
        answers.append(&mut some);
        Ok(())
    }

    /// Everything of a kind; begun again when it changed in the middle, so that some may be seen twice.
    pub(crate) fn dump(
        &mut self,
        request: &Request,
        mut each: impl FnMut(&[u8]),
    ) -> Result<Result<(), Refusal>, Error> {
        for _ in 0..DUMPS {
            match self.dump_once(request, &mut each)? {
                Ok(Dump::Whole) => break,
                Ok(Dump::Interrupted) => {}
                Err(refusal) => return Ok(Err(refusal)),
            }
        }
        // After many tries what was seen is as good as it gets.
        Ok(Ok(()))
    }

    fn dump_once(
        &mut self,
        request: &Request,
        each: &mut impl FnMut(&[u8]),
    ) -> Result<Result<Dump, Refusal>, Error> {
        let mut out = Attributes::default();
        let head = self.head(request.verb, NLM_F_DUMP);
        out.message(head, &request.attributes);
        self.send(&out)?;
        let (mut end, mut interrupted) = (None, false);
        while end.is_none() {
            self.receive(|message| {
                if message.seq != head.seq {
                    return;
                }
                interrupted |= message.flags & NLM_F_DUMP_INTR != 0;
                match message.kind {
                    NLMSG_DONE | NLMSG_ERROR => end = Some(message.error()),
                    _ => each(message.attributes()),
                }
            })?;
        }
        Ok(match end {
            Some((errno, reason)) if errno != 0 => Err(Refusal { errno, reason }),
            Some(_) | None => Ok(if interrupted { Dump::Interrupted } else { Dump::Whole }),
        })
    }

    fn head(&mut self, verb: Verb, flags: u16) -> Head {
        self.seq = self.seq.wrapping_add(1);
        let Verb { kind, flags: own, family, version } = verb;
        Head { kind, flags: NLM_F_REQUEST | own | flags, seq: self.seq, family, version, resource: 0 }
    }

    /// All answers to a transaction are queued before the first can be read.
    fn make_room(&mut self, messages: usize) -> Result<(), Error> {
        if messages > FEW && !self.roomy {
            let room = |e: rustix::io::Errno| Error::io("enlarge a netfilter socket", e);
            sockopt::set_socket_recv_buffer_size_force(&self.inner, ROOM).map_err(room)?;
            sockopt::set_socket_send_buffer_size_force(&self.inner, ROOM).map_err(room)?;
            self.roomy = true;
        }
        Ok(())
    }

    fn send(&mut self, out: &Attributes) -> Result<(), Error> {
        self.inner.send(out.bytes(), 0).map(drop).map_err(|e| Error::io(TALK, e))
    }

    fn receive(&mut self, each: impl FnMut(Message<'_>)) -> Result<(), Error> {
        self.buffer.resize(DATAGRAM, 0);
        let length = loop {
            match recv(&self.inner, self.buffer.as_mut_slice(), RecvFlags::empty()) {
                Ok((length, _)) => break length,
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(Error::io(TALK, e)),
            }
        };
        wire::messages(self.buffer.get(..length).unwrap_or_default()).for_each(each);
        Ok(())
    }
}

enum Dump {
    Whole,
    Interrupted,
}

/// Why a transaction changed nothing.
#[derive(Debug, Default)]
pub(crate) struct Refused {
    pub(crate) whole: Option<Refusal>,
    /// By place among the requests, in their order.
    pub(crate) requests: Vec<(usize, Refusal)>,
}
