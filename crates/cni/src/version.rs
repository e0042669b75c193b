use std::fmt;
use std::str::FromStr;

use serde_json::{Value, json};

use crate::json::Obj;
use crate::{Error, ErrorCode};

/// A version of the CNI specification, ordered from old to new.
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
    /// The version of a config without `cniVersion`, which was added in 0.2.0. The reference plugins do the same.
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
            let msg = format!(
                "incompatible CNI versions: the config has {text:?}, supported versions are {supported}"
            );
            Error::new(ErrorCode::IncompatibleVersion, msg)
        })
    }

    /// `cniVersion` of a config. Empty means absent, as in the reference plugins.
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

/// The answer to VERSION: the version of the request, and all supported versions.
pub fn version_answer(version: Version) -> Value {
    json!({ "cniVersion": version.as_str(), "supportedVersions": Version::ALL.map(Version::as_str) })
}
