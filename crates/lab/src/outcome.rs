use std::fmt;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustix::process::Signal;
use serde::Deserialize;
use serde_json::Value;

/// Exit status and output of a program.
#[derive(Debug, Clone)]
pub struct Outcome {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
    /// Time from just before the start to the exit.
    pub elapsed: Duration,
}

/// The error object of the CNI specification.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct CniError {
    pub code: u32,
    pub msg: String,
    #[serde(default)]
    pub details: String,
}

impl fmt::Display for CniError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { code, msg, details } = self;
        write!(f, "{msg} (CNI error {code}")?;
        if !details.is_empty() {
            write!(f, ": {details}")?;
        }
        f.write_str(")")
    }
}

impl Outcome {
    pub fn success(&self) -> bool {
        self.status.success()
    }

    /// True if SIGKILL ended the program.
    pub fn killed(&self) -> bool {
        self.status.signal() == Some(Signal::KILL.as_raw())
    }

    pub fn json(&self) -> Result<Value> {
        serde_json::from_str(&self.stdout).with_context(|| format!("stdout is not JSON: {}", self.describe()))
    }

    /// The result of a successful call; null for verbs without a result (DEL, CHECK, GC, STATUS).
    pub fn ok(&self) -> Result<Value> {
        if !self.success() {
            bail!("the call failed: {}", self.describe());
        }
        if self.stdout.trim().is_empty() { Ok(Value::Null) } else { self.json() }
    }

    /// Like [`Self::ok`], with the plugin's own message as the error.
    pub fn result(&self) -> Result<Value> {
        if !self.success()
            && let Ok(error) = self.error()
        {
            bail!("{error}");
        }
        self.ok()
    }

    /// The error of a call that failed as specified: a nonzero exit code and an error object on stdout.
    pub fn error(&self) -> Result<CniError> {
        if self.success() {
            bail!("the call succeeded, expected an error: {}", self.describe());
        }
        serde_json::from_value(self.json()?)
            .with_context(|| format!("stdout is not a CNI error object: {}", self.describe()))
    }

    /// Exit status, stdout and stderr for the message of a failed test.
    pub fn describe(&self) -> String {
        format!("{}, stdout: {:?}, stderr: {:?}", self.status, self.stdout.trim(), self.stderr.trim())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(exit: i32, stdout: &str) -> Outcome {
        Outcome {
            status: ExitStatus::from_raw(exit << 8),
            stdout: stdout.to_owned(),
            stderr: "a hint".to_owned(),
            elapsed: Duration::ZERO,
        }
    }

    #[test]
    fn ok_returns_the_result_or_null() {
        assert_eq!(outcome(0, "").ok().unwrap(), Value::Null);
        assert_eq!(outcome(0, r#"{"ips":[]}"#).ok().unwrap()["ips"], Value::Array(vec![]));
        let failed = outcome(1, r#"{"code":7,"msg":"no"}"#).ok().unwrap_err().to_string();
        assert!(failed.contains("a hint") && failed.contains("no"), "{failed}");
        assert!(outcome(0, "{").ok().is_err());
    }

    #[test]
    fn result_fails_with_the_message_of_the_plugin() {
        let failed = |stdout| outcome(1, stdout).result().unwrap_err().to_string();
        assert_eq!(
            failed(r#"{"code":100,"msg":"no free address","details":"d"}"#),
            "no free address (CNI error 100: d)"
        );
        assert_eq!(failed(r#"{"code":11,"msg":"again"}"#), "again (CNI error 11)");
        assert!(failed("no JSON").contains("a hint"));
        assert_eq!(outcome(0, "").result().unwrap(), Value::Null);
    }

    #[test]
    fn error_requires_a_failed_status_and_an_error_object() {
        let error =
            outcome(1, r#"{"cniVersion":"1.1.0","code":11,"msg":"again","details":"d"}"#).error().unwrap();
        assert_eq!(error, CniError { code: 11, msg: "again".into(), details: "d".into() });
        assert!(outcome(0, r#"{"code":11,"msg":"again"}"#).error().is_err());
        assert!(outcome(1, r#"{"msg":"no code"}"#).error().is_err());
        assert!(outcome(1, "").error().is_err());
    }
}
