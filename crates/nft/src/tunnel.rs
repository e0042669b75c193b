//! The devices that lead to other nodes. Connections through them learn how much fits: see chain `clamp` of the ruleset.

use netlink::Refusal;
use rustix::io::Errno;
use types::IfName;

use crate::element::{self, Element};
use crate::error::Error;
use crate::firewall::Firewall;
use crate::program;
use crate::request;
use crate::ruleset::{self, Family, TUNNELS};
use crate::socket::Request;

const SET: &str = "tell the firewall which devices lead to other nodes";
/// The structure may be missing, and something may be gone before it is deleted; the rest is for races.
const TRIES: usize = 4;

impl Firewall {
    /// Makes those that are `wanted` known as devices that lead to other nodes, and of `ours` no others; says what was
    /// changed. Names that are not ours stay: another network of this machine may have tunnels, too. The table is made
    /// where it is missing and needed. Members stay through every [`Firewall::repair`], but not through a flush of all
    /// tables: whoever keeps them asks again.
    pub fn set_tunnels(&mut self, ours: &[IfName], wanted: &[IfName]) -> Result<Vec<String>, Error> {
        let mut last = None;
        for _ in 0..TRIES {
            let have = self.tunnels()?;
            let coming: Vec<&IfName> = wanted.iter().filter(|name| !have.contains(name)).collect();
            let is_leaving = |name: &&IfName| ours.contains(name) && !wanted.contains(name);
            let leaving: Vec<&IfName> = have.iter().filter(is_leaving).collect();
            if coming.is_empty() && leaving.is_empty() {
                return Ok(Vec::new());
            }
            match self.change_tunnels(&coming, &leaving)? {
                None => return Ok(sentences(&coming, &leaving)),
                Some(Refusal { errno: Errno::NOENT, .. }) if !coming.is_empty() => {
                    program::apply(&ruleset::text(&[Family::Inet], &[]))?;
                }
                Some(refusal) => last = Some(refusal),
            }
        }
        let reason = last.unwrap_or(Refusal { errno: Errno::AGAIN, message: None });
        Err(Error::refused(SET, format!("set {TUNNELS}"), reason))
    }

    /// None: done.
    fn change_tunnels(&mut self, coming: &[&IfName], leaving: &[&IfName]) -> Result<Option<Refusal>, Error> {
        let [add, remove]: [Vec<Element<'_>>; 2] =
            [coming, leaving].map(|names| names.iter().map(|name| element::tunnel(name)).collect());
        let requests: Vec<Request<'_>> =
            add.iter().map(request::add).chain(remove.iter().map(request::delete)).collect();
        let Err(refused) = self.socket.transact(&requests, None)? else { return Ok(None) };
        let first = refused.requests.into_iter().next().map(|(_, refusal)| refusal);
        Ok(Some(refused.whole.or(first).unwrap_or(Refusal { errno: Errno::AGAIN, message: None })))
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

fn sentences(coming: &[&IfName], leaving: &[&IfName]) -> Vec<String> {
    let coming = coming.iter().map(|name| format!("connections through {name} are clamped to what fits"));
    let leaving = leaving.iter().map(|name| format!("connections through {name} are no longer clamped"));
    coming.chain(leaving).collect()
}
