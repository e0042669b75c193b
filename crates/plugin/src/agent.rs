//! Agent mode: forwards the request to the agent unchanged and returns the agent's answer. Contains no network logic.
//!
//! No request is lost if the agent restarts. ADD, CHECK and GC are retried with the same request id, so that the agent can
//! repeat a lost answer. If the agent cannot serve a DEL, the plugin writes a tombstone.

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

/// How long ADD, CHECK and GC are retried if the agent is unreachable or not ready.
const RETRY_TIMEOUT: Duration = Duration::from_secs(10);
/// STATUS is retried for a shorter time, because it should report an unreachable agent.
const STATUS_RETRY_TIMEOUT: Duration = Duration::from_secs(1);
/// Timeout of one attempt while the agent is alive. The client detects an agent that hangs after about 10 s. If the plugin closes the connection, the agent undoes the ADD.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
const _: () = assert!(
    engine::DELEGATE_TIMEOUT.as_secs() < ANSWER_TIMEOUT.as_secs(),
    "an ADD waits for its IPAM plugin"
);
const STATUS_ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Shorter than for ADD: a DEL can be replaced by a tombstone.
const DEL_ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
/// Characters of an unexpected answer that are repeated in an error.
const EXCERPT: usize = 300;

/// The agent's socket, and the run directory for tombstones.
pub(crate) struct AgentPaths<'a> {
    pub(crate) socket: &'a Path,
    pub(crate) run_dir: &'a Path,
}

impl AgentPaths<'_> {
    /// `podwire status` with options for paths that are not the default.
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

/// Details of the exchange with the agent, for the log.
pub(crate) struct AgentExchange {
    pub(crate) request_id: RequestId,
    pub(crate) attempts: u32,
    pub(crate) result: ExchangeResult,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExchangeResult {
    /// The agent answered, or the lack of an answer is returned as an error.
    Returned,
    Tombstone,
}

/// The outcome of one attempt.
enum AttemptOutcome {
    Done(Done),
    /// The agent answered with an error for this request.
    Refused(Error),
    /// No agent listens, or the connection was closed. The error is returned if retries fail, too.
    Unreachable(Error),
    /// The agent is not ready, with its reason.
    NotReady(Error),
    /// The answer is not valid or was not received in time, or the connection failed although an agent may listen.
    Invalid(Error),
}

pub(crate) fn forward(request: &Request, paths: &AgentPaths<'_>, stdin: &[u8]) -> Served {
    let mut id = [0; 16];
    if let Err(e) = getrandom(&mut id, GetRandomFlags::empty()) {
        let error = Error::new(ErrorCode::Io, format!("cannot get random bytes for a request id: {e}"));
        return Served { outcome: Err(error), exchange: None };
    }
    let call = CniCall {
        request_id: RequestId::from_random(id),
        env: cni_variables(),
        config: String::from_utf8_lossy(stdin).into_owned(),
    };
    let client = Client::new(paths.socket);
    let retry = Retry::within(retry_timeout(request));
    let mut forwarder = Forwarder { request, paths, client, call, retry };
    let (outcome, result) = forwarder.run();
    let Forwarder { call, retry, .. } = forwarder;
    let exchange = AgentExchange { request_id: call.request_id, attempts: retry.attempts, result };
    Served { outcome, exchange: Some(exchange) }
}

fn retry_timeout(request: &Request) -> Duration {
    match request {
        Request::Add(_) | Request::Check(_) | Request::Gc(_) => RETRY_TIMEOUT,
        Request::Status(_) => STATUS_RETRY_TIMEOUT,
        Request::Del(_) | Request::Version(_) => Duration::ZERO,
    }
}

fn answer_timeout(request: &Request) -> Duration {
    match request {
        Request::Add(_) | Request::Check(_) | Request::Gc(_) => ANSWER_TIMEOUT,
        Request::Del(_) => DEL_ANSWER_TIMEOUT,
        Request::Status(_) | Request::Version(_) => STATUS_ANSWER_TIMEOUT,
    }
}

fn cni_variables() -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    for (name, value) in std::env::vars_os() {
        if let Some(name) = name.to_str().filter(|name| name.starts_with("CNI_")) {
            // `cni` has validated variables that must be UTF-8. If a variable is set twice, the first value wins.
            all.entry(name.to_owned()).or_insert_with(|| value.to_string_lossy().into_owned());
        }
    }
    all
}

struct Forwarder<'a> {
    request: &'a Request,
    paths: &'a AgentPaths<'a>,
    client: Client,
    call: CniCall,
    retry: Retry,
}

