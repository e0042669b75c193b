//! The agent's log on stderr. Each request has one line in the text format:
//!
//! ```text
//! 2026-07-31T09:12:44.120311Z  INFO ADD ok 1.3ms pod=default/web-1 net=podwire id=3f2ab41c9d1e7 if=eth0 ip=10.83.0.5 req=7f3a12c0
//! ```

use std::io::{self, Write};
use std::net::IpAddr;
use std::sync::OnceLock;
use std::time::Duration;

use cni::{AttachmentRequest, Request};
use tracing::level_filters::LevelFilter;
use tracing::subscriber::{SetGlobalDefaultError, set_global_default};
use tracing::{Subscriber, field, info, warn};
use tracing_subscriber::fmt::MakeWriter;
use types::RequestId;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    /// For operators.
    Text,
    /// One JSON object per line.
    Json,
}

/// The log format of this process. Unset in tests, which use text.
static FORMAT: OnceLock<Format> = OnceLock::new();

#[derive(Debug, thiserror::Error)]
pub enum LogError {
    #[error("cannot start the log: {0}")]
    Start(#[from] SetGlobalDefaultError),
}

/// Logs a problem that the engine reports and that does not fail the request or the round.
pub(crate) fn engine_warning(message: &str) {
    warn!(problem = message, "completed with a problem");
}

/// Starts the log of this process. Call it once.
pub(crate) fn start(format: Format, level: LevelFilter) -> Result<(), LogError> {
    set_global_default(subscriber(format, level, io::stderr))?;
    FORMAT.get_or_init(|| format);
    Ok(())
}

/// Times are UTC. No colours, because the journal stores escape sequences.
fn subscriber<W>(format: Format, level: LevelFilter, writer: W) -> Box<dyn Subscriber + Send + Sync>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let lines = tracing_subscriber::fmt()
        .with_writer(Lines { writer, format })
        .with_ansi(false)
        .with_target(false)
        .with_max_level(level);
    match format {
        Format::Text => Box::new(lines.finish()),
        Format::Json => Box::new(lines.json().flatten_event(true).finish()),
    }
}

/// Sanitizes all log output. Messages and fields contain text from requests, records, answers and other programs. None of it may
/// break a line or send control sequences to a terminal.
struct Lines<M> {
    writer: M,
    format: Format,
}

impl<'w, M: MakeWriter<'w>> MakeWriter<'w> for Lines<M> {
    type Writer = LineWriter<M::Writer>;

    fn make_writer(&'w self) -> Self::Writer {
        LineWriter { out: self.writer.make_writer(), format: self.format }
    }
}

/// Receives each event in one write.
struct LineWriter<W> {
    out: W,
    format: Format,
}

impl<W: Write> Write for LineWriter<W> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        let body = text.strip_suffix('\n').unwrap_or(&text);
        let mut line = match self.format {
            Format::Text => types::one_line(body),
            Format::Json => types::printable_json(body),
        }
        .into_owned();
        line.push('\n');
        self.out.write_all(line.as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// The pod, attachment and request that a log line is about.
#[derive(Debug, Clone, Default)]
pub(crate) struct RequestSubject {
    verb: &'static str,
    pod: Option<String>,
    network: Option<String>,
    container: Option<String>,
    ifname: Option<String>,
    request: Option<RequestId>,
    /// The origin of a request that does not come from a client.
    via: Option<&'static str>,
}

impl RequestSubject {
    /// A request that could not be parsed.
    pub(crate) fn unknown(request: &RequestId) -> Self {
        Self { verb: "unknown", request: Some(request.clone()), ..Self::default() }
    }

    pub(crate) fn of(request: &Request, id: &RequestId) -> Self {
        let base = |verb, network: Option<&str>| Self {
            verb,
            network: network.map(str::to_owned),
            request: Some(id.clone()),
            ..Self::default()
        };
        let attachment = |verb, call: &AttachmentRequest| Self {
            pod: pod_name(call),
            container: Some(call.container.to_string()),
            ifname: Some(escaped(call.ifname.as_str())),
            ..base(verb, Some(call.config.name.as_str()))
        };
        match request {
            Request::Add(add) => attachment("ADD", add),
            Request::Del(del) => attachment("DEL", del),
            Request::Check(check) => attachment("CHECK", check),
            Request::Gc(gc) => base("GC", Some(gc.config.name.as_str())),
            Request::Status(config) => base("STATUS", Some(config.name.as_str())),
            Request::Version(_) => base("VERSION", None),
        }
    }

    /// A DEL that was stored as a tombstone while no agent ran.
    pub(crate) fn via_tombstone(self) -> Self {
        Self { via: Some("tombstone"), ..self }
    }

    pub(crate) fn verb(&self) -> &'static str {
        self.verb
    }
}

