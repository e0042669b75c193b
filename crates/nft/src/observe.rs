//! A table as the kernel lists it: chains and sets with a digest of each. Too slow for every ADD and DEL.
//!
//! The digest of a chain covers every expression of its rules and the contents of their anonymous sets. It leaves out handles,
//! counters and the numbers in the names of anonymous sets, because they change without a change of the rule.

use std::collections::BTreeMap;

use netlink::Refusal;
use netlink::wire::{attribute, attribute_at, attributes, read_text};
use rustix::io::Errno;
use types::Digest;

use crate::desired::{
    self, APPLIED, AppliedObject, Base, ChainType, REVISION, REVISION_KEY, TableFamily, TableId,
};
use crate::error::Error;
use crate::firewall::Firewall;
use crate::number;
use crate::request;
use crate::socket::NftRequest;

const OBSERVE: &str = "list the firewall's tables";
/// Attempts of a listing if another process changes tables.
const TRIES: usize = 100;
/// The prefix of names of anonymous sets.
const ANONYMOUS: &str = "__";
/// `NF_ACCEPT`, which is also how the kernel writes the policy.
const ACCEPT: u32 = 1;

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ObservedTable {
    /// Its chains are not in force.
    pub(crate) is_dormant: bool,
    /// The value in map [`REVISION`].
    pub(crate) revision: Option<u32>,
    pub(crate) chains: Vec<ObservedChain>,
    /// Without anonymous sets.
    pub(crate) sets: Vec<ObservedSet>,
    /// The contents of map [`APPLIED`].
    pub(crate) applied: BTreeMap<u32, u32>,
}

impl ObservedTable {
    /// All chains and sets with the digests of their listing.
    pub(crate) fn digests(&self) -> impl Iterator<Item = (AppliedObject<'_>, u32)> {
        let chains = self.chains.iter().map(|chain| (AppliedObject::Chain(&chain.listed.name), chain.digest));
        chains.chain(self.sets.iter().map(|set| (AppliedObject::Set(&set.name), set.digest)))
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ObservedChain {
    pub(crate) listed: ListedChain,
    pub(crate) rule_count: usize,
    pub(crate) digest: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ObservedSet {
    pub(crate) name: String,
    /// In bytes.
    pub(crate) key_length: u32,
    /// The largest number of elements, if it is limited.
    pub(crate) size: Option<u32>,
    pub(crate) digest: u32,
}

/// Type, hook and priority of a base chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hook {
    /// `filter` or `nat`
    pub(crate) kind: String,
    pub(crate) number: u32,
    pub(crate) priority: i32,
}

impl Hook {
    pub(crate) fn is(&self, base: &Base) -> bool {
        let kind = match base.kind {
            ChainType::Filter => "filter",
            ChainType::Nat => "nat",
        };
        (self.kind.as_str(), self.number, self.priority) == (kind, base.hook.number(), base.priority)
    }
}

/// A base chain, or a plain one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ListedChain {
    pub(crate) table: String,
    pub(crate) name: String,
    pub(crate) hook: Option<Hook>,
    pub(crate) policy: Option<u32>,
}

impl ListedChain {
    pub(crate) fn read(answer: &[u8]) -> Option<Self> {
        let text = |kind| attribute(answer, kind).map(read_text);
        let word = |path: &[u16]| attribute_at(answer, path)?.first_chunk::<4>().copied();
        let number = word(&[number::CHAIN_HOOK, number::HOOK_NUMBER]).map(u32::from_be_bytes);
        let priority = word(&[number::CHAIN_HOOK, number::HOOK_PRIORITY]).map(i32::from_be_bytes);
        let kind = text(number::CHAIN_TYPE).unwrap_or_default();
        let hook = number.zip(priority).map(|(number, priority)| Hook { kind, number, priority });
        let policy = word(&[number::CHAIN_POLICY]).map(u32::from_be_bytes);
        Some(Self { table: text(number::CHAIN_TABLE)?, name: text(number::CHAIN_NAME)?, hook, policy })
    }

    pub(crate) fn accepts_by_default(&self) -> bool {
        self.policy == Some(ACCEPT)
    }
}

impl ObservedSet {
    pub(crate) fn read(answer: &[u8]) -> Option<Self> {
        let name = attribute(answer, number::SET_NAME).map(read_text)?;
        let length = attribute(answer, number::SET_KEY_LENGTH)?.first_chunk().copied();
        let size = attribute_at(answer, &[number::SET_DESCRIPTION, number::DESCRIPTION_SIZE]);
        let size = size.and_then(|size| size.first_chunk()).copied().map(u32::from_be_bytes);
        let mut content = Vec::new();
        // Other attributes, such as the number of elements, change with elements.
        for kind in [
            number::SET_FLAGS,
            number::SET_KEY_TYPE,
            number::SET_KEY_LENGTH,
            number::SET_DATA_TYPE,
            number::SET_DATA_LENGTH,
            number::SET_DESCRIPTION,
            number::SET_TIMEOUT,
        ] {
            write(&mut content, kind, attribute(answer, kind).unwrap_or_default());
        }
        Some(Self { name, key_length: u32::from_be_bytes(length?), size, digest: digest(&content) })
    }

