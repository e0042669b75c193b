use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A transport protocol that has ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

impl Protocol {
    pub const ALL: [Protocol; 3] = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        }
    }

    /// The protocol number in an IP header.
    pub fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
            Self::Sctp => 132,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a protocol: tcp, udp or sctp")]
pub struct ProtocolError(String);

impl FromStr for Protocol {
    type Err = ProtocolError;
    /// Case-insensitive: some runtimes write upper case.
    fn from_str(text: &str) -> Result<Self, ProtocolError> {
        let known = Self::ALL.into_iter().find(|p| p.as_str().eq_ignore_ascii_case(text));
        known.ok_or_else(|| ProtocolError(text.to_owned()))
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