fn pod_name(call: &AttachmentRequest) -> Option<String> {
    let name = call.args.pod_name.as_ref()?;
    Some(escaped(&match &call.args.pod_namespace {
        Some(namespace) => format!("{namespace}/{name}"),
        None => name.clone(),
    }))
}

/// Escapes unvalidated names, so that they cannot break a log line or forge another one.
fn escaped(text: &str) -> String {
    text.chars().flat_map(|c| if c.is_whitespace() { '_'.escape_debug() } else { c.escape_debug() }).collect()
}

/// How a request ended.
#[derive(Debug)]
pub(crate) enum RequestOutcome<'a> {
    Ok {
        addresses: &'a [IpAddr],
        /// The number of attachments that a GC removed.
        collected: Option<usize>,
    },
    Failed(&'a cni::Error),
    /// The client hung up, or a DEL of the same attachment arrived.
    Cancelled(&'a cni::Error),
    /// The agent did not start to serve it.
    Refused(&'a cni::Error),
}

impl RequestOutcome<'_> {
    pub(crate) fn word(&self) -> &'static str {
        match self {
            RequestOutcome::Ok { .. } => "ok",
            RequestOutcome::Failed(_) => "failed",
            RequestOutcome::Cancelled(_) => "cancelled",
            RequestOutcome::Refused(_) => "refused",
        }
    }
}

/// Logs a served request.
pub(crate) fn request(subject: &RequestSubject, outcome: &RequestOutcome<'_>, took: Duration) {
    request_as(*FORMAT.get().unwrap_or(&Format::Text), subject, outcome, took);
}

fn request_as(
    format: Format,
    subject: &RequestSubject,
    request_outcome: &RequestOutcome<'_>,
    took: Duration,
) {
    let (ip, collected, error) = match request_outcome {
        RequestOutcome::Ok { addresses, collected } => (joined(addresses), *collected, None),
        RequestOutcome::Failed(error) | RequestOutcome::Cancelled(error) | RequestOutcome::Refused(error) => {
            (None, None, Some(*error))
        }
    };
    let (verb, outcome, ms) = (subject.verb, request_outcome.word(), took.as_secs_f64() * 1000.0);
    let (pod, net, ifname) = (show(&subject.pod), show(&subject.network), show(&subject.ifname));
    let (code, text) = (error.map(|e| e.code.number()), error.map(ToString::to_string));
    let (id, req) = (subject.container.as_deref(), subject.request.as_ref().map(RequestId::as_str));
    let via = subject.via.map(field::display);
    macro_rules! line {
        ($level:ident) => {
            match format {
                Format::Text => {
                    let (id, req) = (short(id, 13), short(req, 8));
                    $level!(
                        code,
                        pod,
                        net,
                        id,
                        "if" = ifname,
                        ip = show(&ip),
                        collected,
                        req,
                        via,
                        error = text,
                        "{verb} {outcome} {ms:.1}ms"
                    )
                }
                Format::Json => $level!(
                    verb,
                    outcome,
                    ms,
                    code,
                    pod,
                    net,
                    id,
                    "if" = ifname,
                    ip = show(&ip),
                    collected,
                    req,
                    via,
                    error = text,
                    "{verb} {outcome}"
                ),
            }
        };
    }
    match error {
        None => line!(info),
        Some(_) => line!(warn),
    }
}

fn show(text: &Option<String>) -> Option<field::DisplayValue<&String>> {
    text.as_ref().map(field::display)
}

/// A prefix of an ID that is long enough to search for.
fn short(id: Option<&str>, length: usize) -> Option<field::DisplayValue<String>> {
    id.map(|id| field::display(id.chars().take(length).collect()))
}

