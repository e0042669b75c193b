//! One log entry per request, as a JSON line in a file or as fields in the journal: time, command, pod, outcome and duration.
//! A failed write to the log never fails a request.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cni::json::Obj;
use cni::{Args, AttachmentRequest, Env, Failure, Request, Var};
use engine::Done;
use netconf::{LocalPaths, Log};
use serde_json::{Map, Value, json};

use crate::agent::{AgentExchange, ExchangeResult};
use crate::journal::{self, Priority};
use crate::{Served, config_of};

/// A larger log file is renamed to `.1`, which replaces the previous `.1`.
const MAX_SIZE: u64 = 8 * 1024 * 1024;

pub(crate) struct LogLine {
    destination: Log,
    fields: Map<String, Value>,
}

impl LogLine {
    pub(crate) fn of(request: &Request, served: &Served, took: Duration) -> Self {
        let paths = config_of(request).and_then(|config| LocalPaths::parse(config).ok());
        let mut line = Self::begin(paths.map_or(Log::None, |paths| paths.log), command(request), took);
        match request {
            Request::Add(call) | Request::Del(call) | Request::Check(call) => line.put_call(call),
            Request::Gc(gc) => line.put("network", json!(gc.config.name)),
            Request::Status(config) => line.put("network", json!(config.name)),
            Request::Version(_) => {}
        }
        match &served.outcome {
            Ok(done) => line.put_done(done, request, served.exchange.as_ref()),
            Err(error) => line.put_error(error),
        }
        if let Some(exchange) = &served.exchange {
            line.put("agent", json!(true));
            line.put("requestId", json!(exchange.request_id));
            line.put("attempts", json!(exchange.attempts));
        }
        line.end(took)
    }

    /// For an invalid request, if its config has a log destination. All values in the request may be invalid.
    pub(crate) fn of_invalid(env: &Env, stdin: &[u8], failure: &Failure, took: Duration) -> Option<Self> {
        let config: Map<String, Value> = serde_json::from_slice(stdin).ok()?;
        let top = Obj::root(&config);
        let text = |var| env.get(var).ok().flatten();
        let mut line = Self::begin(Log::parse(&top).ok()?, text(Var::Command).unwrap_or_default(), took);
        let known = [
            ("network", top.str("name").ok().flatten()),
            ("container", text(Var::ContainerId)),
            ("ifname", text(Var::IfName)),
            ("netns", text(Var::Netns)),
        ];
        for (key, value) in known.into_iter().filter_map(|(key, value)| Some((key, value?))) {
            line.put(key, json!(value));
        }
        line.put_pod(&text(Var::Args).and_then(|args| Args::parse(args).ok()).unwrap_or_default());
        line.put_error(&failure.error);
        Some(line.end(took))
    }

    fn begin(destination: Log, command: &str, took: Duration) -> Self {
        let mut line = Self { destination, fields: Map::new() };
        line.put("time", json!(unix_time_before(took)));
        line.put("command", json!(command));
        line
    }

    fn end(mut self, took: Duration) -> Self {
        self.put("ms", json!((took.as_secs_f64() * 100_000.0).round() / 100.0));
        self
    }

    fn put(&mut self, key: &str, value: Value) {
        self.fields.insert(key.to_owned(), value);
    }

    fn put_call(&mut self, call: &AttachmentRequest) {
        self.put("network", json!(call.config.name));
        self.put("container", json!(call.container));
        self.put("ifname", json!(call.ifname));
        self.put("netns", json!(call.netns));
        self.put_pod(&call.args);
    }

    fn put_pod(&mut self, args: &Args) {
        match (&args.pod_namespace, &args.pod_name) {
            (Some(namespace), Some(name)) => self.put("pod", json!(format!("{namespace}/{name}"))),
            (None, Some(name)) => self.put("pod", json!(name)),
            (Some(_) | None, None) => {}
        }
    }

    fn put_done(&mut self, done: &Done, request: &Request, exchange: Option<&AgentExchange>) {
        let outcome = match exchange.map(|exchange| exchange.result) {
            Some(ExchangeResult::Tombstone) => "tombstone",
            Some(ExchangeResult::Returned) | None => "ok",
        };
        self.put("outcome", json!(outcome));
        if !done.addresses.is_empty() {
            self.put("addresses", json!(done.addresses));
        }
        // The agent does not return the number of collected attachments.
        if matches!(request, Request::Gc(_)) && exchange.is_none() {
            self.put("collected", json!(done.collected));
        }
    }

    fn put_error(&mut self, error: &cni::Error) {
        self.put("outcome", json!("failed"));
        self.put("code", json!(error.code.number()));
        self.put("error", json!(error.to_string()));
    }

    /// An error is only printed on stderr.
    pub(crate) fn write(self) {
        let (written, path) = match &self.destination {
            Log::None => return,
            Log::File(path) => {
                let json = Value::Object(self.fields).to_string();
                let mut text = types::printable_json(&json).into_owned();
                text.push('\n');
                (append(path, text.as_bytes()), path.as_path())
            }
            Log::Journal => {
                let (priority, message) = self.journal_message();
                (journal::send(priority, &message, &self.fields), Path::new(journal::SOCKET))
            }
        };
        if let Err(e) = written {
            let path = path.to_string_lossy();
            eprintln!("podwire-cni: cannot write the log {}: {e}", types::one_line(&path));
        }
    }

    /// The message of a journal entry: `ADD shop/web-0: ok (10.83.0.7) in 2.41 ms`.
    fn journal_message(&self) -> (Priority, String) {
        let text = |key: &str| self.fields.get(key).and_then(Value::as_str);
        let object = text("pod").or(text("container")).or(text("network")).unwrap_or("?");
        let outcome = text("outcome").unwrap_or_default();
        let priority = match outcome {
            "failed" => Priority::Error,
            "tombstone" => Priority::Warning,
            _ => Priority::Info,
        };
        let details = match (text("error"), self.fields.get("addresses").and_then(Value::as_array)) {
            (Some(error), _) => format!(": {error}"),
            (None, Some(all)) => {
                format!(" ({})", all.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", "))
            }
            (None, None) => String::new(),
        };
        let ms = self.fields.get("ms").and_then(Value::as_f64).unwrap_or_default();
        let command = text("command").unwrap_or_default();
        let message = format!("{command} {object}: {outcome}{details} in {ms} ms");
        // The journal shows text with control characters as binary data, and a line break as a new entry.
        (priority, types::one_line(&message).into_owned())
    }
}

/// One write per line, so that lines of several processes do not mix.
fn append(path: &Path, text: &[u8]) -> std::io::Result<()> {
    if path == Path::new("/dev/null") {
        return Ok(());
    }
    let mut file = files::open_unmanaged(path, File::options().create(true).append(true).mode(0o640))?;
    file.write_all(text)?;
    if file.metadata()?.len() > MAX_SIZE {
        let mut rotated = path.as_os_str().to_owned();
        rotated.push(".1");
        // If two processes rotate at the same time, the second one replaces the rotated file. Only log lines are lost.
        fs::rename(path, rotated)?;
    }
    Ok(())
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

fn unix_time_before(took: Duration) -> f64 {
    let start = SystemTime::now().checked_sub(took).and_then(|start| start.duration_since(UNIX_EPOCH).ok());
    start.map_or(0.0, |d| (d.as_secs_f64() * 1000.0).round() / 1000.0)
}
