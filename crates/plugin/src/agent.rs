//! Agent mode: the request goes to the agent as it came, and the agent's answer comes back. No network logic here.
//!
//! Who restarts an agent loses nothing: ADD, CHECK and GC wait for it a while and carry the same request id, so that an
//! answer that got lost is given again; a DEL that nobody takes becomes a tombstone.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use api::{Client, ClientError, CniAnswer, CniCall, HttpAnswer, Tombstones};
use cni::{AttachmentRequest, CniResult, Error, ErrorCode, Request};
use engine::Done;
use netlink::NetNs;
use rustix::rand::{GetRandomFlags, getrandom};
use serde_json::Value;
use types::{Finding, Fix, RequestId};

use crate::Served;
use crate::retry::Retry;

/// How long ADD, CHECK and GC wait for an agent that is away or not ready.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How long STATUS does: it is asked to find out just that.
const STATUS_TIMEOUT: Duration = Duration::from_secs(1);
/// How long one attempt may take. After a hang-up the agent undoes the ADD.
const ANSWER: Duration = Duration::from_secs(60);
const _: () =
    assert!(engine::DELEGATE_TIMEOUT.as_secs() < ANSWER.as_secs(), "an ADD waits for its IPAM plugin");
const STATUS_ANSWER: Duration = Duration::from_secs(10);
/// A DEL has somewhere else to go.
const DEL_ANSWER: Duration = Duration::from_secs(20);
/// So much of a text that nobody expected is repeated in an error.
const EXCERPT: usize = 300;

/// Where the agent listens, and where what it cannot be told is left.
pub(crate) struct AgentPaths<'a> {
    pub(crate) socket: &'a Path,
    pub(crate) run_dir: &'a Path,
}

impl AgentPaths<'_> {
    /// Without its directories the command would ask another agent.
    fn status_command(&self) -> Fix {
        let mut words = vec!["podwire", "status"];
        let (run_dir, socket) = (self.run_dir.to_string_lossy(), self.socket.to_string_lossy());
        if self.run_dir != Path::new(netconf::DEFAULT_RUN_DIR) {
            words.extend(["--run-dir", &run_dir]);
        }
        if self.socket != netconf::default_socket(self.run_dir) {
            words.extend(["--socket", &socket]);
        }
        Fix::words(words)
    }
}

/// How the agent was asked, for the log.
pub(crate) struct AgentExchange {
    pub(crate) request_id: RequestId,
    pub(crate) attempts: u32,
    pub(crate) ending: ExchangeEnd,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExchangeEnd {
    /// The agent's answer, or that there was none, is the outcome.
    Reported,
    Tombstone,
}

/// What came of one attempt.
enum AttemptOutcome {
    Done(Done),
    /// The agent's own error about this request.
    Refused(Error),
    /// Nobody is there, or not for long enough: what to say if that stays.
    Away(Error),
    /// The agent says why it cannot work now.
    NotReady(Error),
    /// Something answers, but not as the agent does, or too late.
    Odd(Error),
}

pub(crate) fn ask(request: &Request, place: &AgentPaths<'_>, stdin: &[u8]) -> Served {
    let mut id = [0; 16];
    if let Err(e) = getrandom(&mut id, GetRandomFlags::empty()) {
        let error = Error::new(ErrorCode::Io, format!("cannot get random bytes for a request id: {e}"));
        return Served { outcome: Err(error), asked: None };
    }
    let call = CniCall {
        request_id: RequestId::from_random(id),
        env: cni_variables(),
        config: String::from_utf8_lossy(stdin).into_owned(),
    };
    let client = Client::new(place.socket);
    let mut asking = Asking { request, place, client, call, retry: Retry::within(timeout(request)) };
    let (outcome, ending) = asking.run();
    let Asking { call, retry, .. } = asking;
    let asked = AgentExchange { request_id: call.request_id, attempts: retry.attempts, ending };
    Served { outcome, asked: Some(asked) }
}

fn timeout(request: &Request) -> Duration {
    match request {
        Request::Add(_) | Request::Check(_) | Request::Gc(_) => TIMEOUT,
        Request::Status(_) => STATUS_TIMEOUT,
        Request::Del(_) | Request::Version(_) => Duration::ZERO,
    }
}

fn answer_within(request: &Request) -> Duration {
    match request {
        Request::Add(_) | Request::Check(_) | Request::Gc(_) => ANSWER,
        Request::Del(_) => DEL_ANSWER,
        Request::Status(_) | Request::Version(_) => STATUS_ANSWER,
    }
}

fn cni_variables() -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    for (name, value) in std::env::vars_os() {
        if let Some(name) = name.to_str().filter(|name| name.starts_with("CNI_")) {
            // What had to be text was looked at before; of one that is there twice, the first counts.
            all.entry(name.to_owned()).or_insert_with(|| value.to_string_lossy().into_owned());
        }
    }
    all
}

