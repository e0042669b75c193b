//! The table that decides which packets enter the tunnels of one network, `inet podwire-peers-NETWORK`. It exists only while
//! the node has such a tunnel or peers, and only the network's agent changes it.
//!
//! ```text
//! input hook, before decapsulation:  port and VNI ─► own address, own MAC ─► (sender, inner source) in a set ─► accept
//!                                                                                              anything else ─► drop
//! forward hook:                      port and VNI, to a peer's address ─► drop
//! ```
//!
//! The inner source is bound to the sender by one lookup: all blocks of a subnet have one length, so the first bits of the
//! inner source are the block. A set without elements accepts nothing. Packets that are forwarded to a peer's tunnel port
//! come from pods or other machines, never from this node's own tunnel; without the rule, masquerading would give them this
//! node's address, which the peer accepts. The forward hook is used because only there destinations are final in both
//! directions of a connection: a reply's destination can also become a tunnel port.

mod text;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use netlink::Refusal;
use types::{Mac, NetworkName};

use crate::error::Error;
use crate::firewall::Firewall;
use crate::program;
use crate::request::{self, Place};
use crate::ruleset::{Family, REVISION};
pub(crate) use text::is_peer_table;
use text::{LENGTHS_KEY, name_of};

const KEEP: &str = "keep the firewall's table of peers";
/// Elements in one transaction.
const BATCH: usize = 2000;

/// Where the tunnels of a network end on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerRules {
    pub vni: u32,
    pub port: u16,
    /// Of this node's tunnel devices.
    pub mac: Mac,
    /// The addresses where they end, at most one of each family.
    pub locals: Vec<IpAddr>,
    /// The prefix lengths of the network's blocks, for each family that pods have.
    pub block4: Option<u8>,
    pub block6: Option<u8>,
}

/// A peer that sends from `outer` may carry packets from `inner`: a block, or one of its own addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerSource {
    pub outer: IpAddr,
    pub inner: IpNet,
}

/// What happens to elements that belong to no known peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Surplus {
    Remove,
    /// The list of peers may be incomplete.
    Keep,
}

