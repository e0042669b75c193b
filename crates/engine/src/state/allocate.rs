//! Claims addresses. The index proposes an address, and link(2) decides whether it is free.

use std::cell::RefCell;
use std::fs;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::Path;

use ipam::{Pools, Range, RangeSet};

use super::file::{StateError, io, remove_if_exists};
use super::held::holder;
use super::index::{self, Bitmaps, Cursors, Index};
use super::network::{Allocation, AllocationRequest, NetworkState, RemoveConntrack};

/// The claims of one ADD in progress. Used with the network's lock held.
pub(super) struct AddressClaims<'a> {
    network: &'a NetworkState,
    /// The record that the claims are links to.
    record: &'a Path,
    claimed: Vec<IpAddr>,
    /// Open indexes. Each is searched and then changed.
    indexes: RefCell<Vec<(String, Index)>>,
    cursors: Option<Cursors>,
}

/// Whether addresses are avoided: until the search arrives at the first avoided one again, because then there is no other.
enum Avoidance {
    Yes { first: Option<IpAddr> },
    No,
}

impl Avoidance {
    /// Whether the search continues after this address.
    fn passes(&mut self, address: IpAddr, is_avoided: &dyn Fn(IpAddr) -> bool) -> bool {
        let Self::Yes { first } = self else { return false };
        if !is_avoided(address) {
            return false;
        }
        if *first == Some(address) {
            *self = Self::No;
            return false;
        }
        first.get_or_insert(address);
        true
    }
}

impl<'a> AddressClaims<'a> {
    pub(super) fn new(network: &'a NetworkState, record: &'a Path) -> Self {
        Self { network, record, claimed: Vec::new(), indexes: RefCell::default(), cursors: None }
    }

    /// Claims one address of every set: the requested one, or the next free one.
    pub(super) fn take(
        &mut self,
        pools: &Pools,
        request: &AllocationRequest<'_>,
    ) -> Result<Vec<Allocation>, StateError> {
        let plan = pools.plan_requests(request.requested).map_err(StateError::Request)?;
        let mut allocations = Vec::with_capacity(pools.sets().len());
        for (number, (set, planned)) in pools.sets().iter().zip(plan).enumerate() {
            let (range, address) = match planned {
                Some((range, address)) => (
                    &set.ranges()[range],
                    self.take_requested(&set.ranges()[range], address, request.remove_conntrack)?,
                ),
                None => self.take_next(set, number, request)?,
            };
            allocations.push(Allocation {
                address,
                prefix_len: range.prefix_len(),
                gateway: range.gateway(),
                used_before: index::mark_used(&self.network.dir, range, address)?,
            });
        }
        Ok(allocations)
    }

    fn take_requested(
        &mut self,
        range: &Range,
        address: IpAddr,
        remove_conntrack: &RemoveConntrack<'_>,
    ) -> Result<IpAddr, StateError> {
        self.clean_if_quarantined(range, address, remove_conntrack)?;
        if !self.claim(address)? {
            let holder = holder(&self.network.claim_path(address));
            return Err(StateError::Taken { address, holder });
        }
        if let Some(offset) = range.offset(address) {
            ipam::set(&mut self.index(range)?, offset)?;
        }
        Ok(address)
    }

    fn take_next<'s>(
        &mut self,
        set: &'s RangeSet,
        number: usize,
        request: &AllocationRequest<'_>,
    ) -> Result<(&'s Range, IpAddr), StateError> {
        let cursors = match self.cursors.take() {
            Some(cursors) => cursors,
            None => Cursors::open(&self.network.dir)?,
        };
        let mut last = cursors.last(number);
        let mut rebuilt = false;
        let mut avoidance = Avoidance::Yes { first: None };
        // The loop ends: each iteration returns, sets one more bit, rebuilds the index (once), or passes an avoided address (once).
        loop {
            let Some(pick) = set.next_after(last, |range| self.index(range))? else {
                if rebuilt {
                    return Err(self.exhausted(set)?);
                }
                self.rebuild(set)?;
                rebuilt = true;
                continue;
            };
            if avoidance.passes(pick.ip, request.is_avoided) {
                last = Some(pick.ip);
                continue;
            }
            let range = &set.ranges()[pick.range];
            self.clean_if_quarantined(range, pick.ip, request.remove_conntrack)?;
            let claimed = self.claim(pick.ip)?;
            ipam::set(&mut self.index(range)?, pick.offset)?;
            if claimed {
                cursors.remember(number, pick.ip)?;
                self.cursors = Some(cursors);
                return Ok((range, pick.ip));
            }
            last = Some(pick.ip);
        }
    }

    /// A new owner must not inherit conntrack entries of the last one (F3).
    fn clean_if_quarantined(
        &self,
        range: &Range,
        address: IpAddr,
        remove_conntrack: &RemoveConntrack<'_>,
    ) -> Result<(), StateError> {
        let dir = &self.network.dir;
        if !index::is_quarantined(dir, range, address)? {
            return Ok(());
        }
        remove_conntrack(range, &|ip| self.network.is_claimed(ip))?;
        index::clear_quarantine(dir, range)
    }

    /// Returns the error of an ADD if a set has no free address.
    pub(super) fn check_capacity(&self, pools: &Pools) -> Result<(), StateError> {
        for set in pools.sets() {
            if set.next_after(None, |range| self.index(range))?.is_none() {
                self.rebuild(set)?;
                if set.next_after(None, |range| self.index(range))?.is_none() {
                    return Err(self.exhausted(set)?);
                }
            }
        }
        Ok(())
    }

    fn index(&self, range: &Range) -> Result<Index, StateError> {
        let name = range.name();
        let mut indexes = self.indexes.borrow_mut();
        if let Some((_, index)) = indexes.iter().find(|(open, _)| *open == name) {
            return Ok(index.clone());
        }
        let index = Index::open(&self.network.dir, range)?;
        indexes.push((name, index.clone()));
        Ok(index)
    }

    /// A stale bit hides a free address, so the index is rebuilt from the claims before a set counts as exhausted.
    fn rebuild(&self, set: &RangeSet) -> Result<(), StateError> {
        self.indexes.borrow_mut().clear();
        set.ranges().iter().try_for_each(|range| Index::build(&self.network.dir, range).map(drop))
    }

    fn exhausted(&self, set: &RangeSet) -> Result<StateError, StateError> {
        Ok(StateError::Exhausted {
            ranges: set.to_string(),
            in_use: self.network.in_use_of(set)?,
            capacity: set.capacity(),
        })
    }

    /// Returns false if the address is already claimed.
    fn claim(&mut self, address: IpAddr) -> Result<bool, StateError> {
        let path = self.network.claim_path(address);
        match fs::hard_link(self.record, &path) {
            Ok(()) => {
                self.claimed.push(address);
                Ok(true)
            }
            Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(false),
            Err(e) => Err(io("claim", &path)(e)),
        }
    }

    /// Undoes all claims.
    pub(super) fn release(&self) -> Result<(), StateError> {
        if self.claimed.is_empty() {
            return Ok(());
        }
        let bitmaps = Bitmaps::list(&self.network.dir)?;
        self.claimed.iter().try_for_each(|address| {
            remove_if_exists(&self.network.claim_path(*address))?;
            bitmaps.free(*address)
        })
    }
}
