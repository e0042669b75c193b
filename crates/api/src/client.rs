//! A synchronous HTTP/1.1 client over a Unix socket. Each request has its own connection and one deadline.

use std::io::{Error as IoError, ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use serde::Serialize;
use types::cause;

use crate::HEALTH;

/// The maximum size of an answer to GET, which can list all attachments of a node.
const MAX_LIST: usize = 64 << 20;
/// The maximum size of other answers: a CNI result or error, or a removed node.
const MAX_RESULT: usize = 4 << 20;
/// The size of the first read, which is enough for most answers.
const FIRST_READ: usize = 8 << 10;
const MAX_HEADERS: usize = 64;
/// A POST may take long, for example for the IPAM plugin of an ADD. Without an answer after this time, the client asks whether the
/// agent is alive. The kernel also accepts connections for an agent that hangs.
const PROBE_INTERVAL: Duration = Duration::from_secs(5);
/// How long an agent that is alive may take to answer this question.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// A client of the agent on a socket.
#[derive(Debug, Clone)]
pub struct Client {
    socket: PathBuf,
    probe_interval: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpAnswer {
    pub status: u16,
    pub body: Vec<u8>,
}

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error(
        "no agent listens on {} ({}): start it with `podwire agent`, or see `journalctl -u podwire`",
        socket.display(), cause(source)
    )]
    NoListener { socket: PathBuf, source: IoError },
    #[error("cannot connect to the agent's socket {}: {}{}", socket.display(), cause(source), hint(source))]
    Connect { socket: PathBuf, source: IoError },
    #[error(
        "the agent on {} closed the connection before the answer was complete ({}): it was probably stopped; see \
         `journalctl -u podwire`",
        socket.display(), cause(source)
    )]
    Broken { socket: PathBuf, source: IoError },
    #[error(
        "the agent on {} did not answer within {} s: it is busy or stuck; see `journalctl -u podwire`",
        socket.display(), waited.as_secs_f64()
    )]
    TimedOut { socket: PathBuf, waited: Duration },
    #[error("the answer on {} is invalid: {what}; check that the agent listens on this socket", socket.display())]
    Malformed { socket: PathBuf, what: String },
    #[error("the answer on {} is larger than {limit} bytes; check that the agent listens on this socket", socket.display())]
    TooLarge { socket: PathBuf, limit: usize },
    #[error("cannot serialize the request as JSON: {0}")]
    Request(#[from] serde_json::Error),
}

fn hint(source: &IoError) -> &'static str {
    match source.kind() {
        ErrorKind::PermissionDenied => "; only root can access the socket",
        ErrorKind::InvalidFilename => "; the path may have 107 bytes",
        _ => "",
    }
}

impl Client {
    pub fn new(socket: &Path) -> Self {
        Self { socket: socket.to_owned(), probe_interval: PROBE_INTERVAL }
    }

    pub fn socket(&self) -> &Path {
        &self.socket
    }

    pub fn get(&self, path: &str, deadline: Duration) -> Result<HttpAnswer, ClientError> {
        let request = head("GET", path, None).into_bytes();
        Exchange::start(self, deadline, MAX_LIST)?.run(&request)
    }

    /// Whether the agent answers at all, also with an error.
    fn is_alive(&self) -> bool {
        let request = head("GET", HEALTH, None).into_bytes();
        let answer = Exchange::start(self, PROBE_TIMEOUT, MAX_RESULT).and_then(|probe| probe.run(&request));
        !matches!(answer, Err(ClientError::TimedOut { .. }))
    }

    pub fn delete(&self, path: &str, deadline: Duration) -> Result<HttpAnswer, ClientError> {
        let request = head("DELETE", path, None).into_bytes();
        Exchange::start(self, deadline, MAX_RESULT)?.run(&request)
    }

