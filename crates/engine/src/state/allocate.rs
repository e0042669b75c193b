//! Claiming addresses: the index proposes, link(2) decides.

use std::cell::RefCell;
use std::fs;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::Path;

use ipam::{Pools, Range, RangeSet};

use super::file::{StateError, io, remove_if_there};
use super::held::holder;
use super::index::{self, Bitmaps, Cursors, Index};
use super::network::{Allocation, AllocationRequest, Clean, NetworkState};

/// The claims of one attach that is under way. Called with the network's lock held.
pub(super) struct AddressClaims<'a> {
    network: &'a NetworkState,
    /// The record that the claims are links to.
    record: &'a Path,
    made: Vec<IpAddr>,
    /// The indexes that were opened: each is searched and then changed.
    indexes: RefCell<Vec<(String, Index)>>,
    cursors: Option<Cursors>,
}

impl<'a> AddressClaims<'a> {
    pub(super) fn new(network: &'a NetworkState, record: &'a Path) -> Self {
        Self { network, record, made: Vec::new(), indexes: RefCell::default(), cursors: None }
    }

    /// One address of every set: the requested one, or the next.
    pub(super) fn take(
        &mut self,
        pools: &Pools,
        wanted: &AllocationRequest<'_>,
    ) -> Result<Vec<Allocation>, StateError> {
        let plan = pools.plan_requests(wanted.requested).map_err(StateError::Request)?;
        let mut allocations = Vec::with_capacity(pools.sets().len());
        for (number, (set, planned)) in pools.sets().iter().zip(plan).enumerate() {
            let (range, address) = match planned {
                Some((range, address)) => {
                    (&set.ranges()[range], self.take_requested(&set.ranges()[range], address, wanted.clean)?)
                }
                None => self.take_next(set, number, wanted.clean)?,
            };
            allocations.push(Allocation {
                address,
                prefix_len: range.prefix_len(),
                gateway: range.gateway(),
                used_before: index::use_again(&self.network.dir, range, address)?,
            });
        }
        Ok(allocations)
    }

    fn take_requested(
        &mut self,
        range: &Range,
        address: IpAddr,
        clean: &Clean<'_>,
    ) -> Result<IpAddr, StateError> {
        self.wake(range, address, clean)?;
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
        clean: &Clean<'_>,
    ) -> Result<(&'s Range, IpAddr), StateError> {
        let cursors = match self.cursors.take() {
            Some(cursors) => cursors,
            None => Cursors::open(&self.network.dir)?,
        };
        let mut last = cursors.last(number);
        let mut rebuilt = false;
        // Bounded: each round either ends, sets one more bit, or rebuilds (once).
        loop {
            let Some(pick) = set.next_after(last, |range| self.index(range))? else {
                if rebuilt {
                    return Err(self.exhausted(set)?);
                }
                self.rebuild(set)?;
                rebuilt = true;
                continue;
            };
            let range = &set.ranges()[pick.range];
            self.wake(range, pick.ip, clean)?;
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

    /// A new owner must not inherit what the last one left in the kernel (F3).
    fn wake(&self, range: &Range, address: IpAddr, clean: &Clean<'_>) -> Result<(), StateError> {
        let dir = &self.network.dir;
        if !index::rests(dir, range, address)? {
            return Ok(());
        }
        clean(range, &|ip| self.network.is_claimed(ip))?;
        index::wake(dir, range)
    }

    /// Fails like an attach would if a set has nothing left.
    pub(super) fn room(&self, pools: &Pools) -> Result<(), StateError> {
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
        if let Some((_, index)) = indexes.iter().find(|(known, _)| *known == name) {
            return Ok(index.clone());
        }
        let index = Index::open(&self.network.dir, range)?;
        indexes.push((name, index.clone()));
        Ok(index)
    }

    /// A bit too many hides a free address: nothing is called full before the claims were asked.
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

    /// True if the address is ours now, false if somebody has it.
    fn claim(&mut self, address: IpAddr) -> Result<bool, StateError> {
        let path = self.network.claim_path(address);
        match fs::hard_link(self.record, &path) {
            Ok(()) => {
                self.made.push(address);
                Ok(true)
            }
            Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(false),
            Err(e) => Err(io("claim", &path)(e)),
        }
    }

    /// Undoes what was claimed.
    pub(super) fn give_back(&self) -> Result<(), StateError> {
        if self.made.is_empty() {
            return Ok(());
        }
        let bitmaps = Bitmaps::list(&self.network.dir)?;
        self.made.iter().try_for_each(|address| {
            remove_if_there(&self.network.claim_path(*address))?;
            bitmaps.forget(*address)
        })
    }
}
