//! Rules of others that are of use only while the host forwards: they translate addresses, or accept what is forwarded.

use super::tables::UnmanagedTables;
use super::{ChainFamily, is_for_us};
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
/// The bit of a connection's state that its first packet has.
const NEW: u32 = 8;

/// A chain of another program with such rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForwardingChain {
    pub family: ChainFamily,
    pub table: String,
    pub chain: String,
    /// It translates addresses; otherwise it accepts what is forwarded.
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
            // What was not read may need it.
            if tables.is_cut || tables.reaches(&chain.table, &chain.name, needs) {
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

/// Firewalls accept answers, ICMP and the loopback everywhere, whether the host forwards or not.
fn accepts(listed: &KernelRule) -> bool {
    let is_routine = |test: &PacketTest| match test {
        PacketTest::State(states) => states & NEW == 0,
        PacketTest::Protocol(protocol) => ICMP.contains(protocol),
        PacketTest::From(link) | PacketTest::Towards(link) => link.starts_with(b"lo\0"),
    };
    listed.rule.ending == RuleVerdict::Accept && !is_for_us(listed) && !listed.tests.iter().any(is_routine)
}
