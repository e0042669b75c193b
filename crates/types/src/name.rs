use std::fmt;

use serde::{Deserialize, Serialize};

/// Why a name from outside was refused; the sentence says what is allowed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    #[error("{0} is empty")]
    Empty(&'static str),
    #[error(
        "{what} {value:?} is invalid: it must start with a letter or digit and hold only letters, digits, '_', '.' and '-'"
    )]
    Charset { what: &'static str, value: String },
    #[error("interface name {0:?} is invalid: it must have 1 to 15 bytes")]
    IfNameLength(String),
    #[error(
        "interface name {0:?} is invalid: it must not be '.' or '..' nor hold '/', ':', '%' or white space"
    )]
    IfNameCharset(String),
    #[error("interface name {0:?} is invalid: the kernel's settings for all links have that name")]
    IfNameReserved(String),
    #[error("request id {0:?} is invalid: it must be 32 hexadecimal digits")]
    RequestId(String),
    #[error("node uid {0:?} is invalid: it must be 32 hexadecimal digits")]
    NodeUid(String),
    #[error("{what} {value:?} is invalid: it must have at most {most} bytes")]
    Length { what: &'static str, value: String, most: usize },
}

/// The spec's pattern for container ids and network names: `^[a-zA-Z0-9][a-zA-Z0-9_.\-]*$`, any length.
fn check_id(what: &'static str, value: &str) -> Result<(), NameError> {
    let mut bytes = value.bytes();
    let Some(first) = bytes.next() else { return Err(NameError::Empty(what)) };
    let rest_ok = bytes.all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-'));
    if first.is_ascii_alphanumeric() && rest_ok {
        Ok(())
    } else {
        Err(NameError::Charset { what, value: value.to_owned() })
    }
}

/// Sixteen bytes in lower-case hex.
fn is_random(value: &str) -> bool {
    value.len() == 32 && value.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

fn hex(bytes: [u8; 16]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident, $check:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = NameError;
            fn try_from(value: String) -> Result<Self, NameError> {
                let check: fn(&str) -> Result<(), NameError> = $check;
                check(&value)?;
                Ok(Self(value))
            }
        }

        impl TryFrom<&str> for $name {
            type Error = NameError;
            fn try_from(value: &str) -> Result<Self, NameError> {
                Self::try_from(value.to_owned())
            }
        }

        impl From<$name> for String {
            fn from(value: $name) -> String {
                value.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

name_type!(
    /// A container's id, as the runtime calls it. Any length.
    ContainerId,
    |v| check_id("container id", v)
);
name_type!(
    /// A CNI network name: the `name` of a CNI config, and part of every attachment's key. Any length.
    NetworkName,
    |v| check_id("network name", v)
);
name_type!(
    /// The id of a network of a tenant, as a placement names it. Several of them can have the same CNI network name.
    NetworkId,
    |v| check_id("network name", v)
);
name_type!(
    /// A link's name, valid for the kernel.
    IfName,
    |v| {
        if v.is_empty() || v.len() > 15 {
            return Err(NameError::IfNameLength(v.to_owned()));
        }
        // Of a name with `%d` the kernel makes another one, with a number: what was made would never be found again.
        let bad = |c: char| matches!(c, '/' | ':' | '%' | '\0') || c.is_whitespace();
        if v == "." || v == ".." || v.chars().any(bad) {
            return Err(NameError::IfNameCharset(v.to_owned()));
        }
        // Directories in /proc/sys/net/ipv4/conf: the kernel refuses links of that name, but only halfway.
        if matches!(v, "all" | "default") {
            return Err(NameError::IfNameReserved(v.to_owned()));
        }
        Ok(())
    }
);

name_type!(
    /// One run of the plugin, chosen by it at random: a retry carries the same one.
    RequestId,
    |v| {
        if is_random(v) { Ok(()) } else { Err(NameError::RequestId(v.to_owned())) }
    }
);
name_type!(
    /// A node's name: its host name, or what Kubernetes calls it.
    NodeName,
    |v| {
        check_id("node name", v)?;
        if v.len() > 253 {
            return Err(NameError::Length { what: "node name", value: v.to_owned(), most: 253 });
        }
        Ok(())
    }
);
name_type!(
    /// Which of all machines that ever had a node's name: chosen at random once, and kept on its disk.
    NodeUid,
    |v| {
        if is_random(v) { Ok(()) } else { Err(NameError::NodeUid(v.to_owned())) }
    }
);
name_type!(
    /// A tenant's name.
    TenantName,
    |v| check_id("tenant", v)
);
name_type!(
    /// The name of a group of pods inside a tenant.
    GroupName,
    |v| check_id("group", v)
);

impl Default for NetworkId {
    /// The network of pods whose placement names none.
    fn default() -> Self {
        Self(crate::DEFAULT_NETWORK.to_owned())
    }
}

impl Default for TenantName {
    fn default() -> Self {
        Self(crate::DEFAULT_TENANT.to_owned())
    }
}

impl RequestId {
    pub fn from_random(bytes: [u8; 16]) -> Self {
        Self(hex(bytes))
    }
}

impl NodeUid {
    pub fn from_random(bytes: [u8; 16]) -> Self {
        Self(hex(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e3_ids_follow_the_specs_pattern() {
        for good in ["a", "0", "web_1.x-y", &"a".repeat(300)] {
            assert!(ContainerId::try_from(good).is_ok(), "{good}");
            assert!(NetworkName::try_from(good).is_ok(), "{good}");
            assert!(NetworkId::try_from(good).is_ok(), "records of earlier versions have it: {good}");
        }
        for bad in ["", ".a", "-a", "_a", "a/b", "a b", "a\n", "ä", "a:b"] {
            assert!(ContainerId::try_from(bad).is_err(), "{bad}");
            assert!(NetworkName::try_from(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_default_network_id_is_valid() {
        assert_eq!(NetworkId::try_from(crate::DEFAULT_NETWORK), Ok(NetworkId::default()));
    }

    #[test]
    fn request_ids_are_random_bytes_in_hex() {
        let id = RequestId::from_random([0xa0; 16]);
        assert_eq!(RequestId::try_from(id.as_str()), Ok(id));
        for bad in ["", "a0", &"A0".repeat(16), &"g0".repeat(16), &"a0".repeat(17)] {
            assert!(RequestId::try_from(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn e3_ifnames_are_what_the_kernel_takes() {
        for good in ["eth0", "a", "fifteen-bytes-x", "net.1", "eth0@x", "all0", "lo"] {
            assert!(IfName::try_from(good).is_ok(), "{good}");
        }
        for bad in ["", ".", "..", "a/b", "a:b", "a b", "a\tb", "sixteen-bytes-xx", "a\0b", "all", "default"]
        {
            assert!(IfName::try_from(bad).is_err(), "{bad}");
        }
        for pattern in ["br%d", "%", "a%%b"] {
            let error = IfName::try_from(pattern).unwrap_err().to_string();
            assert!(error.contains(pattern) && error.contains("'%'"), "{error}");
        }
    }
}
