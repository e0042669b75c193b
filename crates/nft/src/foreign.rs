//! Chains of others at the forward hook that drop what pods send or receive. We cannot overrule them: a packet that one
//! chain drops is gone, whatever the others say. So they are reported, with the command that helps.
//!
//! Reads all tables of the IP layer; not for the way of a pod. Rules of the old `iptables-legacy` are not in nftables,
//! and not seen.

use std::collections::BTreeMap;

use netlink::Refusal;
use netlink::wire::{attribute, read_text};
use rustix::io::Errno;
use types::IfName;

use crate::damage::ListedChain;
use crate::error::Error;
use crate::number;
use crate::rule::{Condition, Ending, Listed};
use crate::ruleset::TABLE;
use crate::socket::{Request, Socket, Verb};

const LOOK: &str = "look for foreign chains that drop";
/// `NF_INET_FORWARD`
const FORWARD: u32 = 2;
/// `NF_DROP`
const DROP: u32 = 0;
/// The kernel allows no deeper jumps.
const DEEPEST: usize = 16;
/// A rule whose comment holds this is there for us.
const MARK: &str = "podwire";
/// What the host end of every pod's link is called.
const PODS: &str = "pw*";
const POD_PREFIX: &[u8] = b"pw";

/// Of a table of others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForeignFamily {
    Ip,
    Ip6,
    Inet,
}

impl ForeignFamily {
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

impl std::fmt::Display for ForeignFamily {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.word())
    }
}

/// A chain that drops the traffic of pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeignDrop {
    pub family: ForeignFamily,
    pub table: String,
    pub chain: String,
    /// How it drops, in words.
    pub why: String,
    /// What helps, ready to paste into a shell.
    pub command: String,
}

/// The chains in this thread's namespace that drop what pods send or receive through the host. `bridges` are those that
/// pods are attached to, for the command.
pub fn foreign_drops(bridges: &[&IfName]) -> Result<Vec<ForeignDrop>, Error> {
    let mut socket = Socket::open()?;
    let mut found = Vec::new();
    for family in ForeignFamily::ALL {
        let tables = Tables::read(&mut socket, family)?;
        let drops = tables.chains.iter().filter_map(|chain| tables.drop_of(chain, bridges));
        found.extend(drops);
    }
    Ok(found)
}

/// All there is of one family.
struct Tables {
    family: ForeignFamily,
    flags: BTreeMap<String, u32>,
    /// Those at the forward hook.
    chains: Vec<ListedChain>,
    /// By table and chain, in their order.
    rules: BTreeMap<(String, String), Vec<Listed>>,
}

impl Tables {
    fn read(socket: &mut Socket, family: ForeignFamily) -> Result<Self, Error> {
        let mut tables = Self { family, flags: BTreeMap::new(), chains: Vec::new(), rules: BTreeMap::new() };
        let is_forward = |c: &ListedChain| {
            c.hook.as_ref().is_some_and(|hook| hook.number == FORWARD)
                && !(c.table == TABLE && family == ForeignFamily::Inet)
        };
        tables.chains = list(socket, (family, number::GETCHAIN), ListedChain::read)?;
        tables.chains.retain(is_forward);
        // Most hosts have none, and rules are many where there are some.
        if tables.chains.is_empty() {
            return Ok(tables);
        }
        tables.flags.extend(list(socket, (family, number::GETTABLE), table)?);
        for rule in list(socket, (family, number::GETRULE), Listed::read)? {
            tables.rules.entry((rule.table.clone(), rule.chain.clone())).or_default().push(rule);
        }
        Ok(tables)
    }

    fn rules(&self, table: &str, chain: &str) -> &[Listed] {
        self.rules.get(&(table.to_owned(), chain.to_owned())).map_or(&[], Vec::as_slice)
    }

    fn drop_of(&self, chain: &ListedChain, bridges: &[&IfName]) -> Option<ForeignDrop> {
        let flags = self.flags.get(&chain.table).copied().unwrap_or(0);
        if flags & number::TABLE_DORMANT != 0 || self.is_prepared(&chain.table, &chain.name) {
            return None;
        }
        let mut why = match (self.outcome(&chain.table, &chain.name, DEEPEST), chain.policy) {
            (Outcome::Drops(how), _) => how,
            (Outcome::GoesOn, Some(DROP)) => "its policy is drop".to_owned(),
            (Outcome::Accepts | Outcome::GoesOn, _) => return None,
        };
        let place = Place { family: self.family, table: &chain.table, chain: &chain.name };
        let command = if flags & number::TABLE_OWNED == 0 {
            place.insertion(bridges)
        } else {
            why.push_str(", and only the program that made the table can change it");
            place.of_firewalld(bridges)
        };
        let (family, table, chain) = (self.family, chain.table.clone(), chain.name.clone());
        Some(ForeignDrop { family, table, chain, why, command })
    }

    /// Does the chain, or one that it leads to, have a rule for us?
    fn is_prepared(&self, table: &str, chain: &str) -> bool {
        let (mut chains, mut next) = (vec![chain], 0);
        while let Some(chain) = chains.get(next) {
            for listed in self.rules(table, chain) {
                if is_for_us(listed) {
                    return true;
                }
                match &listed.rule.ending {
                    Ending::Jump(to) | Ending::Goto(to) if !chains.contains(&to.as_str()) => chains.push(to),
                    _ => {}
                }
            }
            next += 1;
        }
        false
    }

