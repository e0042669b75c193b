//! Requests to netfilter over netlink: transactions, single requests and dumps. Each is one send. The kernel processes it before the
//! send returns, so replies can be read at once.

use std::ops::{ControlFlow, Range};
use std::time::Duration;

use netlink::wire::{Batch, Body, Head, NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, Oversize};
use netlink::{Content, Dump, NetlinkProtocol, Refusal};
use rustix::io::Errno;
use rustix::net::getsockname;
use rustix::net::netlink::SocketAddrNetlink;

use crate::error::Error;
use crate::number;

/// For requests with a reply. Replies are larger than acknowledgements and must fit into the default receive buffer.
const MAX_REQUESTS_PER_SEND: usize = 16;
/// Attempts of a dump if a change interrupts it.
const DUMP_TRIES: usize = 10;
/// Attempts of a dump that must be consistent. One takes a fraction of a millisecond.
const LISTING_TRIES: usize = 100;
/// `struct nfgenmsg`: family, version, resource id (big endian).
const NFGENMSG_SIZE: usize = 4;

const EXCHANGE: &str = "exchange messages with netfilter";
const LIST: &str = "list the firewall";

/// Attempts and pause while the kernel enlarges a set.
const BUSY_TRIES: usize = 200;
const BUSY_PAUSE: Duration = Duration::from_millis(1);

pub(crate) struct NftSocket {
    inner: netlink::Socket,
    batch: Batch,
}

