use std::fmt;
use std::str::FromStr;

use serde_json::{Value, json};

use crate::json::Obj;
use crate::{Error, ErrorCode};

/// A version of the CNI specification. Older is less.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    V0_1_0,
    V0_2_0,
    V0_3_0,
    V0_3_1,
    V0_4_0,
    V1_0_0,
    V1_1_0,
}

impl Version {
    pub const ALL: [Version; 7] = [
        Version::V0_1_0,
        Version::V0_2_0,
        Version::V0_3_0,
        Version::V0_3_1,
        Version::V0_4_0,
        Version::V1_0_0,
        Version::V1_1_0,
    ];
    pub const LATEST: Version = Version::V1_1_0;
    /// What a config without `cniVersion` is in: the field came with 0.2.0 (and the reference reads it so).
    pub const UNSTATED: Version = Version::V0_1_0;

    pub fn as_str(self) -> &'static str {
        match self {
            Version::V0_1_0 => "0.1.0",
            Version::V0_2_0 => "0.2.0",
            Version::V0_3_0 => "0.3.0",
            Version::V0_3_1 => "0.3.1",
            Version::V0_4_0 => "0.4.0",
            Version::V1_0_0 => "1.0.0",
            Version::V1_1_0 => "1.1.0",
        }
    }

    pub fn parse(text: &str) -> Result<Self, Error> {
        Self::ALL.into_iter().find(|v| v.as_str() == text).ok_or_else(|| {
            let supported = Self::ALL.map(Self::as_str).join(", ");
            let msg =
                format!("incompatible CNI versions: the config has {text:?}, supported are {supported}");
            Error::new(ErrorCode::IncompatibleVersion, msg)
        })
    }

    /// The version that a config states, if it does. Empty is absent, as in the reference.
    pub(crate) fn stated(config: &Obj<'_>) -> Result<Option<Self>, Error> {
        config.nonempty("cniVersion")?.map(Self::parse).transpose()
    }
}

impl FromStr for Version {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self, Error> {
        Self::parse(text)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The answer to VERSION: the version we were asked in, and all that we speak.
pub fn version_answer(asked: Version) -> Value {
    json!({ "cniVersion": asked.as_str(), "supportedVersions": Version::ALL.map(Version::as_str) })
}
