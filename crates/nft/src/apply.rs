//! Applies tables as they are described. Their elements stay in force meanwhile.
//!
//! ```text
//! apply   ─► the text of the tables over the existing ones, one transaction: rules are replaced, elements stay
//!         ─► the digests of chains and sets as the kernel lists them now, into map `applied`
//! replace ─► only if that does not help (such as a set of another type): the tables with all elements, one transaction
//! ```

use std::collections::BTreeSet;

use rustix::io::Errno;
use types::count;

use crate::desired::{APPLIED, AppliedObject, SetKeys, Table, TableId};
use crate::diff::{self, ElementDiff, StoredData, StoredElements};
use crate::element::{Data, Element, Field, Role, additions};
use crate::error::Error;
use crate::firewall::Firewall;
use crate::program;
use crate::request;
use crate::socket::NftRequest;

const RECORD: &str = "store the digests of the firewall's tables";
const CHANGE: &str = "change the elements of a firewall table";
const DELETE: &str = "delete a firewall table";
/// Requests in one transaction.
pub(crate) const BATCH: usize = 2000;
/// Attempts if another process changes the same table.
const TRIES: usize = 5;

/// Whether elements that are not wanted are removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Surplus {
    Remove,
    /// The list of wanted elements may be incomplete.
    Keep,
}

impl Firewall {
    /// How a table differs from its description, in words. A missing table differs.
    pub(crate) fn drift_of(&mut self, table: &Table) -> Result<Vec<String>, Error> {
        let Some(observed) = self.observe(table.id())? else {
            return Ok(vec![format!("table {} is missing", table.id())]);
        };
        let mut found = diff::shape(table, &observed);
        found.extend(diff::surplus(table, &observed));
        found.extend(diff::changed(table, &observed));
        found.extend(diff::unrecorded(table, &observed));
        Ok(found)
    }

    /// The differences that two consecutive listings have: another process may replace rules while they are listed.
    pub(crate) fn lasting_drift_of(&mut self, table: &Table) -> Result<Vec<String>, Error> {
        let mut found = self.drift_of(table)?;
        if !found.is_empty() {
            let second = self.drift_of(table)?;
            found.retain(|one| second.contains(one));
        }
        Ok(found)
    }

