//! podwire-cni, the CNI plugin. Reads a request from the environment and stdin, prints one JSON value and writes one log line.
//!
//! ```text
//!  CNI_*, stdin ─► Request ─┬─► engine, in this process                      standalone
//!                           ├─► agent.rs: one POST to the agent's socket     "agent" in the config
//!                           └─► loopback.rs                                  executed as `loopback`
//! ```
//!
//! Small and static, without async runtime, credentials and additional threads.

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

/// The outcome of a request, for stdout and the log.
pub(crate) struct Served {
    pub(crate) outcome: Result<Done, cni::Error>,
    /// None if the plugin served the request itself.
    pub(crate) exchange: Option<AgentExchange>,
}

/// Replaces the start-up code of Rust's runtime, which reads /proc/self/maps and installs signal handlers to report a stack
/// overflow. That takes a twelfth of the run time of this process. Only two of its steps are needed: SIGPIPE is ignored, so
/// that a write to a closed pipe returns an error, and closed standard descriptors are opened. With glibc, arguments and
/// environment are available without the start-up code.
#[cfg(not(test))]
#[expect(
    unsafe_code,
    reason = "the C library calls a function with this exact name; signal(2) is a C function"
)]
#[unsafe(no_mangle)]
extern "C" fn main() -> i32 {
    // SAFETY: SIG_IGN installs no handler function, and the process has only one thread.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    if let Err(error) = stdio::open_missing_descriptors() {
        eprintln!(
            "podwire-cni: stdin, stdout or stderr is closed, and /dev/null cannot be opened instead: {error}"
        );
        return 1;
    }
    run()
}

/// Returns the exit code.
#[cfg_attr(test, expect(dead_code, reason = "the test harness has its own main function"))]
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
    // A runtime that gets no answer treats the request as failed, so the exit code must be 1.
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
        "podwire-cni {}: a CNI plugin, executed by a container runtime (CNI_COMMAND is not set)\n\
         CNI protocol versions supported: {}",
        env!("CARGO_PKG_VERSION"),
        versions.join(", ")
    )
}

/// Returns the answer for stdout, if any.
fn answer(env: &Env, start: Instant) -> Result<Option<Value>, Failure> {
    let stdin = stdio::read_config().map_err(|error| Failure { error, version: Version::LATEST })?;
    let is_loopback = is_executed_as("loopback");
    let request = match Request::parse(env, &stdin) {
        Ok(request) => request,
        Err(failure) => {
            if !is_loopback && let Some(line) = LogLine::of_invalid(env, &stdin, &failure, start.elapsed()) {
                line.write();
            }
            return Err(failure);
        }
    };
    let outcome = if is_loopback {
        loopback::serve(&request)
    } else {
        let served = serve(&request, &stdin);
        LogLine::of(&request, &served, start.elapsed()).write();
        served.outcome.map(|done| done.answer)
    };
    outcome.map_err(|error| Failure { error, version: request.version() })
}

fn serve(request: &Request, stdin: &[u8]) -> Served {
    // Invalid paths are ignored here. The engine reports all errors in a config.
    let paths = config_of(request).and_then(|config| LocalPaths::parse(config).ok());
    if let Some(paths) = &paths
        && let Some(socket) = &paths.agent
    {
        return agent::forward(request, &agent::AgentPaths { socket, run_dir: &paths.run_dir }, stdin);
    }
    let warn = |message: &str| eprintln!("podwire-cni: {}", types::one_line(message));
    Served { outcome: engine::serve(request, &engine::Caller::standalone(&warn)), exchange: None }
}

/// Whether this program is executed under that name, through a link or as a copy.
fn is_executed_as(name: &str) -> bool {
    let program = std::env::args_os().next();
    program.is_some_and(|path| Path::new(&path).file_name() == Some(OsStr::new(name)))
}

/// None for VERSION, which is not logged: runtimes call it often, and it concerns no pod.
fn config_of(request: &Request) -> Option<&NetworkConfig> {
    match request {
        Request::Add(call) | Request::Del(call) | Request::Check(call) => Some(&call.config),
        Request::Gc(gc) => Some(&gc.config),
        Request::Status(config) => Some(config),
        Request::Version(_) => None,
    }
}
