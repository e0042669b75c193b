//! Rules of ours in chains of others, for who asks for them: what comes from pods or goes to them is accepted just before
//! the chain would drop it. Whatever else the chain decides before that stays decided by its owner, so they are in the base
//! chain itself, also where there is one meant for such rules (Docker's DOCKER-USER): that one comes first of all.
//!
//! A rule is known by its comment, `podwire NETWORK from CIDR` or `podwire NETWORK to CIDR`. It has no set and a counter,
//! so that `iptables` still understands tables of its own.

use std::fmt::Write as _;

use ipnet::IpNet;
use types::{AttachmentKey, NetworkName};

use super::fate::PacketFate;
use super::tables::UnmanagedTables;
use super::{ChainFamily, MARK, is_harmless};
use crate::error::Error;
use crate::observe::ListedChain;
use crate::program;
use crate::rule::{KernelRule, RuleVerdict};
use crate::socket::NftSocket;

/// Somebody may change the chain between the look and the change.
const TRIES: usize = 3;

/// Keeps two rules for each subnet in every chain of others at the forward hook that drops, and none in others; says what
/// it changed. A table that only its owner can change, and one whose names mean something to nft, is left alone.
pub fn accept_in_unmanaged(network: &NetworkName, subnets: &[IpNet]) -> Result<Vec<String>, Error> {
    let mut subnets: Vec<IpNet> = subnets.iter().map(IpNet::trunc).collect();
    subnets.sort();
    subnets.dedup();
    // As in a link's alias: names may have any length, comments not.
    let network = AttachmentKey::network_dir(network);
    in_every_chain(&|tables, chain| plan(tables, chain, (&network, &subnets)))
}

/// Removes the rules of these networks, which are named as [`AttachmentKey::network_dir`] does; says what it removed.
pub fn withdraw_from_unmanaged(is_meant: &dyn Fn(&str) -> bool) -> Result<Vec<String>, Error> {
    in_every_chain(&|tables, chain| {
        let rules = tables.rules(&chain.table, &chain.name);
        let ours = rules.iter().filter(|listed| mark_of(listed).is_some_and(|mark| is_meant(mark.network)));
        AcceptPlan { remove: ours.map(|listed| listed.handle).collect(), add: Vec::new(), before: None }
    })
}

/// What a rule's comment says.
struct AcceptMark<'a> {
    network: &'a str,
    way: &'a str,
    subnet: IpNet,
}

fn mark_of(listed: &KernelRule) -> Option<AcceptMark<'_>> {
    let comment = listed.comment.as_deref().filter(|_| listed.rule.ending == RuleVerdict::Accept)?;
    let words: Vec<&str> = comment.split(' ').collect();
    match words.as_slice() {
        [MARK, network, way @ ("from" | "to"), subnet] => {
            Some(AcceptMark { network, way, subnet: subnet.parse().ok()? })
        }
        _ => None,
    }
}

/// What is to be done in one chain.
#[derive(Default)]
struct AcceptPlan {
    /// By their handles.
    remove: Vec<u64>,
    /// Condition and comment.
    add: Vec<(String, String)>,
    /// The rule that drops; none: the policy.
    before: Option<u64>,
}

fn plan(tables: &UnmanagedTables, chain: &ListedChain, (network, subnets): (&str, &[IpNet])) -> AcceptPlan {
    let rules = tables.rules(&chain.table, &chain.name);
    let mut ours: Vec<(usize, &KernelRule, AcceptMark<'_>)> = Vec::new();
    for (place, listed) in rules.iter().enumerate() {
        ours.extend(mark_of(listed).filter(|m| m.network == network).map(|mark| (place, listed, mark)));
    }
    let (wanted, before) = match tables.outcome(chain) {
        PacketFate::Drops { rule, .. } if !tables.is_dormant(&chain.table) => {
            (ways(tables.family, subnets), rule)
        }
        PacketFate::Drops { .. } | PacketFate::Accepts | PacketFate::GoesOn => (Vec::new(), None),
    };
    let end = rules.iter().position(|listed| Some(listed.handle) == before).unwrap_or(rules.len());
    let is_there = |(way, subnet): &(&str, IpNet)| {
        ours.iter().any(|(place, _, mark)| *place < end && mark.way == *way && mark.subnet == *subnet)
    };
    if ours.len() == wanted.len() && wanted.iter().all(is_there) {
        return AcceptPlan::default();
    }
    let add = wanted.into_iter().map(|(way, subnet)| {
        let family = if subnet.addr().is_ipv4() { "ip" } else { "ip6" };
        let side = if way == "from" { "saddr" } else { "daddr" };
        (format!("{family} {side} {subnet}"), format!("{MARK} {network} {way} {subnet}"))
    });
    AcceptPlan {
        remove: ours.iter().map(|(_, listed, _)| listed.handle).collect(),
        add: add.collect(),
        before,
    }
}

/// Both ways for every subnet that the table's family sees.
fn ways(family: ChainFamily, subnets: &[IpNet]) -> Vec<(&'static str, IpNet)> {
    let is_seen = |subnet: &&IpNet| match family {
        ChainFamily::Ip => subnet.addr().is_ipv4(),
        ChainFamily::Ip6 => subnet.addr().is_ipv6(),
        ChainFamily::Inet => true,
    };
    subnets.iter().filter(is_seen).flat_map(|subnet| [("from", *subnet), ("to", *subnet)]).collect()
}

fn in_every_chain(plan: &dyn Fn(&UnmanagedTables, &ListedChain) -> AcceptPlan) -> Result<Vec<String>, Error> {
    let (mut socket, mut done) = (NftSocket::open()?, Vec::new());
    let mut failed = None;
    for _ in 0..TRIES {
        failed = None;
        for family in ChainFamily::ALL {
            let tables = UnmanagedTables::read(&mut socket, family)?;
            let open = |c: &&ListedChain| {
                !tables.is_owned(&c.table) && [&c.table, &c.name].into_iter().all(|name| is_harmless(name))
            };
            for chain in tables.chains.iter().filter(open) {
                let place = format!("{family} {} {}", chain.table, chain.name);
                match apply(&plan(&tables, chain), &place) {
                    Ok(sentence) => done.extend(sentence),
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

/// None: there was nothing to do.
fn apply(plan: &AcceptPlan, place: &str) -> Result<Option<String>, Error> {
    let mut text = String::new();
    for handle in &plan.remove {
        let _ = writeln!(text, "delete rule {place} handle {handle}");
    }
    for (condition, comment) in &plan.add {
        let verb = match plan.before {
            Some(handle) => format!("insert rule {place} position {handle}"),
            None => format!("add rule {place}"),
        };
        let _ = writeln!(text, r#"{verb} {condition} counter accept comment "{comment}""#);
    }
    if text.is_empty() {
        return Ok(None);
    }
    program::apply(&text)?;
    Ok(Some(match plan.add.len() {
        0 => format!("our rules removed from the firewall's chain {place}"),
        count => format!("{count} rules that accept pods put into the firewall's chain {place}"),
    }))
}