    /// Passes each line of a stream to `on_line` until that fails. Lines may arrive at any time: after each silence, the client asks
    /// whether the agent is alive. `deadline` limits the time until the stream begins. An answer that is not a stream is returned.
    pub fn follow<E: From<ClientError>>(
        &self,
        path: &str,
        deadline: Duration,
        mut on_line: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<HttpAnswer, E> {
        let request = head("GET", path, None).into_bytes();
        let mut exchange = Exchange::start(self, deadline, MAX_RESULT)?;
        exchange.send(&request)?;
        let head = exchange.read_head()?;
        exchange.buffer.drain(..head.length);
        match head.framing {
            Framing::Chunked if head.status == 200 => {}
            Framing::Chunked | Framing::Length(_) | Framing::UntilClose => return Ok(exchange.answer(&head)?),
        }
        (exchange.deadline, exchange.is_probed) = (Duration::MAX, true);
        let mut line = Vec::new();
        while let Some(chunk) = exchange.next_chunk(MAX_RESULT.saturating_sub(line.len()))? {
            line.extend_from_slice(&chunk);
            while let Some(end) = line.iter().position(|byte| *byte == b'\n') {
                on_line(&line[..end])?;
                line.drain(..=end);
            }
        }
        Ok(HttpAnswer { status: head.status, body: line })
    }

    /// Sends `body` as JSON. Waits until the deadline for an agent that works, and about 10 s for one that hangs.
    pub fn post(
        &self,
        path: &str,
        body: &impl Serialize,
        deadline: Duration,
    ) -> Result<HttpAnswer, ClientError> {
        let body = serde_json::to_vec(body)?;
        let mut request = head("POST", path, Some(body.len())).into_bytes();
        request.extend_from_slice(&body);
        let connected = Exchange::start(self, deadline.min(PROBE_INTERVAL + PROBE_TIMEOUT), MAX_RESULT)?;
        Exchange { deadline, is_probed: true, ..connected }.run(&request)
    }
}

fn head(method: &str, path: &str, length: Option<usize>) -> String {
    let content = length
        .map(|n| format!("Content-Type: application/json\r\nContent-Length: {n}\r\n"))
        .unwrap_or_default();
    format!("{method} {path} HTTP/1.1\r\nHost: podwire\r\nConnection: close\r\n{content}\r\n")
}

/// How the end of a body is determined.
#[derive(Debug, Clone, Copy)]
enum Framing {
    Length(usize),
    Chunked,
    UntilClose,
}

struct ResponseHead {
    status: u16,
    framing: Framing,
    /// The length of the head.
    length: usize,
}

/// The result of a read.
#[derive(PartialEq, Eq)]
enum ReadResult {
    Data,
    End,
}

/// One connection with one request.
struct Exchange<'a> {
    client: &'a Client,
    stream: UnixStream,
    start: Instant,
    deadline: Duration,
    /// Whether a missing answer is followed by the question whether the agent is alive.
    is_probed: bool,
    limit: usize,
    /// Received bytes that are not consumed yet.
    buffer: Vec<u8>,
}

impl<'a> Exchange<'a> {
    fn start(client: &'a Client, deadline: Duration, limit: usize) -> Result<Self, ClientError> {
        let start = Instant::now();
        let stream = connect_with_timeout(&client.socket, deadline).map_err(|errno| {
            let (socket, source) = (client.socket.clone(), IoError::from(errno));
            match errno {
                Errno::NOENT | Errno::NOTDIR | Errno::CONNREFUSED => {
                    ClientError::NoListener { socket, source }
                }
                // The listener's queue stayed full.
                Errno::AGAIN => ClientError::TimedOut { socket, waited: deadline },
                _ => ClientError::Connect { socket, source },
            }
        })?;
        Ok(Self { client, stream, start, deadline, is_probed: false, limit, buffer: Vec::new() })
    }

    fn run(mut self, request: &[u8]) -> Result<HttpAnswer, ClientError> {
        match self.send(request) {
            // The agent may answer and close the connection before it has read the whole request. Then the answer matters.
            Ok(()) | Err(ClientError::Broken { .. }) => {}
            Err(other) => return Err(other),
        }
        let head = self.read_head()?;
        self.buffer.drain(..head.length);
        self.answer(&head)
    }

    /// The answer with this head, which was read.
    fn answer(&mut self, head: &ResponseHead) -> Result<HttpAnswer, ClientError> {
        let body = match head.framing {
            Framing::Length(length) => self.read_exact(length)?,
            Framing::Chunked => self.read_chunks()?,
            Framing::UntilClose => {
                while self.read_more()? == ReadResult::Data {}
                std::mem::take(&mut self.buffer)
            }
        };
        Ok(HttpAnswer { status: head.status, body })
    }