fn joined(addresses: &[IpAddr]) -> Option<String> {
    let texts: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    (!texts.is_empty()).then(|| texts.join(","))
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::{Arc, Mutex, Once};

    use cni::{Env, Error, ErrorCode};
    use serde_json::{Value, json};

    use super::*;

    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// The log output of `act` in this format.
    pub(crate) fn logged(format: Format, act: impl FnOnce()) -> String {
        // For each call site, tracing caches for all threads whether a subscriber wants its events. Without a global
        // subscriber, a test on another thread could cache that none does.
        static GLOBAL: Once = Once::new();
        GLOBAL.call_once(|| set_global_default(subscriber(format, LevelFilter::INFO, io::sink)).unwrap());
        let sink = Sink::default();
        let writer = sink.clone();
        let log = subscriber(format, LevelFilter::INFO, move || writer.clone());
        tracing::subscriber::with_default(log, act);
        String::from_utf8(sink.0.lock().unwrap().clone()).unwrap()
    }

    #[test]
    fn an_engine_warning_is_logged_in_one_line() {
        let text = logged(Format::Text, || engine_warning("not restored:\nbusy"));
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(text.contains("WARN completed with a problem problem="), "{text}");
        assert!(text.contains("not restored:") && text.contains("busy"), "{text}");
    }

    fn log_line(format: Format, outcome: &RequestOutcome<'_>, pod: &str) -> String {
        let env = [
            ("CNI_COMMAND", "ADD"),
            ("CNI_CONTAINERID", "3f2ab41c9d1e77aa00"),
            ("CNI_NETNS", "/run/netns/x"),
            ("CNI_IFNAME", "eth0"),
            ("CNI_ARGS", &format!("K8S_POD_NAMESPACE=default;K8S_POD_NAME={pod}")),
        ];
        let env = Env::from_vars(env.map(|(k, v)| (k.into(), v.into())));
        let config = json!({ "cniVersion": "1.1.0", "name": "podwire", "type": "podwire-cni" });
        let request = Request::parse(&env, config.to_string().as_bytes()).unwrap();
        let subject = RequestSubject::of(&request, &RequestId::from_random([0x7f; 16]));
        logged(format, || request_as(format, &subject, outcome, Duration::from_micros(1320)))
    }

    #[test]
    fn log_lines_contain_no_control_characters() {
        let hostile = "a\nINFO forged\r\u{1b}]0 x\u{7}\u{9b}2J\u{202e}b\u{7f}";
        let error = Error::new(ErrorCode::AddressTaken, hostile).with_details(hostile);
        for format in [Format::Text, Format::Json] {
            let events = [
                log_line(format, &RequestOutcome::Failed(&error), hostile),
                logged(format, || warn!("{hostile}")),
                logged(format, || warn!(field = hostile, shown = %hostile, debug = ?hostile, "message")),
            ];
            for line in events {
                let body = line.strip_suffix('\n').unwrap();
                let bad = |c: char| c.is_control() || c == '\u{202e}';
                assert!(!body.contains(bad) && body.contains("forged"), "{format:?}: {body:?}");
            }
        }
        let line = logged(Format::Json, || warn!(field = hostile, "message"));
        assert_eq!(serde_json::from_str::<Value>(&line).unwrap()["field"], hostile);
    }

    #[test]
    fn the_text_format_has_pod_network_id_and_addresses() {
        let addresses = ["10.83.0.5".parse().unwrap(), "fd00:88::5".parse().unwrap()];
        let line =
            log_line(Format::Text, &RequestOutcome::Ok { addresses: &addresses, collected: None }, "web-1");
        let (time, rest) = line.split_once("  INFO ").unwrap();
        assert!(time.ends_with('Z'), "{time}");
        assert_eq!(
            rest,
            "ADD ok 1.3ms pod=default/web-1 net=podwire id=3f2ab41c9d1e7 if=eth0 ip=10.83.0.5,fd00:88::5 req=7f7f7f7f\n"
        );
    }

    #[test]
    fn a_failure_is_logged_with_code_and_cause_in_one_line() {
        let error = Error::new(ErrorCode::AddressTaken, "10.83.0.5 is taken\nby default/db");
        let line = log_line(Format::Text, &RequestOutcome::Failed(&error), "a\nb c");
        assert_eq!(line.lines().count(), 1, "{line}");
        assert!(line.contains("WARN ADD failed 1.3ms code=101 pod=default/a_b_c net=podwire"), "{line}");
        assert!(line.contains(r#"error="10.83.0.5 is taken\nby default/db""#), "{line}");
    }

    #[test]
    fn the_json_format_has_the_fields_of_a_request() {
        let error = Error::new(ErrorCode::TryAgainLater, "the client hung up");
        let line = log_line(Format::Json, &RequestOutcome::Cancelled(&error), "web-1");
        let line: Value = serde_json::from_str(&line).unwrap();
        for (key, value) in [
            ("verb", json!("ADD")),
            ("outcome", json!("cancelled")),
            ("code", json!(11)),
            ("pod", json!("default/web-1")),
            ("id", json!("3f2ab41c9d1e77aa00")),
            ("error", json!("the client hung up")),
        ] {
            assert_eq!(line[key], value, "{line}");
        }
    }
}