    /// Applies the tables and these elements over the existing ones.
    pub(crate) fn apply<'e>(
        &mut self,
        tables: &[Table],
        elements: impl IntoIterator<Item = &'e Element<'e>>,
    ) -> Result<(), Error> {
        if tables.is_empty() {
            return Ok(());
        }
        let (mut text, elements) = (self.text_over(tables)?, additions(elements));
        let mut tries = 0..TRIES;
        while let Err(error) = program::apply(&format!("{text}{elements}")) {
            // Another process may have removed the same objects since they were listed. Then deleting them fails.
            let now = self.text_over(tables)?;
            if now == text || tries.next().is_none() {
                return Err(error);
            }
            text = now;
        }
        tables.iter().try_for_each(|table| self.record(table))
    }

    /// The text of the tables, after the text that removes conflicting objects.
    fn text_over(&mut self, tables: &[Table]) -> Result<String, Error> {
        let mut text = String::new();
        for table in tables {
            if let Some(observed) = self.observe(table.id())? {
                text.push_str(&diff::clearance(table, &observed));
            }
            text.push_str(&table.text());
        }
        Ok(text)
    }

    /// Replaces the tables with all elements in one transaction. Only if [`apply`](Self::apply) does not help: the kernel switches
    /// chain by chain, so a packet at that moment may pass neither the old nor the new chains.
    pub(crate) fn replace<'e>(
        &mut self,
        tables: &[Table],
        elements: impl IntoIterator<Item = &'e Element<'e>>,
    ) -> Result<(), Error> {
        let mut text = String::new();
        for id in tables.iter().map(Table::id) {
            // Added first: deleting a table that does not exist fails.
            text.push_str(&format!("add table {id}\ndelete table {id}\n"));
        }
        text.extend(tables.iter().map(Table::text));
        text.push_str(&additions(elements));
        program::apply(&text)?;
        tables.iter().try_for_each(|table| self.record(table))
    }

    /// Stores the digests of the applied objects as the kernel lists them. If another process changed the table since then, the
    /// next comparison finds that.
    fn record(&mut self, table: &Table) -> Result<(), Error> {
        for _ in 0..TRIES {
            let Some(observed) = self.observe(table.id())? else { return Ok(()) };
            if !diff::shape(table, &observed).is_empty() {
                return Ok(());
            }
            let known: BTreeSet<u32> = observed.digests().map(|(object, _)| object.key()).collect();
            let stale = observed.applied.keys().filter(|key| !known.contains(key)).copied();
            let mut elements: Vec<(Element<'_>, bool)> = Vec::new();
            for (object, digest) in diff::objects(table, &observed) {
                let key = object.key();
                match (object, observed.applied.get(&key)) {
                    (_, Some(applied)) if *applied == digest => {}
                    // Applying does not change the type or flags of an existing set. It differs until the table is replaced.
                    (AppliedObject::Set(_), Some(_)) => {}
                    (_, before) => elements.push((applied(table.id(), key, digest), before.is_some())),
                }
            }
            let stale: Vec<Element<'_>> = stale.map(|key| applied(table.id(), key, 0)).collect();
            let mut requests: Vec<NftRequest<'_>> = stale.iter().map(request::delete).collect();
            for (element, is_replaced) in &elements {
                requests.extend(is_replaced.then(|| request::delete(element)));
                requests.push(request::add(element));
            }
            let Err(refused) = self.socket.transact(&requests, None)? else { return Ok(()) };
            let refusals = refused.whole.into_iter().chain(refused.requests.into_iter().map(|(_, r)| r));
            for refusal in refusals {
                // Another process stored its digests, or removed the table.
                if !matches!(refusal.errno, Errno::EXIST | Errno::NOENT) {
                    return Err(Error::refused(RECORD, table.id().to_string(), refusal));
                }
            }
        }
        Ok(())
    }

    /// Applies a table that no other process changes, with these elements, and repairs drift. Returns the changes in words.
    pub fn reconcile_table(
        &mut self,
        table: &Table,
        wanted: &[Element<'_>],
        surplus: Surplus,
    ) -> Result<Vec<String>, Error> {
        let mut changes = self.lasting_drift_of(table)?;
        if !changes.is_empty() {
            self.reconcile_structure(table, wanted, wanted)?;
        }
        let difference = diff::elements(wanted, self.stored_elements(table)?);
        changes.extend(self.change_elements(table, &difference, surplus)?);
        Ok(changes)
    }

    /// Applies a table that differs, with these elements. If that does not help, the table is replaced with all elements.
    pub(crate) fn reconcile_structure(
        &mut self,
        table: &Table,
        elements: &[Element<'_>],
        all: &[Element<'_>],
    ) -> Result<(), Error> {
        let is_applied = match self.apply(std::slice::from_ref(table), elements) {
            Ok(()) => self.lasting_drift_of(table)?.is_empty(),
            // The text itself is valid, but it conflicts with existing objects.
            Err(Error::Structure { .. } | Error::Unsupported { .. }) => false,
            Err(error) => return Err(error),
        };
        if !is_applied {
            self.replace(std::slice::from_ref(table), all)?;
            let drift = self.lasting_drift_of(table)?;
            if !drift.is_empty() {
                let message = format!("still different after it was applied: {}", drift.join(", "));
                return Err(Error::Structure { message });
            }
        }
        Ok(())
    }

    /// The elements of all sets that Podwire fills, without those that expire.
    pub(crate) fn stored_elements(&mut self, table: &Table) -> Result<StoredElements, Error> {
        let mut stored = StoredElements::new();
        for set in table.filled_sets() {
            let of_set = stored.entry(set.name.to_string()).or_default();
            self.dump_if_there(&request::get_elements(table.id(), &set.name), |answer| {
                for element in request::elements(answer).filter(|element| !element.expires) {
                    let (key, value) = (element.stored(), element.value);
                    of_set.extend(key.map(|key| (key, StoredData { value, is_wanted: false })));
                }
            })?;
        }
        Ok(stored)
    }

    /// Returns the changes in words. Surplus intervals may overlap wanted ones, so they are removed before these are added. All other
    /// surplus elements are removed last.
    fn change_elements(
        &mut self,
        table: &Table,
        difference: &ElementDiff<'_, '_>,
        surplus: Surplus,
    ) -> Result<Vec<String>, Error> {
        let (id, ElementDiff { missing, changed, surplus: unwanted }) = (table.id(), difference);
        let unwanted = match surplus {
            Surplus::Remove => unwanted.as_slice(),
            Surplus::Keep => &[],
        };
        let has_intervals =
            |name: &str| table.sets.iter().any(|set| set.name == name && set.keys == SetKeys::Intervals);
        let (mut intervals, plain): (Vec<_>, Vec<_>) =
            unwanted.iter().partition(|(set, _)| has_intervals(set));
        // If one interval ends where the next one begins, the kernel finds the end only before the beginning is deleted.
        intervals.sort_by_key(|(set, key)| (set, &key.key, !key.is_interval_end));
        let mut steps = Vec::new();
        steps.extend(intervals.iter().map(|(set, key)| vec![request::delete_stored(id, set, key)]));
        steps.extend(changed.iter().map(|element| {
            vec![request::delete_stored(id, &element.set, &element.stored().0), request::add(element)]
        }));
        steps.extend(missing.iter().map(|element| vec![request::add(element)]));
        self.transact_steps(id, steps)?;
        self.delete_all(plain.iter().map(|(set, key)| request::delete_stored(id, set, key)).collect())?;
        let removed = unwanted.iter().filter(|(_, key)| !key.is_interval_end).count();
        let removed = removed.max(usize::from(!unwanted.is_empty()));
        Ok(change_words(missing.len(), changed.len(), removed))
    }

    /// An error means that a set does not exist: the table must be applied again.
    pub(crate) fn add_elements(&mut self, table: TableId<'_>, elements: &[Element<'_>]) -> Result<(), Error> {
        self.transact_steps(table, elements.iter().map(|element| vec![request::add(element)]).collect())
    }

    /// The requests of one step are in one transaction. A transaction has a bounded number of requests.
    fn transact_steps(&mut self, table: TableId<'_>, steps: Vec<Vec<NftRequest<'_>>>) -> Result<(), Error> {
        let mut steps = steps.into_iter().peekable();
        while steps.peek().is_some() {
            let mut requests = Vec::new();
            while let Some(step) = steps.next_if(|step| requests.len() + step.len() <= BATCH) {
                requests.extend(step);
            }
            if let Err(refused) = self.socket.transact(&requests, None)? {
                let refused = refused.first();
                let object = table.to_string();
                return Err(refused.map_or_else(unexplained, |it| Error::refused(CHANGE, object, it)));
            }
        }
        Ok(())
    }

    /// Elements that do not exist are no error.
    pub(crate) fn remove_elements(&mut self, elements: &[Element<'_>]) -> Result<(), Error> {
        self.delete_all(elements.iter().map(request::delete).collect())
    }

    /// The kernel refuses a transaction if one of its elements does not exist, and reports each of them. They are left out of the
    /// next attempt.
    pub(crate) fn delete_all(&mut self, deletions: Vec<NftRequest<'_>>) -> Result<(), Error> {
        let mut deletions = deletions.into_iter().peekable();
        while deletions.peek().is_some() {
            self.delete_some(deletions.by_ref().take(BATCH).collect())?;
        }
        Ok(())
    }

    fn delete_some(&mut self, mut deletions: Vec<NftRequest<'_>>) -> Result<(), Error> {
        while !deletions.is_empty() {
            let Err(refused) = self.socket.transact(&deletions, None)? else { return Ok(()) };
            let mut absent = BTreeSet::new();
            let whole = refused.whole.map(|refusal| (usize::MAX, refusal));
            for (index, refusal) in whole.into_iter().chain(refused.requests) {
                if refusal.errno != Errno::NOENT {
                    return Err(Error::refused(CHANGE, "elements".to_owned(), refusal));
                }
                absent.insert(index);
            }
            let mut indexes = 0..;
            deletions.retain(|_| indexes.next().is_some_and(|index| !absent.contains(&index)));
        }
        Ok(())
    }

    /// Deletes a table with its contents. Returns whether it existed.
    pub(crate) fn delete_table(&mut self, table: TableId<'_>) -> Result<bool, Error> {
        let Err(refused) = self.socket.transact(&[request::delete_table(table)], None)? else {
            return Ok(true);
        };
        let refusals = refused.whole.into_iter().chain(refused.requests.into_iter().map(|(_, r)| r));
        for refusal in refusals {
            if !matches!(refusal.errno, Errno::NOENT | Errno::OPNOTSUPP | Errno::AFNOSUPPORT) {
                return Err(Error::refused(DELETE, table.to_string(), refusal));
            }
        }
        Ok(false)
    }
}

/// The numbers of elements that were added, changed and removed, in words.
pub(crate) fn change_words(added: usize, changed: usize, removed: usize) -> Vec<String> {
    let of = |(number, what): (usize, &str)| {
        (number > 0).then(|| format!("{} {what}", count(number as u64, "element")))
    };
    [(added, "added"), (changed, "changed"), (removed, "removed")].into_iter().filter_map(of).collect()
}

/// A digest as an element of map [`APPLIED`].
fn applied(table: TableId<'_>, key: u32, digest: u32) -> Element<'_> {
    let data = Data::Value(vec![Field::Mark(digest)]);
    Element { table, set: APPLIED.into(), key: vec![Field::Mark(key)], data, role: Role::Revision }
}

pub(crate) fn unexplained() -> Error {
    Error::Structure { message: "the kernel refused elements without a reason".to_owned() }
}
