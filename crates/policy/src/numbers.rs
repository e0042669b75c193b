//! Numbers derived from keys, so that a restarted agent computes the same numbers with few exceptions.

use std::collections::{HashMap, HashSet};

use types::{Digest, TenantName};

use crate::element::ClassId;

/// Numbers in use. A number that is taken is replaced by the next free one.
#[derive(Debug, Clone, Default)]
pub(crate) struct Numbers(HashSet<u32>);

/// The first number and how many there are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NumberSpace {
    pub(crate) first: u32,
    pub(crate) count: u32,
}

impl Numbers {
    /// None if all numbers of the space are taken.
    pub(crate) fn take(&mut self, digest: &Digest, space: NumberSpace) -> Option<u32> {
        let [a, b, c, d, _] = digest.first5();
        let start = u32::from_be_bytes([a, b, c, d]) % space.count;
        let candidates = (start..space.count).chain(0..start).map(|offset| space.first + offset);
        candidates.into_iter().find(|number| self.0.insert(*number))
    }

    pub(crate) fn release(&mut self, number: u32) {
        self.0.remove(&number);
    }
}

/// A number per tenant, which is part of the numbers of its classes.
#[derive(Debug, Clone, Default)]
pub(crate) struct TenantSlots {
    slots: HashMap<TenantName, TenantSlot>,
    numbers: Numbers,
}

#[derive(Debug, Clone, Copy)]
struct TenantSlot {
    number: u32,
    users: usize,
}

/// Slot 0 is for classes without a tenant.
const TENANT_SLOTS: NumberSpace = NumberSpace { first: 1, count: (1 << (32 - ClassId::SLOT_SHIFT)) - 1 };

impl TenantSlots {
    /// None if all slots are taken.
    pub(crate) fn acquire(&mut self, tenant: &TenantName) -> Option<u32> {
        if let Some(slot) = self.slots.get_mut(tenant) {
            slot.users += 1;
            return Some(slot.number);
        }
        let number = self.numbers.take(&Digest::of(&["tenant", tenant.as_str()]), TENANT_SLOTS)?;
        self.slots.insert(tenant.clone(), TenantSlot { number, users: 1 });
        Some(number)
    }

    pub(crate) fn has(&self, tenant: &TenantName) -> bool {
        self.slots.contains_key(tenant)
    }

    pub(crate) fn release(&mut self, tenant: &TenantName) {
        if let Some(slot) = self.slots.get_mut(tenant) {
            slot.users -= 1;
            if slot.users == 0 {
                self.numbers.release(slot.number);
                self.slots.remove(tenant);
            }
        }
    }
}

/// The numbers of the classes in a slot.
pub(crate) fn class_space(slot: u32) -> NumberSpace {
    let count = 1 << ClassId::SLOT_SHIFT;
    if slot == 0 {
        NumberSpace { first: ClassId::FIRST, count: count - ClassId::FIRST }
    } else {
        NumberSpace { first: slot << ClassId::SLOT_SHIFT, count }
    }
}