    fn send(&mut self, mut request: &[u8]) -> Result<(), ClientError> {
        while !request.is_empty() {
            let remaining = self.remaining()?;
            let sent =
                self.stream.set_write_timeout(Some(remaining)).and_then(|()| self.stream.write(request));
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
                Ok(None) => self.read_or_fail()?,
                Err(what) => return Err(self.malformed(what)),
            }
        }
    }

    /// The next `length` bytes.
    fn read_exact(&mut self, length: usize) -> Result<Vec<u8>, ClientError> {
        if length > self.limit {
            return Err(self.too_large());
        }
        while self.buffer.len() < length {
            self.read_or_fail()?;
        }
        let remaining = self.buffer.split_off(length);
        Ok(std::mem::replace(&mut self.buffer, remaining))
    }

    /// Reads until the last chunk.
    fn read_chunks(&mut self) -> Result<Vec<u8>, ClientError> {
        let mut body = Vec::new();
        while let Some(mut chunk) = self.next_chunk(self.limit.saturating_sub(body.len()))? {
            body.append(&mut chunk);
        }
        Ok(body)
    }

    /// None after the last chunk. Trailers are ignored, because the connection is closed.
    fn next_chunk(&mut self, limit: usize) -> Result<Option<Vec<u8>>, ClientError> {
        let (line, size) = loop {
            match httparse::parse_chunk_size(&self.buffer) {
                Ok(httparse::Status::Complete(parsed)) => break parsed,
                Ok(httparse::Status::Partial) => self.read_or_fail()?,
                Err(_) => return Err(self.malformed("the size of a chunk is not a number".to_owned())),
            }
        };
        if size == 0 {
            return Ok(None);
        }
        let size = usize::try_from(size).ok().filter(|size| *size <= limit);
        let size = size.ok_or_else(|| self.too_large())?;
        self.buffer.drain(..line);
        let chunk = self.read_exact(size)?;
        if self.read_exact(2)? != b"\r\n" {
            return Err(self.malformed("a chunk is longer than its size".to_owned()));
        }
        Ok(Some(chunk))
    }

    fn read_or_fail(&mut self) -> Result<(), ClientError> {
        match self.read_more()? {
            ReadResult::Data => Ok(()),
            ReadResult::End => Err(self.failed(ErrorKind::UnexpectedEof.into())),
        }
    }

    fn read_more(&mut self) -> Result<ReadResult, ClientError> {
        let old = self.buffer.len();
        if old > self.limit {
            return Err(self.too_large());
        }
        // The size of reads grows with the answer.
        self.buffer.resize(old + FIRST_READ.max(old), 0);
        let read = loop {
            let remaining = self.remaining()?;
            let timeout = if self.is_probed { remaining.min(self.client.probe_interval) } else { remaining };
            let read = self.stream.set_read_timeout(Some(timeout));
            match read.and_then(|()| self.stream.read(&mut self.buffer[old..])) {
                Ok(n) => break n,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock && timeout < remaining => {
                    if !self.client.is_alive() {
                        return Err(self.hung());
                    }
                }
                Err(e) => return Err(self.failed(e)),
            }
        };
        self.buffer.truncate(old + read);
        Ok(if read == 0 { ReadResult::End } else { ReadResult::Data })
    }

    fn remaining(&self) -> Result<Duration, ClientError> {
        let remaining = self.deadline.saturating_sub(self.start.elapsed());
        // For the kernel a timeout of less than a microsecond is zero, and zero means no timeout.
        if remaining < Duration::from_micros(1) { Err(self.timed_out()) } else { Ok(remaining) }
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

    /// The agent hangs.
    fn hung(&self) -> ClientError {
        let waited = Duration::from_secs(self.start.elapsed().as_secs());
        ClientError::TimedOut { socket: self.client.socket.clone(), waited }
    }

    fn malformed(&self, what: String) -> ClientError {
        ClientError::Malformed { socket: self.client.socket.clone(), what }
    }

    fn too_large(&self) -> ClientError {
        ClientError::TooLarge { socket: self.client.socket.clone(), limit: self.limit }
    }
}

/// `UnixStream::connect` has no timeout, and blocks while the listener's queue is full.
fn connect_with_timeout(socket: &Path, deadline: Duration) -> Result<UnixStream, Errno> {
    let address = SocketAddrUnix::new(socket)?;
    let fd = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&fd, Timeout::Send, Some(deadline.max(Duration::from_micros(1))))?;
    connect(&fd, &address)?;
    Ok(UnixStream::from(fd))
}

/// None if the head is not complete yet.
fn parse_head(bytes: &[u8]) -> Result<Option<ResponseHead>, String> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut response = httparse::Response::new(&mut headers);
    let length = match response.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(e) => return Err(format!("it is not HTTP ({e})")),
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
    let Some(length) = find("content-length") else { return Ok(Framing::UntilClose) };
    let text = String::from_utf8_lossy(length.value);
    text.trim().parse().map(Framing::Length).map_err(|_| format!("its content length is {text:?}"))
}

#[cfg(test)]
#[path = "client_tests.rs"]
mod tests;
