//! Unmanaged chains at the forward hook, and the rules that they jump to. Their number is limited.

use std::collections::{BTreeMap, VecDeque};

use netlink::Refusal;
use netlink::wire::{Body, attribute, read_text};
use rustix::io::Errno;

use super::ChainFamily;
use crate::desired::is_managed_table;
use crate::error::Error;
use crate::number;
use crate::observe::ListedChain;
use crate::rule::{KernelRule, RuleVerdict};
use crate::socket::{MessageHeader, NftRequest, NftSocket};

const LIST: &str = "list unmanaged chains";
/// `NF_INET_FORWARD`
const FORWARD: u32 = 2;
/// Chains at the forward hook have a few dozen rules. More than this number is not read.
const MOST: usize = 4096;

/// Base chains of one family, with their rules.
pub(super) struct UnmanagedTables {
    pub(super) family: ChainFamily,
    flags: BTreeMap<String, u32>,
    /// The base chains.
    pub(super) chains: Vec<ListedChain>,
    /// By table and chain, in order.
    rules: BTreeMap<(String, String), Vec<KernelRule>>,
    /// Not all rules were read.
    pub(super) is_truncated: bool,
}

impl UnmanagedTables {
    pub(super) fn read(socket: &mut NftSocket, family: ChainFamily) -> Result<Self, Error> {
        let is_wanted = |c: &ListedChain| c.hook.as_ref().is_some_and(|hook| hook.number == FORWARD);
        Self::read_where(socket, family, is_wanted)
    }

    /// With these unmanaged base chains.
    pub(super) fn read_where(
        socket: &mut NftSocket,
        family: ChainFamily,
        is_wanted: impl Fn(&ListedChain) -> bool,
    ) -> Result<Self, Error> {
        let mut chains = list(socket, (family, number::GETCHAIN), (|_| {}, ListedChain::read))?;
        let is_own = |c: &ListedChain| family == ChainFamily::Inet && is_managed_table(&c.table);
        chains.retain(|c: &ListedChain| is_wanted(c) && !is_own(c));
        let mut tables =
            Self { family, flags: BTreeMap::new(), chains, rules: BTreeMap::new(), is_truncated: false };
        // Most hosts have no such chain, and others have many rules.
        if !tables.chains.is_empty() {
            tables.flags.extend(list(socket, (family, number::GETTABLE), (|_| {}, table))?);
            tables.read_rules(socket)?;
        }
        Ok(tables)
    }

    /// The rules of the base chains, and of all chains that they jump to.
    fn read_rules(&mut self, socket: &mut NftSocket) -> Result<(), Error> {
        let base = self.chains.iter().map(|c| (c.table.clone(), c.name.clone()));
        let (mut next, mut count): (VecDeque<(String, String)>, usize) = (base.collect(), 0);
        while let Some(place) = next.pop_front() {
            if self.rules.contains_key(&place) {
                continue;
            }
            if count > MOST {
                self.is_truncated = true;
                return Ok(());
            }
            let (table, chain) = &place;
            let of_chain = |body: &mut Body<'_>| {
                body.str(number::RULE_TABLE, table);
                body.str(number::RULE_CHAIN, chain);
            };
            let rules: Vec<KernelRule> =
                list(socket, (self.family, number::GETRULE), (of_chain, KernelRule::read))?;
            count += rules.len();
            for listed in &rules {
                if let RuleVerdict::Jump(to) | RuleVerdict::Goto(to) = &listed.rule.verdict {
                    next.push_back((table.clone(), to.clone()));
                }
            }
            self.rules.insert(place, rules);
        }
        Ok(())
    }

    pub(super) fn rules(&self, table: &str, chain: &str) -> &[KernelRule] {
        self.rules.get(&(table.to_owned(), chain.to_owned())).map_or(&[], Vec::as_slice)
    }

    fn flags(&self, table: &str) -> u32 {
        self.flags.get(table).copied().unwrap_or(0)
    }

    /// Its chains are not in force.
    pub(super) fn is_dormant(&self, table: &str) -> bool {
        self.flags(table) & number::TABLE_DORMANT != 0
    }

    /// Only the program that created it can change it.
    pub(super) fn is_owned(&self, table: &str) -> bool {
        self.flags(table) & number::TABLE_OWNED != 0
    }
}

/// A table's name and flags.
fn table(answer: &[u8]) -> Option<(String, u32)> {
    let name = attribute(answer, number::TABLE_NAME).map(read_text)?;
    let flags = attribute(answer, number::TABLE_FLAGS).and_then(|flags| flags.first_chunk());
    Some((name, flags.copied().map_or(0, u32::from_be_bytes)))
}

fn list<T: PartialEq>(
    socket: &mut NftSocket,
    (family, kind): (ChainFamily, u16),
    (which, read): (impl Fn(&mut Body<'_>), impl Fn(&[u8]) -> Option<T>),
) -> Result<Vec<T>, Error> {
    let number = u8::try_from(family.number()).unwrap_or_default();
    let all = NftRequest::new(MessageHeader { kind, flags: 0, family: number, version: 0 }, which);
    match socket.list(&all, read)? {
        Ok(listed) => Ok(listed),
        // The kernel lacks nf_tables or this family, or the chain was removed meanwhile.
        Err(Refusal { errno: Errno::NOENT | Errno::OPNOTSUPP | Errno::AFNOSUPPORT, .. }) => Ok(Vec::new()),
        Err(refusal) => Err(Error::refused(LIST, format!("family {family}"), refusal)),
    }
}