/// A set and a key in it.
type Entry = (&'static str, Vec<u8>);

/// The table of one network, in one network namespace.
pub struct PeerTable {
    firewall: Firewall,
    name: String,
    /// What the table was made from. None: not known yet.
    rules: Option<PeerRules>,
}

impl PeerTable {
    /// For the network namespace of the calling thread.
    pub fn open(network: &NetworkName) -> Result<Self, Error> {
        Ok(Self { firewall: Firewall::open()?, name: name_of(network), rules: None })
    }

    /// Makes the table follow these rules and hold these sources. Returns what was changed. A table that is missing or
    /// damaged is replaced with all its elements in one transaction, so that peers are not locked out meanwhile. With
    /// [`Surplus::Keep`] these include the elements of the old table, if it was made with the same block lengths.
    pub fn keep(
        &mut self,
        rules: &PeerRules,
        sources: &[PeerSource],
        surplus: Surplus,
    ) -> Result<Vec<String>, Error> {
        let mut wanted: BTreeSet<Entry> = sources.iter().flat_map(|source| rules.entries(source)).collect();
        let damage = self.damage(rules)?;
        self.rules = Some(rules.clone());
        if !damage.is_empty() {
            if surplus == Surplus::Keep {
                let lengths = self.lengths()?;
                for set in rules.sets().filter(|set| rules.fits(set, lengths)) {
                    wanted.extend(self.present(set)?.into_iter().filter(|entry| rules.is_key(entry)));
                }
            }
            self.replace(rules, &wanted)?;
            let left = self.damage(rules)?;
            if !left.is_empty() {
                let message = format!("it was applied, and still: {}", left.join(", "));
                return Err(Error::Structure { message });
            }
            return Ok(damage);
        }
        let mut present = BTreeSet::new();
        for set in rules.sets() {
            present.extend(self.present(set)?);
        }
        let missing: Vec<Entry> = wanted.difference(&present).cloned().collect();
        let excess: Vec<Entry> = match surplus {
            Surplus::Remove => present.difference(&wanted).cloned().collect(),
            Surplus::Keep => Vec::new(),
        };
        self.add_entries(&missing)?;
        self.remove_entries(&excess)?;
        let counted = [(missing.len(), "added"), (excess.len(), "removed")];
        let done = counted.iter().filter(|(count, _)| *count > 0);
        Ok(done.map(|(count, verb)| format!("{count} elements {verb}")).collect())
    }

    /// Adds sources to a table that `keep` has made. An error: it is not there as it was, and must be kept again.
    pub fn add(&mut self, sources: &[PeerSource]) -> Result<(), Error> {
        let entries = self.entries(sources);
        self.add_entries(&entries)
    }

    /// Removes sources. Those that are gone already are no error.
    pub fn remove(&mut self, sources: &[PeerSource]) -> Result<(), Error> {
        let entries = self.entries(sources);
        self.remove_entries(&entries)
    }

    /// Deletes the table. Was there one?
    pub fn delete(&mut self) -> Result<bool, Error> {
        self.rules = None;
        self.firewall.delete_named(KEEP, &self.name)
    }

    /// None where the set is missing.
    fn present(&mut self, set: &'static str) -> Result<Vec<Entry>, Error> {
        let mut present = Vec::new();
        let place = Place { table: &self.name, set };
        self.firewall.dump_if_there(&request::elements_at(place), |answer| {
            present.extend(request::elements(answer).map(|found| (set, found.key.to_vec())));
        })?;
        Ok(present)
    }

    /// The block lengths that the table was made with, as [`PeerRules::lengths`] writes them. None: not known.
    fn lengths(&mut self) -> Result<Option<u32>, Error> {
        let mut lengths = None;
        let place = Place { table: &self.name, set: REVISION };
        self.firewall.dump_if_there(&request::elements_at(place), |answer| {
            let mut found = request::elements(answer).filter(|found| found.key == LENGTHS_KEY.to_ne_bytes());
            let value = found.next().and_then(|found| found.value?.first_chunk().copied());
            lengths = lengths.or(value.map(u32::from_ne_bytes));
        })?;
        Ok(lengths)
    }

    fn entries(&self, sources: &[PeerSource]) -> Vec<Entry> {
        let rules = self.rules.as_ref();
        rules.map_or_else(Vec::new, |rules| sources.iter().flat_map(|source| rules.entries(source)).collect())
    }

    fn add_entries(&mut self, entries: &[Entry]) -> Result<(), Error> {
        for some in entries.chunks(BATCH) {
            let table = &self.name;
            let requests: Vec<_> =
                some.iter().map(|(set, key)| request::add_key(Place { table, set }, key)).collect();
            if let Err(refused) = self.firewall.socket.transact(&requests, None)? {
                let first = refused.whole.or_else(|| refused.requests.into_iter().map(|(_, r)| r).next());
                return Err(first.map_or_else(unexplained, |refusal| self.refused(refusal)));
            }
        }
        Ok(())
    }

    fn remove_entries(&mut self, entries: &[Entry]) -> Result<(), Error> {
        for some in entries.chunks(BATCH) {
            let table = &self.name;
            let requests = some.iter().map(|(set, key)| request::delete_key_at(Place { table, set }, key));
            self.firewall.delete_all(requests.collect())?;
        }
        Ok(())
    }

    /// The old table goes and the new one comes with every element, in one transaction.
    fn replace(&mut self, rules: &PeerRules, wanted: &BTreeSet<Entry>) -> Result<(), Error> {
        let name = &self.name;
        let mut by_set: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for (set, key) in wanted {
            by_set.entry(set).or_default().push(rules.key_text(set, key));
        }
        let elements = by_set.iter().map(|(set, keys)| {
            format!("add element {} {name} {set} {{ {} }}\n", Family::Inet.word(), keys.join(", "))
        });
        // Added first, because deleting one that is not there fails.
        let clear = format!("add table inet {name}\ndelete table inet {name}\n");
        program::apply(&[clear, rules.text(name)].into_iter().chain(elements).collect::<String>())
    }

    /// How the table differs from the rules, in words.
    fn damage(&mut self, rules: &PeerRules) -> Result<Vec<String>, Error> {
        self.firewall.damage_of_named(&self.name, &rules.text(&self.name), rules.revision(&self.name))
    }

    fn refused(&self, refusal: Refusal) -> Error {
        Error::refused(KEEP, format!("inet {}", self.name), refusal)
    }
}

fn unexplained() -> Error {
    Error::Structure { message: "the kernel refused elements of peers and did not say why".to_owned() }
}

/// Deletes the tables of the networks, as `AttachmentKey::network_dir` names them, that are chosen. Returns their names.
pub fn delete_peer_tables(is_chosen: &dyn Fn(&str) -> bool) -> Result<Vec<String>, Error> {
    let mut firewall = Firewall::open()?;
    let mut names = Vec::new();
    firewall.dump_if_there(&request::tables(), |table| names.extend(request::name_of_table(table)))?;
    let is_one = |name: &String| text::network_of(name).is_some_and(is_chosen);
    let mut deleted = Vec::new();
    for name in names.into_iter().filter(is_one) {
        if firewall.delete_named(KEEP, &name)? {
            deleted.push(name);
        }
    }
    Ok(deleted)
}
