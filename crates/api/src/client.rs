//! A synchronous HTTP/1.1 client over a unix socket: one connection, one request, one answer, one end time for all of it.

use std::io::{Error as IoError, ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use serde::Serialize;

/// The largest answer to GET: lists of all attachments of a node.
const LARGEST_LIST: usize = 64 << 20;
/// The largest answer to what changes something: a CNI result or error, or what was removed.
const LARGEST_RESULT: usize = 4 << 20;
/// The first read asks for so much: all of a usual answer.
const FIRST_READ: usize = 8 << 10;
const MOST_HEADERS: usize = 64;

/// Asks the agent that listens on a socket.
#[derive(Debug, Clone)]
pub struct Client {
    socket: PathBuf,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpAnswer {
    pub status: u16,
    pub body: Vec<u8>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error(
        "no agent listens on {} ({source}): start it with `podwire agent`, or look at `journalctl -u podwire`",
        socket.display()
    )]
    NoListener { socket: PathBuf, source: IoError },
    #[error("cannot connect to the agent's socket {}: {source}{}", socket.display(), hint(source))]
    Connect { socket: PathBuf, source: IoError },
    #[error(
        "the agent on {} broke off before its answer was complete ({source}): it was probably stopped; look at \
         `journalctl -u podwire`",
        socket.display()
    )]
    Broken { socket: PathBuf, source: IoError },
    #[error(
        "the agent on {} did not answer within {} s: it is busy or stuck; look at `journalctl -u podwire`",
        socket.display(), waited.as_secs_f64()
    )]
    TimedOut { socket: PathBuf, waited: Duration },
    #[error("the answer on {} cannot be read: {what}; is it the agent that listens there?", socket.display())]
    Malformed { socket: PathBuf, what: String },
    #[error("the answer on {} is larger than {limit} bytes; is it the agent that listens there?", socket.display())]
    TooLarge { socket: PathBuf, limit: usize },
    #[error("the request cannot be written as JSON: {0}")]
    Request(#[from] serde_json::Error),
}

fn hint(source: &IoError) -> &'static str {
    match source.kind() {
        ErrorKind::PermissionDenied => "; the socket is for root only",
        ErrorKind::InvalidFilename => "; the path may have 107 bytes",
        _ => "",
    }
}

impl Client {
    pub fn new(socket: &Path) -> Self {
        Self { socket: socket.to_owned() }
    }

    pub fn socket(&self) -> &Path {
        &self.socket
    }

    pub fn get(&self, path: &str, deadline: Duration) -> Result<HttpAnswer, ClientError> {
        let request = head("GET", path, None).into_bytes();
        Exchange::start(self, deadline, LARGEST_LIST)?.run(&request)
    }

    pub fn delete(&self, path: &str, deadline: Duration) -> Result<HttpAnswer, ClientError> {
        let request = head("DELETE", path, None).into_bytes();
        Exchange::start(self, deadline, LARGEST_RESULT)?.run(&request)
    }

    /// `body` goes as JSON.
    pub fn post(
        &self,
        path: &str,
        body: &impl Serialize,
        deadline: Duration,
    ) -> Result<HttpAnswer, ClientError> {
        let body = serde_json::to_vec(body)?;
        let mut request = head("POST", path, Some(body.len())).into_bytes();
        request.extend_from_slice(&body);
        Exchange::start(self, deadline, LARGEST_RESULT)?.run(&request)
    }
}

fn head(method: &str, path: &str, length: Option<usize>) -> String {
    let content = length
        .map(|n| format!("Content-Type: application/json\r\nContent-Length: {n}\r\n"))
        .unwrap_or_default();
    format!("{method} {path} HTTP/1.1\r\nHost: podwire\r\nConnection: close\r\n{content}\r\n")
}

/// How the end of a body is known.
#[derive(Debug, Clone, Copy)]
enum Framing {
    Length(usize),
    Chunked,
    ToEnd,
}

struct ResponseHead {
    status: u16,
    framing: Framing,
    /// Of the head itself.
    length: usize,
}

/// Whether there is more to come.
#[derive(PartialEq, Eq)]
enum More {
    Some,
    End,
}

/// One connection.
struct Exchange<'a> {
    client: &'a Client,
    stream: UnixStream,
    start: Instant,
    deadline: Duration,
    limit: usize,
    /// What was read and not yet used.
    buffer: Vec<u8>,
}

impl<'a> Exchange<'a> {
    fn start(client: &'a Client, deadline: Duration, limit: usize) -> Result<Self, ClientError> {
        let start = Instant::now();
        let stream = connected(&client.socket, deadline).map_err(|errno| {
            let (socket, source) = (client.socket.clone(), IoError::from(errno));
            match errno {
                Errno::NOENT | Errno::NOTDIR | Errno::CONNREFUSED => {
                    ClientError::NoListener { socket, source }
                }
                // The queue of connections stayed full.
                Errno::AGAIN => ClientError::TimedOut { socket, waited: deadline },
                _ => ClientError::Connect { socket, source },
            }
        })?;
        Ok(Self { client, stream, start, deadline, limit, buffer: Vec::new() })
    }

    fn run(mut self, request: &[u8]) -> Result<HttpAnswer, ClientError> {
        match self.send(request) {
            // Whoever refuses without reading all of it has answered first: the answer tells more.
            Ok(()) | Err(ClientError::Broken { .. }) => {}
            Err(other) => return Err(other),
        }
        let head = self.read_head()?;
        self.buffer.drain(..head.length);
        let body = match head.framing {
            Framing::Length(length) => self.take(length)?,
            Framing::Chunked => self.read_chunks()?,
            Framing::ToEnd => {
                while self.read_more()? == More::Some {}
                std::mem::take(&mut self.buffer)
            }
        };
        Ok(HttpAnswer { status: head.status, body })
    }

