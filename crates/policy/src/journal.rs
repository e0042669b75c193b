//! Collects the changes of elements and reduces them to a delta.

use std::collections::{BTreeMap, HashMap};

use crate::element::{ClassId, Delta, PolicyElement, PolicyVerdict, ProfileId};
use crate::encode::{Entries, EntryKey};
use crate::world::PodUid;

#[derive(Debug, Default)]
pub(crate) struct Journal {
    /// The first old and the last new element of each key.
    changes: HashMap<PolicyElement, (Option<PolicyElement>, Option<PolicyElement>)>,
    /// Elements of profiles that no pod has any more.
    pub(crate) removed: Vec<PolicyElement>,
    pub(crate) profiles: BTreeMap<PodUid, ProfileId>,
}

/// The element without its value.
fn key_of(element: PolicyElement) -> PolicyElement {
    match element {
        PolicyElement::Address { address, class: _ } => {
            PolicyElement::Address { address, class: ClassId::NONE }
        }
        PolicyElement::Addresses { first, last, class: _ } => {
            PolicyElement::Addresses { first, last, class: ClassId::NONE }
        }
        PolicyElement::OwnAddress { address } => PolicyElement::OwnAddress { address },
        PolicyElement::Verdict { direction, key, verdict: _ } => {
            PolicyElement::Verdict { direction, key, verdict: PolicyVerdict::Drop }
        }
    }
}

impl Journal {
    pub(crate) fn remove(&mut self, element: PolicyElement) {
        let change = self.changes.entry(key_of(element)).or_insert((Some(element), None));
        change.1 = None;
    }

    /// If the element replaces one with the same key, that one must be removed before.
    pub(crate) fn set(&mut self, element: PolicyElement) {
        self.changes.entry(key_of(element)).or_default().1 = Some(element);
    }

    pub(crate) fn replace_entries(
        &mut self,
        old: Option<&Entries>,
        new: Option<&Entries>,
        to_element: impl Fn(EntryKey, PolicyVerdict) -> PolicyElement,
    ) {
        let (old, new) = (old.map_or(&[][..], |old| &old[..]), new.map_or(&[][..], |new| &new[..]));
        if std::ptr::eq(old, new) {
            return;
        }
        for entry in old.iter().filter(|entry| new.binary_search(entry).is_err()) {
            self.remove(to_element(entry.key, entry.verdict));
        }
        for entry in new.iter().filter(|entry| old.binary_search(entry).is_err()) {
            self.set(to_element(entry.key, entry.verdict));
        }
    }

    pub(crate) fn into_delta(self) -> Delta {
        let changed = self.changes.into_values().filter(|(old, new)| old != new);
        let (mut replaced, mut set) = (Vec::new(), Vec::new());
        for (old, new) in changed {
            replaced.extend(old);
            set.extend(new);
        }
        let mut removed = self.removed;
        for elements in [&mut replaced, &mut set, &mut removed] {
            elements.sort_unstable();
        }
        Delta { replaced, set, profiles: self.profiles.into_iter().collect(), removed }
    }
}
