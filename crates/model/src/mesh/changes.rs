//! Desired and observed kernel objects, and the changes between them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use types::Mac;

/// A route to another node's block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerRoute {
    pub dst: IpNet,
    pub gateway: IpAddr,
    pub link: u32,
    /// The gateway is directly reachable on the link, regardless of the addresses of the link.
    pub onlink: bool,
    pub src: Option<IpAddr>,
}

/// A permanent neighbour on a tunnel device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerNeighbour {
    pub link: u32,
    pub addr: IpAddr,
    pub mac: Mac,
}

/// An FDB entry of a tunnel device: the node that has a MAC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerFdb {
    pub link: u32,
    pub mac: Mac,
    pub dst: IpAddr,
}

/// The managed objects that the kernel has.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ObservedPeers {
    pub routes: Vec<PeerRoute>,
    pub neighbours: Vec<PeerNeighbour>,
    pub fdb: Vec<PeerFdb>,
}

/// Apply in the order of the fields, so that a route never exists without its neighbour and FDB entry. Setting replaces an
/// object with the same key (`dst`, or link and address, or link and MAC). Removing a missing object is not an error.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PeerChanges {
    pub set_neighbours: Vec<PeerNeighbour>,
    pub set_fdb: Vec<PeerFdb>,
    pub set_routes: Vec<PeerRoute>,
    pub del_routes: Vec<PeerRoute>,
    pub del_neighbours: Vec<PeerNeighbour>,
    pub del_fdb: Vec<PeerFdb>,
}

impl PeerChanges {
    /// The changes that are not in `due`.
    pub fn beyond(&self, due: &Self) -> Self {
        fn beyond<T: Copy + Ord>(all: &[T], due: &[T]) -> Vec<T> {
            let due: BTreeSet<&T> = due.iter().collect();
            all.iter().filter(|one| !due.contains(one)).copied().collect()
        }
        Self {
            set_neighbours: beyond(&self.set_neighbours, &due.set_neighbours),
            set_fdb: beyond(&self.set_fdb, &due.set_fdb),
            set_routes: beyond(&self.set_routes, &due.set_routes),
            del_routes: beyond(&self.del_routes, &due.del_routes),
            del_neighbours: beyond(&self.del_neighbours, &due.del_neighbours),
            del_fdb: beyond(&self.del_fdb, &due.del_fdb),
        }
    }

    /// The changes with a true flag. Flags are in the order in which changes are applied.
    pub fn select(&self, flags: impl IntoIterator<Item = bool>) -> Self {
        fn select<T: Copy>(all: &[T], flags: &mut impl Iterator<Item = bool>) -> Vec<T> {
            all.iter().zip(flags).filter(|(_, is_selected)| *is_selected).map(|(one, _)| *one).collect()
        }
        let flags = &mut flags.into_iter();
        Self {
            set_neighbours: select(&self.set_neighbours, flags),
            set_fdb: select(&self.set_fdb, flags),
            set_routes: select(&self.set_routes, flags),
            del_routes: select(&self.del_routes, flags),
            del_neighbours: select(&self.del_neighbours, flags),
            del_fdb: select(&self.del_fdb, flags),
        }
    }

    pub fn extend(&mut self, other: &Self) {
        self.set_neighbours.extend(&other.set_neighbours);
        self.set_fdb.extend(&other.set_fdb);
        self.set_routes.extend(&other.set_routes);
        self.del_routes.extend(&other.del_routes);
        self.del_neighbours.extend(&other.del_neighbours);
        self.del_fdb.extend(&other.del_fdb);
    }

    pub fn clear_removals(&mut self) {
        self.del_routes.clear();
        self.del_neighbours.clear();
        self.del_fdb.clear();
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn len(&self) -> usize {
        self.set_neighbours.len()
            + self.set_fdb.len()
            + self.set_routes.len()
            + self.del_routes.len()
            + self.del_neighbours.len()
            + self.del_fdb.len()
    }
}

impl fmt::Display for PeerRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "route {} via {} on link {}", self.dst, self.gateway, self.link)?;
        if self.onlink {
            f.write_str(" onlink")?;
        }
        self.src.map_or(Ok(()), |src| write!(f, " from {src}"))
    }
}

impl fmt::Display for PeerNeighbour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "neighbour {} at {} on link {}", self.addr, self.mac, self.link)
    }
}

impl fmt::Display for PeerFdb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "forwarding entry {} to {} on link {}", self.mac, self.dst, self.link)
    }
}

/// One line for each change.
impl fmt::Display for PeerChanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn lines<T: fmt::Display>(f: &mut fmt::Formatter<'_>, word: &str, list: &[T]) -> fmt::Result {
            list.iter().try_for_each(|one| writeln!(f, "{word} {one}"))
        }
        lines(f, "set", &self.set_neighbours)?;
        lines(f, "set", &self.set_fdb)?;
        lines(f, "set", &self.set_routes)?;
        lines(f, "remove", &self.del_routes)?;
        lines(f, "remove", &self.del_neighbours)?;
        lines(f, "remove", &self.del_fdb)
    }
}