    pub(crate) fn is_anonymous(&self) -> bool {
        self.name.starts_with(ANONYMOUS)
    }
}

/// A rule with its expressions, each a name and attributes.
#[derive(Debug, PartialEq, Eq)]
struct ListedRule {
    chain: String,
    expressions: Vec<ListedExpression>,
}

#[derive(Debug, PartialEq, Eq)]
struct ListedExpression {
    name: String,
    attributes: Vec<(u16, Vec<u8>)>,
}

impl ListedRule {
    fn read(answer: &[u8]) -> Option<Self> {
        let chain = attribute(answer, number::RULE_CHAIN).map(read_text)?;
        let list = attribute(answer, number::RULE_EXPRESSIONS).unwrap_or_default();
        let expressions = attributes(list).filter_map(|(_, it)| ListedExpression::read(it)).collect();
        Some(Self { chain, expressions })
    }
}

impl ListedExpression {
    fn read(expression: &[u8]) -> Option<Self> {
        let name = attribute(expression, number::EXPR_NAME).map(read_text)?;
        let data = attribute(expression, number::EXPR_DATA).unwrap_or_default();
        let attributes = match name.as_str() {
            // Its attributes are numbers of packets and bytes.
            "counter" => Vec::new(),
            _ => attributes(data).map(|(kind, value)| (kind, value.to_vec())).collect(),
        };
        Some(Self { name, attributes })
    }

    /// The anonymous set that it looks up.
    fn anonymous_set(&self) -> Option<String> {
        let (_, name) = self.attributes.iter().find(|(kind, _)| self.is_lookup(*kind))?;
        Some(read_text(name)).filter(|name| name.starts_with(ANONYMOUS))
    }

    fn is_lookup(&self, kind: u16) -> bool {
        self.name == "lookup" && kind == number::LOOKUP_SET
    }

    fn write(&self, out: &mut Vec<u8>, anonymous: &BTreeMap<String, Vec<u8>>) {
        write(out, 0, self.name.as_bytes());
        for (kind, value) in &self.attributes {
            let contents = anonymous.get(&read_text(value)).filter(|_| self.is_lookup(*kind));
            write(out, *kind, contents.unwrap_or(value));
        }
    }
}

/// With the length, so that different sequences have different bytes.
fn write(out: &mut Vec<u8>, kind: u16, value: &[u8]) {
    out.extend(kind.to_be_bytes());
    out.extend(value.len().to_be_bytes());
    out.extend(value);
}

fn digest(content: &[u8]) -> u32 {
    desired::number(&Digest::of_bytes(content))
}

impl Firewall {
    /// None if the table does not exist. If another process changed tables during a listing, the listing is repeated. It is
    /// accepted when two in a row are equal, because ADD and DEL of pods change elements, but no structure.
    pub(crate) fn observe(&mut self, table: TableId<'_>) -> Result<Option<ObservedTable>, Error> {
        let mut before = None;
        for _ in 0..TRIES {
            let generation = self.generation()?;
            let observed = self.observe_once(table)?;
            if generation == self.generation()? || before.as_ref() == Some(&observed) {
                return Ok(observed);
            }
            before = Some(observed);
        }
        let (object, reason) = (table.to_string(), "other processes kept changing tables".to_owned());
        Err(Error::Transaction { operation: OBSERVE, object, reason, source: Errno::INTR.into() })
    }

    fn observe_once(&mut self, table: TableId<'_>) -> Result<Option<ObservedTable>, Error> {
        let Some(is_dormant) = self.is_dormant(table)? else { return Ok(None) };
        // The stored digests are read first. Later, they could contain the digest of an object that is not listed yet.
        let applied = self.numbers(table, APPLIED)?;
        let revision = self.numbers(table, REVISION)?.get(&REVISION_KEY).copied();
        let mut chains = self.listed(table, &request::get_chains(table.family), ListedChain::read)?;
        chains.retain(|chain| chain.table == table.name);
        let rules = self.listed(table, &request::get_rules(table), ListedRule::read)?;
        let anonymous = self.anonymous_sets(table, &rules)?;
        let mut sets = self.sets(table)?;
        sets.retain(|set| !set.is_anonymous());
        let chains = chains.into_iter().map(|listed| observed_chain(listed, &rules, &anonymous)).collect();
        Ok(Some(ObservedTable { is_dormant, revision, chains, sets, applied }))
    }

    /// None if the table does not exist.
    fn is_dormant(&mut self, table: TableId<'_>) -> Result<Option<bool>, Error> {
        match self.socket.ask(&[request::get_table(table)])?.pop() {
            Some(Ok(found)) => Ok(Some(request::is_dormant(&found))),
            Some(Err(Refusal { errno: Errno::NOENT | Errno::OPNOTSUPP | Errno::AFNOSUPPORT, .. })) | None => {
                Ok(None)
            }
            Some(Err(refusal)) => Err(Error::refused(OBSERVE, table.to_string(), refusal)),
        }
    }

