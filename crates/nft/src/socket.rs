//! Netfilter's way of using a netlink socket: transactions, questions and dumps. One request is one send; the kernel
//! works it off before the send returns, so that its answers are there at once.

use std::ops::{ControlFlow, Range};
use std::time::Duration;

use netlink::wire::{Batch, Body, Head, NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, Oversize};
use netlink::{Content, Dump, NetlinkProtocol, Refusal};
use rustix::io::Errno;

use crate::error::Error;
use crate::number;

/// Answers to questions are larger than acknowledgements: ask no more at a time than the default room holds.
const QUESTIONS: usize = 16;
/// A dump that was overtaken by a change is begun again, this often.
const DUMPS: usize = 10;
/// So often where it must not be overtaken; one takes a fraction of a millisecond.
const LISTINGS: usize = 100;
/// `struct nfgenmsg`: family, version, resource id (big endian).
const GENERAL: usize = 4;

const TALK: &str = "talk to netfilter";
const LIST: &str = "list the firewall";

/// How often, and how long, a set that is being made larger is waited for.
const BUSY_TRIES: usize = 200;
const BUSY_PAUSE: Duration = Duration::from_millis(1);

pub(crate) struct NftSocket {
    inner: netlink::Socket,
    batch: Batch,
}

/// What kind of request, for whom.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MessageHeader {
    pub(crate) kind: u16,
    pub(crate) flags: u16,
    pub(crate) family: u8,
    pub(crate) version: u8,
}

pub(crate) struct NftRequest<'a> {
    verb: MessageHeader,
    attributes: Box<dyn Fn(&mut Body<'_>) + 'a>,
}

impl<'a> NftRequest<'a> {
    pub(crate) fn new(verb: MessageHeader, attributes: impl Fn(&mut Body<'_>) + 'a) -> Self {
        Self { verb, attributes: Box::new(attributes) }
    }
}

impl NftSocket {
    pub(crate) fn open() -> Result<Self, Error> {
        let open = |e| Error::netlink("open a netfilter socket", e);
        Ok(Self {
            inner: netlink::Socket::open(NetlinkProtocol::Netfilter).map_err(open)?,
            batch: Batch::new(),
        })
    }

