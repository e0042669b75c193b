//! The devices that lead to other nodes and carry less than pods' links. Connections through them learn how much fits: see
//! the chains `clamp` of the ruleset, which are there while there is such a device.

use types::IfName;

use crate::element;
use crate::error::Error;
use crate::firewall::Firewall;
use crate::program;
use crate::ruleset::{self, Clamp, Family, TUNNELS};

const LOOK: &str = "see which devices there are";
/// Something may be gone before it is deleted.
const TRIES: usize = 3;

impl Firewall {
    /// Makes those that are `wanted` known as devices that carry less than pods' links, and of `ours` no others; says what
    /// was changed. Names that are not ours stay while there is such a device: another network of this machine may have
    /// tunnels, too. The table is made where it is missing and needed. Members stay through every [`Firewall::repair`], but not through a flush of all
    /// tables: whoever keeps them asks again.
    pub fn set_tunnels(&mut self, ours: &[IfName], wanted: &[IfName]) -> Result<Vec<String>, Error> {
        let mut tries = 0;
        loop {
            let have = self.tunnels()?;
            let coming: Vec<&IfName> = wanted.iter().filter(|name| !have.contains(name)).collect();
            let (mut leaving, mut staying) = (Vec::new(), Vec::new());
            for name in &have {
                let is_kept = wanted.contains(name) || (!ours.contains(name) && is_there(name)?);
                if is_kept { staying.push(name) } else { leaving.push(name) }
            }
            if coming.is_empty() && leaving.is_empty() {
                return Ok(Vec::new());
            }
            let mut text = if coming.is_empty() && staying.is_empty() {
                ruleset::without_clamp()
            } else {
                ruleset::text(&[Family::Inet], &[], Clamp::On)
            };
            text.extend(coming.iter().map(|name| element::tunnel(name).line()));
            text.extend(leaving.iter().map(|name| format!("delete element {}\n", element::tunnel(name))));
            tries += 1;
            match program::apply(&text) {
                Ok(()) => return Ok(sentences(&coming, &leaving)),
                Err(Error::Structure { .. }) if tries < TRIES && !leaving.is_empty() => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// What is to be, as the set of those that need it says.
    pub(crate) fn clamp(&mut self) -> Result<Clamp, Error> {
        Ok(if self.tunnels()?.is_empty() { Clamp::Off } else { Clamp::On })
    }

    /// Those that are known now.
    pub(crate) fn tunnels(&mut self) -> Result<Vec<IfName>, Error> {
        let keys = self.contents(Family::Inet, TUNNELS)?.into_keys();
        let name = |key: Vec<u8>| {
            let text = key.split(|byte| *byte == 0).next().map(String::from_utf8_lossy)?.into_owned();
            IfName::try_from(text).ok()
        };
        let mut names: Vec<IfName> = keys.filter_map(name).collect();
        names.sort();
        Ok(names)
    }
}

/// A device that was there under another name, or with another config, is no reason to clamp.
fn is_there(name: &IfName) -> Result<bool, Error> {
    let found = netlink::RtSocket::open().and_then(|host| host.index_of(name));
    found.map(|index| index.is_some()).map_err(|error| Error::netlink(LOOK, error))
}

fn sentences(coming: &[&IfName], leaving: &[&IfName]) -> Vec<String> {
    let coming = coming.iter().map(|name| format!("connections through {name} are clamped to what fits"));
    let leaving = leaving.iter().map(|name| format!("connections through {name} are no longer clamped"));
    coming.chain(leaving).collect()
}
