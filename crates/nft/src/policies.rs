//! The table of policies in the kernel: full load, changes of elements, and listing.
//!
//! ```text
//! reconcile_policies ─► the table is missing or different: its sets ─► elements ─► its rules; otherwise only elements that differ
//! apply_policy  ─► elements of a change, one transaction ─► (the caller sets the groups of links) ─► remove_policy
//! ```
//!
//! A transaction has any number of elements: the kernel's limit for one send is 1 GiB, more than 15 million elements. It is never
//! split, because between two parts flows could be accepted that neither the old nor the new policies accept.

use std::collections::BTreeMap;

use model::objects::Direction;
use netlink::wire::{attribute, attribute_at, attributes, read_text};
use policy::PolicyElement;

use crate::apply::{self, Surplus};
use crate::desired::policy::{FORBIDDEN_CHAINS, POLICY, RANGES, deny_chain};
use crate::desired::{SetKeys, Table};
use crate::diff::{self, ElementDiff, StoredElements};
use crate::element::{Element, StoredKey};
use crate::error::Error;
use crate::firewall::Firewall;
use crate::number;
use crate::policy_elements;
use crate::program;
use crate::request;
use crate::socket::{NftRequest, RefusedTransaction};

const CHANGE: &str = "change the elements of policies";
const REMOVE: &str = "remove elements of policies";
/// Elements in one message. An attribute has at most 64 KiB.
const GROUP: usize = 256;

/// The packets that the table dropped since its rules were applied.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeniedPackets {
    /// First packets of flows to pods.
    pub ingress: u64,
    /// First packets of flows from pods.
    pub egress: u64,
    /// Packets that belong to no flow, of both directions.
    pub invalid: u64,
    /// Packets of flows that a later change forbids.
    pub forbidden: u64,
}

/// A key of a set.
type SetKey = (String, StoredKey);

impl Firewall {
    /// Applies the table of policies with these elements, and repairs drift. Returns the changes in words. A missing table gets its
    /// rules last, so that no flow is denied because of missing elements. With [`Surplus::Keep`], elements that are not wanted stay,
    /// except address ranges and intervals that overlap wanted ones.
    pub fn reconcile_policies(
        &mut self,
        table: &Table,
        wanted: &[PolicyElement],
        surplus: Surplus,
    ) -> Result<Vec<String>, Error> {
        let wanted = policy_elements::elements(wanted);
        let mut changes = self.lasting_drift_of(table)?;
        if changes.is_empty() {
            return self.reconcile_policy_elements(table, &wanted, surplus);
        }
        let sets = Table { chains: Vec::new(), ..table.clone() };
        match program::apply(&sets.text()) {
            Ok(()) => {
                changes.extend(self.reconcile_policy_elements(table, &wanted, surplus)?);
                self.reconcile_structure(table, &[], &wanted)?;
            }
            // The text itself is valid, but it conflicts with existing sets.
            Err(Error::Structure { .. } | Error::Unsupported { .. }) => {
                self.reconcile_structure(table, &wanted, &wanted)?;
                changes.extend(self.reconcile_policy_elements(table, &wanted, surplus)?);
            }
            Err(error) => return Err(error),
        }
        Ok(changes)
    }

