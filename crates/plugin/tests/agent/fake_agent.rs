//! An agent with scripted replies.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use serde_json::{Value, json};
use testkit::Node;

use crate::common::Host;
use crate::watch::dual;

/// The reply to one request.
#[derive(Debug, Clone)]
pub(crate) enum Reply {
    Status(u16, String),
    /// These bytes, then the connection is closed.
    Raw(&'static str),
    /// The connection stays open without a reply.
    Silence,
}

impl Reply {
    pub(crate) fn json(status: u16, body: &Value) -> Self {
        Self::Status(status, body.to_string())
    }

    /// A CNI error object of the agent.
    pub(crate) fn error(status: u16, code: u32, msg: &str) -> Self {
        Self::json(
            status,
            &json!({"cniVersion": "1.1.0", "code": code, "msg": msg, "details": "some details"}),
        )
    }

    /// Success without a result, for all commands except ADD.
    pub(crate) fn done() -> Self {
        Self::json(200, &json!({}))
    }

    pub(crate) fn result() -> Self {
        Self::json(200, &json!({"result": result()}))
    }

    fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Status(status, body) => {
                format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
            }
            Self::Raw(text) => text.as_bytes().to_vec(),
            Self::Silence => Vec::new(),
        }
    }
}

/// The result in a reply to ADD.
pub(crate) fn result() -> Value {
    json!({
        "cniVersion": "1.1.0", "dns": {},
        "interfaces": [{"name": "eth0", "sandbox": "/x", "mac": "02:00:00:00:00:01"}],
        "ips": [
            {"address": "10.88.0.7/24", "gateway": "10.88.0.1", "interface": 0},
            {"address": "fd00:88::7/64", "interface": 0}
        ],
    })
}

/// The request line and the body of a received request.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ReceivedRequest {
    pub(crate) line: String,
    pub(crate) call: Value,
}

/// Serves connections one after the other. The last reply is repeated for all further requests.
pub(crate) struct FakeAgent {
    socket: PathBuf,
    requests: Arc<Mutex<Vec<ReceivedRequest>>>,
    stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

pub(crate) fn socket_of(node: &Node) -> PathBuf {
    node.dir().join("agent.sock")
}

/// A config in agent mode.
pub(crate) fn config(host: &Host, more: &Value) -> Value {
    let base = dual(host, &json!({"agent": socket_of(&host.node)}));
    crate::common::with(&base, more)
}

impl FakeAgent {
    pub(crate) fn new(node: &Node, replies: Vec<Reply>) -> Self {
        let socket = socket_of(node);
        let listener = UnixListener::bind(&socket).unwrap();
        let (requests, stopping) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let thread = {
            let (requests, stopping) = (Arc::clone(&requests), Arc::clone(&stopping));
            std::thread::spawn(move || {
                let (mut open_streams, mut number) = (Vec::new(), 0);
                for stream in listener.incoming() {
                    if stopping.load(Ordering::SeqCst) {
                        return;
                    }
                    let mut stream = stream.unwrap();
                    // A client that was killed sends no complete request.
                    let Some(request) = read_request(&mut stream) else { continue };
                    requests.lock().unwrap().push(request);
                    let reply = &replies[number.min(replies.len() - 1)];
                    number += 1;
                    let _ = stream.write_all(&reply.bytes());
                    if matches!(reply, Reply::Silence) {
                        open_streams.push(stream);
                    }
                }
            })
        };
        Self { socket, requests, stopping, thread: Some(thread) }
    }

    pub(crate) fn requests(&self) -> Vec<ReceivedRequest> {
        self.requests.lock().unwrap().clone()
    }
}

impl Drop for FakeAgent {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::SeqCst);
        // Wakes the thread. If the connection fails, the thread has already ended.
        if let Ok(stream) = UnixStream::connect(&self.socket) {
            let _ = stream.shutdown(Shutdown::Both);
        }
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) && !std::thread::panicking() {
            panic!("the fake agent failed");
        }
        let _ = fs::remove_file(&self.socket);
    }
}

fn read_request(stream: &mut UnixStream) -> Option<ReceivedRequest> {
    let mut bytes = Vec::new();
    let head = loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break end;
        }
        read_some(stream, &mut bytes)?;
    };
    let text = String::from_utf8(bytes[..head].to_vec()).unwrap();
    // Only a POST has a body. The plugin also asks whether the agent is alive.
    let length = text.lines().find_map(|line| line.strip_prefix("Content-Length: "));
    let length: usize = length.map_or(0, |length| length.parse().unwrap());
    while bytes.len() < head + 4 + length {
        read_some(stream, &mut bytes)?;
    }
    let body = &bytes[head + 4..];
    let call = if body.is_empty() { Value::Null } else { serde_json::from_slice(body).unwrap() };
    Some(ReceivedRequest { line: text.lines().next().unwrap().to_owned(), call })
}

fn read_some(stream: &mut UnixStream, bytes: &mut Vec<u8>) -> Option<()> {
    let mut buffer = [0; 65536];
    let read = stream.read(&mut buffer).ok().filter(|n| *n > 0)?;
    bytes.extend_from_slice(&buffer[..read]);
    Some(())
}

/// The lines of the plugin's log.
pub(crate) fn log_lines(host: &Host) -> Vec<Value> {
    let text = fs::read_to_string(host.node.log_file()).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}
