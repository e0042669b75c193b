//! podwire-cni, the CNI plugin: environment and stdin in, one JSON value out, one line in the log.
//!
//! ```text
//!  CNI_*, stdin ─► Request ─┬─► engine, in this process                      standalone
//!                           ├─► agent.rs: one POST to the agent's socket     "agent" in the config
//!                           └─► loopback.rs                                  called by the name `loopback`
//! ```
//!
//! Small, static, no async runtime, no credentials, no threads of its own.

#![cfg_attr(not(test), no_main)]

mod agent;
mod journal;
mod log;
mod loopback;
mod retry;
mod stdio;

use std::ffi::OsStr;
use std::path::Path;
use std::time::Instant;

use cni::{Env, Failure, NetworkConfig, Request, Version};
use engine::Done;
use netconf::LocalPaths;
use serde_json::Value;

use agent::AgentExchange;
use log::LogLine;

/// How a request went, for stdout and for the log.
pub(crate) struct Served {
    pub(crate) outcome: Result<Done, cni::Error>,
    /// None: nobody was asked, it was done here.
    pub(crate) asked: Option<AgentExchange>,
}

/// Called by the C library itself, without the preparations of Rust's runtime: they read /proc/self/maps and set up signal
/// handlers, all for a message when the stack overflows, and take a twelfth of what this process costs. Two of them are
/// needed: whoever writes where nobody reads any more gets an error and is not killed by a signal, and no file of ours
/// becomes standard output. glibc tells Rust arguments and environment all the same.
#[cfg(not(test))]
#[expect(
    unsafe_code,
    reason = "the C library looks for a function of this name, and takes signals in its own way"
)]
#[unsafe(no_mangle)]
extern "C" fn main() -> i32 {
    // SAFETY: SIG_IGN is no function of ours, and there is one thread.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    if let Err(error) = stdio::hold_places() {
        eprintln!(
            "podwire-cni: stdin, stdout or stderr is closed, and /dev/null cannot be opened instead: {error}"
        );
        return 1;
    }
    run()
}

/// The exit status.
#[cfg_attr(test, expect(dead_code, reason = "the tests have a start of their own"))]
fn run() -> i32 {
    let start = Instant::now();
    let env = Env::from_vars(std::env::vars_os());
    if !env.has_command() {
        eprintln!("{}", about());
        return 0;
    }
    stdio::report_panics();
    let (value, code) = match answer(&env, start) {
        Ok(value) => (value, 0),
        Err(failure) => (Some(failure.to_json()), 1),
    };
    // A runtime that cannot read the answer takes the call for failed: the status must say the same.
    if let Some(value) = value
        && let Err(e) = stdio::print(&value)
    {
        eprintln!("podwire-cni: cannot write the answer to stdout: {e}");
        return 1;
    }
    code
}

fn about() -> String {
    let versions: Vec<&str> = Version::ALL.iter().map(|v| v.as_str()).collect();
    format!(
        "podwire-cni {}: a CNI plugin, called by a container runtime (CNI_COMMAND is not set)\n\
         CNI protocol versions supported: {}",
        env!("CARGO_PKG_VERSION"),
        versions.join(", ")
    )
}

/// What goes to stdout, if anything does.
fn answer(env: &Env, start: Instant) -> Result<Option<Value>, Failure> {
    let stdin = stdio::read_config().map_err(|error| Failure { error, version: Version::LATEST })?;
    let named_loopback = is_named("loopback");
    let request = match Request::parse(env, &stdin) {
        Ok(request) => request,
        Err(failure) => {
            if !named_loopback && let Some(line) = LogLine::of_refused(env, &stdin, &failure, start.elapsed())
            {
                line.write();
            }
            return Err(failure);
        }
    };
    let outcome = if named_loopback {
        loopback::serve(&request)
    } else {
        let served = serve(&request, &stdin);
        LogLine::of(&request, &served, start.elapsed()).write();
        served.outcome.map(|done| done.answer)
    };
    outcome.map_err(|error| Failure { error, version: request.version() })
}

fn serve(request: &Request, stdin: &[u8]) -> Served {
    // A place that cannot be read is the engine's to report, as everything else that is wrong with a config.
    let place = config_of(request).and_then(|config| LocalPaths::parse(config).ok());
    if let Some(place) = &place
        && let Some(socket) = &place.agent
    {
        return agent::ask(request, &agent::AgentPaths { socket, run_dir: &place.run_dir }, stdin);
    }
    let warn = |message: &str| eprintln!("podwire-cni: {}", types::one_line(message));
    Served { outcome: engine::serve(request, &engine::Caller::standalone(&warn)), asked: None }
}

/// Whether this program was called by that name, as a link or a copy of it is.
fn is_named(name: &str) -> bool {
    let called = std::env::args_os().next();
    called.is_some_and(|path| Path::new(&path).file_name() == Some(OsStr::new(name)))
}

/// VERSION has none: it is asked often and says nothing about a pod.
fn config_of(request: &Request) -> Option<&NetworkConfig> {
    match request {
        Request::Add(call) | Request::Del(call) | Request::Check(call) => Some(&call.config),
        Request::Gc(gc) => Some(&gc.config),
        Request::Status(config) => Some(config),
        Request::Version(_) => None,
    }
}
