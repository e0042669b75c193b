//! An agent that says what it is told to say.

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

/// What the stand-in does with one request.
#[derive(Debug, Clone)]
pub(crate) enum Reply {
    Status(u16, String),
    /// Whatever bytes, then the end of the connection.
    Raw(&'static str),
    /// Nothing, for as long as the stand-in lives.
    Silence,
}

impl Reply {
    pub(crate) fn json(status: u16, body: &Value) -> Self {
        Self::Status(status, body.to_string())
    }

    /// A CNI error object of the agent's.
    pub(crate) fn error(status: u16, code: u32, msg: &str) -> Self {
        Self::json(status, &json!({"cniVersion": "1.1.0", "code": code, "msg": msg, "details": "look there"}))
    }

    /// The verbs that print nothing.
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

/// What the stand-in answers an ADD with.
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

/// A request as it came: the first line, and the body.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Asked {
    pub(crate) line: String,
    pub(crate) call: Value,
}

/// Serves one connection after the other; the last reply is for all that follow.
pub(crate) struct Standin {
    socket: PathBuf,
    asked: Arc<Mutex<Vec<Asked>>>,
    over: Arc<AtomicBool>,
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

impl Standin {
    pub(crate) fn new(node: &Node, replies: Vec<Reply>) -> Self {
        let socket = socket_of(node);
        let listener = UnixListener::bind(&socket).unwrap();
        let (asked, over) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let thread = {
            let (asked, over) = (Arc::clone(&asked), Arc::clone(&over));
            std::thread::spawn(move || {
                let (mut held, mut number) = (Vec::new(), 0);
                for stream in listener.incoming() {
                    if over.load(Ordering::SeqCst) {
                        return;
                    }
                    let mut stream = stream.unwrap();
                    // A client that was killed says nothing.
                    let Some(request) = read_request(&mut stream) else { continue };
                    asked.lock().unwrap().push(request);
                    let reply = &replies[number.min(replies.len() - 1)];
                    number += 1;
                    let _ = stream.write_all(&reply.bytes());
                    if matches!(reply, Reply::Silence) {
                        held.push(stream);
                    }
                }
            })
        };
        Self { socket, asked, over, thread: Some(thread) }
    }

    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }
}

impl Drop for Standin {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        // Wakes the thread up; if nobody takes the connection, the thread is gone already.
        if let Ok(stream) = UnixStream::connect(&self.socket) {
            let _ = stream.shutdown(Shutdown::Both);
        }
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) && !std::thread::panicking() {
            panic!("the stand-in failed");
        }
        let _ = fs::remove_file(&self.socket);
    }
}

fn read_request(stream: &mut UnixStream) -> Option<Asked> {
    let mut bytes = Vec::new();
    let head = loop {
        if let Some(at) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break at;
        }
        read_some(stream, &mut bytes)?;
    };
    let text = String::from_utf8(bytes[..head].to_vec()).unwrap();
    let length: usize =
        text.lines().find_map(|line| line.strip_prefix("Content-Length: ")).unwrap().parse().unwrap();
    while bytes.len() < head + 4 + length {
        read_some(stream, &mut bytes)?;
    }
    let call = serde_json::from_slice(&bytes[head + 4..]).unwrap();
    Some(Asked { line: text.lines().next().unwrap().to_owned(), call })
}

fn read_some(stream: &mut UnixStream, bytes: &mut Vec<u8>) -> Option<()> {
    let mut some = [0; 65536];
    let read = stream.read(&mut some).ok().filter(|n| *n > 0)?;
    bytes.extend_from_slice(&some[..read]);
    Some(())
}

/// The lines of the plugin's log.
pub(crate) fn log_lines(host: &Host) -> Vec<Value> {
    let text = fs::read_to_string(host.node.log_file()).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}
