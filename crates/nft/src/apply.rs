//! Makes tables as they are described, without a moment in which their elements are not in force.
//!
//! ```text
//! apply   ─► the text of the tables over the existing ones, one transaction: rules are written again, elements stay
//!         ─► the digests of chains and sets as the kernel lists them now, into map `applied`
//! replace ─► only where that does not help (such as a set of another type): the tables with all elements, one transaction
//! ```

use std::collections::BTreeSet;

use rustix::io::Errno;

use crate::desired::{APPLIED, AppliedObject, Table, TableId};
use crate::diff;
use crate::element::{Data, Element, Field, Role, additions, bytes};
use crate::error::Error;
use crate::firewall::Firewall;
use crate::program;
use crate::request;
use crate::socket::NftRequest;

const RECORD: &str = "store the digests of the firewall's tables";
const KEEP: &str = "change the elements of a firewall table";
const DELETE: &str = "delete a firewall table";
/// Elements in one transaction.
pub(crate) const BATCH: usize = 2000;
/// How often something is tried again because another process changed the same table meanwhile.
const TRIES: usize = 5;

/// What happens to elements that are not wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Surplus {
    Remove,
    /// The list of wanted elements may be incomplete.
    Keep,
}

impl Firewall {
    /// How a table differs from its description, in words. A missing one differs, too.
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

    /// The differences that two listings in a row find: another process may replace rules while they are listed.
    pub(crate) fn lasting_drift_of(&mut self, table: &Table) -> Result<Vec<String>, Error> {
        let mut found = self.drift_of(table)?;
        if !found.is_empty() {
            let again = self.drift_of(table)?;
            found.retain(|one| again.contains(one));
        }
        Ok(found)
    }

