//! The protocol as tables, one requirement each, and then everything that is no request at all.

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

/// A 1.1.0 config with `extra` laid over it.
pub(crate) fn config(extra: &Value) -> Value {
    let mut config = json!({ "cniVersion": "1.1.0", "name": "net", "type": "podwire-cni" });
    for (key, value) in extra.as_object().unwrap() {
        config[key] = value.clone();
    }
    config
}

pub(crate) fn ask(command: &str, config: &Value) -> Result<Request, Failure> {
    Request::parse(&env_for(command), &bytes(config))
}

pub(crate) fn add(extra: &Value) -> Result<AttachmentRequest, Error> {
    match ask("ADD", &config(extra)) {
        Ok(Request::Add(call)) => Ok(call),
        Ok(other) => panic!("ADD became {other:?}"),
        Err(failure) => Err(failure.error),
    }
}

/// ADD with `extra` is refused with this code, and the message holds all of these words.
#[track_caller]
pub(crate) fn refused(extra: &Value, code: ErrorCode, words: &[&str]) {
    let error = add(extra).unwrap_err();
    assert_eq!(error.code, code, "{error}");
    for word in words {
        assert!(error.msg.contains(word), "{word} is not in: {error}");
    }
}
