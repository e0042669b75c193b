//! podwire-cni, the CNI plugin: environment and stdin in, one JSON value out, one line in the log.
//!
//! Small, static, no async runtime, no credentials. It calls the engine in its own process.

mod log;
mod stdio;

use std::process::ExitCode;
use std::time::Instant;

use cni::{Env, Failure, Request, Version};
use serde_json::Value;

use log::Line;

fn main() -> ExitCode {
    let start = Instant::now();
    let env = Env::from_vars(std::env::vars_os());
    if !env.has_command() {
        eprintln!("{}", about());
        return ExitCode::SUCCESS;
    }
    stdio::report_panics();
    let (value, code) = match answer(&env, start) {
        Ok(value) => (value, ExitCode::SUCCESS),
        Err(failure) => (Some(failure.to_json()), ExitCode::FAILURE),
    };
    // A runtime that cannot read the answer takes the call for failed: the status must say the same.
    if let Some(value) = value
        && let Err(e) = stdio::print(&value)
    {
        eprintln!("podwire-cni: cannot write the answer to stdout: {e}");
        return ExitCode::FAILURE;
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
    let request = Request::parse(env, &stdin)?;
    let path = env.path().unwrap_or_default();
    let outcome = engine::serve(&request, &path, &engine::Caller::STANDALONE);
    Line::of(&request, &outcome, start.elapsed()).write();
    match outcome {
        Ok(done) => Ok(done.answer),
        Err(error) => Err(Failure { error, version: version_of(&request) }),
    }
}

/// The error object speaks the version of the request.
fn version_of(request: &Request) -> Version {
    match request {
        Request::Add(call) | Request::Del(call) | Request::Check(call) => call.config.version,
        Request::Gc(gc) => gc.config.version,
        Request::Status(config) => config.version,
        Request::Version(version) => *version,
    }
}
