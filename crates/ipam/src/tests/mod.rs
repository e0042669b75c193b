use std::cell::RefCell;
use std::convert::Infallible;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::*;

mod index;
mod model;
mod pools;
mod properties;
mod range;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn spec(subnet: &str) -> RangeSpec {
    RangeSpec { subnet: net(subnet), start: None, end: None, gateway: None, exclude: Vec::new() }
}

/// `subnet` from `start` to `end`.
fn between(subnet: &str, start: &str, end: &str) -> RangeSpec {
    RangeSpec { start: Some(ip(start)), end: Some(ip(end)), ..spec(subnet) }
}

fn without(subnet: &str, exclude: &[&str]) -> RangeSpec {
    RangeSpec { exclude: exclude.iter().map(|e| net(e)).collect(), ..spec(subnet) }
}

fn range(spec: RangeSpec) -> Range {
    Range::new(spec).unwrap()
}

/// In-memory state of a node. As in the file-based state, claims are authoritative and the index is derived.
struct Node {
    set: RangeSet,
    claims: Vec<IpAddr>,
    last: Option<IpAddr>,
    indexes: Vec<RefCell<Vec<u64>>>,
}

impl Node {
    fn new(set: RangeSet) -> Self {
        let indexes = set.ranges().iter().map(|_| RefCell::default()).collect();
        Self { set, claims: Vec::new(), last: None, indexes }
    }

    fn of(spec: RangeSpec) -> Self {
        Self::new(RangeSet::new(vec![range(spec)]).unwrap())
    }

    fn next(&self) -> Option<Pick> {
        let index_of = |r: &Range| {
            let position = self.set.ranges().iter().position(|other| other == r).unwrap();
            Ok::<_, Infallible>(&self.indexes[position])
        };
        let Ok(pick) = self.set.next_after(self.last, index_of);
        pick
    }

    fn allocate(&mut self) -> Option<IpAddr> {
        loop {
            let pick = self.next()?;
            let Ok(_) = set(&mut &self.indexes[pick.range], pick.offset);
            if !self.claims.contains(&pick.ip) {
                self.claims.push(pick.ip);
                self.last = Some(pick.ip);
                return Some(pick.ip);
            }
        }
    }

    fn update_index(&self, ip: IpAddr, change: fn(&mut Vec<u64>, u32) -> Result<(), Infallible>) {
        for (range, index) in self.set.ranges().iter().zip(&self.indexes) {
            if let Some(offset) = range.offset(ip) {
                let Ok(()) = change(&mut index.borrow_mut(), offset);
            }
        }
    }

    fn claim(&mut self, ip: IpAddr) -> bool {
        let free = !self.claims.contains(&ip);
        if free {
            self.claims.push(ip);
            self.update_index(ip, |words, offset| set(words, offset).map(drop));
        }
        free
    }

    fn release(&mut self, ip: IpAddr) {
        self.claims.retain(|c| *c != ip);
        self.update_index(ip, clear);
    }

    fn restart(&mut self) {
        let rebuilt = |r: &Range| RefCell::new(rebuild(r, self.claims.iter().copied()));
        self.indexes = self.set.ranges().iter().map(rebuilt).collect();
    }
}
