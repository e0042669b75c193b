use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A unicast Ethernet address (not multicast, not all zero).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Mac([u8; 6]);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("mac {0:?} is invalid: it must be six hex bytes such as 02:42:ac:11:00:02, unicast and not all zero")]
pub struct MacError(String);

impl Mac {
    /// A locally administered unicast address from five bytes of a digest.
    pub fn local(tail: [u8; 5]) -> Self {
        let [a, b, c, d, e] = tail;
        Self([0x02, a, b, c, d, e])
    }

    pub fn octets(&self) -> [u8; 6] {
        self.0
    }
}

impl TryFrom<[u8; 6]> for Mac {
    type Error = MacError;
    fn try_from(octets: [u8; 6]) -> Result<Self, MacError> {
        let mac = Self(octets);
        if octets[0] & 1 == 1 || octets == [0; 6] { Err(MacError(mac.to_string())) } else { Ok(mac) }
    }
}

impl FromStr for Mac {
    type Err = MacError;
    fn from_str(text: &str) -> Result<Self, MacError> {
        let refuse = || MacError(text.to_owned());
        let mut octets = [0u8; 6];
        let mut parts = text.split([':', '-']);
        for octet in &mut octets {
            let part = parts.next().filter(|p| p.len() == 2).ok_or_else(refuse)?;
            // from_str_radix accepts a sign.
            if !part.bytes().all(|b| b.is_ascii_hexdigit()) {
                return Err(refuse());
            }
            *octet = u8::from_str_radix(part, 16).map_err(|_| refuse())?;
        }
        if parts.next().is_some() {
            return Err(refuse());
        }
        Self::try_from(octets).map_err(|_| refuse())
    }
}

impl TryFrom<String> for Mac {
    type Error = MacError;
    fn try_from(text: String) -> Result<Self, MacError> {
        text.parse()
    }
}

impl From<Mac> for String {
    fn from(mac: Mac) -> String {
        mac.to_string()
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn macs_are_parsed_and_printed_in_lower_case() {
        let mac: Mac = "02:42:AC:11:00:02".parse().unwrap();
        assert_eq!(mac.to_string(), "02:42:ac:11:00:02");
        assert_eq!("02-42-ac-11-00-02".parse::<Mac>().unwrap(), mac);
    }

    #[test]
    fn malformed_and_multicast_macs_are_refused() {
        for bad in ["", "02:42:ac:11:00", "02:42:ac:11:00:02:03", "01:00:5e:00:00:01", "00:00:00:00:00:00"] {
            assert!(bad.parse::<Mac>().is_err(), "{bad}");
        }
        for bad in ["+2:42:ac:11:00:02", "2:42:ac:11:00:02", "zz:42:ac:11:00:02", "ff:ff:ff:ff:ff:ff"] {
            assert!(bad.parse::<Mac>().is_err(), "{bad}");
        }
    }
}