    /// What becomes of a packet that no rule with a condition matches.
    fn outcome(&self, table: &str, chain: &str, depth: usize) -> Outcome {
        let always = self.rules(table, chain).iter().filter(|r| r.rule.condition == Condition::Always);
        for listed in always {
            match &listed.rule.ending {
                Ending::Accept => return Outcome::Accepts,
                Ending::Drop => {
                    return Outcome::Drops(format!("chain {chain} ends in a rule that drops all"));
                }
                Ending::Reject => {
                    return Outcome::Drops(format!("chain {chain} ends in a rule that rejects all"));
                }
                Ending::Return => return Outcome::GoesOn,
                Ending::Goto(to) if depth > 0 => return self.outcome(table, to, depth - 1),
                Ending::Jump(to) if depth > 0 => match self.outcome(table, to, depth - 1) {
                    Outcome::GoesOn => {}
                    decided => return decided,
                },
                Ending::Jump(_) | Ending::Goto(_) | Ending::Masquerade | Ending::Other => {}
            }
        }
        Outcome::GoesOn
    }
}

enum Outcome {
    Accepts,
    Drops(String),
    /// Its caller, or the policy, decides.
    GoesOn,
}

/// One that accepts with our mark, or the way that firewalld has for links of a zone.
fn is_for_us(listed: &Listed) -> bool {
    match &listed.rule.ending {
        Ending::Accept => listed.comment.as_ref().is_some_and(|comment| comment.contains(MARK)),
        Ending::Jump(_) | Ending::Goto(_) => listed.compared.iter().any(|name| name == POD_PREFIX),
        Ending::Drop | Ending::Reject | Ending::Return | Ending::Masquerade | Ending::Other => false,
    }
}

/// A table's name and flags.
fn table(answer: &[u8]) -> Option<(String, u32)> {
    let name = attribute(answer, number::TABLE_NAME).map(read_text)?;
    let flags = attribute(answer, number::TABLE_FLAGS).and_then(|flags| flags.first_chunk());
    Some((name, flags.copied().map_or(0, u32::from_be_bytes)))
}

fn list<T: PartialEq>(
    socket: &mut Socket,
    (family, kind): (ForeignFamily, u16),
    read: impl Fn(&[u8]) -> Option<T>,
) -> Result<Vec<T>, Error> {
    let number = u8::try_from(family.number()).unwrap_or_default();
    let all = Request::new(Verb { kind, flags: 0, family: number, version: 0 }, |_| {});
    match socket.list(&all, read)? {
        Ok(listed) => Ok(listed),
        // A kernel without nf_tables, or without this family, has no such chains.
        Err(Refusal { errno: Errno::NOENT | Errno::OPNOTSUPP | Errno::AFNOSUPPORT, .. }) => Ok(Vec::new()),
        Err(refusal) => Err(Error::refused(LOOK, format!("family {family}"), refusal)),
    }
}

struct Place<'a> {
    family: ForeignFamily,
    table: &'a str,
    chain: &'a str,
}

impl Place<'_> {
    /// Routed pods pass with the host end of their link as the one side, bridged ones with their bridge. Both ways, and
    /// new connections too: host ports, and pods of other nodes, come from outside.
    fn insertion(&self, bridges: &[&IfName]) -> String {
        // Names of others go into a line for a shell.
        if ![self.table, self.chain].into_iter().all(is_harmless) {
            return "nft -a list ruleset".to_owned();
        }
        let Self { family, table, chain } = self;
        let links = [PODS].into_iter().chain(bridges.iter().map(|b| b.as_str()).filter(|b| is_harmless(b)));
        let insert = |link: &str| {
            ["iifname", "oifname"].map(|way| {
                format!(
                    r#"insert rule {family} {table} {chain} {way} "{link}" counter accept comment "{MARK}""#
                )
            })
        };
        format!("nft '{}'", links.flat_map(insert).collect::<Vec<_>>().join("; "))
    }

    /// The kernel lets nobody else change the table.
    fn of_firewalld(&self, bridges: &[&IfName]) -> String {
        if self.table != "firewalld" {
            return "nft -a list ruleset".to_owned();
        }
        let links = ["pw+"].into_iter().chain(bridges.iter().map(|b| b.as_str()).filter(|b| is_harmless(b)));
        let zone: Vec<String> = links.map(|link| format!("--add-interface={link}")).collect();
        format!("firewall-cmd --permanent --zone=trusted {} && firewall-cmd --reload", zone.join(" "))
    }
}

/// Means nothing to a shell or to nft but itself.
pub(crate) fn is_harmless(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/');
    name.starts_with(|c: char| c.is_ascii_alphabetic()) && name.chars().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_mean_something_to_a_shell_are_in_no_command() {
        let bridge = IfName::try_from("br0").unwrap();
        let place = Place { family: ForeignFamily::Ip, table: "filter", chain: "FORWARD" };
        let command = place.insertion(&[&bridge]);
        assert!(
            command.contains(r#"; insert rule ip filter FORWARD oifname "br0" counter accept"#),
            "{command}"
        );
        for chain in ["a'; reboot '", "$(reboot)", "", "9"] {
            let command = Place { chain, ..place }.insertion(&[]);
            assert_eq!(command, "nft -a list ruleset");
        }
    }
}