    /// Applies the tables and these elements over what exists.
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
            // Another process may have removed the same objects since they were listed: deleting them again fails.
            let now = self.text_over(tables)?;
            if now == text || tries.next().is_none() {
                return Err(error);
            }
            text = now;
        }
        tables.iter().try_for_each(|table| self.record(table))
    }

    /// The text of the tables, after the text that removes objects in its way.
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

    /// The old tables go and the new ones come, with every element, in one transaction. Only when nothing else helps: the
    /// kernel switches chain by chain, and a packet of just that moment may meet neither the old nor the new ones.
    pub(crate) fn replace<'e>(
        &mut self,
        tables: &[Table],
        elements: impl IntoIterator<Item = &'e Element<'e>>,
    ) -> Result<(), Error> {
        let mut text = String::new();
        for id in tables.iter().map(Table::id) {
            // Added first, because deleting one that does not exist fails.
            text.push_str(&format!("add table {id}\ndelete table {id}\n"));
        }
        text.extend(tables.iter().map(Table::text));
        text.push_str(&additions(elements));
        program::apply(&text)?;
        tables.iter().try_for_each(|table| self.record(table))
    }

    /// Stores the digests of what was applied, as the kernel lists it. A table that another process changed since then is left
    /// to the next comparison.
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
                    // Applying changes no set that exists: one that is different stays so until the table is replaced.
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
                // Another process stores its own, or removed the table.
                if !matches!(refusal.errno, Errno::EXIST | Errno::NOENT) {
                    return Err(Error::refused(RECORD, table.id().to_string(), refusal));
                }
            }
        }
        Ok(())
    }

    /// Makes a table that no other process changes as it is described, with these elements. Returns what was changed.
    pub(crate) fn keep_table(
        &mut self,
        table: &Table,
        wanted: &[Element<'_>],
        surplus: Surplus,
    ) -> Result<Vec<String>, Error> {
        let mut changes = self.lasting_drift_of(table)?;
        if !changes.is_empty() {
            let is_applied = match self.apply(std::slice::from_ref(table), wanted) {
                Ok(()) => self.lasting_drift_of(table)?.is_empty(),
                // The text is right: it does not go together with what exists.
                Err(Error::Structure { .. } | Error::Unsupported { .. }) => false,
                Err(error) => return Err(error),
            };
            if !is_applied {
                self.replace(std::slice::from_ref(table), wanted)?;
                let left = self.lasting_drift_of(table)?;
                if !left.is_empty() {
                    let message = format!("it was applied, and still: {}", left.join(", "));
                    return Err(Error::Structure { message });
                }
            }
        }
        let (missing, excess) = self.compare_elements(table, wanted)?;
        if !missing.is_empty() {
            self.add_elements(&missing)?;
            changes.push(format!("{} elements added", missing.len()));
        }
        if !excess.is_empty() && surplus == Surplus::Remove {
            self.remove_keys(table.id(), &excess)?;
            changes.push(format!("{} elements removed", excess.len()));
        }
        Ok(changes)
    }

    /// The wanted elements that are missing, and those that exist and are not wanted.
    fn compare_elements<'e, 'a>(
        &mut self,
        table: &Table,
        wanted: &'e [Element<'a>],
    ) -> Result<(Vec<&'e Element<'a>>, Vec<SetKey>), Error> {
        let mut present: BTreeSet<SetKey> = BTreeSet::new();
        for set in table.filled_sets() {
            let keys = self.contents(table.id(), &set.name)?.into_keys();
            present.extend(keys.map(|key| (set.name.to_string(), key)));
        }
        let mut missing = Vec::new();
        let mut known: BTreeSet<SetKey> = BTreeSet::new();
        for element in wanted {
            let entry = (element.set.to_string(), bytes(&element.key));
            if !present.contains(&entry) && !known.contains(&entry) {
                missing.push(element);
            }
            known.insert(entry);
        }
        Ok((missing, present.into_iter().filter(|entry| !known.contains(entry)).collect()))
    }

    /// An error: a set does not exist, and the table must be kept again.
    pub(crate) fn add_elements(&mut self, elements: &[&Element<'_>]) -> Result<(), Error> {
        for some in elements.chunks(BATCH) {
            let requests: Vec<NftRequest<'_>> = some.iter().map(|element| request::add(element)).collect();
            if let Err(refused) = self.socket.transact(&requests, None)? {
                let object = some.first().map_or_else(String::new, |element| element.table.to_string());
                let refused = refused.first();
                return Err(refused.map_or_else(unexplained, |refusal| Error::refused(KEEP, object, refusal)));
            }
        }
        Ok(())
    }

    /// Elements that are gone already are no error.
    fn remove_keys(&mut self, table: TableId<'_>, entries: &[SetKey]) -> Result<(), Error> {
        for some in entries.chunks(BATCH) {
            let requests = some.iter().map(|(set, key)| request::delete_key(table, set, key));
            self.delete_all(requests.collect())?;
        }
        Ok(())
    }

    pub(crate) fn remove_elements(&mut self, elements: &[Element<'_>]) -> Result<(), Error> {
        for some in elements.chunks(BATCH) {
            self.delete_all(some.iter().map(request::delete).collect())?;
        }
        Ok(())
    }

    /// One that is gone already makes the kernel refuse all, but it names every such one: the second try is without them.
    pub(crate) fn delete_all(&mut self, mut deletions: Vec<NftRequest<'_>>) -> Result<(), Error> {
        while !deletions.is_empty() {
            let Err(refused) = self.socket.transact(&deletions, None)? else { return Ok(()) };
            let mut gone = BTreeSet::new();
            let whole = refused.whole.map(|refusal| (usize::MAX, refusal));
            for (place, refusal) in whole.into_iter().chain(refused.requests) {
                if refusal.errno != Errno::NOENT {
                    return Err(Error::refused(KEEP, "elements".to_owned(), refusal));
                }
                gone.insert(place);
            }
            let mut places = 0..;
            deletions.retain(|_| places.next().is_some_and(|place| !gone.contains(&place)));
        }
        Ok(())
    }

    /// Deletes a table with everything in it. Was there one?
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

/// A set and a key in it.
type SetKey = (String, Vec<u8>);

/// A digest as an element of map [`APPLIED`].
fn applied(table: TableId<'_>, key: u32, digest: u32) -> Element<'_> {
    let data = Data::Value(vec![Field::Mark(digest)]);
    Element { table, set: APPLIED.into(), key: vec![Field::Mark(key)], data, role: Role::Revision }
}

fn unexplained() -> Error {
    Error::Structure { message: "the kernel refused elements and did not say why".to_owned() }
}
