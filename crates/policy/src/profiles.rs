//! The profiles of local pods.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::element::ProfileId;
use crate::numbers::{NumberSpace, Numbers, TenantSlots};
use crate::profile::ProfileKey;
use crate::side::{ProfileNumbers, ProfileSides};
use crate::world::PodUid;

const SPACE: NumberSpace = NumberSpace { first: ProfileId::FIRST, count: 1 << 24 };

#[derive(Debug, Clone)]
pub(crate) struct ProfileEntry {
    pub(crate) numbers: ProfileNumbers,
    pub(crate) key: Arc<ProfileKey>,
    /// The number of pods.
    users: usize,
    pub(crate) sides: ProfileSides,
}

/// A profile without users is kept until [`Self::take_idle`], so that its number is not reused in the same change.
#[derive(Debug, Clone, Default)]
pub(crate) struct Profiles {
    entries: BTreeMap<ProfileId, ProfileEntry>,
    by_key: HashMap<Arc<ProfileKey>, ProfileId>,
    numbers: Numbers,
    pub(crate) of_pods: BTreeMap<PodUid, ProfileId>,
}

impl Profiles {
    /// Replaces the profile of a pod. Returns it if it differs from the one before, and whether the profile is new.
    pub(crate) fn assign(
        &mut self,
        pod: &PodUid,
        key: Option<ProfileKey>,
        slots: &mut TenantSlots,
    ) -> Option<(ProfileId, bool)> {
        let old = self.of_pods.get(pod).copied();
        let new = key.and_then(|key| self.acquire(key, slots));
        if let Some(old) = old.and_then(|old| self.entries.get_mut(&old)) {
            old.users -= 1;
        }
        match new {
            Some((id, _)) => drop(self.of_pods.insert(PodUid::clone(pod), id)),
            None => drop(self.of_pods.remove(pod)),
        }
        new.filter(|(id, _)| Some(*id) != old)
    }

    fn acquire(&mut self, key: ProfileKey, slots: &mut TenantSlots) -> Option<(ProfileId, bool)> {
        if let Some(entry) = self.by_key.get(&key).and_then(|id| self.entries.get_mut(id)) {
            entry.users += 1;
            return Some((entry.numbers.id, false));
        }
        let slot = slots.acquire(&key.tenant)?;
        let Some(number) = self.numbers.take(&key.digest(), SPACE) else {
            slots.release(&key.tenant);
            return None;
        };
        let (id, key) = (ProfileId(number), Arc::new(key));
        let numbers = ProfileNumbers { id, slot };
        let entry = ProfileEntry { numbers, key: Arc::clone(&key), users: 1, sides: ProfileSides::default() };
        self.entries.insert(id, entry);
        self.by_key.insert(key, id);
        Some((id, true))
    }

    pub(crate) fn get(&self, id: ProfileId) -> Option<&ProfileEntry> {
        self.entries.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: ProfileId) -> Option<&mut ProfileEntry> {
        self.entries.get_mut(&id)
    }

    /// Profiles with pods.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &ProfileEntry> {
        self.entries.values().filter(|entry| entry.users > 0)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut ProfileEntry> {
        self.entries.values_mut().filter(|entry| entry.users > 0)
    }

    /// Profiles without pods, until [`Self::take_idle`].
    pub(crate) fn idle_mut(&mut self) -> impl Iterator<Item = &mut ProfileEntry> {
        self.entries.values_mut().filter(|entry| entry.users == 0)
    }

    /// Removes the profiles that no pod has.
    pub(crate) fn take_idle(&mut self, slots: &mut TenantSlots) -> Vec<ProfileEntry> {
        let idle: Vec<_> = self.entries.extract_if(.., |_, entry| entry.users == 0).collect();
        for (id, entry) in &idle {
            self.by_key.remove(&entry.key);
            self.numbers.release(id.0);
            slots.release(&entry.key.tenant);
        }
        idle.into_iter().map(|(_, entry)| entry).collect()
    }
}