    /// All or nothing. The answer holds each request that was refused, by its place; none means done. With a
    /// generation, the kernel also refuses all when anything changed since (ERESTART).
    pub(crate) fn transact(
        &mut self,
        requests: &[NftRequest<'_>],
        generation: Option<u32>,
    ) -> Result<Result<(), RefusedTransaction>, Error> {
        // A set that is just being made larger takes nothing for a moment.
        let is_busy =
            |refused: &RefusedTransaction| refused.requests.iter().any(|(_, r)| r.errno == Errno::BUSY);
        for _ in 0..BUSY_TRIES {
            match self.try_transact(requests, generation)? {
                Err(refused) if is_busy(&refused) => std::thread::sleep(BUSY_PAUSE),
                done => return Ok(done),
            }
        }
        self.try_transact(requests, generation)
    }

    fn try_transact(
        &mut self,
        requests: &[NftRequest<'_>],
        generation: Option<u32>,
    ) -> Result<Result<(), RefusedTransaction>, Error> {
        if requests.is_empty() {
            return Ok(Ok(()));
        }
        let enlarge = |e| Error::netlink("enlarge a netfilter socket", e);
        self.inner.reserve_buffers(requests.len()).map_err(enlarge)?;
        let sequences = self.inner.take_sequences(requests.len() + 2);
        write_transaction(&mut self.batch, requests, sequences.clone(), generation)?;
        let mut refused = RefusedTransaction::default();
        let answerable = sequences.start..sequences.end - 1;
        let answered = self.inner.exchange(&self.batch, answerable, |place, reply| {
            match (reply.content, place.checked_sub(1)) {
                (Content::Refused(refusal), None) => refused.whole = Some(refusal),
                (Content::Refused(refusal), Some(place)) => refused.requests.push((place, refusal)),
                (Content::Ack, _) => {}
                (Content::Data(_) | Content::Done, _) => return ControlFlow::Continue(()),
            }
            // An error of the opening bracket is one of the whole transaction, and may be all that comes.
            let ended = place == 0 || place == requests.len();
            if ended { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        answered.map_err(talk)?;
        Ok(if refused.whole.is_none() && refused.requests.is_empty() { Ok(()) } else { Err(refused) })
    }

    /// Asks many things at once; for each the attributes of the answer, empty for a mere acknowledgement.
    pub(crate) fn ask(
        &mut self,
        requests: &[NftRequest<'_>],
    ) -> Result<Vec<Result<Vec<u8>, Refusal>>, Error> {
        let mut answers = Vec::with_capacity(requests.len());
        for some in requests.chunks(QUESTIONS) {
            self.ask_some(some, &mut answers)?;
        }
        Ok(answers)
    }

    fn ask_some(
        &mut self,
        requests: &[NftRequest<'_>],
        answers: &mut Vec<Result<Vec<u8>, Refusal>>,
    ) -> Result<(), Error> {
        let start = answers.len();
        let sequences = self.inner.take_sequences(requests.len());
        self.batch.clear();
        for (request, sequence) in requests.iter().zip(sequences.clone()) {
            write(&mut self.batch, request, NLM_F_ACK, sequence)?;
            answers.push(Ok(Vec::new()));
        }
        let answered = self.inner.exchange(&self.batch, sequences, |place, reply| {
            match reply.content {
                Content::Data(message) => {
                    answers[start + place] = Ok(attributes(message).to_vec());
                    return ControlFlow::Continue(());
                }
                // Without privileges the kernel refuses the first request and does not look at the others.
                Content::Refused(refusal) if refusal.errno == Errno::PERM => {
                    answers[start + place..].fill(Err(refusal));
                    return ControlFlow::Break(());
                }
                Content::Refused(refusal) => answers[start + place] = Err(refusal),
                Content::Ack | Content::Done => {}
            }
            if place + 1 == requests.len() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        answered.map_err(talk)
    }

    /// Everything of a kind; begun again when it changed in the middle, so that some may be seen twice.
    pub(crate) fn dump(
        &mut self,
        request: &NftRequest<'_>,
        mut each: impl FnMut(&[u8]),
    ) -> Result<Result<(), Refusal>, Error> {
        for _ in 0..DUMPS {
            match self.dump_once(request, &mut each)? {
                Dump::Whole => break,
                Dump::Interrupted => {}
                Dump::Refused(refusal) => return Ok(Err(refusal)),
            }
        }
        // After many tries what was seen is as good as it gets.
        Ok(Ok(()))
    }

    /// The same for those who must see each exactly once, in its order: a reading that was overtaken counts only when
    /// the one before it says the same. (Pods that come and go overtake often, and change nothing of structure.)
    pub(crate) fn list<T: PartialEq>(
        &mut self,
        request: &NftRequest<'_>,
        read: impl Fn(&[u8]) -> Option<T>,
    ) -> Result<Result<Vec<T>, Refusal>, Error> {
        let mut before = None;
        for _ in 0..LISTINGS {
            let mut listed = Vec::new();
            match self.dump_once(request, &mut |answer| listed.extend(read(answer)))? {
                Dump::Whole => return Ok(Ok(listed)),
                Dump::Interrupted if before.as_ref() == Some(&listed) => return Ok(Ok(listed)),
                Dump::Interrupted => before = Some(listed),
                Dump::Refused(refusal) => return Ok(Err(refusal)),
            }
        }
        let (object, reason) = ("all tables".to_owned(), "they kept changing meanwhile".to_owned());
        Err(Error::Transaction { operation: LIST, object, reason, source: Errno::INTR.into() })
    }

    fn dump_once(&mut self, request: &NftRequest<'_>, each: &mut dyn FnMut(&[u8])) -> Result<Dump, Error> {
        let sequences = self.inner.take_sequences(1);
        self.batch.clear();
        write(&mut self.batch, request, NLM_F_DUMP, sequences.start)?;
        self.inner.dump(&self.batch, sequences, |message| each(attributes(message))).map_err(talk)
    }
}

/// Why a transaction changed nothing.
#[derive(Debug, Default)]
pub(crate) struct RefusedTransaction {
    pub(crate) whole: Option<Refusal>,
    /// By place among the requests, in their order.
    pub(crate) requests: Vec<(usize, Refusal)>,
}

impl RefusedTransaction {
    pub(crate) fn first(self) -> Option<Refusal> {
        self.whole.or_else(|| self.requests.into_iter().map(|(_, refusal)| refusal).next())
    }
}

/// The requests between their brackets, which have sequence numbers too.
fn write_transaction(
    batch: &mut Batch,
    requests: &[NftRequest<'_>],
    mut sequences: Range<u32>,
    generation: Option<u32>,
) -> Result<(), Error> {
    let mut next = || sequences.next().unwrap_or_default();
    batch.clear();
    bracket(batch, number::BATCH_BEGIN, next(), generation)?;
    for (place, request) in requests.iter().enumerate() {
        // Refusals come without being asked for. The acknowledgement of the last request ends our reading; the
        // brackets themselves are acknowledged only since Linux 6.10.
        let ack = if place + 1 == requests.len() { NLM_F_ACK } else { 0 };
        write(batch, request, ack, next())?;
    }
    bracket(batch, number::BATCH_END, next(), None)
}

fn bracket(batch: &mut Batch, kind: u16, sequence: u32, generation: Option<u32>) -> Result<(), Error> {
    let written = batch.message(Head { kind, flags: NLM_F_REQUEST, sequence }, |body| {
        let [high, low] = (number::SUBSYS_NFTABLES >> 8).to_be_bytes();
        body.raw(&[0, 0, high, low]);
        if let Some(generation) = generation {
            body.bytes(number::BATCH_GENID, &generation.to_be_bytes());
        }
    });
    written.map_err(too_long)
}

fn write(batch: &mut Batch, request: &NftRequest<'_>, flags: u16, sequence: u32) -> Result<(), Error> {
    let MessageHeader { kind, flags: own, family, version } = request.verb;
    let written = batch.message(Head { kind, flags: NLM_F_REQUEST | own | flags, sequence }, |body| {
        body.raw(&[family, version, 0, 0]);
        (request.attributes)(body);
    });
    written.map_err(too_long)
}

/// What follows netfilter's general header.
fn attributes(message: &[u8]) -> &[u8] {
    message.get(GENERAL..).unwrap_or_default()
}

fn talk(error: netlink::Error) -> Error {
    Error::netlink(TALK, error)
}

fn too_long(error: Oversize) -> Error {
    Error::io(TALK, std::io::Error::other(error))
}
