//! What becomes of pods' packets in a chain of others: what it looks like, and what is certain. Pure.

use super::tables::UnmanagedTables;
use crate::condition::PacketTest;
use crate::observe::ListedChain;
use crate::rule::{KernelRule, RuleCondition, RuleVerdict};

/// The kernel allows no deeper jumps.
const DEEPEST: usize = 16;
/// `NF_DROP`
const DROP: u32 = 0;
/// `IPPROTO_TCP`
const TCP: u8 = 6;
/// The bit of a connection's state that its first packet has.
const NEW: u32 = 8;
const POD_PREFIX: &[u8] = b"pw";

/// What becomes of a packet that no rule with a condition matches.
pub(super) enum PacketFate {
    Accepts,
    /// In words, and the rule of the base chain that leads to it; none for the policy.
    Drops {
        why: String,
        rule: Option<u64>,
    },
    /// Its caller, or the policy, decides.
    GoesOn,
}

/// The links of the packet that is thought through: the first of a TCP connection that a pod opens to the outside.
pub(super) struct Links<'a> {
    /// Bridges that pods are attached to; the links of routed pods have a name of ours.
    pub(super) bridges: &'a [String],
    /// The links that lead outside; none: not known.
    pub(super) uplinks: &'a [String],
}

/// What can be said of that packet.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Drops,
    GoesOn,
    /// It may be accepted.
    Open,
}

impl UnmanagedTables {
    pub(super) fn outcome(&self, chain: &ListedChain) -> PacketFate {
        match (self.walk(&chain.table, &chain.name, DEEPEST), chain.policy) {
            (PacketFate::GoesOn, Some(DROP)) => {
                PacketFate::Drops { why: "its policy is drop".to_owned(), rule: None }
            }
            (outcome, _) => outcome,
        }
    }

    fn walk(&self, table: &str, chain: &str, depth: usize) -> PacketFate {
        let always = self.rules(table, chain).iter().filter(|r| r.rule.condition == RuleCondition::Always);
        for listed in always {
            let rule = Some(listed.handle);
            let drops = |how: &str| PacketFate::Drops {
                why: format!("chain {chain} ends in a rule that {how} all"),
                rule,
            };
            match &listed.rule.ending {
                RuleVerdict::Accept => return PacketFate::Accepts,
                RuleVerdict::Drop => return drops("drops"),
                RuleVerdict::Reject => return drops("rejects"),
                RuleVerdict::Return => return PacketFate::GoesOn,
                RuleVerdict::Jump(to) | RuleVerdict::Goto(to) if depth > 0 => {
                    match self.walk(table, to, depth - 1) {
                        PacketFate::Drops { why, .. } => return PacketFate::Drops { why, rule },
                        PacketFate::Accepts => return PacketFate::Accepts,
                        PacketFate::GoesOn if matches!(listed.rule.ending, RuleVerdict::Goto(_)) => {
                            return PacketFate::GoesOn;
                        }
                        PacketFate::GoesOn => {}
                    }
                }
                RuleVerdict::Jump(_)
                | RuleVerdict::Goto(_)
                | RuleVerdict::Masquerade
                | RuleVerdict::Other => {}
            }
        }
        PacketFate::GoesOn
    }

    /// Is it sure that the packet does not pass? Where one rule may accept it, it is not.
    pub(super) fn is_certain(&self, chain: &ListedChain, links: &Links<'_>) -> bool {
        let fate = self.fate((&chain.table, &chain.name), links, DEEPEST);
        !self.is_cut
            && match fate {
                Fate::Drops => true,
                Fate::GoesOn => chain.policy == Some(DROP),
                Fate::Open => false,
            }
    }

    fn fate(&self, (table, chain): (&str, &str), links: &Links<'_>, depth: usize) -> Fate {
        // It may have left the chain before: then the caller decides too.
        let mut may_have_left = false;
        let ends = |fate: Fate, may_have_left: bool| {
            if may_have_left && fate != Fate::GoesOn { Fate::Open } else { fate }
        };
        for listed in self.rules(table, chain).iter().filter(|listed| !is_excluded(listed, links)) {
            let is_sure = listed.rule.condition == RuleCondition::Always;
            let below = |to: &str| match depth {
                0 => Fate::Open,
                depth => self.fate((table, to), links, depth - 1),
            };
            match &listed.rule.ending {
                RuleVerdict::Accept => return Fate::Open,
                RuleVerdict::Drop | RuleVerdict::Reject if is_sure => {
                    return ends(Fate::Drops, may_have_left);
                }
                RuleVerdict::Drop | RuleVerdict::Reject | RuleVerdict::Masquerade => {}
                RuleVerdict::Return if is_sure => return Fate::GoesOn,
                RuleVerdict::Return => may_have_left = true,
                RuleVerdict::Jump(to) => match below(to) {
                    Fate::Open => return Fate::Open,
                    Fate::Drops if is_sure => return ends(Fate::Drops, may_have_left),
                    Fate::Drops | Fate::GoesOn => {}
                },
                RuleVerdict::Goto(to) => match below(to) {
                    Fate::Open => return Fate::Open,
                    fate if is_sure => return ends(fate, may_have_left),
                    Fate::Drops => {}
                    Fate::GoesOn => may_have_left = true,
                },
                RuleVerdict::Other if listed.goes_on => {}
                RuleVerdict::Other => return Fate::Open,
            }
        }
        Fate::GoesOn
    }
}

/// Does the rule ask for something that the packet does not have?
fn is_excluded(listed: &KernelRule, links: &Links<'_>) -> bool {
    listed.tests.iter().any(|test| match test {
        PacketTest::From(name) => !is_from_pods(name, links.bridges),
        PacketTest::Towards(name) => {
            !links.uplinks.is_empty() && !links.uplinks.iter().any(|uplink| is_named(name, uplink))
        }
        PacketTest::Protocol(protocol) => *protocol != TCP,
        PacketTest::State(states) => states & NEW == 0,
    })
}

/// May the compared name be that of a link of pods?
pub(super) fn is_from_pods(compared: &[u8], bridges: &[String]) -> bool {
    matches_prefix(compared, POD_PREFIX) || bridges.iter().any(|bridge| is_named(compared, bridge))
}

/// A name that ends in a zero is meant whole; without one it is the beginning of many.
fn is_named(compared: &[u8], name: &str) -> bool {
    match compared.iter().position(|byte| *byte == 0) {
        Some(end) => &compared[..end] == name.as_bytes(),
        None => name.as_bytes().starts_with(compared),
    }
}

/// May a link whose name begins so be meant?
fn matches_prefix(compared: &[u8], prefix: &[u8]) -> bool {
    let name = compared.split(|byte| *byte == 0).next().unwrap_or_default();
    name.starts_with(prefix) || (!compared.contains(&0) && prefix.starts_with(name))
}
