//! Chains of other programs at the input hook that may drop packets from pods to this node, such as DNS and ping to the gateway.
//! Most hosts with a firewall have such a chain, and its rules may accept these packets by address or port: it is a hint only.

use types::IfName;

use super::fate::{Outcome, is_from_pods};
use super::tables::Tables;
use super::{ForeignFamily, is_for_us, is_harmless};
use crate::condition::Test;
use crate::error::Error;
use crate::observe::ListedChain;
use crate::rule::{Ending, Listed};
use crate::socket::Socket;

/// `NF_INET_LOCAL_IN`
const INPUT: u32 = 1;

/// A chain that drops by default, without a rule that accepts all packets of the links of pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InputChain {
    pub family: ForeignFamily,
    pub table: String,
    pub chain: String,
    /// How it drops, in words.
    pub why: String,
}

impl InputChain {
    /// Shows its rules.
    pub fn command(&self) -> String {
        let Self { family, table, chain, .. } = self;
        if [table, chain].into_iter().all(|name| is_harmless(name)) {
            format!("nft list chain {family} {table} {chain}")
        } else {
            "nft list ruleset".to_owned()
        }
    }
}

/// Those of this thread's namespace. `bridges` are those that pods are attached to.
pub fn input_drops(bridges: &[&IfName]) -> Result<Vec<InputChain>, Error> {
    let mut socket = Socket::open()?;
    let bridges: Vec<String> = bridges.iter().map(ToString::to_string).collect();
    let is_input = |chain: &ListedChain| chain.hook.as_ref().is_some_and(|hook| hook.number == INPUT);
    let mut found = Vec::new();
    for family in ForeignFamily::ALL {
        let tables = Tables::read_where(&mut socket, family, is_input)?;
        for chain in tables.chains.iter().filter(|chain| !tables.is_dormant(&chain.table)) {
            let Outcome::Drops { why, .. } = tables.outcome(chain) else { continue };
            if !tables.reaches(&chain.table, &chain.name, |rule| accepts_pods(rule, &bridges)) {
                let (table, chain) = (chain.table.clone(), chain.name.clone());
                found.push(InputChain { family, table, chain, why });
            }
        }
    }
    Ok(found)
}

/// Whether the rule accepts whatever comes by a link of pods, or leads to a chain for these links.
fn accepts_pods(listed: &Listed, bridges: &[String]) -> bool {
    let is_link = |test: &Test| matches!(test, Test::From(name) if is_from_pods(name, bridges));
    let ends = matches!(listed.rule.ending, Ending::Accept | Ending::Jump(_) | Ending::Goto(_));
    is_for_us(listed) || (ends && !listed.tests.is_empty() && listed.tests.iter().all(is_link))
}
