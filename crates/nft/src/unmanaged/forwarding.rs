//! Unmanaged rules that have an effect only while the host forwards: they translate addresses or accept forwarded packets.

use super::tables::UnmanagedTables;
use super::{ChainFamily, is_for_pods};
use crate::condition::PacketTest;
use crate::error::Error;
use crate::observe::ListedChain;
use crate::rule::{KernelRule, RuleVerdict};
use crate::socket::NftSocket;

/// `NF_INET_PRE_ROUTING`, `NF_INET_FORWARD`, `NF_INET_POST_ROUTING`
const PREROUTING: u32 = 0;
const FORWARD: u32 = 2;
const POSTROUTING: u32 = 4;
/// `IPPROTO_ICMP`, `IPPROTO_ICMPV6`
const ICMP: [u8; 2] = [1, 58];
/// The state of a connection's first packet.
const NEW: u32 = 8;

/// A chain of another program with such rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForwardingChain {
    pub family: ChainFamily,
    pub table: String,
    pub chain: String,
    /// It translates addresses. Otherwise it accepts forwarded packets.
    pub translates: bool,
}

/// The chains in this thread's namespace that need the host to forward.
pub fn forwarding_chains() -> Result<Vec<ForwardingChain>, Error> {
    let mut socket = NftSocket::open()?;
    let mut found = Vec::new();
    for family in ChainFamily::ALL {
        let tables = UnmanagedTables::read_where(&mut socket, family, is_wanted)?;
        for chain in tables.chains.iter().filter(|chain| !tables.is_dormant(&chain.table)) {
            let translates = is_nat(chain);
            let needs = |rule: &KernelRule| if translates { rule.translates } else { accepts(rule) };
            // Rules that were not read may need it.
            if tables.is_truncated || tables.reaches(&chain.table, &chain.name, needs) {
                let (table, chain) = (chain.table.clone(), chain.name.clone());
                found.push(ForwardingChain { family, table, chain, translates });
            }
        }
    }
    Ok(found)
}

fn is_nat(chain: &ListedChain) -> bool {
    chain.hook.as_ref().is_some_and(|hook| hook.kind == "nat")
}

fn is_wanted(chain: &ListedChain) -> bool {
    chain.hook.as_ref().is_some_and(|hook| match hook.kind.as_str() {
        "nat" => matches!(hook.number, PREROUTING | POSTROUTING),
        _ => hook.number == FORWARD,
    })
}

/// Firewalls accept replies, ICMP and the loopback device on hosts that do not forward, too.
fn accepts(listed: &KernelRule) -> bool {
    let is_routine = |test: &PacketTest| match test {
        PacketTest::State(states) => states & NEW == 0,
        PacketTest::Protocol(protocol) => ICMP.contains(protocol),
        PacketTest::Input(link) | PacketTest::Output(link) => link.starts_with(b"lo\0"),
    };
    listed.rule.verdict == RuleVerdict::Accept && !is_for_pods(listed) && !listed.tests.iter().any(is_routine)
}
