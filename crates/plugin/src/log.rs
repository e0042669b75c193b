//! One line a request in the log file, as JSON: what was asked, for whom, how it went and how long it took. A log that
//! can't be written never fails a pod.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cni::{Call, Config, Request};
use engine::Done;
use netconf::Place;
use rustix::fs::OFlags;
use serde_json::{Map, Value, json};

/// Larger than this, the file moves aside (one old one is kept): the log is bounded.
const LARGEST: u64 = 8 * 1024 * 1024;

pub(crate) struct Line {
    file: Option<PathBuf>,
    fields: Map<String, Value>,
}

impl Line {
    pub(crate) fn of(request: &Request, outcome: &Result<Done, cni::Error>, took: Duration) -> Self {
        let mut line = Self { file: config_of(request).and_then(log_file), fields: Map::new() };
        line.put("time", json!(unix_time()));
        line.put("command", json!(command(request)));
        match request {
            Request::Add(call) | Request::Del(call) | Request::Check(call) => line.put_call(call),
            Request::Gc(gc) => line.put("network", json!(gc.config.name)),
            Request::Status(config) => line.put("network", json!(config.name)),
            Request::Version(_) => {}
        }
        match outcome {
            Ok(done) => line.put_done(done, request),
            Err(error) => {
                line.put("outcome", json!("failed"));
                line.put("code", json!(error.code.number()));
                line.put("error", json!(error.to_string()));
            }
        }
        line.put("ms", json!((took.as_secs_f64() * 100_000.0).round() / 100.0));
        line
    }

    fn put(&mut self, key: &str, value: Value) {
        self.fields.insert(key.to_owned(), value);
    }

    fn put_call(&mut self, call: &Call) {
        self.put("network", json!(call.config.name));
        self.put("container", json!(call.container));
        self.put("ifname", json!(call.ifname));
        self.put("netns", json!(call.netns));
        if let (Some(namespace), Some(name)) = (&call.args.pod_namespace, &call.args.pod_name) {
            self.put("pod", json!(format!("{namespace}/{name}")));
        }
    }

    fn put_done(&mut self, done: &Done, request: &Request) {
        self.put("outcome", json!("ok"));
        if !done.addresses.is_empty() {
            self.put("addresses", json!(done.addresses));
        }
        if matches!(request, Request::Gc(_)) {
            self.put("collected", json!(done.collected));
        }
    }

    /// Says on stderr what went wrong with the log, and nothing more.
    pub(crate) fn write(self) {
        let Some(path) = self.file else { return };
        let mut text = Value::Object(self.fields).to_string();
        text.push('\n');
        if let Err(e) = append(&path, text.as_bytes()) {
            eprintln!("podwire-cni: cannot write the log {}: {e}", path.display());
        }
    }
}

/// One write per line: lines of several processes do not mix.
fn append(path: &Path, text: &[u8]) -> std::io::Result<()> {
    // A pipe that nobody reads would block, at the opening or when it is full.
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let mut file = File::options().create(true).append(true).mode(0o640).custom_flags(flags).open(path)?;
    file.write_all(text)?;
    if file.metadata()?.len() > LARGEST {
        let mut old = path.as_os_str().to_owned();
        old.push(".1");
        // Two processes may both do it; the second moves a short file over the long one, which loses lines, not pods.
        fs::rename(path, old)?;
    }
    Ok(())
}

fn log_file(config: &Config) -> Option<PathBuf> {
    Place::parse(config).ok()?.log_file
}

/// VERSION is asked often and says nothing about a pod.
fn config_of(request: &Request) -> Option<&Config> {
    match request {
        Request::Add(call) | Request::Del(call) | Request::Check(call) => Some(&call.config),
        Request::Gc(gc) => Some(&gc.config),
        Request::Status(config) => Some(config),
        Request::Version(_) => None,
    }
}

fn command(request: &Request) -> &'static str {
    match request {
        Request::Add(_) => "ADD",
        Request::Del(_) => "DEL",
        Request::Check(_) => "CHECK",
        Request::Gc(_) => "GC",
        Request::Status(_) => "STATUS",
        Request::Version(_) => "VERSION",
    }
}

fn unix_time() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| (d.as_secs_f64() * 1000.0).round() / 1000.0)
}
