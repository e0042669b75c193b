//! Chains of other programs at the forward hook that drop traffic of pods. Podwire cannot overrule them: a packet that one chain
//! drops is lost, regardless of other chains. So they are reported with a command as the fix. If the operator
//! configures it, the agent inserts rules that accept pods into these chains, and restores them.
//!
//! All tables of the IP layer are listed, which is too slow for every ADD and DEL. Rules of `iptables-legacy` are not in nftables.
//! [`legacy_tables`] reports only that there are some.

mod accept;

mod forwarding;
mod legacy;
mod tables;
mod verdict;

use netlink::{RouteFilter, RtSocket};
use types::{Code, Finding, Fix, IfName};

pub use accept::{accept_in_unmanaged, withdraw_from_unmanaged};
pub use forwarding::{ForwardingChain, forwarding_chains};
pub use legacy::{LegacyTables, legacy_tables};

use crate::error::Error;
use crate::observe::ListedChain;
use crate::rule::{KernelRule, RuleVerdict};
use crate::socket::NftSocket;

use tables::UnmanagedTables;
use verdict::{ChainVerdict, Links};

/// Rules with this word in their comment accept traffic of pods.
const MARK: &str = "podwire";
/// The names of the host ends of pods' links, as a pattern for nft.
const POD_LINKS: &str = "pw*";
const POD_PREFIX: &[u8] = b"pw";

/// The family of an unmanaged table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChainFamily {
    Ip,
    Ip6,
    Inet,
}

impl ChainFamily {
    const ALL: [Self; 3] = [Self::Ip, Self::Ip6, Self::Inet];

    pub fn word(self) -> &'static str {
        match self {
            Self::Ip => "ip",
            Self::Ip6 => "ip6",
            Self::Inet => "inet",
        }
    }

    fn number(self) -> i32 {
        match self {
            Self::Ip => libc::NFPROTO_IPV4,
            Self::Ip6 => libc::NFPROTO_IPV6,
            Self::Inet => libc::NFPROTO_INET,
        }
    }
}

impl std::fmt::Display for ChainFamily {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.word())
    }
}

/// A chain that drops traffic of pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnmanagedDrop {
    pub family: ChainFamily,
    pub table: String,
    pub chain: String,
    /// The reason, in words.
    pub why: String,
    /// The shell command that makes the chain accept pods.
    pub command: Fix,
    pub certainty: Certainty,
}

impl UnmanagedDrop {
    pub fn finding(&self) -> Finding {
        let Self { family, table, chain, why, .. } = self;
        let (drops, caveat) = match self.certainty {
            Certainty::Certain => ("drops", ""),
            Certainty::Likely => ("may drop", "; a rule that Podwire cannot evaluate may accept it"),
        };
        let message =
            format!("chain {chain} of table {family} {table} {drops} the traffic of pods: {why}{caveat}");
        let object = format!("chain {family} {table} {chain}");
        Finding::new(Code::PodTrafficDropped, object, message).fix(self.command.clone())
    }
}

/// How certain it is that the chain drops traffic of pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Certainty {
    /// No new connection of a pod to the outside is accepted.
    Certain,
    /// A rule that Podwire cannot evaluate may accept it.
    Likely,
}

/// The chains in this thread's namespace that drop forwarded packets of pods. The commands that fix it name `bridges`, the
/// bridges of pods.
pub fn unmanaged_drops(bridges: &[&IfName]) -> Result<Vec<UnmanagedDrop>, Error> {
    let mut socket = NftSocket::open()?;
    let (mut found, mut uplinks) = (Vec::new(), None);
    for family in ChainFamily::ALL {
        let tables = UnmanagedTables::read(&mut socket, family)?;
        if tables.chains.is_empty() {
            continue;
        }
        let links = Links {
            bridges: &bridges.iter().map(ToString::to_string).collect::<Vec<_>>(),
            uplinks: uplinks.get_or_insert_with(self::uplinks),
        };
        let drops = tables.chains.iter().filter_map(|chain| tables.drop_of(chain, bridges, &links));
        found.extend(drops);
    }
    Ok(found)
}

/// The links of the default routes. Without them, fewer drops are certain.
fn uplinks() -> Vec<String> {
    let Ok(mut host) = RtSocket::open() else { return Vec::new() };
    let routes = host.routes(RouteFilter::default()).unwrap_or_default();
    let defaults = routes.iter().filter(|route| route.dst.prefix_len() == 0);
    let names = defaults.map(|route| Some(host.link_at(route.link?).ok()??.name));
    // A multipath route has no link.
    names.collect::<Option<_>>().unwrap_or_default()
}

