//! Requests to the agent without a plugin: many from one process, and incomplete ones.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use api::{Client, CniCall, HttpAnswer};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::Value;
use testkit::{Call, Pod, Verb};
use types::RequestId;

use crate::common::Host;

/// Longer than any request that ends.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(120);

/// A request ID that is unique in this process.
pub(crate) fn new_request_id() -> RequestId {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&NEXT.fetch_add(1, Ordering::Relaxed).to_be_bytes());
    RequestId::from_random(bytes)
}

/// The call in the form in which the plugin forwards it.
pub(crate) fn api_call(call: &Call) -> CniCall {
    let named = [
        ("CNI_COMMAND", Some(call.verb.as_str())),
        ("CNI_CONTAINERID", call.container.as_deref()),
        ("CNI_NETNS", call.netns.as_deref()),
        ("CNI_IFNAME", call.ifname.as_deref()),
        ("CNI_ARGS", call.args.as_deref()),
        ("CNI_PATH", Some(testkit::REFERENCE_DIR)),
    ];
    let mut env: BTreeMap<String, String> =
        named.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned()))).collect();
    env.extend(call.env.iter().cloned());
    CniCall { request_id: new_request_id(), env, config: String::from_utf8(call.stdin.clone()).unwrap() }
}

/// A call for an interface of a pod.
pub(crate) fn interface_call(host: &Host, verb: Verb, (pod, ifname): (&Pod, &str)) -> CniCall {
    let call = Call::pod(verb, pod, &host.config(&Value::Object(serde_json::Map::new())));
    api_call(&Call { ifname: Some(ifname.to_owned()), ..call })
}

pub(crate) fn post_call(client: &Client, call: &CniCall) -> HttpAnswer {
    client.post(api::CNI, call, TIMEOUT).unwrap()
}

pub(crate) fn json(answer: &HttpAnswer) -> Value {
    serde_json::from_slice(&answer.body).unwrap()
}

/// A connection that sends this and never reads.
pub(crate) fn connect_and_send(host: &Host, bytes: &[u8]) -> UnixStream {
    let mut stream = UnixStream::connect(host.agent.socket()).unwrap();
    stream.write_all(bytes).unwrap();
    stream
}

/// The bytes of the HTTP request.
pub(crate) fn bytes_of(call: &CniCall) -> Vec<u8> {
    let body = serde_json::to_vec(call).unwrap();
    let length = body.len();
    let head = format!("POST {} HTTP/1.1\r\nHost: podwire\r\nContent-Length: {length}\r\n\r\n", api::CNI);
    [head.into_bytes(), body].concat()
}

/// A thousand connections need more descriptors than a shell allows by default.
pub(crate) fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    let wanted = limit.maximum.unwrap_or(8192).min(8192);
    if limit.current.is_some_and(|current| current < wanted) {
        setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum: limit.maximum }).unwrap();
    }
}

/// Memory and open files of the agent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProcessUsage {
    pub(crate) rss_kib: u64,
    pub(crate) files: usize,
}

impl ProcessUsage {
    pub(crate) fn of(host: &Host) -> Self {
        let pid = host.agent.pid().unwrap();
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        let rss_kib = line.trim().trim_end_matches(" kB").parse().unwrap();
        Self { rss_kib, files: std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count() }
    }
}
