//! How a table differs from its description, in words, and the text that removes conflicting objects. Pure.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write as _;

use crate::desired::{APPLIED, AppliedObject, Chain, Table};
use crate::element::{Element, StoredKey};
use crate::observe::{ListedChain, ObservedChain, ObservedTable};
use crate::unmanaged::is_plain_name;

/// Wanted objects that are missing, and differences of hooks, sizes and numbers of rules. They need no digests.
pub(crate) fn shape(table: &Table, observed: &ObservedTable) -> Vec<String> {
    let (mut found, id) = (Vec::new(), table.id());
    if observed.is_dormant {
        found.push(format!("table {id} is dormant: its chains are not in force"));
    }
    if observed.revision != Some(table.revision()) {
        found.push(format!("table {id} is of another version or configuration"));
    }
    for want in &table.sets {
        match observed.sets.iter().find(|set| set.name == want.name) {
            None => found.push(format!("set {id} {} is missing", want.name)),
            Some(have) if have.size != want.size => {
                found.push(format!("set {id} {} has another size", want.name));
            }
            Some(_) => {}
        }
    }
    for want in &table.chains {
        let wrong = match observed.chain(&want.name) {
            Some(have) => wrong_chain(want, have),
            None => Some("is missing".to_owned()),
        };
        found.extend(wrong.map(|what| format!("chain {id} {} {what}", want.name)));
    }
    found
}

/// Chains and sets that are not wanted.
pub(crate) fn surplus(table: &Table, observed: &ObservedTable) -> Vec<String> {
    let id = table.id();
    let chains = surplus_chains(table, observed).map(|chain| format!("chain {id} {}", chain.name));
    let sets = surplus_sets(table, observed).map(|set| format!("set {id} {set}"));
    chains.chain(sets).map(|object| format!("{object} is not Podwire's")).collect()
}

/// Chains and sets whose listing has another digest than when they were applied, except chains that [`shape`] reports.
pub(crate) fn changed(table: &Table, observed: &ObservedTable) -> Vec<String> {
    let (mut found, id) = (Vec::new(), table.id());
    let is_miscounted = |object: AppliedObject<'_>| match object {
        AppliedObject::Chain(name) => {
            let want = table.chains.iter().find(|chain| chain.name == name).map(|chain| chain.rules.len());
            want != observed.chain(name).map(|chain| chain.rule_count)
        }
        AppliedObject::Set(_) => false,
    };
    for (object, digest) in objects(table, observed) {
        if is_miscounted(object) {
            continue;
        }
        if observed.applied.get(&object.key()).is_some_and(|applied| *applied != digest) {
            found.push(match object {
                AppliedObject::Chain(name) => {
                    format!("chain {id} {name} has other rules than Podwire applied")
                }
                AppliedObject::Set(name) => format!("set {id} {name} is not as Podwire applied it"),
            });
        }
    }
    found
}

/// Whether the digest of a chain or set was not stored: the process that applied it may have been killed.
pub(crate) fn unrecorded(table: &Table, observed: &ObservedTable) -> Option<String> {
    let mut all = objects(table, observed);
    let is_unrecorded = all.any(|(object, _)| !observed.applied.contains_key(&object.key()));
    is_unrecorded.then(|| format!("table {} has chains or sets without a stored digest", table.id()))
}

/// Whether another version applied the table and no process changed it since: every object has its stored digest.
pub(crate) fn is_intact_other(table: &Table, observed: &ObservedTable) -> bool {
    let is_other = observed.revision.is_some_and(|revision| revision != table.revision());
    is_other
        && observed.digests().all(|(object, digest)| observed.applied.get(&object.key()) == Some(&digest))
}

/// The wanted chains and sets that exist, with the digests of their listing.
pub(crate) fn objects<'a>(
    table: &'a Table,
    observed: &'a ObservedTable,
) -> impl Iterator<Item = (AppliedObject<'a>, u32)> {
    let chains = table.chains.iter().filter_map(|chain| {
        Some((AppliedObject::Chain(chain.name.as_ref()), observed.chain(&chain.name)?.digest))
    });
    let sets = table.sets.iter().filter_map(|want| {
        let have = observed.sets.iter().find(|set| set.name == want.name)?;
        Some((AppliedObject::Set(want.name.as_ref()), have.digest))
    });
    chains.chain(sets)
}

fn wrong_chain(want: &Chain, have: &ObservedChain) -> Option<String> {
    let wrong_hook = match (&want.base, &have.listed.hook) {
        (Some(want), Some(have)) if !have.is(want) => Some("has another hook or priority"),
        (Some(_), Some(_)) if !have.listed.accepts_by_default() => Some("has another policy"),
        (Some(_), None) => Some("has no hook"),
        (None, Some(_)) => Some("should have no hook"),
        (Some(_), Some(_)) | (None, None) => None,
    };
    let count = || {
        let (want, have) = (want.rules.len(), have.rule_count);
        (want != have).then(|| format!("has {have} rules instead of {want}"))
    };
    wrong_hook.map(str::to_owned).or_else(count)
}

fn surplus_chains<'a>(
    table: &'a Table,
    observed: &'a ObservedTable,
) -> impl Iterator<Item = &'a ListedChain> {
    let is_wanted = |name: &str| table.chains.iter().any(|chain| chain.name == name);
    let listed = observed.chains.iter().map(|chain| &chain.listed);
    listed.filter(move |chain| !is_wanted(&chain.name) && !table.is_shared(&chain.name))
}

