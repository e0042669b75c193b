//! Podwire's rules in unmanaged chains, if the operator configures them: traffic from and to pods is accepted just before the chain
//! would drop it. All other decisions of the chain have precedence. So the rules are in the base chain itself, not in a chain for
//! such rules that is evaluated first (Docker's DOCKER-USER).
//!
//! A rule is identified by its comment, `podwire NETWORK from CIDR` or `podwire NETWORK to CIDR`. It has a counter and no set, so
//! that `iptables` can still list its tables.

use std::fmt::Write as _;

use ipnet::IpNet;
use types::{AttachmentKey, NetworkName};

use super::tables::UnmanagedTables;
use super::verdict::ChainVerdict;
use super::{ChainFamily, MARK, is_plain_name};
use crate::error::Error;
use crate::observe::ListedChain;
use crate::program;
use crate::rule::{KernelRule, RuleVerdict};
use crate::socket::NftSocket;

/// Attempts if another process changes the chain after it was listed.
const TRIES: usize = 3;

/// Reconciles the rules: every unmanaged chain that drops traffic at the forward hook has two rules for each subnet, and other chains
/// have none. Returns the changes in words. Tables with an owner, and tables with names that nft cannot parse, are not changed.
pub fn accept_in_unmanaged(network: &NetworkName, subnets: &[IpNet]) -> Result<Vec<String>, Error> {
    let mut subnets: Vec<IpNet> = subnets.iter().map(IpNet::trunc).collect();
    subnets.sort();
    subnets.dedup();
    // The network's directory name, as in a link's alias. The length of comments is limited, but that of network names is not.
    let network = AttachmentKey::network_dir(network);
    in_every_chain(&|tables, chain| plan(tables, chain, (&network, &subnets)))
}

/// Removes the rules of the chosen networks, which are named as their directories. Returns the changes in words.
pub fn withdraw_from_unmanaged(is_chosen: &dyn Fn(&str) -> bool) -> Result<Vec<String>, Error> {
    in_every_chain(&|tables, chain| {
        let rules = tables.rules(&chain.table, &chain.name);
        let own = rules.iter().filter(|listed| mark_of(listed).is_some_and(|mark| is_chosen(mark.network)));
        AcceptPlan { remove: own.map(|listed| listed.handle).collect(), add: Vec::new(), before: None }
    })
}

/// The comment of a rule.
struct AcceptMark<'a> {
    network: &'a str,
    direction: &'a str,
    subnet: IpNet,
}

fn mark_of(listed: &KernelRule) -> Option<AcceptMark<'_>> {
    let comment = listed.comment.as_deref().filter(|_| listed.rule.verdict == RuleVerdict::Accept)?;
    let words: Vec<&str> = comment.split(' ').collect();
    match words.as_slice() {
        [MARK, network, direction @ ("from" | "to"), subnet] => {
            Some(AcceptMark { network, direction, subnet: subnet.parse().ok()? })
        }
        _ => None,
    }
}

/// The changes of one chain.
#[derive(Default)]
struct AcceptPlan {
    /// Handles of rules.
    remove: Vec<u64>,
    /// Condition and comment.
    add: Vec<(String, String)>,
    /// The rule that drops. None: the policy drops.
    before: Option<u64>,
}

fn plan(tables: &UnmanagedTables, chain: &ListedChain, (network, subnets): (&str, &[IpNet])) -> AcceptPlan {
    let rules = tables.rules(&chain.table, &chain.name);
    let mut own: Vec<(usize, &KernelRule, AcceptMark<'_>)> = Vec::new();
    for (index, listed) in rules.iter().enumerate() {
        own.extend(mark_of(listed).filter(|m| m.network == network).map(|mark| (index, listed, mark)));
    }
    let (wanted, before) = match tables.outcome(chain) {
        ChainVerdict::Drops { rule, .. } if !tables.is_dormant(&chain.table) => {
            (directions(tables.family, subnets), rule)
        }
        ChainVerdict::Drops { .. } | ChainVerdict::Accepts | ChainVerdict::Continues => (Vec::new(), None),
    };
    let end = rules.iter().position(|listed| Some(listed.handle) == before).unwrap_or(rules.len());
    let is_there = |(direction, subnet): &(&str, IpNet)| {
        own.iter()
            .any(|(index, _, mark)| *index < end && mark.direction == *direction && mark.subnet == *subnet)
    };
    if own.len() == wanted.len() && wanted.iter().all(is_there) {
        return AcceptPlan::default();
    }
    let add = wanted.into_iter().map(|(direction, subnet)| {
        let family = if subnet.addr().is_ipv4() { "ip" } else { "ip6" };
        let side = if direction == "from" { "saddr" } else { "daddr" };
        (format!("{family} {side} {subnet}"), format!("{MARK} {network} {direction} {subnet}"))
    });
    AcceptPlan {
        remove: own.iter().map(|(_, listed, _)| listed.handle).collect(),
        add: add.collect(),
        before,
    }
}

/// Both directions for every subnet of the table's family.
fn directions(family: ChainFamily, subnets: &[IpNet]) -> Vec<(&'static str, IpNet)> {
    let is_of_family = |subnet: &&IpNet| match family {
        ChainFamily::Ip => subnet.addr().is_ipv4(),
        ChainFamily::Ip6 => subnet.addr().is_ipv6(),
        ChainFamily::Inet => true,
    };
    subnets.iter().filter(is_of_family).flat_map(|subnet| [("from", *subnet), ("to", *subnet)]).collect()
}

fn in_every_chain(plan: &dyn Fn(&UnmanagedTables, &ListedChain) -> AcceptPlan) -> Result<Vec<String>, Error> {
    let (mut socket, mut done) = (NftSocket::open()?, Vec::new());
    let mut failed = None;
    for _ in 0..TRIES {
        failed = None;
        for family in ChainFamily::ALL {
            let tables = UnmanagedTables::read(&mut socket, family)?;
            let can_change = |c: &&ListedChain| {
                !tables.is_owned(&c.table) && [&c.table, &c.name].into_iter().all(|name| is_plain_name(name))
            };
            for chain in tables.chains.iter().filter(can_change) {
                let id = format!("{family} {} {}", chain.table, chain.name);
                match apply(&plan(&tables, chain), &id) {
                    Ok(change) => done.extend(change),
                    Err(error) => failed = Some(error),
                }
            }
        }
        if failed.is_none() {
            break;
        }
    }
    failed.map_or(Ok(done), Err)
}

/// None: nothing to change.
fn apply(plan: &AcceptPlan, chain: &str) -> Result<Option<String>, Error> {
    let mut text = String::new();
    for handle in &plan.remove {
        let _ = writeln!(text, "delete rule {chain} handle {handle}");
    }
    for (condition, comment) in &plan.add {
        let verb = match plan.before {
            Some(handle) => format!("insert rule {chain} position {handle}"),
            None => format!("add rule {chain}"),
        };
        let _ = writeln!(text, r#"{verb} {condition} counter accept comment "{comment}""#);
    }
    if text.is_empty() {
        return Ok(None);
    }
    program::apply(&text)?;
    Ok(Some(match plan.add.len() {
        0 => format!("removed Podwire's rules from chain {chain}"),
        count => format!("added {count} rules that accept pods to chain {chain}"),
    }))
}
