//! One line a request, as JSON in the log file or as fields in the journal: when it came, what was asked, for whom, how
//! it went and how long it took. A log that can't be written never fails a pod.

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

use crate::agent::{AgentExchange, ExchangeEnd};
use crate::journal::{self, Priority};
use crate::{Served, config_of};

/// Larger than this, the file moves aside (one old one is kept): the log is bounded.
const LARGEST: u64 = 8 * 1024 * 1024;

pub(crate) struct LogLine {
    to: Log,
    fields: Map<String, Value>,
}

impl LogLine {
    pub(crate) fn of(request: &Request, served: &Served, took: Duration) -> Self {
        let place = config_of(request).and_then(|config| LocalPaths::parse(config).ok());
        let mut line = Self::begin(place.map_or(Log::None, |place| place.log), command(request), took);
        match request {
            Request::Add(call) | Request::Del(call) | Request::Check(call) => line.put_call(call),
            Request::Gc(gc) => line.put("network", json!(gc.config.name)),
            Request::Status(config) => line.put("network", json!(config.name)),
            Request::Version(_) => {}
        }
        match &served.outcome {
            Ok(done) => line.put_done(done, request, served.asked.as_ref()),
            Err(error) => line.put_error(error),
        }
        if let Some(asked) = &served.asked {
            line.put("agent", json!(true));
            line.put("requestId", json!(asked.request_id));
            line.put("attempts", json!(asked.attempts));
        }
        line.end(took)
    }

    /// Of a request that was not understood, if its config says where to put it. Nothing in it can be relied upon.
    pub(crate) fn of_refused(env: &Env, stdin: &[u8], failure: &Failure, took: Duration) -> Option<Self> {
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

    fn begin(to: Log, command: &str, took: Duration) -> Self {
        let mut line = Self { to, fields: Map::new() };
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

    fn put_done(&mut self, done: &Done, request: &Request, asked: Option<&AgentExchange>) {
        let outcome = match asked.map(|asked| asked.ending) {
            Some(ExchangeEnd::Tombstone) => "tombstone",
            Some(ExchangeEnd::Reported) | None => "ok",
        };
        self.put("outcome", json!(outcome));
        if !done.addresses.is_empty() {
            self.put("addresses", json!(done.addresses));
        }
        // The agent keeps its own books.
        if matches!(request, Request::Gc(_)) && asked.is_none() {
            self.put("collected", json!(done.collected));
        }
    }

    fn put_error(&mut self, error: &cni::Error) {
        self.put("outcome", json!("failed"));
        self.put("code", json!(error.code.number()));
        self.put("error", json!(error.to_string()));
    }

    /// Says on stderr what went wrong with the log, and nothing more.
    pub(crate) fn write(self) {
        let (written, place) = match &self.to {
            Log::None => return,
            Log::File(path) => {
                let json = Value::Object(self.fields).to_string();
                let mut text = types::printable_json(&json).into_owned();
                text.push('\n');
                (append(path, text.as_bytes()), path.as_path())
            }
            Log::Journal => {
                let (priority, message) = self.sentence();
                (journal::send(priority, &message, &self.fields), Path::new(journal::SOCKET))
            }
        };
        if let Err(e) = written {
            let place = place.to_string_lossy();
            eprintln!("podwire-cni: cannot write the log {}: {e}", types::one_line(&place));
        }
    }

    /// For people who read the journal: `ADD shop/web-0: ok (10.83.0.7) in 2.41 ms`.
    fn sentence(&self) -> (Priority, String) {
        let text = |key: &str| self.fields.get(key).and_then(Value::as_str);
        let whom = text("pod").or(text("container")).or(text("network")).unwrap_or("?");
        let outcome = text("outcome").unwrap_or_default();
        let priority = match outcome {
            "failed" => Priority::Error,
            "tombstone" => Priority::Warning,
            _ => Priority::Info,
        };
        let more = match (text("error"), self.fields.get("addresses").and_then(Value::as_array)) {
            (Some(error), _) => format!(": {error}"),
            (None, Some(all)) => {
                format!(" ({})", all.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", "))
            }
            (None, None) => String::new(),
        };
        let ms = self.fields.get("ms").and_then(Value::as_f64).unwrap_or_default();
        let sentence = format!("{} {whom}: {outcome}{more} in {ms} ms", text("command").unwrap_or_default());
        // The journal shows text with control characters as binary data, and every line of the message as one of its own.
        (priority, types::one_line(&sentence).into_owned())
    }
}

/// One write per line: lines of several processes do not mix.
fn append(path: &Path, text: &[u8]) -> std::io::Result<()> {
    if path == Path::new("/dev/null") {
        return Ok(());
    }
    let mut file = files::open_unmanaged(path, File::options().create(true).append(true).mode(0o640))?;
    file.write_all(text)?;
    if file.metadata()?.len() > LARGEST {
        let mut old = path.as_os_str().to_owned();
        old.push(".1");
        // Two processes may both do it; the second moves a short file over the long one, which loses lines, not pods.
        fs::rename(path, old)?;
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
