//! The agent's log on stderr, and its one line per request that a person can follow:
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
    /// For people.
    Text,
    /// One object a line, for machines.
    Json,
}

/// How the log of this process is written; without it (in tests), as text.
static FORMAT: OnceLock<Format> = OnceLock::new();

#[derive(Debug, thiserror::Error)]
pub enum LogError {
    #[error("cannot start the log: {0}")]
    Start(#[from] SetGlobalDefaultError),
}

/// A problem that the engine reports and that does not fail the request or the round.
pub(crate) fn engine_warning(message: &str) {
    warn!(problem = message, "completed with a problem");
}

/// Starts the log of this process; once.
pub(crate) fn start(format: Format, level: LevelFilter) -> Result<(), LogError> {
    set_global_default(subscriber(format, level, io::stderr))?;
    FORMAT.get_or_init(|| format);
    Ok(())
}

/// Times are UTC; no colours, since the journal keeps what it gets.
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

/// The one place through which all of the log goes. Messages and fields come from requests, records, answers and other
/// programs: none of them can break a line or send a terminal commands.
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

/// Gets an event as a whole, in one write.
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

/// Whom a request is about.
#[derive(Debug, Clone, Default)]
pub(crate) struct RequestSubject {
    verb: &'static str,
    pod: Option<String>,
    network: Option<String>,
    container: Option<String>,
    ifname: Option<String>,
    request: Option<RequestId>,
    /// Where it came from, if not from a client.
    via: Option<&'static str>,
}

impl RequestSubject {
    /// A request that could not be understood.
    pub(crate) fn unknown(request: &RequestId) -> Self {
        Self { verb: "unknown", request: Some(request.clone()), ..Self::default() }
    }

    pub(crate) fn of(request: &Request, id: &RequestId) -> Self {
        let about = |verb, network: Option<&str>| Self {
            verb,
            network: network.map(str::to_owned),
            request: Some(id.clone()),
            ..Self::default()
        };
        let call = |verb, call: &AttachmentRequest| Self {
            pod: pod_name(call),
            container: Some(call.container.to_string()),
            ifname: Some(plain(call.ifname.as_str())),
            ..about(verb, Some(call.config.name.as_str()))
        };
        match request {
            Request::Add(add) => call("ADD", add),
            Request::Del(del) => call("DEL", del),
            Request::Check(check) => call("CHECK", check),
            Request::Gc(gc) => about("GC", Some(gc.config.name.as_str())),
            Request::Status(config) => about("STATUS", Some(config.name.as_str())),
            Request::Version(_) => about("VERSION", None),
        }
    }

    /// A DEL that was left while nobody was here.
    pub(crate) fn via_tombstone(self) -> Self {
        Self { via: Some("tombstone"), ..self }
    }

    pub(crate) fn verb(&self) -> &'static str {
        self.verb
    }
}

fn pod_name(call: &AttachmentRequest) -> Option<String> {
    let name = call.args.pod_name.as_ref()?;
    Some(plain(&match &call.args.pod_namespace {
        Some(namespace) => format!("{namespace}/{name}"),
        None => name.clone(),
    }))
}

/// Names that nobody checked cannot break a line or forge another.
fn plain(text: &str) -> String {
    text.chars().flat_map(|c| if c.is_whitespace() { '_'.escape_debug() } else { c.escape_debug() }).collect()
}

/// How a request ended.
#[derive(Debug)]
pub(crate) enum RequestOutcome<'a> {
    Ok {
        addresses: &'a [IpAddr],
        collected: Option<usize>,
    },
    Failed(&'a cni::Error),
    /// Nobody wanted it any more.
    Cancelled(&'a cni::Error),
    /// It was not begun.
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

/// Writes the line of a request.
pub(crate) fn request(subject: &RequestSubject, ending: &RequestOutcome<'_>, took: Duration) {
    request_as(*FORMAT.get().unwrap_or(&Format::Text), subject, ending, took);
}

fn request_as(format: Format, subject: &RequestSubject, ending: &RequestOutcome<'_>, took: Duration) {
    let (ip, collected, error) = match ending {
        RequestOutcome::Ok { addresses, collected } => (joined(addresses), *collected, None),
        RequestOutcome::Failed(error) | RequestOutcome::Cancelled(error) | RequestOutcome::Refused(error) => {
            (None, None, Some(*error))
        }
    };
    let (verb, outcome, ms) = (subject.verb, ending.word(), took.as_secs_f64() * 1000.0);
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

/// Enough of an id to find it with.
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

    /// What a log of this format has after `act`.
    pub(crate) fn logged(format: Format, act: impl FnOnce()) -> String {
        // tracing decides once per call site, for all threads, whether a subscriber wants its events. Without a global one, a
        // test on another thread that has none could decide that nothing does.
        static GLOBAL: Once = Once::new();
        GLOBAL.call_once(|| set_global_default(subscriber(format, LevelFilter::INFO, io::sink)).unwrap());
        let sink = Sink::default();
        let writer = sink.clone();
        let log = subscriber(format, LevelFilter::INFO, move || writer.clone());
        tracing::subscriber::with_default(log, act);
        String::from_utf8(sink.0.lock().unwrap().clone()).unwrap()
    }

    #[test]
    fn a_problem_of_the_engine_is_one_line() {
        let text = logged(Format::Text, || engine_warning("not restored:\nbusy"));
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(text.contains("WARN completed with a problem problem="), "{text}");
        assert!(text.contains("not restored:") && text.contains("busy"), "{text}");
    }

    fn written(format: Format, ending: &RequestOutcome<'_>, pod: &str) -> String {
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
        logged(format, || request_as(format, &subject, ending, Duration::from_micros(1320)))
    }

    #[test]
    fn log_lines_hold_no_control_characters_from_outside() {
        let hostile = "a\nINFO forged\r\u{1b}]0 x\u{7}\u{9b}2J\u{202e}b\u{7f}";
        let error = Error::new(ErrorCode::AddressTaken, hostile).with_details(hostile);
        for format in [Format::Text, Format::Json] {
            let events = [
                written(format, &RequestOutcome::Failed(&error), hostile),
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
    fn a_line_that_a_person_can_follow() {
        let addresses = ["10.83.0.5".parse().unwrap(), "fd00:88::5".parse().unwrap()];
        let line =
            written(Format::Text, &RequestOutcome::Ok { addresses: &addresses, collected: None }, "web-1");
        let (time, rest) = line.split_once("  INFO ").unwrap();
        assert!(time.ends_with('Z'), "{time}");
        assert_eq!(
            rest,
            "ADD ok 1.3ms pod=default/web-1 net=podwire id=3f2ab41c9d1e7 if=eth0 ip=10.83.0.5,fd00:88::5 req=7f7f7f7f\n"
        );
    }

    #[test]
    fn a_failure_says_code_and_cause_in_one_line() {
        let error = Error::new(ErrorCode::AddressTaken, "10.83.0.5 is taken\nby default/db");
        let line = written(Format::Text, &RequestOutcome::Failed(&error), "a\nb c");
        assert_eq!(line.lines().count(), 1, "{line}");
        assert!(line.contains("WARN ADD failed 1.3ms code=101 pod=default/a_b_c net=podwire"), "{line}");
        assert!(line.contains(r#"error="10.83.0.5 is taken\nby default/db""#), "{line}");
    }

    #[test]
    fn the_same_as_json() {
        let error = Error::new(ErrorCode::TryAgainLater, "the client hung up");
        let line = written(Format::Json, &RequestOutcome::Cancelled(&error), "web-1");
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
