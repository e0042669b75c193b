//! Is the structure of our tables as our text makes it? The kernel's listing is compared with the text, so that an
//! agent that was just started knows as much as one that made the tables itself.
//!
//! Of a rule only its ending, whether it has a condition, its sets and names of links are compared (see [`crate::rule`]), and that no
//! rule is younger than the one after it: enough to see what was deleted, inserted or moved, and nearly all that was
//! replaced, the same with every version of kernel and nft.

use netlink::Refusal;
use netlink::wire::{attribute, attribute_at, read_text};
use rustix::io::Errno;

use crate::element::{self, Element};
use crate::error::Error;
use crate::firewall::Firewall;
use crate::foreign::is_harmless;
use crate::number;
use crate::pod::{NetworkChain, Pod};
use crate::request::{self, Place};
use crate::rule::{Ending, Listed};
use crate::ruleset::{self, Family, REVISION, REVISION_KEY, TABLE};
use crate::shape::{ChainShape, Hook, Shape};
use crate::socket::Request;

const LOOK: &str = "compare the firewall's tables with what they should be";
const BOTH: [Family; 2] = [Family::Inet, Family::Bridge];
/// `NF_ACCEPT`, which is also how the kernel writes the policy.
const ACCEPT: u32 = 1;

/// A base chain as the kernel has it, or a plain one.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ListedChain {
    pub(crate) table: String,
    pub(crate) name: String,
    pub(crate) hook: Option<Hook>,
    pub(crate) policy: Option<u32>,
}

impl ListedChain {
    pub(crate) fn read(answer: &[u8]) -> Option<Self> {
        let text = |kind| attribute(answer, kind).map(read_text);
        let word = |path: &[u16]| attribute_at(answer, path)?.first_chunk::<4>().copied();
        let number = word(&[number::CHAIN_HOOK, number::HOOK_NUMBER]).map(u32::from_be_bytes);
        let priority = word(&[number::CHAIN_HOOK, number::HOOK_PRIORITY]).map(i32::from_be_bytes);
        let kind = text(number::CHAIN_TYPE).unwrap_or_default();
        let hook = number.zip(priority).map(|(number, priority)| Hook { kind, number, priority });
        let policy = word(&[number::CHAIN_POLICY]).map(u32::from_be_bytes);
        Some(Self { table: text(number::CHAIN_TABLE)?, name: text(number::CHAIN_NAME)?, hook, policy })
    }
}

/// The chains of the networks of these pods, each once.
pub(crate) fn networks<'a>(pods: &[Pod<'a>]) -> Vec<&'a NetworkChain> {
    let mut chains: Vec<&NetworkChain> = pods.iter().filter_map(|pod| pod.masquerade).collect();
    chains.sort_by_key(|chain| chain.id());
    chains.dedup_by_key(|chain| chain.id());
    chains
}

