//! The verdict of an unmanaged chain for packets of pods: the likely one, and whether it is certain. Pure.

use super::tables::UnmanagedTables;
use crate::condition::PacketTest;
use crate::observe::ListedChain;
use crate::rule::{KernelRule, RuleCondition, RuleVerdict};

/// The kernel's limit of nested jumps.
const MAX_JUMP_DEPTH: usize = 16;
/// `NF_DROP`
const DROP: u32 = 0;
/// `IPPROTO_TCP`
const TCP: u8 = 6;
/// The state of a connection's first packet.
const NEW: u32 = 8;
const POD_PREFIX: &[u8] = b"pw";

/// The verdict for a packet that matches no rule with a condition.
pub(super) enum ChainVerdict {
    Accepts,
    /// The reason in words, and the rule of the base chain that drops. None: the policy drops.
    Drops {
        why: String,
        rule: Option<u64>,
    },
    /// The calling chain or the policy decides.
    Continues,
}

/// The links of the evaluated packet, the first one of a TCP connection from a pod to the outside.
pub(super) struct Links<'a> {
    /// The bridges of pods. The links of routed pods are known by their names.
    pub(super) bridges: &'a [String],
    /// The links of default routes. Empty: not known.
    pub(super) uplinks: &'a [String],
}

/// The certain verdict for that packet.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CertainVerdict {
    Drops,
    Continues,
    /// It may be accepted.
    Unknown,
}

impl UnmanagedTables {
    pub(super) fn outcome(&self, chain: &ListedChain) -> ChainVerdict {
        match (self.walk(&chain.table, &chain.name, MAX_JUMP_DEPTH), chain.policy) {
            (ChainVerdict::Continues, Some(DROP)) => {
                ChainVerdict::Drops { why: "its policy is drop".to_owned(), rule: None }
            }
            (outcome, _) => outcome,
        }
    }

    fn walk(&self, table: &str, chain: &str, depth: usize) -> ChainVerdict {
        let always = self.rules(table, chain).iter().filter(|r| r.rule.condition == RuleCondition::Always);
        for listed in always {
            let rule = Some(listed.handle);
            let drops = |how: &str| ChainVerdict::Drops {
                why: format!("chain {chain} ends in a rule that {how} all"),
                rule,
            };
            match &listed.rule.verdict {
                RuleVerdict::Accept => return ChainVerdict::Accepts,
                RuleVerdict::Drop => return drops("drops"),
                RuleVerdict::Reject => return drops("rejects"),
                RuleVerdict::Return => return ChainVerdict::Continues,
                RuleVerdict::Jump(to) | RuleVerdict::Goto(to) if depth > 0 => {
                    match self.walk(table, to, depth - 1) {
                        ChainVerdict::Drops { why, .. } => return ChainVerdict::Drops { why, rule },
                        ChainVerdict::Accepts => return ChainVerdict::Accepts,
                        ChainVerdict::Continues if matches!(listed.rule.verdict, RuleVerdict::Goto(_)) => {
                            return ChainVerdict::Continues;
                        }
                        ChainVerdict::Continues => {}
                    }
                }
                RuleVerdict::Jump(_)
                | RuleVerdict::Goto(_)
                | RuleVerdict::Masquerade
                | RuleVerdict::Other => {}
            }
        }
        ChainVerdict::Continues
    }

    /// Whether the packet is certainly dropped. It is not if one rule may accept it.
    pub(super) fn is_certain(&self, chain: &ListedChain, links: &Links<'_>) -> bool {
        let verdict = self.certain_verdict((&chain.table, &chain.name), links, MAX_JUMP_DEPTH);
        !self.is_truncated
            && match verdict {
                CertainVerdict::Drops => true,
                CertainVerdict::Continues => chain.policy == Some(DROP),
                CertainVerdict::Unknown => false,
            }
    }

    fn certain_verdict(
        &self,
        (table, chain): (&str, &str),
        links: &Links<'_>,
        depth: usize,
    ) -> CertainVerdict {
        // The packet may have left the chain before. Then the calling chain decides.
        let mut may_have_left = false;
        let ends = |verdict: CertainVerdict, may_have_left: bool| {
            if may_have_left && verdict != CertainVerdict::Continues {
                CertainVerdict::Unknown
            } else {
                verdict
            }
        };
        for listed in self.rules(table, chain).iter().filter(|listed| !is_excluded(listed, links)) {
            let is_sure = listed.rule.condition == RuleCondition::Always;
            let below = |to: &str| match depth {
                0 => CertainVerdict::Unknown,
                depth => self.certain_verdict((table, to), links, depth - 1),
            };
            match &listed.rule.verdict {
                RuleVerdict::Accept => return CertainVerdict::Unknown,
                RuleVerdict::Drop | RuleVerdict::Reject if is_sure => {
                    return ends(CertainVerdict::Drops, may_have_left);
                }
                RuleVerdict::Drop | RuleVerdict::Reject | RuleVerdict::Masquerade => {}
                RuleVerdict::Return if is_sure => return CertainVerdict::Continues,
                RuleVerdict::Return => may_have_left = true,
                RuleVerdict::Jump(to) => match below(to) {
                    CertainVerdict::Unknown => return CertainVerdict::Unknown,
                    CertainVerdict::Drops if is_sure => return ends(CertainVerdict::Drops, may_have_left),
                    CertainVerdict::Drops | CertainVerdict::Continues => {}
                },
                RuleVerdict::Goto(to) => match below(to) {
                    CertainVerdict::Unknown => return CertainVerdict::Unknown,
                    verdict if is_sure => return ends(verdict, may_have_left),
                    CertainVerdict::Drops => {}
                    CertainVerdict::Continues => may_have_left = true,
                },
                RuleVerdict::Other if listed.continues => {}
                RuleVerdict::Other => return CertainVerdict::Unknown,
            }
        }
        CertainVerdict::Continues
    }
}

/// Whether the packet cannot match the rule.
fn is_excluded(listed: &KernelRule, links: &Links<'_>) -> bool {
    listed.tests.iter().any(|test| match test {
        PacketTest::Input(name) => !is_from_pods(name, links.bridges),
        PacketTest::Output(name) => {
            !links.uplinks.is_empty() && !links.uplinks.iter().any(|uplink| is_named(name, uplink))
        }
        PacketTest::Protocol(protocol) => *protocol != TCP,
        PacketTest::State(states) => states & NEW == 0,
    })
}

/// Whether the compared name may be that of a link of pods.
pub(super) fn is_from_pods(compared: &[u8], bridges: &[String]) -> bool {
    matches_prefix(compared, POD_PREFIX) || bridges.iter().any(|bridge| is_named(compared, bridge))
}

/// A name with a terminating zero is complete, otherwise it is a prefix.
fn is_named(compared: &[u8], name: &str) -> bool {
    match compared.iter().position(|byte| *byte == 0) {
        Some(end) => &compared[..end] == name.as_bytes(),
        None => name.as_bytes().starts_with(compared),
    }
}

/// Whether a link with this prefix may be compared.
fn matches_prefix(compared: &[u8], prefix: &[u8]) -> bool {
    let name = compared.split(|byte| *byte == 0).next().unwrap_or_default();
    name.starts_with(prefix) || (!compared.contains(&0) && prefix.starts_with(name))
}