impl Forwarder<'_> {
    fn run(&mut self) -> (Result<Done, Error>, ExchangeResult) {
        let last = loop {
            match self.attempt() {
                AttemptOutcome::Unreachable(_) | AttemptOutcome::NotReady(_) if self.retry.wait() => {}
                outcome => break outcome,
            }
        };
        let cause = match last {
            AttemptOutcome::Done(done) => return (Ok(done), ExchangeResult::Returned),
            AttemptOutcome::Refused(error) => {
                return (Err(self.with_mount_hint(error)), ExchangeResult::Returned);
            }
            AttemptOutcome::Unreachable(cause) => match self.request {
                Request::Status(_) => {
                    // The cause may be in the agent's configuration, which the plugin does not read.
                    let status = self.paths.status_command();
                    let msg = format!("the agent does not answer: {}; `{status}` shows why", cause.msg);
                    agent_unreachable(Error { msg, ..cause }, "systemctl start podwire")
                }
                _ => self.with_attempts(cause),
            },
            AttemptOutcome::NotReady(cause) => self.with_attempts(cause),
            AttemptOutcome::Invalid(cause)
                if matches!(self.request, Request::Status(_)) && cause.details.is_empty() =>
            {
                agent_unreachable(cause, "systemctl restart podwire")
            }
            AttemptOutcome::Invalid(cause) => cause,
        };
        match self.request {
            Request::Del(call) => self.write_tombstone(call, &cause),
            Request::Status(_) => (Err(not_available(cause)), ExchangeResult::Returned),
            Request::Add(_) | Request::Check(_) | Request::Gc(_) | Request::Version(_) => {
                (Err(cause), ExchangeResult::Returned)
            }
        }
    }

    fn attempt(&self) -> AttemptOutcome {
        match self.client.post(api::CNI, &self.call, answer_timeout(self.request)) {
            Ok(answer) => self.interpret(&answer),
            Err(error) => {
                let (code, is_unreachable) = match error {
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
                if is_unreachable {
                    AttemptOutcome::Unreachable(error)
                } else {
                    AttemptOutcome::Invalid(error)
                }
            }
        }
    }

    fn interpret(&self, answer: &HttpAnswer) -> AttemptOutcome {
        let socket = self.paths.socket.display();
        let invalid = |msg: &str, answered: &str| {
            AttemptOutcome::Invalid(
                Error::new(ErrorCode::Io, msg).with_details(format!("{socket} answered {answered}")),
            )
        };
        match answer.status {
            200 => self.parse_result(answer),
            403 => invalid("access denied", "403: only root may use the agent's API"),
            404 => invalid("page not found", "404: not an agent, or its version differs from the plugin's"),
            500 => AttemptOutcome::Refused(error_of(answer).unwrap_or_else(|| {
                let msg = "the agent failed, and its error cannot be read";
                Error::new(ErrorCode::Decode, msg)
                    .with_details(format!("{socket} answered 500: {}", excerpt(answer)))
            })),
            503 => AttemptOutcome::NotReady(error_of(answer).unwrap_or_else(|| {
                let msg = format!("the agent on {socket} is not ready: {}", excerpt(answer));
                Error::new(ErrorCode::TryAgainLater, msg)
            })),
            status => match excerpt(answer) {
                text if text.is_empty() => {
                    invalid(&format!("the agent answered {status}"), "with an empty body")
                }
                text => invalid(&text, &status.to_string()),
            },
        }
    }

    /// Only ADD needs a result. For all other commands any valid answer is a success.
    fn parse_result(&self, answer: &HttpAnswer) -> AttemptOutcome {
        let unreadable = |reason: String| {
            let socket = self.paths.socket.display();
            let msg = format!("the agent's answer on {socket} cannot be read: {reason}");
            AttemptOutcome::Invalid(Error::new(ErrorCode::Decode, msg))
        };
        match (serde_json::from_slice::<CniAnswer>(&answer.body), self.request) {
            (Err(e), _) => unreadable(e.to_string()),
            (Ok(CniAnswer { result: Some(result) }), Request::Add(call)) => {
                match CniResult::from_json(call.config.version, &result) {
                    Ok(parsed) => AttemptOutcome::Done(Done {
                        addresses: parsed.ips.iter().map(|ip| ip.address.addr()).collect(),
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

    /// With a tombstone the runtime need not retry: the agent serves the DEL when it starts, before all other requests.
    fn write_tombstone(
        &self,
        call: &AttachmentRequest,
        cause: &Error,
    ) -> (Result<Done, Error>, ExchangeResult) {
        let key = call.key();
        let tombstones = Tombstones::new(self.paths.run_dir);
        match tombstones.write(&self.call, &key) {
            Ok(()) => {
                let dir = tombstones.dir().display();
                let message =
                    format!("{cause}; wrote a tombstone to {dir}, the agent removes {key} when it starts");
                eprintln!("podwire-cni: {}", types::one_line(&message));
                (Ok(Done::default()), ExchangeResult::Tombstone)
            }
            Err(e) => {
                let error = Error::new(ErrorCode::TryAgainLater, format!("cannot write a tombstone: {e}"));
                let details = format!("the agent cannot serve the DEL: {cause}");
                (Err(error.with_details(details)), ExchangeResult::Returned)
            }
        }
    }

    /// Adds the number of attempts, if there were several.
    fn with_attempts(&self, cause: Error) -> Error {
        match self.retry.attempts {
            1 => cause,
            n => {
                add_details(cause, &format!("tried {n} times in {} s", retry_timeout(self.request).as_secs()))
            }
        }
    }

    /// An agent in a container can only open namespaces that are mounted into the container.
    fn with_mount_hint(&self, error: Error) -> Error {
        let (Request::Add(AttachmentRequest { netns: Some(path), .. }), ErrorCode::UnknownContainer) =
            (self.request, error.code)
        else {
            return error;
        };
        if NetNs::open(Path::new(path)).is_err() {
            return error;
        }
        let hint = format!(
            "{path} exists for the plugin but not for the agent: if the agent runs in a container, mount /run/netns \
             (HostToContainer) or /proc into it"
        );
        add_details(error, &hint)
    }
}

fn add_details(error: Error, added: &str) -> Error {
    let details =
        if error.details.is_empty() { added.to_owned() } else { format!("{}; {added}", error.details) };
    error.with_details(details)
}

/// Adds code and fix of the condition `AgentUnreachable`, as in `podwire doctor`.
fn agent_unreachable(cause: Error, fix: &'static str) -> Error {
    let finding = Finding::new(types::Code::AgentUnreachable, "agent", &cause.msg).fix(fix);
    cause.with_details(finding.summary())
}

/// STATUS has only two error codes. 51 of the agent is kept; all other codes become 50.
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
