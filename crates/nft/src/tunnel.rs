//! The devices that lead to other nodes and carry less than pods' links. Connections through them learn how much fits: see
//! the chains `clamp` of the ruleset, which are there while there is such a device.

use types::IfName;

use crate::element;
use crate::error::Error;
use crate::firewall::Firewall;
use crate::program;
use crate::ruleset::{self, Clamp, Family, TABLE, TUNNELS};

const LOOK: &str = "see which devices there are";
/// The second time all is made anew; the rest is for races.
const TRIES: usize = 3;

impl Firewall {
    /// Makes those that are `wanted` known as devices that carry less than pods' links, and of `ours` no others; says what
    /// was changed. Names that are not ours stay while there is such a device: another network of this machine may have
    /// tunnels, too. The table is made where it is missing and needed. Members stay through every [`Firewall::repair`],
    /// which also keeps the chains; but not through a flush of all tables: whoever keeps them asks again.
    pub fn set_tunnels(&mut self, ours: &[IfName], wanted: &[IfName]) -> Result<Vec<String>, Error> {
        let mut tries = 0;
        loop {
            let have = self.tunnels()?;
            let coming: Vec<&IfName> = wanted.iter().filter(|name| !have.contains(name)).collect();
            let (mut leaving, mut staying) = (Vec::new(), Vec::new());
            for name in &have {
                let is_kept = wanted.contains(name) || (!ours.contains(name) && is_device(name)?);
                if is_kept { staying.push(name) } else { leaving.push(name) }
            }
            if coming.is_empty() && leaving.is_empty() {
                return Ok(Vec::new());
            }
            let mut text = String::new();
            if tries > 0 {
                // What is there is of another kind, or not as it was read: it begins anew.
                text.push_str(&ruleset::without_clamp());
                text.push_str(&format!("delete set inet {TABLE} {TUNNELS}\n"));
            }
            if coming.is_empty() && staying.is_empty() {
                text.push_str(&ruleset::text(&[Family::Inet], &[], Clamp::Off));
                text.push_str(&ruleset::without_clamp());
            } else {
                text.push_str(&ruleset::text(&[Family::Inet], &[], Clamp::On));
            }
            // Also those that stay: the set may be new.
            text.extend(coming.iter().chain(&staying).map(|name| element::tunnel(name).line()));
            text.extend(leaving.iter().flat_map(|name| {
                let element = element::tunnel(name);
                [element.line(), format!("delete element {element}\n")]
            }));
            tries += 1;
            match program::apply(&text) {
                Ok(()) => return Ok(sentences(&coming, &leaving)),
                Err(Error::Structure { .. }) if tries < TRIES => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// What is to be, as the set of those that need it says.
    pub(crate) fn clamp(&mut self) -> Result<Clamp, Error> {
        Ok(Clamp::of(&self.tunnels()?))
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

fn is_device(name: &IfName) -> Result<bool, Error> {
    let found = netlink::RtSocket::open().and_then(|host| host.index_of(name));
    found.map(|index| index.is_some()).map_err(|error| Error::netlink(LOOK, error))
}

fn sentences(coming: &[&IfName], leaving: &[&IfName]) -> Vec<String> {
    let coming = coming.iter().map(|name| format!("connections through {name} are clamped to what fits"));
    let leaving = leaving.iter().map(|name| format!("connections through {name} are no longer clamped"));
    coming.chain(leaving).collect()
}
