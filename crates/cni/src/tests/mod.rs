//! Table tests of the protocol, one requirement each, and property tests with random input (`any_input`).

mod any_input;
mod config;
mod environment;
mod lookup;
mod request;
mod result;
mod runtime;

use std::ffi::OsString;

use serde_json::{Value, json};

use crate::{AttachmentRequest, Env, Error, ErrorCode, Failure, Request};

pub(crate) fn env(vars: &[(&str, &str)]) -> Env {
    Env::from_vars(vars.iter().map(|(k, v)| (OsString::from(k), OsString::from(v))))
}

/// A complete environment for `command`, as libcni sets it.
pub(crate) fn env_for(command: &str) -> Env {
    env(&[
        ("CNI_COMMAND", command),
        ("CNI_CONTAINERID", "c1"),
        ("CNI_NETNS", "/run/netns/x"),
        ("CNI_IFNAME", "eth0"),
        ("CNI_PATH", "/opt/cni/bin"),
    ])
}

pub(crate) fn bytes(config: &Value) -> Vec<u8> {
    serde_json::to_vec(config).unwrap()
}

/// A 1.1.0 config with the keys of `extra`.
pub(crate) fn config(extra: &Value) -> Value {
    let mut config = json!({ "cniVersion": "1.1.0", "name": "net", "type": "podwire-cni" });
    for (key, value) in extra.as_object().unwrap() {
        config[key] = value.clone();
    }
    config
}

pub(crate) fn request(command: &str, config: &Value) -> Result<Request, Failure> {
    Request::parse(&env_for(command), &bytes(config))
}

pub(crate) fn add(extra: &Value) -> Result<AttachmentRequest, Error> {
    match request("ADD", &config(extra)) {
        Ok(Request::Add(call)) => Ok(call),
        Ok(other) => panic!("ADD was parsed as {other:?}"),
        Err(failure) => Err(failure.error),
    }
}

/// Asserts that ADD with `extra` is refused with this code, and that the message contains all texts.
#[track_caller]
pub(crate) fn assert_refused(extra: &Value, code: ErrorCode, texts: &[&str]) {
    let error = add(extra).unwrap_err();
    assert_eq!(error.code, code, "{error}");
    for text in texts {
        assert!(error.msg.contains(text), "{text} is not in: {error}");
    }
}
