use std::fmt;

use serde_json::{Map, Value};

use crate::Version;

/// CNI error codes. 1 to 99 are defined by the CNI specification, 100 and above by Podwire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ErrorCode {
    IncompatibleVersion = 1,
    UnsupportedField = 2,
    UnknownContainer = 3,
    InvalidEnvironment = 4,
    Io = 5,
    Decode = 6,
    InvalidConfig = 7,
    TryAgainLater = 11,
    NotAvailable = 50,
    LimitedConnectivity = 51,
    AddressesExhausted = 100,
    AddressTaken = 101,
    AlreadyAttached = 102,
    Kernel = 103,
    State = 104,
    CheckFailed = 105,
    Delegate = 106,
    Internal = 199,
}

impl ErrorCode {
    pub const ALL: [ErrorCode; 18] = [
        ErrorCode::IncompatibleVersion,
        ErrorCode::UnsupportedField,
        ErrorCode::UnknownContainer,
        ErrorCode::InvalidEnvironment,
        ErrorCode::Io,
        ErrorCode::Decode,
        ErrorCode::InvalidConfig,
        ErrorCode::TryAgainLater,
        ErrorCode::NotAvailable,
        ErrorCode::LimitedConnectivity,
        ErrorCode::AddressesExhausted,
        ErrorCode::AddressTaken,
        ErrorCode::AlreadyAttached,
        ErrorCode::Kernel,
        ErrorCode::State,
        ErrorCode::CheckFailed,
        ErrorCode::Delegate,
        ErrorCode::Internal,
    ];

    pub fn number(self) -> u32 {
        self as u32
    }

    pub fn from_number(number: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|code| u64::from(code.number()) == number)
    }
}

/// A CNI error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    pub code: ErrorCode,
    pub msg: String,
    /// May be empty.
    pub details: String,
}

impl Error {
    pub fn new(code: ErrorCode, msg: impl Into<String>) -> Self {
        Self { code, msg: msg.into(), details: String::new() }
    }

    pub fn with_details(self, details: impl Into<String>) -> Self {
        Self { details: details.into(), ..self }
    }

    pub(crate) fn environment(msg: impl Into<String>) -> Self {
        Self::new(ErrorCode::InvalidEnvironment, msg)
    }

    pub(crate) fn decode(msg: impl Into<String>) -> Self {
        Self::new(ErrorCode::Decode, msg)
    }

    pub(crate) fn config(msg: impl Into<String>) -> Self {
        Self::new(ErrorCode::InvalidConfig, msg)
    }

    /// The error object for stdout.
    pub fn to_json(&self, version: Version) -> Value {
        let mut object = Map::new();
        object.insert("cniVersion".into(), version.as_str().into());
        object.insert("code".into(), self.code.number().into());
        object.insert("msg".into(), self.msg.clone().into());
        if !self.details.is_empty() {
            object.insert("details".into(), self.details.clone().into());
        }
        Value::Object(object)
    }

    /// Parses the error object of a delegate plugin. `None` if the value is not an error object. An unknown code becomes
    /// [`ErrorCode::Delegate`], and the details contain its number.
    pub fn from_json(value: &Value) -> Option<Self> {
        let text = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default();
        let number = value.get("code")?.as_u64()?;
        let error = |code| Self::new(code, text("msg"));
        match ErrorCode::from_number(number) {
            Some(code) => Some(error(code).with_details(text("details"))),
            None => {
                let details = format!("code {number} {}", text("details"));
                Some(error(ErrorCode::Delegate).with_details(details.trim_end()))
            }
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.msg)?;
        if self.details.is_empty() { Ok(()) } else { write!(f, ": {}", self.details) }
    }
}

impl std::error::Error for Error {}

/// An error for an invalid request, and the CNI version of the answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub error: Error,
    pub version: Version,
}

impl Failure {
    pub fn to_json(&self) -> Value {
        self.error.to_json(self.version)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for Failure {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}