impl UnmanagedTables {
    fn drop_of(&self, chain: &ListedChain, bridges: &[&IfName], links: &Links<'_>) -> Option<UnmanagedDrop> {
        if self.is_dormant(&chain.table) || self.has_rule_for_pods(&chain.table, &chain.name) {
            return None;
        }
        let ChainVerdict::Drops { mut why, .. } = self.outcome(chain) else { return None };
        let id = ChainId { family: self.family, table: &chain.table, chain: &chain.name };
        let command = if self.is_owned(&chain.table) {
            why.push_str(", and only the program that created the table can change it");
            id.firewalld_fix(bridges)
        } else {
            id.insertion_fix(bridges)
        };
        let certainty = if self.is_certain(chain, links) { Certainty::Certain } else { Certainty::Likely };
        let (family, table, chain) = (self.family, chain.table.clone(), chain.name.clone());
        Some(UnmanagedDrop { family, table, chain, why, command, certainty })
    }

    /// Whether the chain, or one that it jumps to, has a rule for pods.
    fn has_rule_for_pods(&self, table: &str, chain: &str) -> bool {
        self.reaches(table, chain, is_for_pods)
    }

    /// Whether the chain, or one that it jumps to, has such a rule.
    fn reaches(&self, table: &str, chain: &str, is_wanted: impl Fn(&KernelRule) -> bool) -> bool {
        let (mut chains, mut next) = (vec![chain], 0);
        while let Some(chain) = chains.get(next) {
            for listed in self.rules(table, chain) {
                if is_wanted(listed) {
                    return true;
                }
                match &listed.rule.verdict {
                    RuleVerdict::Jump(to) | RuleVerdict::Goto(to) if !chains.contains(&to.as_str()) => {
                        chains.push(to);
                    }
                    _ => {}
                }
            }
            next += 1;
        }
        false
    }
}

/// A rule that accepts and has the mark in its comment, or a jump for links with names of pods. firewalld has one for the
/// links of a zone.
fn is_for_pods(listed: &KernelRule) -> bool {
    match &listed.rule.verdict {
        RuleVerdict::Accept => listed.comment.as_ref().is_some_and(|comment| comment.contains(MARK)),
        RuleVerdict::Jump(_) | RuleVerdict::Goto(_) => listed.compared.iter().any(|name| name == POD_PREFIX),
        RuleVerdict::Drop
        | RuleVerdict::Reject
        | RuleVerdict::Return
        | RuleVerdict::Masquerade
        | RuleVerdict::Other => false,
    }
}

struct ChainId<'a> {
    family: ChainFamily,
    table: &'a str,
    chain: &'a str,
}

impl ChainId<'_> {
    /// Packets of routed pods have the host end of their link as an interface, those of bridged pods their bridge. Both directions and
    /// new connections are accepted, because connections to host ports and from pods of other nodes come from outside.
    fn insertion_fix(&self, bridges: &[&IfName]) -> Fix {
        // Names of unmanaged objects are used in a text for nft.
        if ![self.table, self.chain].into_iter().all(is_plain_name) {
            return "nft -a list ruleset".into();
        }
        let Self { family, table, chain } = self;
        let links =
            [POD_LINKS].into_iter().chain(bridges.iter().map(|b| b.as_str()).filter(|b| is_plain_name(b)));
        let insert = |link: &str| {
            ["iifname", "oifname"].map(|side| {
                format!(
                    r#"insert rule {family} {table} {chain} {side} "{link}" counter accept comment "{MARK}""#
                )
            })
        };
        Fix::words(["nft", &links.flat_map(insert).collect::<Vec<_>>().join("; ")])
    }

    /// For a table with an owner: the kernel lets no other process change it. Only firewalld has a command that makes it accept
    /// pods.
    fn firewalld_fix(&self, bridges: &[&IfName]) -> Fix {
        if self.table != "firewalld" {
            return "nft -a list ruleset".into();
        }
        let links =
            ["pw+"].into_iter().chain(bridges.iter().map(|b| b.as_str()).filter(|b| is_plain_name(b)));
        let trust = ["firewall-cmd", "--permanent", "--zone=trusted"].map(str::to_owned);
        let zone = links.map(|link| format!("--add-interface={link}"));
        Fix::words(trust.into_iter().chain(zone)).and("firewall-cmd --reload")
    }
}

/// Whether the name has no special meaning for a shell or for nft.
pub(crate) fn is_plain_name(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/');
    name.starts_with(|c: char| c.is_ascii_alphabetic()) && name.chars().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_shell_characters_are_not_used_in_commands() {
        let bridge = IfName::try_from("br0").unwrap();
        let id = ChainId { family: ChainFamily::Ip, table: "filter", chain: "FORWARD" };
        let command = id.insertion_fix(&[&bridge]);
        assert!(
            command.contains(r#"; insert rule ip filter FORWARD oifname "br0" counter accept"#),
            "{command}"
        );
        for chain in ["a'; reboot '", "$(reboot)", "", "9"] {
            let command = ChainId { chain, ..id }.insertion_fix(&[]);
            assert_eq!(&*command, "nft -a list ruleset");
        }
    }
}