fn surplus_sets<'a>(table: &'a Table, observed: &'a ObservedTable) -> impl Iterator<Item = &'a str> {
    let is_wanted = |name: &str| table.sets.iter().any(|set| set.name == name);
    let names = observed.sets.iter().map(|set| set.name.as_str());
    names.filter(move |name| !is_wanted(name) && !table.is_shared(name))
}

/// The text that removes objects that conflict with the table's text, for the beginning of the same transaction: chains and sets
/// that are not Podwire's, and chains at another hook. Rules may use them, so all rules are flushed first. Digests of another
/// version are removed, too.
pub(crate) fn clearance(table: &Table, observed: &ObservedTable) -> String {
    let is_displaced = |have: &&ListedChain| {
        table.chains.iter().any(|want| {
            let is_hooked = match (&want.base, &have.hook) {
                (Some(base), Some(hook)) => hook.is(base),
                (None, None) => true,
                (Some(_), None) | (None, Some(_)) => false,
            };
            want.name == have.name && !is_hooked
        })
    };
    let displaced = observed.chains.iter().map(|chain| &chain.listed).filter(is_displaced);
    // A table with names that nft cannot parse can only be replaced as a whole.
    let surplus = surplus_chains(table, observed).filter(|chain| is_plain_name(&chain.name));
    let wrong: Vec<&ListedChain> = displaced.chain(surplus).collect();
    let sets: Vec<&str> = surplus_sets(table, observed).filter(|set| is_plain_name(set)).collect();
    let (mut text, id) = (String::new(), table.id());
    // Removed here: this process may be killed before it stores new digests.
    if observed.revision != Some(table.revision()) && observed.sets.iter().any(|set| set.name == APPLIED) {
        let _ = writeln!(text, "flush map {id} {APPLIED}");
    }
    if wrong.is_empty() && sets.is_empty() {
        return text;
    }
    let wanted = table.chains.iter().filter(|chain| observed.chain(&chain.name).is_some());
    let flushed =
        wanted.map(|chain| chain.name.as_ref()).chain(wrong.iter().map(|chain| chain.name.as_str()));
    for chain in flushed {
        let _ = writeln!(text, "flush chain {id} {chain}");
    }
    for chain in &wrong {
        let _ = writeln!(text, "delete chain {id} {}", chain.name);
    }
    for set in &sets {
        let _ = writeln!(text, "delete set {id} {set}");
    }
    text
}

/// The elements of each set of a table by key.
pub(crate) type StoredElements = BTreeMap<String, HashMap<StoredKey, StoredData>>;

#[derive(Debug, Clone)]
pub(crate) struct StoredData {
    pub(crate) value: Option<Vec<u8>>,
    pub(crate) is_wanted: bool,
}

impl StoredData {
    fn want(&mut self) -> bool {
        self.is_wanted = true;
        true
    }
}

/// How the elements of a table differ from the wanted ones.
#[derive(Debug, Default)]
pub(crate) struct ElementDiff<'e, 'a> {
    pub(crate) missing: Vec<&'e Element<'a>>,
    /// They exist with other data.
    pub(crate) changed: Vec<&'e Element<'a>>,
    pub(crate) surplus: Vec<(String, StoredKey)>,
}

/// Of two wanted elements with the same key, the first one counts.
pub(crate) fn elements<'e, 'a>(wanted: &'e [Element<'a>], mut stored: StoredElements) -> ElementDiff<'e, 'a> {
    let (mut found, mut new, mut none) = (ElementDiff::default(), HashSet::new(), HashMap::new());
    for element in wanted {
        let set = stored.get_mut(element.set.as_ref()).unwrap_or(&mut none);
        let (key, end) = element.stored();
        let has_end = end.is_none_or(|end| set.get_mut(&end).is_some_and(StoredData::want));
        match set.get_mut(&key) {
            Some(data) if data.is_wanted => {}
            Some(data) => {
                data.want();
                if data.value != element.value() {
                    found.changed.push(element);
                } else if !has_end {
                    found.missing.push(element);
                }
            }
            None if new.insert((element.set.as_ref(), key)) => found.missing.push(element),
            None => {}
        }
    }
    for (set, elements) in stored {
        let surplus = elements.into_iter().filter(|(_, data)| !data.is_wanted);
        found.surplus.extend(surplus.map(|(key, _)| (set.clone(), key)));
    }
    found.surplus.sort_unstable();
    found
}

impl ObservedTable {
    fn chain(&self, name: &str) -> Option<&ObservedChain> {
        self.chains.iter().find(|chain| chain.listed.name == name)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::desired::TableFamily;
    use crate::desired::pods;
    use crate::observe::ObservedSet;

    /// Otherwise CHECK would fail for all pods if the process that applied the new rules is killed before it stores their
    /// digests: without an agent, no process applies them again.
    #[test]
    fn digests_of_another_version_are_removed_with_its_rules() {
        let table = pods::base(TableFamily::Inet);
        let of = |revision| {
            let sets = vec![ObservedSet { name: APPLIED.to_owned(), key_length: 4, size: None, digest: 0 }];
            let observed = ObservedTable {
                is_dormant: false,
                revision,
                chains: Vec::new(),
                sets,
                applied: BTreeMap::new(),
            };
            clearance(table, &observed)
        };
        assert_eq!(of(Some(table.revision())), "");
        for other in [None, Some(7)] {
            assert_eq!(of(other), "flush map inet podwire applied\n");
        }
    }
}
