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
    #[error("interface name {0:?} is invalid: it must not be '.' or '..' nor hold '/', ':' or white space")]
    IfNameCharset(String),
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
    /// A network's name: the `name` of a CNI config. Any length.
    NetworkName,
    |v| check_id("network name", v)
);
name_type!(
    /// A link's name, valid for the kernel.
    IfName,
    |v| {
        if v.is_empty() || v.len() > 15 {
            return Err(NameError::IfNameLength(v.to_owned()));
        }
        let bad = |c: char| c == '/' || c == ':' || c.is_whitespace() || c == '\0';
        if v == "." || v == ".." || v.chars().any(bad) {
            return Err(NameError::IfNameCharset(v.to_owned()));
        }
        Ok(())
    }
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e3_ids_follow_the_specs_pattern() {
        for good in ["a", "0", "web_1.x-y", &"a".repeat(300)] {
            assert!(ContainerId::try_from(good).is_ok(), "{good}");
            assert!(NetworkName::try_from(good).is_ok(), "{good}");
        }
        for bad in ["", ".a", "-a", "_a", "a/b", "a b", "a\n", "ä", "a:b"] {
            assert!(ContainerId::try_from(bad).is_err(), "{bad}");
            assert!(NetworkName::try_from(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn e3_ifnames_are_what_the_kernel_takes() {
        for good in ["eth0", "a", "fifteen-bytes-x", "net.1", "eth0@x"] {
            assert!(IfName::try_from(good).is_ok(), "{good}");
        }
        for bad in ["", ".", "..", "a/b", "a:b", "a b", "a\tb", "sixteen-bytes-xx", "a\0b"] {
            assert!(IfName::try_from(bad).is_err(), "{bad}");
        }
    }
}