/// The type of a request, and its address family.
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

    /// The number by which the kernel names this socket in notifications.
    pub(crate) fn port(&self) -> Result<u32, Error> {
        let address = getsockname(&self.inner).map_err(|errno| Error::io(EXCHANGE, errno))?;
        let address = SocketAddrNetlink::try_from(address).map_err(|errno| Error::io(EXCHANGE, errno))?;
        Ok(address.pid())
    }

    /// All or nothing. An inner error has each request that was refused, by its index. With a generation, the kernel also refuses the
    /// transaction if anything changed since (ERESTART).
    pub(crate) fn transact(
        &mut self,
        requests: &[NftRequest<'_>],
        generation: Option<u32>,
    ) -> Result<Result<(), RefusedTransaction>, Error> {
        // While the kernel enlarges a set, it accepts no elements.
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
        self.inner.reserve_send_buffer(self.batch.as_bytes().len()).map_err(enlarge)?;
        let mut refused = RefusedTransaction::default();
        let answerable = sequences.start..sequences.end - 1;
        let answered = self.inner.exchange(&self.batch, answerable, |index, reply| {
            match (reply.content, index.checked_sub(1)) {
                (Content::Refused(refusal), None) => refused.whole = Some(refusal),
                (Content::Refused(refusal), Some(index)) => refused.requests.push((index, refusal)),
                (Content::Ack, _) => {}
                (Content::Data(_) | Content::Done, _) => return ControlFlow::Continue(()),
            }
            // An error of the first message concerns the whole transaction and may be the only reply.
            let is_last = index == 0 || index == requests.len();
            if is_last { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        answered.map_err(exchange_error)?;
        Ok(if refused.whole.is_none() && refused.requests.is_empty() { Ok(()) } else { Err(refused) })
    }

    /// Sends several requests. Returns the attributes of each reply, empty for an acknowledgement.
    pub(crate) fn ask(
        &mut self,
        requests: &[NftRequest<'_>],
    ) -> Result<Vec<Result<Vec<u8>, Refusal>>, Error> {
        let mut answers = Vec::with_capacity(requests.len());
        for some in requests.chunks(MAX_REQUESTS_PER_SEND) {
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
        let answered = self.inner.exchange(&self.batch, sequences, |index, reply| {
            match reply.content {
                Content::Data(message) => {
                    answers[start + index] = Ok(attributes(message).to_vec());
                    return ControlFlow::Continue(());
                }
                // Without privileges the kernel refuses the first request and ignores the others.
                Content::Refused(refusal) if refusal.errno == Errno::PERM => {
                    answers[start + index..].fill(Err(refusal));
                    return ControlFlow::Break(());
                }
                Content::Refused(refusal) => answers[start + index] = Err(refusal),
                Content::Ack | Content::Done => {}
            }
            if index + 1 == requests.len() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        answered.map_err(exchange_error)
    }

    /// A dump. It is repeated if a change interrupts it, so `each` may be called twice for an object.
    pub(crate) fn dump(
        &mut self,
        request: &NftRequest<'_>,
        mut each: impl FnMut(&[u8]),
    ) -> Result<Result<(), Refusal>, Error> {
        for _ in 0..DUMP_TRIES {
            match self.dump_once(request, &mut each)? {
                Dump::Whole => break,
                Dump::Interrupted => {}
                Dump::Refused(refusal) => return Ok(Err(refusal)),
            }
        }
        // After several attempts the last dump is used.
        Ok(Ok(()))
    }

    /// A consistent dump: each object once, in order. A dump that was interrupted is used only if the previous one is equal. (ADD and
    /// DEL of pods interrupt dumps often, and change no structure.)
    pub(crate) fn list<T: PartialEq>(
        &mut self,
        request: &NftRequest<'_>,
        read: impl Fn(&[u8]) -> Option<T>,
    ) -> Result<Result<Vec<T>, Refusal>, Error> {
        let mut before = None;
        for _ in 0..LISTING_TRIES {
            let mut listed = Vec::new();
            match self.dump_once(request, &mut |answer| listed.extend(read(answer)))? {
                Dump::Whole => return Ok(Ok(listed)),
                Dump::Interrupted if before.as_ref() == Some(&listed) => return Ok(Ok(listed)),
                Dump::Interrupted => before = Some(listed),
                Dump::Refused(refusal) => return Ok(Err(refusal)),
            }
        }
        let (object, reason) = ("all tables".to_owned(), "they kept changing during the listing".to_owned());
        Err(Error::Transaction { operation: LIST, object, reason, source: Errno::INTR.into() })
    }

    fn dump_once(&mut self, request: &NftRequest<'_>, each: &mut dyn FnMut(&[u8])) -> Result<Dump, Error> {
        let sequences = self.inner.take_sequences(1);
        self.batch.clear();
        write(&mut self.batch, request, NLM_F_DUMP, sequences.start)?;
        self.inner.dump(&self.batch, sequences, |message| each(attributes(message))).map_err(exchange_error)
    }
}

/// Why the kernel refused a transaction.
#[derive(Debug, Default)]
pub(crate) struct RefusedTransaction {
    pub(crate) whole: Option<Refusal>,
    /// By index of the request, in order.
    pub(crate) requests: Vec<(usize, Refusal)>,
}

impl RefusedTransaction {
    pub(crate) fn first(self) -> Option<Refusal> {
        self.whole.or_else(|| self.requests.into_iter().map(|(_, refusal)| refusal).next())
    }
}

/// The requests between the first and last message of a batch, which have sequence numbers, too.
fn write_transaction(
    batch: &mut Batch,
    requests: &[NftRequest<'_>],
    mut sequences: Range<u32>,
    generation: Option<u32>,
) -> Result<(), Error> {
    let mut next = || sequences.next().unwrap_or_default();
    batch.clear();
    delimiter(batch, number::BATCH_BEGIN, next(), generation)?;
    for (index, request) in requests.iter().enumerate() {
        // Refusals are sent without a flag. The acknowledgement of the last request ends the reading. The first and last message of
        // the batch are acknowledged only since Linux 6.10.
        let ack = if index + 1 == requests.len() { NLM_F_ACK } else { 0 };
        write(batch, request, ack, next())?;
    }
    delimiter(batch, number::BATCH_END, next(), None)
}

fn delimiter(batch: &mut Batch, kind: u16, sequence: u32, generation: Option<u32>) -> Result<(), Error> {
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

/// The attributes after the `nfgenmsg` header.
fn attributes(message: &[u8]) -> &[u8] {
    message.get(NFGENMSG_SIZE..).unwrap_or_default()
}

fn exchange_error(error: netlink::Error) -> Error {
    Error::netlink(EXCHANGE, error)
}

fn too_long(error: Oversize) -> Error {
    Error::io(EXCHANGE, std::io::Error::other(error))
}