impl Firewall {
    /// What of the structure these pods need, and of tables that are there, is not as it should be, in words; nothing
    /// means all is well. [`Firewall::repair`] puts it right. Elements are for [`Firewall::missing_of`].
    pub fn damage(&mut self, pods: &[Pod<'_>]) -> Result<Vec<String>, Error> {
        let mut found = Vec::new();
        let clamp = self.clamp()?;
        for family in BOTH {
            let Some(flags) = self.table_flags(family)? else {
                if pods.iter().any(|pod| element::families(pod).contains(&family)) {
                    found.push(format!("table {} {TABLE} is missing", family.word()));
                }
                continue;
            };
            if flags & number::TABLE_DORMANT != 0 {
                found
                    .push(format!("table {} {TABLE} is dormant: its chains are not in force", family.word()));
            }
            let networks = match family {
                Family::Inet => networks(pods),
                Family::Bridge => Vec::new(),
            };
            let text = ruleset::text(&[family], &networks, clamp);
            self.damage_of_table(family, &Shape::of(&text), &mut found)?;
        }
        Ok(found)
    }

    /// The families whose table is needed by a pod, or is there.
    pub(crate) fn families_of(&mut self, pods: &[Pod<'_>]) -> Result<Vec<Family>, Error> {
        let mut families = Vec::new();
        for family in BOTH {
            let is_needed = pods.iter().any(|pod| element::families(pod).contains(&family));
            if is_needed || self.table_flags(family)?.is_some() {
                families.push(family);
            }
        }
        Ok(families)
    }

    /// None for a table that is not there.
    fn table_flags(&mut self, family: Family) -> Result<Option<u32>, Error> {
        match self.socket.ask(&[request::get_table(family)])?.pop() {
            Some(Ok(table)) => {
                let flags = attribute(&table, number::TABLE_FLAGS).and_then(|flags| flags.first_chunk());
                Ok(Some(flags.copied().map_or(0, u32::from_be_bytes)))
            }
            Some(Err(Refusal { errno: Errno::NOENT | Errno::OPNOTSUPP | Errno::AFNOSUPPORT, .. })) | None => {
                Ok(None)
            }
            Some(Err(refusal)) => Err(Error::refused(LOOK, name(family, ""), refusal)),
        }
    }

    fn damage_of_table(
        &mut self,
        family: Family,
        shape: &Shape<'_>,
        found: &mut Vec<String>,
    ) -> Result<(), Error> {
        if !self.is_of_our_revision(&element::revision(family))? {
            found.push(format!("table {} {TABLE} is of another version", family.word()));
        }
        let sets = self.sets(family)?;
        let lost = shape.sets.iter().filter(|set| !sets.iter().any(|s| s == *set));
        found.extend(lost.map(|set| format!("set {} is missing", name(family, set))));
        let survey = self.survey(family)?;
        for want in &shape.chains {
            let chain = name(family, want.name);
            let Some(have) = survey.chains.iter().find(|c| c.name == want.name) else {
                found.push(format!("chain {chain} is missing"));
                continue;
            };
            found.extend(wrong_hook(want, have).map(|what| format!("chain {chain} {what}")));
            let rules = survey.rules_of(want.name);
            found.extend(wrong_rules(want, &rules).map(|what| format!("chain {chain} {what}")));
        }
        let strangers = survey.strangers(shape);
        found.extend(strangers.map(|c| format!("chain {} is not ours", name(family, &c.name))));
        Ok(())
    }

    /// The text that removes what `text` of a family cannot be applied over, for the beginning of the same transaction: chains
    /// of others, and our own at another hook. Nothing may jump to a chain that goes, so all rules go with them.
    pub(crate) fn clearance(&mut self, family: Family, text: &str) -> Result<String, Error> {
        let (shape, survey) = (Shape::of(text), self.survey(family)?);
        let displaced = survey
            .chains
            .iter()
            .filter(|have| shape.chains.iter().any(|want| want.name == have.name && want.hook != have.hook));
        // A name that nft would not understand is left for the way that replaces all.
        let strangers = survey.strangers(&shape).filter(|c| is_harmless(&c.name));
        let wrong: Vec<&ListedChain> = displaced.chain(strangers).collect();
        let intact = survey.chains.iter().filter(|c| shape.chains.iter().any(|want| want.name == c.name));
        let line = |verb: &str, c: &ListedChain| format!("{verb} chain {}\n", name(family, &c.name));
        let flushed = intact.chain(wrong.iter().copied()).map(|c| line("flush", c));
        Ok(match wrong.as_slice() {
            [] => String::new(),
            wrong => flushed.chain(wrong.iter().map(|c| line("delete", c))).collect(),
        })
    }

    fn survey(&mut self, family: Family) -> Result<Survey, Error> {
        let mut chains = self.listed(family, &request::get_chains(family), ListedChain::read)?;
        chains.retain(|chain| chain.table == TABLE);
        let rules = self.listed(family, &request::get_rules(family), Listed::read)?;
        Ok(Survey { chains, rules })
    }

    /// Is one of these tables there, and made by another version?
    pub(crate) fn is_of_another_version(&mut self, families: &[Family]) -> Result<bool, Error> {
        for family in families {
            if self.table_flags(*family)?.is_some()
                && !self.is_of_our_revision(&element::revision(*family))?
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn is_of_our_revision(&mut self, revision: &Element<'_>) -> Result<bool, Error> {
        match self.socket.ask(&[request::get(revision)])?.pop() {
            Some(Ok(found)) => Ok(request::holds(revision, &found)),
            Some(Err(Refusal { errno: Errno::NOENT, .. })) | None => Ok(false),
            Some(Err(refusal)) => Err(Error::refused(LOOK, revision.to_string(), refusal)),
        }
    }

    /// How a table of family inet that is not the pods' differs from its text and revision, in words.
    pub(crate) fn damage_of_named(
        &mut self,
        table: &str,
        text: &str,
        revision: u32,
    ) -> Result<Vec<String>, Error> {
        match self.socket.ask(&[request::table_named(table)])?.pop() {
            Some(Ok(found)) if request::is_dormant(&found) => {
                return Ok(vec![format!("table {table} is dormant")]);
            }
            Some(Ok(_)) => {}
            Some(Err(Refusal { errno: Errno::NOENT, .. })) | None => {
                return Ok(vec![format!("table {table} is missing")]);
            }
            Some(Err(refusal)) => return Err(Error::refused(LOOK, format!("inet {table}"), refusal)),
        }
        let mut found = Vec::new();
        let wanted = (REVISION_KEY.to_ne_bytes().to_vec(), Some(revision.to_ne_bytes().to_vec()));
        let mut has_revision = false;
        self.dump_if_there(&request::elements_at(Place { table, set: REVISION }), |answer| {
            has_revision |= request::elements(answer)
                .any(|found| (found.key.to_vec(), found.value.map(<[u8]>::to_vec)) == wanted);
        })?;
        if !has_revision {
            found.push(format!("table {table} is of another version or configuration"));
        }
        let mut sets = Vec::new();
        self.dump_if_there(&request::sets_of(table), |set| sets.extend(request::name_of_set(set)))?;
        let shape = Shape::of(text);
        let lost = shape.sets.iter().filter(|set| !sets.iter().any(|there| there == *set));
        found.extend(lost.map(|set| format!("set {table} {set} is missing")));
        let mut chains = self.listed(Family::Inet, &request::get_chains(Family::Inet), ListedChain::read)?;
        chains.retain(|chain| chain.table == table);
        let rules = self.listed(Family::Inet, &request::rules_of(table), Listed::read)?;
        for want in &shape.chains {
            let Some(have) = chains.iter().find(|chain| chain.name == want.name) else {
                found.push(format!("chain {table} {} is missing", want.name));
                continue;
            };
            let own: Vec<&Listed> = rules.iter().filter(|rule| rule.chain == want.name).collect();
            let wrong = wrong_hook(want, have).map(str::to_owned).into_iter().chain(wrong_rules(want, &own));
            found.extend(wrong.map(|what| format!("chain {table} {} {what}", want.name)));
        }
        let is_known = |chain: &&ListedChain| shape.chains.iter().any(|want| want.name == chain.name);
        let unknown = chains.iter().filter(|chain| !is_known(chain));
        found.extend(unknown.map(|chain| format!("chain {table} {} is not Podwire's", chain.name)));
        Ok(found)
    }

    /// Deletes a table of family inet that is not the pods'. Was there one?
    pub(crate) fn delete_named(&mut self, operation: &'static str, table: &str) -> Result<bool, Error> {
        let Err(refused) = self.socket.transact(&[request::delete_table_of(table)], None)? else {
            return Ok(true);
        };
        let refusals = refused.whole.into_iter().chain(refused.requests.into_iter().map(|(_, r)| r));
        for refusal in refusals {
            if !matches!(refusal.errno, Errno::NOENT | Errno::OPNOTSUPP | Errno::AFNOSUPPORT) {
                return Err(Error::refused(operation, format!("inet {table}"), refusal));
            }
        }
        Ok(false)
    }

    /// A table that went in the meantime lists nothing.
    pub(crate) fn listed<T: PartialEq>(
        &mut self,
        family: Family,
        what: &Request<'_>,
        read: impl Fn(&[u8]) -> Option<T>,
    ) -> Result<Vec<T>, Error> {
        match self.socket.list(what, read)? {
            Ok(listed) => Ok(listed),
            Err(Refusal { errno: Errno::NOENT, .. }) => Ok(Vec::new()),
            Err(refusal) => Err(Error::refused(LOOK, name(family, ""), refusal)),
        }
    }
}

/// What the kernel has of one of our tables.
struct Survey {
    chains: Vec<ListedChain>,
    rules: Vec<Listed>,
}

impl Survey {
    fn rules_of(&self, chain: &str) -> Vec<&Listed> {
        self.rules.iter().filter(|rule| rule.chain == chain).collect()
    }

    /// Chains that we did not make, or not so.
    fn strangers(&self, shape: &Shape<'_>) -> impl Iterator<Item = &ListedChain> {
        let is_known = |c: &ListedChain| shape.chains.iter().any(|want| want.name == c.name);
        self.chains.iter().filter(move |c| !is_known(c) && !is_idle_network(c, &self.rules_of(&c.name)))
    }
}

fn name(family: Family, object: &str) -> String {
    format!("{} {TABLE} {object}", family.word()).trim_end().to_owned()
}

pub(crate) fn wrong_hook(want: &ChainShape<'_>, have: &ListedChain) -> Option<&'static str> {
    match (&want.hook, &have.hook) {
        (Some(want), Some(have)) if want != have => Some("sits at another hook or priority"),
        (Some(_), Some(_)) if have.policy != Some(ACCEPT) => Some("has another policy"),
        (Some(_), None) => Some("has lost its hook"),
        (None, Some(_)) => Some("should have no hook"),
        (Some(_), Some(_)) | (None, None) => None,
    }
}

pub(crate) fn wrong_rules(want: &ChainShape<'_>, have: &[&Listed]) -> Option<String> {
    if want.rules.len() != have.len() {
        return Some(format!("has {} rules instead of {}", have.len(), want.rules.len()));
    }
    let is_in_order = have.windows(2).all(|pair| pair[0].handle < pair[1].handle);
    let asks_for = |have: &Listed, name: &str| have.compared.iter().any(|value| value == name.as_bytes());
    let is_alike = want
        .rules
        .iter()
        .zip(have)
        .all(|(want, have)| want.rule == have.rule && want.names.iter().all(|name| asks_for(have, name)));
    (!is_in_order || !is_alike).then(|| "has other rules than ours".to_owned())
}

/// The chain of a network whose pods have left may stay for a while. Its CIDRs are not known here: each family that has
/// some has a rule more.
fn is_idle_network(chain: &ListedChain, rules: &[&Listed]) -> bool {
    let endings: Vec<&Ending> = rules.iter().map(|listed| &listed.rule.ending).collect();
    let Some((Ending::Masquerade, rest)) = endings.split_last() else { return false };
    NetworkChain::is_id(&chain.name)
        && chain.hook.is_some()
        && chain.policy == Some(ACCEPT)
        && (6..=8).contains(&rest.len())
        && rest.iter().all(|ending| **ending == Ending::Return)
}
