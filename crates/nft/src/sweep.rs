//! What a pod left behind whose record is lost: everything in our sets that names its link or leads to its addresses.
//! Reads all sets, so it is nothing for the way of a pod.

use std::net::IpAddr;

use netlink::Refusal;
use rustix::io::Errno;
use types::IfName;

use crate::element::{Field, bytes};
use crate::error::Error;
use crate::firewall::Firewall;
use crate::request;
use crate::ruleset::{Family, TABLE};
use crate::socket::Request;

const SWEEP: &str = "remove a lost pod from the firewall";

/// All that is known of such a pod.
#[derive(Debug, Clone, Copy)]
pub struct Stray<'a> {
    /// The host ends of its links, if any are known.
    pub links: &'a [IfName],
    pub addresses: &'a [IpAddr],
}

impl Firewall {
    /// Removes whatever our tables have of this link and these addresses.
    pub fn sweep(&mut self, stray: &Stray<'_>) -> Result<(), Error> {
        for family in [Family::Inet, Family::Bridge] {
            for set in self.sets(family)? {
                let mut deletions = Vec::new();
                let all = request::get_elements(family, &set);
                self.dump_if_there(&all, |answer| {
                    let found = request::elements(answer).filter(|e| stray.has(&set, e.key, e.value));
                    deletions.extend(found.map(|e| request::delete_key(family, &set, e.key)));
                })?;
                self.delete_each(&deletions)?;
            }
        }
        Ok(())
    }

    pub(crate) fn sets(&mut self, family: Family) -> Result<Vec<String>, Error> {
        let mut sets = Vec::new();
        self.dump_if_there(&request::get_sets(family), |set| sets.extend(request::name_of_set(set)))?;
        Ok(sets)
    }

    /// Without nf_tables, our table or that set there is nothing to see.
    pub(crate) fn dump_if_there(
        &mut self,
        request: &Request<'_>,
        each: impl FnMut(&[u8]),
    ) -> Result<(), Error> {
        match self.socket.dump(request, each)? {
            Ok(()) | Err(Refusal { errno: Errno::NOENT | Errno::OPNOTSUPP | Errno::AFNOSUPPORT, .. }) => {
                Ok(())
            }
            Err(refusal) => Err(Error::refused(SWEEP, TABLE.to_owned(), refusal)),
        }
    }

    /// One by one, so that what is gone in the meantime keeps nothing else.
    fn delete_each(&mut self, deletions: &[Request<'_>]) -> Result<(), Error> {
        for deletion in deletions {
            let Err(refused) = self.socket.transact(std::slice::from_ref(deletion), None)? else { continue };
            let mut refusals = refused.whole.into_iter().chain(refused.requests.into_iter().map(|(_, r)| r));
            if let Some(refusal) = refusals.find(|refusal| refusal.errno != Errno::NOENT) {
                return Err(Error::refused(SWEEP, TABLE.to_owned(), refusal));
            }
        }
        Ok(())
    }
}

impl Stray<'_> {
    /// Is an element this pod's? A map leads to its value; the key of one is an address of the host.
    fn has(&self, set: &str, key: &[u8], value: Option<&[u8]>) -> bool {
        let is_key = |link: &IfName| key.starts_with(&bytes(&[Field::Link(link)]));
        let of_family = |ip: &&IpAddr| {
            let mark = if ip.is_ipv4() { '4' } else { '6' };
            set.trim_end_matches("_any").ends_with(mark)
        };
        let named = |ip: &IpAddr| {
            let ip = bytes(&[Field::Ip(*ip)]);
            let place = value.unwrap_or(key);
            // Every part of a concatenation begins at a multiple of four.
            (0..place.len()).step_by(4).any(|at| place[at..].starts_with(&ip))
        };
        self.links.iter().any(is_key) || self.addresses.iter().filter(of_family).any(named)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_element_is_known_by_link_address_or_where_it_leads() {
        let link = IfName::try_from("pwabc").unwrap();
        let addresses = ["10.0.0.2".parse().unwrap(), "fd00::2".parse().unwrap()];
        let stray = Stray { links: std::slice::from_ref(&link), addresses: &addresses };
        let other = IfName::try_from("pwabcd").unwrap();
        let (own, foreign) = (Field::Ip(addresses[0]), Field::Ip("10.0.0.20".parse().unwrap()));
        let port = Field::Port(80);
        for (set, key, value, has) in [
            ("pods4", vec![own], None, true),
            ("pods4", vec![foreign], None, false),
            ("pods6", vec![Field::Ip(addresses[1])], None, true),
            ("net-abc6-4", vec![own], None, true),
            ("ports", vec![Field::Link(&link)], None, true),
            ("addr4", vec![Field::Link(&link), foreign], None, true),
            ("addr4", vec![Field::Link(&other), foreign], None, false),
            ("via4", vec![own, Field::Link(&other)], None, true),
            ("via4", vec![foreign, Field::Link(&other)], None, false),
            ("hostport4_any", vec![port, port], Some(vec![own, port]), true),
            ("hostport4", vec![own, port, port], Some(vec![foreign, port]), false),
        ] {
            let value = value.map(|fields| bytes(&fields));
            assert_eq!(stray.has(set, &bytes(&key), value.as_deref()), has, "{set}");
        }
    }
}
