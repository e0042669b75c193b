//! A lock that is a table: the kernel keeps it as long as the netlink socket that made it, and no longer.
//!
//! Only a process with CAP_NET_ADMIN in the network namespace can make a table, so no other process can take the lock. The
//! kernel removes the table when its socket is closed, however the process ends. A table belongs to one network namespace and
//! to no mount namespace: agents in containers that share the host's network exclude each other whatever they have mounted.
//! `nft flush ruleset` of another process leaves a table with an owner alone. It has no chains, so packets do not meet it.

use netlink::wire::{NLM_F_CREATE, attribute};
use rustix::io::Errno;

use crate::error::Error;
use crate::number;
use crate::socket::{Request, Socket, Verb};

const LOCK: &str = "take a lock";
/// How often it is looked again whose it is, when another process was quicker.
const TRIES: usize = 8;
/// `NLM_F_EXCL`
const EXCLUSIVE: u16 = 0x200;
/// `NFTNL_UDATA_TABLE_COMMENT`, in the form in which the nft program reads it: kind, length, text, zero.
const COMMENT: u8 = 0;
/// What the nft program shows of a comment, without the zero.
const MAX_COMMENT: usize = 127;

/// Held until it is dropped, or the process ends.
pub struct TableLock {
    _socket: Socket,
}

impl std::fmt::Debug for TableLock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TableLock").finish_non_exhaustive()
    }
}

#[derive(Debug)]
pub enum Locked {
    Held(TableLock),
    /// By another process, which says this of itself.
    Taken(String),
}

/// What there is under the name.
enum Table {
    None,
    /// No process owns it: left over from a saved ruleset, for example.
    Unowned,
    Owned(String),
}

impl TableLock {
    /// Takes the lock of this name in the calling thread's network namespace. `holder` is shown to a process that is refused.
    pub fn take(name: &str, holder: &str) -> Result<Locked, Error> {
        let mut socket = Socket::open()?;
        for _ in 0..TRIES {
            let mut requests = match find(&mut socket, name)? {
                Table::Owned(holder) => return Ok(Locked::Taken(holder)),
                Table::Unowned => vec![request(number::DELTABLE, 0, name)],
                Table::None => Vec::new(),
            };
            requests.push(make(name, holder));
            match socket.transact(&requests, None)? {
                Ok(()) => return Ok(Locked::Held(Self { _socket: socket })),
                // Another process was quicker: the next look tells.
                Err(refused)
                    if refused.requests.iter().all(|(_, r)| is_race(r.errno)) && refused.whole.is_none() => {}
                Err(refused) => {
                    let refusal =
                        refused.whole.or_else(|| refused.requests.into_iter().next().map(|(_, r)| r));
                    return Err(
                        refusal.map_or_else(|| busy(name), |r| Error::refused(LOCK, name.to_owned(), r))
                    );
                }
            }
        }
        Err(busy(name))
    }
}

fn is_race(errno: Errno) -> bool {
    matches!(errno, Errno::EXIST | Errno::PERM | Errno::NOENT)
}

fn busy(name: &str) -> Error {
    let reason = "other processes took and released it meanwhile".to_owned();
    Error::Transaction { operation: LOCK, object: name.to_owned(), reason, source: Errno::BUSY.into() }
}

fn find(socket: &mut Socket, name: &str) -> Result<Table, Error> {
    match socket.ask(&[request(number::GETTABLE, 0, name)])?.pop() {
        Some(Ok(answer)) => {
            let flags = attribute(&answer, number::TABLE_FLAGS).and_then(|flags| flags.first_chunk());
            let is_owned = flags.copied().map_or(0, u32::from_be_bytes) & number::TABLE_OWNED != 0;
            Ok(if is_owned { Table::Owned(comment(&answer)) } else { Table::Unowned })
        }
        Some(Err(refusal)) if refusal.errno != Errno::NOENT => {
            Err(Error::refused(LOCK, name.to_owned(), refusal))
        }
        Some(Err(_)) | None => Ok(Table::None),
    }
}

fn request(kind: u16, flags: u16, name: &str) -> Request<'_> {
    let family = u8::try_from(libc::NFPROTO_INET).unwrap_or_default();
    Request::new(Verb { kind, flags, family, version: 0 }, |body| body.str(number::TABLE_NAME, name))
}

fn make<'a>(name: &'a str, holder: &str) -> Request<'a> {
    let family = u8::try_from(libc::NFPROTO_INET).unwrap_or_default();
    let verb = Verb { kind: number::NEWTABLE, flags: NLM_F_CREATE | EXCLUSIVE, family, version: 0 };
    let data = userdata(holder);
    Request::new(verb, move |body| {
        body.str(number::TABLE_NAME, name);
        body.bytes(number::TABLE_FLAGS, &number::TABLE_OWNED.to_be_bytes());
        body.bytes(number::TABLE_USERDATA, &data);
    })
}

fn userdata(holder: &str) -> Vec<u8> {
    let printed = holder.chars().map(|c| if c.is_control() || c == '"' { '?' } else { c });
    let mut text = String::new();
    for c in printed {
        if text.len() + c.len_utf8() > MAX_COMMENT {
            break;
        }
        text.push(c);
    }
    let length = u8::try_from(text.len() + 1).unwrap_or(u8::MAX);
    [&[COMMENT, length], text.as_bytes(), &[0]].concat()
}

fn comment(table: &[u8]) -> String {
    let data = attribute(table, number::TABLE_USERDATA).unwrap_or_default();
    match data {
        [COMMENT, length, rest @ ..] if usize::from(*length) <= rest.len() => {
            let text = rest.get(..usize::from(*length)).unwrap_or_default();
            String::from_utf8_lossy(text).trim_end_matches('\0').chars().filter(|c| !c.is_control()).collect()
        }
        _ => "of unknown name".to_owned(),
    }
}