    fn send(&mut self, mut request: &[u8]) -> Result<(), ClientError> {
        while !request.is_empty() {
            let left = self.left()?;
            let sent = self.stream.set_write_timeout(Some(left)).and_then(|()| self.stream.write(request));
            match sent {
                Ok(0) => return Err(self.failed(ErrorKind::WriteZero.into())),
                Ok(n) => request = &request[n..],
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(self.failed(e)),
            }
        }
        Ok(())
    }

    fn read_head(&mut self) -> Result<ResponseHead, ClientError> {
        loop {
            match parse_head(&self.buffer) {
                Ok(Some(head)) => return Ok(head),
                Ok(None) => self.must_read()?,
                Err(what) => return Err(self.malformed(what)),
            }
        }
    }

    /// The next `length` bytes, read as far as they are not there yet.
    fn take(&mut self, length: usize) -> Result<Vec<u8>, ClientError> {
        if length > self.limit {
            return Err(self.too_large());
        }
        while self.buffer.len() < length {
            self.must_read()?;
        }
        let rest = self.buffer.split_off(length);
        Ok(std::mem::replace(&mut self.buffer, rest))
    }

    /// Until the last chunk; trailers are of no interest, and the connection ends here.
    fn read_chunks(&mut self) -> Result<Vec<u8>, ClientError> {
        let mut body = Vec::new();
        loop {
            let (line, size) = match httparse::parse_chunk_size(&self.buffer) {
                Ok(httparse::Status::Complete(found)) => found,
                Ok(httparse::Status::Partial) => {
                    self.must_read()?;
                    continue;
                }
                Err(_) => return Err(self.malformed("the size of a chunk is no number".to_owned())),
            };
            if size == 0 {
                return Ok(body);
            }
            let size =
                usize::try_from(size).ok().filter(|size| body.len().saturating_add(*size) <= self.limit);
            let size = size.ok_or_else(|| self.too_large())?;
            self.buffer.drain(..line);
            body.append(&mut self.take(size)?);
            if self.take(2)? != b"\r\n" {
                return Err(self.malformed("a chunk is longer than it says".to_owned()));
            }
        }
    }

    fn must_read(&mut self) -> Result<(), ClientError> {
        match self.read_more()? {
            More::Some => Ok(()),
            More::End => Err(self.failed(ErrorKind::UnexpectedEof.into())),
        }
    }

    fn read_more(&mut self) -> Result<More, ClientError> {
        let old = self.buffer.len();
        if old > self.limit {
            return Err(self.too_large());
        }
        // Long answers are read in steps that grow with them.
        self.buffer.resize(old + FIRST_READ.max(old), 0);
        let read = loop {
            let left = self.left()?;
            let read = self.stream.set_read_timeout(Some(left));
            match read.and_then(|()| self.stream.read(&mut self.buffer[old..])) {
                Ok(n) => break n,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(self.failed(e)),
            }
        };
        self.buffer.truncate(old + read);
        Ok(if read == 0 { More::End } else { More::Some })
    }

    fn left(&self) -> Result<Duration, ClientError> {
        let left = self.deadline.saturating_sub(self.start.elapsed());
        // The kernel takes zero for no limit, and anything below a microsecond is zero to it.
        if left < Duration::from_micros(1) { Err(self.timed_out()) } else { Ok(left) }
    }

    fn failed(&self, source: IoError) -> ClientError {
        match source.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => self.timed_out(),
            _ => ClientError::Broken { socket: self.client.socket.clone(), source },
        }
    }

    fn timed_out(&self) -> ClientError {
        ClientError::TimedOut { socket: self.client.socket.clone(), waited: self.deadline }
    }

    fn malformed(&self, what: String) -> ClientError {
        ClientError::Malformed { socket: self.client.socket.clone(), what }
    }

    fn too_large(&self) -> ClientError {
        ClientError::TooLarge { socket: self.client.socket.clone(), limit: self.limit }
    }
}

/// UnixStream::connect knows no time limit, and waits where the listener's queue is full.
fn connected(socket: &Path, deadline: Duration) -> Result<UnixStream, Errno> {
    let address = SocketAddrUnix::new(socket)?;
    let fd = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&fd, Timeout::Send, Some(deadline.max(Duration::from_micros(1))))?;
    connect(&fd, &address)?;
    Ok(UnixStream::from(fd))
}

/// None: it is not complete yet.
fn parse_head(bytes: &[u8]) -> Result<Option<ResponseHead>, String> {
    let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
    let mut response = httparse::Response::new(&mut headers);
    let length = match response.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(e) => return Err(format!("it is no HTTP ({e})")),
    };
    let status = response.code.ok_or("it has no status")?;
    let framing = framing(response.headers)?;
    Ok(Some(ResponseHead { status, framing, length }))
}

fn framing(headers: &[httparse::Header<'_>]) -> Result<Framing, String> {
    let find = |name: &str| headers.iter().find(|header| header.name.eq_ignore_ascii_case(name));
    if let Some(coding) = find("transfer-encoding") {
        return if coding.value.eq_ignore_ascii_case(b"chunked") {
            Ok(Framing::Chunked)
        } else {
            Err(format!("its transfer encoding is {:?}", String::from_utf8_lossy(coding.value)))
        };
    }
    let Some(length) = find("content-length") else { return Ok(Framing::ToEnd) };
    let text = String::from_utf8_lossy(length.value);
    text.trim().parse().map(Framing::Length).map_err(|_| format!("its content length is {text:?}"))
}

#[cfg(test)]
#[path = "client_tests.rs"]
mod tests;