    pub(crate) fn exists(&mut self, table: TableId<'_>) -> Result<bool, Error> {
        Ok(self.is_dormant(table)?.is_some())
    }

    /// The contents of a map from number to number.
    pub(crate) fn numbers(&mut self, table: TableId<'_>, map: &str) -> Result<BTreeMap<u32, u32>, Error> {
        let mut numbers = BTreeMap::new();
        let word = |bytes: &[u8]| bytes.first_chunk().copied().map(u32::from_ne_bytes);
        self.dump_if_there(&request::get_elements(table, map), |answer| {
            let pairs = request::elements(answer).filter_map(|e| Some((word(e.key)?, word(&e.value?)?)));
            numbers.extend(pairs);
        })?;
        Ok(numbers)
    }

    /// The contents of the anonymous sets of these rules, by name. The kernel lists the elements in no particular order.
    fn anonymous_sets(
        &mut self,
        table: TableId<'_>,
        rules: &[ListedRule],
    ) -> Result<BTreeMap<String, Vec<u8>>, Error> {
        let mut contents = BTreeMap::new();
        let names = rules.iter().flat_map(|rule| &rule.expressions);
        for name in names.filter_map(ListedExpression::anonymous_set) {
            let mut elements: Vec<Vec<u8>> = Vec::new();
            self.dump_if_there(&request::get_elements(table, &name), |answer| {
                elements.extend(request::raw_elements(answer).map(element));
            })?;
            elements.sort_unstable();
            elements.dedup();
            contents.insert(name, elements.concat());
        }
        Ok(contents)
    }

    /// All sets of the table, also anonymous ones.
    pub(crate) fn sets(&mut self, table: TableId<'_>) -> Result<Vec<ObservedSet>, Error> {
        self.listed(table, &request::get_sets(table), ObservedSet::read)
    }

    /// The names of the managed tables of this family.
    pub(crate) fn managed_tables(&mut self, family: TableFamily) -> Result<Vec<String>, Error> {
        let mut names = Vec::new();
        self.dump_if_there(&request::get_tables(family), |table| {
            names.extend(request::name_of_table(table));
        })?;
        names.retain(|name| desired::is_managed_table(name));
        names.sort();
        names.dedup();
        Ok(names)
    }

    /// The generation: every change of any table increases it. None if the kernel lacks nf_tables.
    pub(crate) fn generation(&mut self) -> Result<Option<u32>, Error> {
        let answer = self.socket.ask(&[request::get_generation()])?.pop();
        Ok(answer.and_then(Result::ok).and_then(|found| request::generation(&found)))
    }

    /// Empty if the table was removed or the kernel lacks nf_tables.
    pub(crate) fn listed<T: PartialEq>(
        &mut self,
        table: TableId<'_>,
        what: &NftRequest<'_>,
        read: impl Fn(&[u8]) -> Option<T>,
    ) -> Result<Vec<T>, Error> {
        match self.socket.list(what, read)? {
            Ok(listed) => Ok(listed),
            Err(Refusal { errno: Errno::NOENT | Errno::OPNOTSUPP | Errno::AFNOSUPPORT, .. }) => {
                Ok(Vec::new())
            }
            Err(refusal) => Err(Error::refused(OBSERVE, table.to_string(), refusal)),
        }
    }

    /// Lists nothing if the table or set does not exist, or if the kernel lacks nf_tables. Elements may be listed twice.
    pub(crate) fn dump_if_there(
        &mut self,
        request: &NftRequest<'_>,
        each: impl FnMut(&[u8]),
    ) -> Result<(), Error> {
        match self.socket.dump(request, each)? {
            Ok(()) | Err(Refusal { errno: Errno::NOENT | Errno::OPNOTSUPP | Errno::AFNOSUPPORT, .. }) => {
                Ok(())
            }
            Err(refusal) => Err(Error::refused(OBSERVE, desired::TABLE.to_owned(), refusal)),
        }
    }
}

fn observed_chain(
    listed: ListedChain,
    rules: &[ListedRule],
    anonymous: &BTreeMap<String, Vec<u8>>,
) -> ObservedChain {
    let own: Vec<&ListedRule> = rules.iter().filter(|rule| rule.chain == listed.name).collect();
    let mut content = Vec::new();
    for rule in &own {
        let mut one = Vec::new();
        rule.expressions.iter().for_each(|expression| expression.write(&mut one, anonymous));
        write(&mut content, 0, &one);
    }
    ObservedChain { rule_count: own.len(), digest: digest(&content), listed }
}

fn element(attributes: &[u8]) -> Vec<u8> {
    let mut content = Vec::new();
    for kind in [number::ELEM_KEY, number::ELEM_KEY_END, number::ELEM_DATA, number::ELEM_FLAGS] {
        write(&mut content, kind, attribute(attributes, kind).unwrap_or_default());
    }
    content
}