struct Asking<'a> {
    request: &'a Request,
    place: &'a AgentPaths<'a>,
    client: Client,
    call: CniCall,
    retry: Retry,
}

impl Asking<'_> {
    fn run(&mut self) -> (Result<Done, Error>, ExchangeEnd) {
        let verdict = loop {
            match self.attempt() {
                AttemptOutcome::Away(_) | AttemptOutcome::NotReady(_) if self.retry.again() => {}
                verdict => break verdict,
            }
        };
        let cause = match verdict {
            AttemptOutcome::Done(done) => return (Ok(done), ExchangeEnd::Reported),
            AttemptOutcome::Refused(error) => return (Err(self.as_seen_here(error)), ExchangeEnd::Reported),
            AttemptOutcome::Away(cause) => match self.request {
                Request::Status(_) => {
                    // The agent's configuration, which may be the reason, is not read here.
                    let status = self.place.status_command();
                    let msg = format!("the agent does not answer: {}; `{status}` shows why", cause.msg);
                    unreachable(Error { msg, ..cause }, "systemctl start podwire")
                }
                _ => self.in_vain(cause),
            },
            AttemptOutcome::NotReady(cause) => self.in_vain(cause),
            AttemptOutcome::Odd(cause)
                if matches!(self.request, Request::Status(_)) && cause.details.is_empty() =>
            {
                unreachable(cause, "systemctl restart podwire")
            }
            AttemptOutcome::Odd(cause) => cause,
        };
        match self.request {
            Request::Del(call) => self.bury(call, &cause),
            Request::Status(_) => (Err(not_available(cause)), ExchangeEnd::Reported),
            Request::Add(_) | Request::Check(_) | Request::Gc(_) | Request::Version(_) => {
                (Err(cause), ExchangeEnd::Reported)
            }
        }
    }

    fn attempt(&self) -> AttemptOutcome {
        match self.client.post(api::CNI, &self.call, answer_within(self.request)) {
            Ok(answer) => self.judge(&answer),
            Err(error) => {
                let (code, is_away) = match error {
                    ClientError::NoListener { .. } | ClientError::Broken { .. } => {
                        (ErrorCode::TryAgainLater, true)
                    }
                    ClientError::Connect { .. } | ClientError::TimedOut { .. } => {
                        (ErrorCode::TryAgainLater, false)
                    }
                    ClientError::Malformed { .. }
                    | ClientError::TooLarge { .. }
                    | ClientError::Request(_) => (ErrorCode::Decode, false),
                };
                let error = Error::new(code, error.to_string());
                if is_away { AttemptOutcome::Away(error) } else { AttemptOutcome::Odd(error) }
            }
        }
    }

    fn judge(&self, answer: &HttpAnswer) -> AttemptOutcome {
        let socket = self.place.socket.display();
        let odd = |msg: &str, what: &str| {
            AttemptOutcome::Odd(
                Error::new(ErrorCode::Io, msg).with_details(format!("{socket} answered {what}")),
            )
        };
        match answer.status {
            200 => self.result_of(answer),
            403 => odd("access denied", "403: only root may ask the agent"),
            404 => odd("page not found", "404: it is no agent, or one of another version than this plugin"),
            500 => AttemptOutcome::Refused(error_of(answer).unwrap_or_else(|| {
                let msg = "the agent failed, and its error cannot be read";
                Error::new(ErrorCode::Decode, msg)
                    .with_details(format!("{socket} answered 500: {}", excerpt(answer)))
            })),
            503 => AttemptOutcome::NotReady(error_of(answer).unwrap_or_else(|| {
                let msg = format!("the agent on {socket} cannot work now: {}", excerpt(answer));
                Error::new(ErrorCode::TryAgainLater, msg)
            })),
            status => match excerpt(answer) {
                text if text.is_empty() => odd(&format!("the agent answered {status}"), "without a text"),
                text => odd(&text, &status.to_string()),
            },
        }
    }

    /// The verbs that print nothing need nothing in it but that it is an answer.
    fn result_of(&self, answer: &HttpAnswer) -> AttemptOutcome {
        let unreadable = |why: String| {
            let socket = self.place.socket.display();
            let msg = format!("the agent's answer on {socket} cannot be read: {why}");
            AttemptOutcome::Odd(Error::new(ErrorCode::Decode, msg))
        };
        match (serde_json::from_slice::<CniAnswer>(&answer.body), self.request) {
            (Err(e), _) => unreadable(e.to_string()),
            (Ok(CniAnswer { result: Some(result) }), Request::Add(call)) => {
                match CniResult::from_json(call.config.version, &result) {
                    Ok(made) => AttemptOutcome::Done(Done {
                        addresses: made.ips.iter().map(|ip| ip.address.addr()).collect(),
                        answer: Some(result),
                        ..Done::default()
                    }),
                    Err(e) => unreadable(e.to_string()),
                }
            }
            (Ok(CniAnswer { result: None }), Request::Add(_)) => unreadable("it has no result".to_owned()),
            (Ok(_), _) => AttemptOutcome::Done(Done::default()),
        }
    }

    /// The runtime need not come again: the agent does it when it is back, before it does anything else.
    fn bury(&self, call: &AttachmentRequest, cause: &Error) -> (Result<Done, Error>, ExchangeEnd) {
        let key = call.key();
        let tombstones = Tombstones::new(self.place.run_dir);
        match tombstones.leave(&self.call, &key) {
            Ok(()) => {
                let dir = tombstones.dir().display();
                let message =
                    format!("{cause}; left a tombstone in {dir}, the agent removes {key} when it is back");
                eprintln!("podwire-cni: {}", types::one_line(&message));
                (Ok(Done::default()), ExchangeEnd::Tombstone)
            }
            Err(e) => {
                let error = Error::new(ErrorCode::TryAgainLater, format!("cannot leave a tombstone: {e}"));
                (Err(error.with_details(format!("it is needed because: {cause}"))), ExchangeEnd::Reported)
            }
        }
    }

    /// Says how often it was tried, where it was more than once.
    fn in_vain(&self, cause: Error) -> Error {
        match self.retry.attempts {
            1 => cause,
            n => with_more(cause, &format!("tried {n} times in {} s", timeout(self.request).as_secs())),
        }
    }

    /// An agent in a container sees the namespaces that are mounted into it, and those alone.
    fn as_seen_here(&self, error: Error) -> Error {
        let (Request::Add(AttachmentRequest { netns: Some(path), .. }), ErrorCode::UnknownContainer) =
            (self.request, error.code)
        else {
            return error;
        };
        if NetNs::open(Path::new(path)).is_err() {
            return error;
        }
        let advice = format!(
            "the agent does not see {path}, which exists here: if it runs in a container, mount /run/netns \
             (HostToContainer) or /proc into it"
        );
        with_more(error, &advice)
    }
}

fn with_more(error: Error, more: &str) -> Error {
    let details =
        if error.details.is_empty() { more.to_owned() } else { format!("{}; {more}", error.details) };
    error.with_details(details)
}

/// The condition of an agent that cannot be asked, as `podwire doctor` reports it.
fn unreachable(cause: Error, fix: &'static str) -> Error {
    let found = Finding::new(types::Code::AgentUnreachable, "agent", &cause.msg).fix(fix);
    cause.with_details(found.summary())
}

/// STATUS knows two codes; the one that the agent chose is kept.
fn not_available(cause: Error) -> Error {
    let code = match cause.code {
        ErrorCode::LimitedConnectivity => ErrorCode::LimitedConnectivity,
        _ => ErrorCode::NotAvailable,
    };
    Error { code, ..cause }
}

fn error_of(answer: &HttpAnswer) -> Option<Error> {
    let value: Value = serde_json::from_slice(&answer.body).ok()?;
    Error::from_json(&value).filter(|error| !error.msg.is_empty())
}

fn excerpt(answer: &HttpAnswer) -> String {
    let text = String::from_utf8_lossy(&answer.body);
    text.trim().chars().take(EXCERPT).map(|c| if c.is_control() { ' ' } else { c }).collect()
}
