//! Chains of networks that have no pod any more: every new connection of the node would walk them for nothing.

use std::collections::BTreeSet;

use netlink::Refusal;
use rustix::io::Errno;
use types::NetworkName;

use crate::error::Error;
use crate::firewall::Firewall;
use crate::pod::NetworkChain;
use crate::program;
use crate::request;
use crate::ruleset::{Family, TABLE};
use crate::socket::Request;

const PRUNE: &str = "remove the chains of networks without pods";

/// Which idle chains may stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Idle<'a> {
    /// A few, for networks whose last pod was restarted: their chain is then there already, which saves a run of the nft
    /// program. With more than a few, all go.
    KeepFew,
    /// The same, and those of this network go in any case.
    Remove(&'a NetworkName),
    RemoveAll,
}

/// Not to be felt: an idle chain is two look-ups in an empty set, for the first packet of a connection.
const FEW: usize = 4;

impl Firewall {
    /// Removes the chains and sets of networks that have no pod; returns how many. A pod that comes in the meantime is
    /// never harmed: the kernel removes only if nothing changed since the sets were seen to be empty. A chain that an agent
    /// keeps stays: see [`Firewall::keep`].
    pub fn prune(&mut self, idle: Idle<'_>) -> Result<usize, Error> {
        let Some((mut chains, generation)) = self.look()? else { return Ok(0) };
        let is_few = chains.len() <= FEW;
        match idle {
            Idle::KeepFew if is_few => chains.clear(),
            Idle::Remove(network) if is_few => chains.retain(|chain| NetworkChain::is_of(chain, network)),
            Idle::KeepFew | Idle::Remove(_) | Idle::RemoveAll => {}
        }
        self.remove_chains(&chains, generation)
    }

    /// Marks this chain of the network, and no other one of it, as kept without pods: an agent would put it back. The mark is
    /// a set in the table, so that every process on the node respects it.
    pub fn keep(&mut self, network: &NetworkName, chain: Option<&NetworkChain>) -> Result<(), Error> {
        let sets = self.sets(Family::Inet)?;
        let has = |name: &str| sets.iter().any(|set| set == name);
        let mark = chain.filter(|chain| has(chain.set4())).map(|chain| NetworkChain::mark_of(chain.id()));
        let new = mark.iter().filter(|mark| !has(mark));
        let mut text: String =
            new.map(|mark| format!("add set inet {TABLE} {mark} {{ type mark; }}\n")).collect();
        let is_stale = |set: &&String| {
            NetworkChain::is_mark(set) && NetworkChain::is_of(set, network) && Some(*set) != mark.as_ref()
        };
        text.extend(sets.iter().filter(is_stale).map(|set| format!("delete set inet {TABLE} {set}\n")));
        if text.is_empty() { Ok(()) } else { program::apply(&text) }
    }

    /// The chains without pods, and the generation of the tables in which that was so; none without nf_tables.
    fn look(&mut self) -> Result<Option<(Vec<String>, u32)>, Error> {
        // Read first: a change after it is then noticed, wherever it falls.
        let generation = self.generation()?;
        generation.map(|generation| Ok((self.idle_chains()?, generation))).transpose()
    }

    /// The number that every change of any table increases; none without nf_tables.
    pub(crate) fn generation(&mut self) -> Result<Option<u32>, Error> {
        let answer = self.socket.ask(&[request::get_generation()])?.pop();
        Ok(answer.and_then(Result::ok).and_then(|found| request::generation(&found)))
    }

    fn idle_chains(&mut self) -> Result<Vec<String>, Error> {
        let sets = self.sets(Family::Inet)?;
        let mut chains: BTreeSet<&str> = sets.iter().filter_map(|set| NetworkChain::id_of_set(set)).collect();
        for set in &sets {
            let Some(chain) = NetworkChain::id_of_set(set).filter(|chain| chains.contains(chain)) else {
                continue;
            };
            let mut is_empty = true;
            self.dump_if_there(&request::get_elements(Family::Inet, set), |answer| {
                is_empty &= request::elements(answer).all(|element| element.expires);
            })?;
            if !is_empty {
                chains.remove(chain);
            }
        }
        chains.retain(|chain| !sets.contains(&NetworkChain::mark_of(chain)));
        Ok(chains.into_iter().map(ToOwned::to_owned).collect())
    }

    /// What is gone already keeps nothing else.
    fn remove_chains(&mut self, chains: &[String], generation: u32) -> Result<usize, Error> {
        let mut requests: Vec<Request<'_>> = chains.iter().flat_map(|chain| deletions(chain)).collect();
        while !requests.is_empty() {
            let Err(refused) = self.socket.transact(&requests, Some(generation))? else {
                return Ok(chains.len());
            };
            match refused.whole {
                // Somebody changed something: perhaps a pod came. Those who come next will look again.
                Some(Refusal { errno: Errno::RESTART, .. }) => return Ok(0),
                Some(refusal) => return Err(Error::refused(PRUNE, TABLE.to_owned(), refusal)),
                None => {}
            }
            let mut gone = BTreeSet::new();
            for (place, refusal) in refused.requests {
                if refusal.errno != Errno::NOENT {
                    return Err(Error::refused(PRUNE, TABLE.to_owned(), refusal));
                }
                gone.insert(place);
            }
            let mut places = 0..;
            requests.retain(|_| places.next().is_some_and(|place| !gone.contains(&place)));
        }
        Ok(0)
    }
}

/// The chain first: its rules use the sets.
fn deletions(chain: &str) -> [Request<'_>; 3] {
    let [set4, set6] = NetworkChain::sets_of(chain);
    [
        request::delete_chain(Family::Inet, chain),
        request::delete_set(Family::Inet, set4),
        request::delete_set(Family::Inet, set6),
    ]
}

#[cfg(test)]
mod tests {
    use netlink::NetNs;
    use types::IfName;

    use super::*;
    use crate::pod::{Guard, Mode, Pod};

    /// Deleting a set deletes its elements without a word: nothing but the generation keeps the pod in force.
    #[test]
    fn f5_a_pod_that_comes_after_the_look_keeps_its_chain() {
        let in_a_namespace = || {
            let link = IfName::try_from("pwabc").unwrap();
            let chain = NetworkChain::new(&"blue".try_into().unwrap(), &["10.0.0.0/24".parse().unwrap()]);
            let pod = Pod {
                link: &link,
                mac: "02:00:00:00:00:07".parse().unwrap(),
                mode: Mode::Routed,
                bridge: None,
                addresses: &["10.0.0.2".parse().unwrap(), "fd00::2".parse().unwrap()],
                masquerade: Some(&chain),
                guard: Guard::On,
                ports: &[],
            };
            let mut firewall = Firewall::open().unwrap();
            firewall.admit(&pod).unwrap();
            firewall.expel(&pod).unwrap();
            let (chains, generation) = firewall.look().unwrap().unwrap();
            assert_eq!(chains, [chain.id()]);
            Firewall::open().unwrap().admit(&pod).unwrap();
            assert_eq!(firewall.remove_chains(&chains, generation).unwrap(), 0);
            assert_eq!(firewall.missing(&pod).unwrap(), [""; 0]);
        };
        NetNs::create().unwrap().run(in_a_namespace).unwrap();
    }
}