    /// Changes only elements that differ. Elements that are wanted are added first, in one transaction. If an address range differs,
    /// all ranges of its family are replaced: the kernel would refuse one that begins like an existing one and ends elsewhere.
    fn reconcile_policy_elements(
        &mut self,
        table: &Table,
        wanted: &[Element<'_>],
        surplus: Surplus,
    ) -> Result<Vec<String>, Error> {
        let stored = self.stored_elements(table)?;
        let ranges = RANGES.map(|name| (name, keys_of(&stored, name)));
        let ElementDiff { missing, changed, surplus: unwanted } = diff::elements(wanted, stored);
        let (mut deleted, mut removed): (Vec<SetKey>, Vec<SetKey>) = {
            let new = intervals(&missing);
            unwanted.into_iter().partition(|key| is_in_the_way(table, key, &new))
        };
        match surplus {
            Surplus::Remove => {}
            Surplus::Keep => removed.clear(),
        }
        let gone = deleted.iter().chain(&removed).filter(|(_, key)| !key.is_interval_end).count();
        let words = apply::change_words(missing.len(), changed.len(), gone);
        deleted.extend(changed.iter().map(|element| (element.set.to_string(), element.stored().0)));
        let mut added: Vec<&Element<'_>> = changed.into_iter().chain(missing).collect();
        for (name, keys) in ranges {
            let is_changed =
                deleted.iter().any(|(set, _)| set == name) || added.iter().any(|it| it.set == name);
            if is_changed {
                deleted.retain(|(set, _)| set != name);
                deleted.extend(keys);
                added.retain(|element| element.set != name);
                added.extend(wanted.iter().filter(|element| element.set == name));
            }
        }
        self.change_policies(deleted, added)?.map_err(|refused| refusal(CHANGE, refused))?;
        self.delete_policies(removed)?;
        Ok(words)
    }

    /// Deletes `replaced` and adds `set` in one transaction. An error means that the table differs: call
    /// [`reconcile_policies`](Self::reconcile_policies), with larger sizes if [`Error::is_full`].
    pub fn apply_policy(&mut self, replaced: &[PolicyElement], set: &[PolicyElement]) -> Result<(), Error> {
        let added = policy_elements::elements(set);
        let deleted = keys(&policy_elements::elements(replaced));
        self.change_policies(deleted, added.iter().collect())?.map_err(|refused| refusal(CHANGE, refused))
    }

    /// Removes elements in one transaction. Elements that do not exist are no error.
    pub fn remove_policy(&mut self, removed: &[PolicyElement]) -> Result<(), Error> {
        self.delete_policies(keys(&policy_elements::elements(removed)))
    }

    fn delete_policies(&mut self, keys: Vec<SetKey>) -> Result<(), Error> {
        match self.change_policies(keys.clone(), Vec::new())? {
            Ok(()) => Ok(()),
            Err(RefusedTransaction { whole: Some(whole), .. }) => {
                Err(Error::refused(REMOVE, POLICY.to_string(), whole))
            }
            // One of them does not exist.
            Err(_) => self.delete_all(
                in_order(keys).iter().map(|(set, key)| request::delete_stored(POLICY, set, key)).collect(),
            ),
        }
    }

    fn change_policies(
        &mut self,
        deleted: Vec<SetKey>,
        mut added: Vec<&Element<'_>>,
    ) -> Result<Result<(), RefusedTransaction>, Error> {
        let deleted = in_order(deleted);
        added.sort_by(|a, b| a.set.cmp(&b.set));
        let groups = deleted.chunk_by(|(a, _), (b, _)| a == b).flat_map(|of_set| of_set.chunks(GROUP));
        let mut requests: Vec<NftRequest<'_>> =
            groups.map(|keys| request::delete_group(POLICY, keys)).collect();
        let groups = added.chunk_by(|a, b| a.set == b.set).flat_map(|of_set| of_set.chunks(GROUP));
        requests.extend(groups.map(request::add_group));
        self.socket.transact(&requests, None)
    }

    /// The elements of the table as the kernel lists them, sorted.
    pub fn policy_elements(&mut self, table: &Table) -> Result<Vec<PolicyElement>, Error> {
        policy_elements::read(self.stored_elements(table)?).map_err(|set| Error::Structure {
            message: format!("{POLICY} {set} has an element that Podwire does not write"),
        })
    }

    pub fn denied_packets(&mut self) -> Result<DeniedPackets, Error> {
        let rules = self.listed(POLICY, &request::get_rules(POLICY), counter_of_rule)?;
        let counters = |chain: &str| -> Vec<u64> {
            rules.iter().filter(|(of, _)| of == chain).map(|(_, packets)| *packets).collect()
        };
        let [ingress, egress] = [Direction::Ingress, Direction::Egress].map(|of| counters(deny_chain(of)));
        let number = |counters: &[u64], index: usize| counters.get(index).copied().unwrap_or_default();
        Ok(DeniedPackets {
            ingress: number(&ingress, 1),
            egress: number(&egress, 1),
            invalid: number(&ingress, 0) + number(&egress, 0),
            forbidden: FORBIDDEN_CHAINS.iter().flat_map(|chain| counters(chain)).sum(),
        })
    }

    /// Whether there is a table of policies, also a different one.
    pub fn has_policies(&mut self) -> Result<bool, Error> {
        self.exists(POLICY)
    }

    /// Deletes the table of policies. Returns whether it existed.
    pub fn remove_policies(&mut self) -> Result<bool, Error> {
        self.delete_table(POLICY)
    }
}

fn refusal(operation: &'static str, refused: RefusedTransaction) -> Error {
    match refused.first() {
        Some(refusal) => Error::refused(operation, POLICY.to_string(), refusal),
        None => apply::unexplained(),
    }
}

/// All keys of a set.
fn keys_of(stored: &StoredElements, set: &str) -> Vec<SetKey> {
    stored
        .get(set)
        .into_iter()
        .flat_map(|keys| keys.keys())
        .map(|key| (set.to_owned(), key.clone()))
        .collect()
}

/// The keys of elements as they are stored.
fn keys(elements: &[Element<'_>]) -> Vec<SetKey> {
    let of = |element: &Element<'_>| {
        let (key, end) = element.stored();
        [Some(key), end].into_iter().flatten().map(|key| (element.set.to_string(), key)).collect::<Vec<_>>()
    };
    elements.iter().flat_map(of).collect()
}

/// If one interval ends where the next one begins, the kernel finds the end only before the beginning is deleted.
fn in_order(mut keys: Vec<SetKey>) -> Vec<SetKey> {
    keys.sort_by(|(set, key), (other, next)| {
        (set, &key.key, !key.is_interval_end).cmp(&(other, &next.key, !next.is_interval_end))
    });
    keys
}

/// Intervals of concatenations by set and first key, with the last key.
type Intervals = BTreeMap<SetKey, Vec<u8>>;

fn intervals(elements: &[&Element<'_>]) -> Intervals {
    let of = |element: &&Element<'_>| {
        let (key, _) = element.stored();
        let last = key.last.clone().unwrap_or_else(|| key.key.clone());
        ((element.set.to_string(), StoredKey::exact(key.key)), last)
    };
    elements.iter().map(of).collect()
}

/// Whether the kernel would refuse one of the new elements because of this one. All address ranges are replaced together.
fn is_in_the_way(table: &Table, (name, key): &SetKey, new: &Intervals) -> bool {
    let Some(set) = table.sets.iter().find(|set| set.name == *name) else { return false };
    match (set.keys, set.key.as_slice()) {
        (SetKeys::Exact, _) => false,
        (SetKeys::Intervals, [_]) => true,
        (SetKeys::Intervals, _) => {
            let last = key.last.as_ref().unwrap_or(&key.key);
            let until = (name.clone(), StoredKey::exact(last.clone()));
            let before = new.range(..=until).next_back();
            before.is_some_and(|((of, _), end)| of == name && *end >= key.key)
        }
    }
}

/// The chain of a rule with a counter, and its number of packets.
fn counter_of_rule(answer: &[u8]) -> Option<(String, u64)> {
    let chain = attribute(answer, number::RULE_CHAIN).map(read_text)?;
    let expressions = attribute(answer, number::RULE_EXPRESSIONS)?;
    let is_counter = |expression: &&[u8]| {
        attribute(expression, number::EXPR_NAME).map(read_text).as_deref() == Some("counter")
    };
    let counter = attributes(expressions).map(|(_, expression)| expression).find(is_counter)?;
    let packets = attribute_at(counter, &[number::EXPR_DATA, number::COUNTER_PACKETS])?;
    Some((chain, u64::from_be_bytes(*packets.first_chunk()?)))
}
