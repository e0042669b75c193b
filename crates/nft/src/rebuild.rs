//! Makes our tables whole again, whatever happened to them, without a moment in which a pod that is in force is not.
//!
//! ```text
//! repair ─► the text of the structure over what is there, one transaction: rules anew, elements stay
//!        ─► the elements of all pods over netlink
//!        ─► still not right (such as a set of another type): tables with all elements anew, one transaction
//! ```

use std::collections::HashSet;

use netlink::Refusal;
use rustix::io::Errno;

use crate::census::BATCH;
use crate::damage::networks;
use crate::element::{self, Element, Role, bytes};
use crate::error::Error;
use crate::firewall::{Action, Firewall, Replace, additions, named};
use crate::pod::Pod;
use crate::program;
use crate::prune::Idle;
use crate::ruleset::{self, Clamp, Family, TABLE};

const REPAIR: &str = "put a pod back into the firewall";
/// Structure may be pruned again before pods are in it; the rest is for races.
const TRIES: usize = 3;

/// How a batch of elements ended.
enum Filled {
    All,
    /// A table or set went in the meantime.
    NoStructure,
}

impl Firewall {
    /// Makes our tables hold exactly these pods, and chains of no other network. A running pod among them loses neither
    /// guard nor masquerade nor host ports meanwhile. `pods` must be all: whoever is admitted at the same time may be
    /// thrown out again, so nobody may be. Of two pods that claim one host port, the first has it.
    pub fn rebuild(&mut self, pods: &[Pod<'_>]) -> Result<(), Error> {
        self.repair(pods)?;
        self.evict(pods)?;
        self.prune(Idle::RemoveAll)?;
        Ok(())
    }

    /// Makes the structure that such a pod needs, so that the first one finds it.
    pub fn prepare(&mut self, like: &Pod<'_>) -> Result<(), Error> {
        let networks = networks(std::slice::from_ref(like));
        let clamp = self.clamp()?;
        program::apply(&ruleset::text(element::families(like), &networks, clamp))
    }

    /// Puts the structure right and these pods in force; what there is of others stays, except where a set of a wrong
    /// type makes it necessary to begin with an empty table.
    pub fn repair(&mut self, pods: &[Pod<'_>]) -> Result<(), Error> {
        let elements = elements_of(pods)?;
        if self.renew(pods, &elements)? && self.damage(pods)?.is_empty() {
            return Ok(());
        }
        self.replace(pods, &elements)?;
        self.expect_whole(pods)
    }

    /// As [`repair`](Self::repair), but elements of other pods stay in any case: there may be pods of other run directories.
    /// Fails where only an empty table would help.
    pub fn repair_in_place(&mut self, pods: &[Pod<'_>]) -> Result<(), Error> {
        if !self.renew(pods, &elements_of(pods)?)? {
            let message = "a set or chain in them cannot be changed in place".to_owned();
            return Err(Error::Structure { message });
        }
        self.expect_whole(pods)
    }

    fn expect_whole(&mut self, pods: &[Pod<'_>]) -> Result<(), Error> {
        match self.damage(pods)?.as_slice() {
            [] => Ok(()),
            damage => {
                Err(Error::Structure { message: format!("it was applied, and still: {}", damage.join(", ")) })
            }
        }
    }

    /// False when what is there is in the way.
    fn renew(&mut self, pods: &[Pod<'_>], elements: &[Element<'_>]) -> Result<bool, Error> {
        for attempt in 0..TRIES {
            let families = self.families_of(pods)?;
            let (networks, clamp) = (networks(pods), self.clamp()?);
            let mut text = String::new();
            for &family in &families {
                let networks = if family == Family::Inet { networks.as_slice() } else { &[] };
                text.push_str(&self.clearance(family, &ruleset::text(&[family], networks, clamp))?);
            }
            text.push_str(&ruleset::text(&families, &networks, clamp));
            if attempt > 0 {
                // Somebody pruned a chain before its pods were in it: this time it is never empty.
                text.extend(pods.iter().filter_map(|p| Some(ruleset::members(p.masquerade?, p.addresses))));
            }
            if self.is_of_another_version(&families)? {
                // New rules may use new sets: without their elements they would drop what running pods send.
                let members = elements.iter().filter(|e| matches!(e.role, Role::Member));
                text.extend(members.map(Element::line));
            }
            match program::apply(&text) {
                Ok(()) => {}
                // The text itself is right: it does not go together with what is there. If it does not go with this
                // kernel either, replacing will say so.
                Err(Error::Structure { .. } | Error::Unsupported { .. }) => return Ok(false),
                Err(error) => return Err(error),
            }
            match self.fill(elements)? {
                Filled::All => return Ok(true),
                Filled::NoStructure => {}
            }
        }
        Ok(false)
    }

    fn fill(&mut self, elements: &[Element<'_>]) -> Result<Filled, Error> {
        for some in elements.chunks(BATCH) {
            match self.fill_some(some)? {
                Filled::All => {}
                Filled::NoStructure => return Ok(Filled::NoStructure),
            }
        }
        Ok(Filled::All)
    }

    fn fill_some(&mut self, elements: &[Element<'_>]) -> Result<Filled, Error> {
        let mut replace = vec![Replace::No; elements.len()];
        let mut last = None;
        for _ in 0..=TRIES {
            let (requests, steps) = additions(elements, &replace);
            let Err(refused) = self.socket.transact(&requests, None)? else { return Ok(Filled::All) };
            for (step, refusal) in named(refused, &steps)? {
                let element = &elements[step.element];
                replace[step.element] = match (step.action, refusal.errno, element.role) {
                    (Action::Add, Errno::NOENT, _) => return Ok(Filled::NoStructure),
                    (Action::Delete, Errno::NOENT, _) => Replace::No,
                    // Who is not among the pods has no claim to the port.
                    (Action::Add, Errno::EXIST, Role::HostPort(_)) => Replace::Yes,
                    (_, _, _) => return Err(refused_element(element, refusal)),
                };
                last = Some((element, refusal));
            }
        }
        match last {
            Some((element, refusal)) => Err(refused_element(element, refusal)),
            None => Ok(Filled::All),
        }
    }

    /// The old tables go and the new ones come, with every element, in one transaction. Only when nothing else helps: the
    /// kernel switches chain by chain, and a packet of just that moment may meet neither the old nor the new ones.
    fn replace(&mut self, pods: &[Pod<'_>], elements: &[Element<'_>]) -> Result<(), Error> {
        let families = self.families_of(pods)?;
        let tunnels = self.tunnels()?;
        let mut text = String::new();
        for family in families.iter().map(|family| Family::word(*family)) {
            // Added first, because deleting one that is not there fails.
            text.push_str(&format!("add table {family} {TABLE}\ndelete table {family} {TABLE}\n"));
        }
        let clamp = Clamp::of(&tunnels);
        text.push_str(&ruleset::text(&families, &networks(pods), clamp));
        text.extend(elements.iter().map(Element::line));
        text.extend(
            tunnels
                .iter()
                .map(|name| element::tunnel(name).line())
                .filter(|_| families.contains(&Family::Inet)),
        );
        program::apply(&text)
    }
}

fn refused_element(element: &Element<'_>, refusal: Refusal) -> Error {
    Error::refused(REPAIR, element.to_string(), refusal)
}

/// All elements of all pods, each key once: who comes first has it.
fn elements_of<'a>(pods: &[Pod<'a>]) -> Result<Vec<Element<'a>>, Error> {
    let (mut all, mut seen) = (Vec::new(), HashSet::new());
    for pod in pods {
        let own = element::of(pod)?.into_iter();
        all.extend(own.filter(|e| seen.insert((e.family, e.set.to_owned(), bytes(&e.key)))));
    }
    Ok(all)
}