/// An object of which the kernel has one per key.
pub(super) trait Keyed: Copy + Eq {
    type Key: Ord + Copy;
    fn key(&self) -> Self::Key;
    /// Whether removing this object would also remove `other`.
    fn removes(&self, other: &Self) -> bool;
}

impl Keyed for PeerRoute {
    type Key = IpNet;
    fn key(&self) -> IpNet {
        self.dst
    }
    fn removes(&self, other: &Self) -> bool {
        (self.dst, self.gateway, self.link) == (other.dst, other.gateway, other.link)
    }
}

impl Keyed for PeerNeighbour {
    type Key = (u32, IpAddr);
    fn key(&self) -> Self::Key {
        (self.link, self.addr)
    }
    fn removes(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Keyed for PeerFdb {
    type Key = (u32, Mac);
    fn key(&self) -> Self::Key {
        (self.link, self.mac)
    }
    fn removes(&self, other: &Self) -> bool {
        self == other
    }
}

/// All objects of one kind: the wanted ones, and those that were returned as changes before.
#[derive(Debug, Clone)]
pub(super) struct PlannedObjects<T: Keyed> {
    entries: BTreeMap<T::Key, PlannedEntry<T>>,
    /// Keys of entries that may differ.
    dirty: Vec<T::Key>,
}

#[derive(Debug, Clone)]
struct PlannedEntry<T> {
    wanted: Option<T>,
    taken: Option<T>,
}

impl<T: Keyed> Default for PlannedObjects<T> {
    fn default() -> Self {
        Self { entries: BTreeMap::new(), dirty: Vec::new() }
    }
}

impl<T: Keyed> PlannedObjects<T> {
    pub(super) fn wanted(&self, key: &T::Key) -> Option<&T> {
        self.entries.get(key)?.wanted.as_ref()
    }

    pub(super) fn want(&mut self, object: T) {
        self.dirty.push(object.key());
        let empty = PlannedEntry { wanted: None, taken: None };
        self.entries.entry(object.key()).or_insert(empty).wanted = Some(object);
    }

    pub(super) fn unwant(&mut self, object: &T) {
        if let Some(entry) = self.entries.get_mut(&object.key()) {
            self.dirty.push(object.key());
            entry.wanted = None;
        }
    }

    /// The objects to set and to remove since the last call.
    pub(super) fn take(&mut self) -> (Vec<T>, Vec<T>) {
        let (mut set, mut del) = (Vec::new(), Vec::new());
        let mut dirty = std::mem::take(&mut self.dirty);
        dirty.sort_unstable();
        dirty.dedup();
        for key in dirty {
            let Some(entry) = self.entries.get_mut(&key) else { continue };
            if entry.wanted == entry.taken {
                continue;
            }
            match (entry.wanted, entry.taken) {
                (Some(wanted), _) => set.push(wanted),
                (None, taken) => del.extend(taken),
            }
            entry.taken = entry.wanted;
            if entry.wanted.is_none() {
                self.entries.remove(&key);
            }
        }
        (set, del)
    }

    /// The objects to set and to remove if the kernel has `observed`.
    pub(super) fn compare(&mut self, observed: &[T]) -> (Vec<T>, Vec<T>) {
        self.entries.retain(|_, entry| entry.wanted.is_some());
        self.dirty.clear();
        let mut observed: Vec<&T> = observed.iter().collect();
        observed.sort_by_key(|object| object.key());
        let mut del = Vec::new();
        for entry in self.entries.values_mut() {
            entry.taken = None;
        }
        for same in observed.chunk_by(|one, other| one.key() == other.key()) {
            match same.first().and_then(|first| self.entries.get_mut(&first.key())) {
                None => del.extend(same.iter().copied()),
                Some(entry) => entry.match_observed(same, &mut del),
            }
        }
        let mut set = Vec::new();
        for entry in self.entries.values_mut().filter(|entry| entry.taken.is_none()) {
            set.extend(entry.wanted);
            entry.taken = entry.wanted;
        }
        (set, del)
    }
}

impl<T: Keyed> PlannedEntry<T> {
    /// Searches for the wanted object among the kernel's objects with the same key.
    fn match_observed(&mut self, observed: &[&T], del: &mut Vec<T>) {
        self.taken = self.wanted.filter(|wanted| observed.contains(&wanted));
        // Setting replaces a single wrong object. If there are several, it is not known which one the kernel would replace.
        if let (Some(wanted), true) = (self.wanted, observed.len() > 1) {
            del.extend(observed.iter().copied().filter(|one| !one.removes(&wanted)));
        }
    }
}
