//! Removes chains of networks without pods, because every new connection of the node passes them.

use std::collections::BTreeSet;

use netlink::Refusal;
use rustix::io::Errno;

use crate::desired::{APPLIED, AppliedObject, TABLE, TableFamily, TableId};
use crate::error::Error;
use crate::firewall::Firewall;
use crate::pod::NetworkChain;
use crate::request;
use crate::socket::NftRequest;

const PRUNE: &str = "remove the chains of networks without pods";
const POD_TABLE: TableId<'static> = TableId::of_pods(TableFamily::Inet);

/// Which idle chains are removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdleChains<'a> {
    /// All of them if there are more than a few. Otherwise a network whose only pod is restarted keeps its chain, which saves a run
    /// of the nft program.
    KeepFew,
    /// The same, and always those of this network, which is named as its directory.
    Remove(&'a str),
    RemoveAll,
}

/// So many idle chains cost little: each is two lookups in an empty set for the first packet of a connection.
const FEW: usize = 4;

impl Firewall {
    /// Removes the chains and sets of these networks if they have no pod. Returns the number of chains. Networks are named as their
    /// directories. Chains of other networks and the chain `kept` stay, because their owners would create them again. If a pod is
    /// added meanwhile, the kernel refuses the removal: the generation has changed since the sets were empty.
    pub fn prune(
        &mut self,
        idle: IdleChains<'_>,
        networks: &[String],
        kept: Option<&str>,
    ) -> Result<usize, Error> {
        // Read first, so that later changes are detected.
        let Some(generation) = self.generation()? else { return Ok(0) };
        let mut chains = self.idle_chains()?;
        chains.retain(|chain| {
            let is_own = networks.iter().any(|network| NetworkChain::is_of(chain, network));
            is_own && kept != Some(chain.as_str())
        });
        let is_few = chains.len() <= FEW;
        match idle {
            IdleChains::KeepFew if is_few => chains.clear(),
            IdleChains::Remove(network) if is_few => {
                chains.retain(|chain| NetworkChain::is_of(chain, network));
            }
            IdleChains::KeepFew | IdleChains::Remove(_) | IdleChains::RemoveAll => {}
        }
        self.remove_chains(&chains, generation)
    }

    fn idle_chains(&mut self) -> Result<Vec<String>, Error> {
        let sets = self.sets(POD_TABLE)?;
        let id_of = |name| NetworkChain::id_of_set(name);
        let mut chains: BTreeSet<&str> = sets.iter().filter_map(|set| id_of(&set.name)).collect();
        for set in &sets {
            let Some(chain) = id_of(&set.name).filter(|chain| chains.contains(chain)) else { continue };
            let mut is_empty = true;
            self.dump_if_there(&request::get_elements(POD_TABLE, &set.name), |answer| {
                is_empty &= request::elements(answer).all(|element| element.expires);
            })?;
            if !is_empty {
                chains.remove(chain);
            }
        }
        Ok(chains.into_iter().map(ToOwned::to_owned).collect())
    }

    /// Removes the chains with their sets. Objects that do not exist are skipped.
    fn remove_chains(&mut self, chains: &[String], generation: u32) -> Result<usize, Error> {
        let mut requests: Vec<NftRequest<'_>> = chains.iter().flat_map(|chain| deletions(chain)).collect();
        while !requests.is_empty() {
            let Err(refused) = self.socket.transact(&requests, Some(generation))? else {
                return Ok(chains.len());
            };
            match refused.whole {
                // A table was changed; a pod may have been added. The next call retries.
                Some(Refusal { errno: Errno::RESTART, .. }) => return Ok(0),
                Some(refusal) => return Err(Error::refused(PRUNE, TABLE.to_owned(), refusal)),
                None => {}
            }
            let mut absent = BTreeSet::new();
            for (index, refusal) in refused.requests {
                if refusal.errno != Errno::NOENT {
                    return Err(Error::refused(PRUNE, TABLE.to_owned(), refusal));
                }
                absent.insert(index);
            }
            let mut indexes = 0..;
            requests.retain(|_| indexes.next().is_some_and(|index| !absent.contains(&index)));
        }
        Ok(0)
    }
}

/// The chain first, because its rules use the sets. The digests are deleted, too.
fn deletions(chain: &str) -> Vec<NftRequest<'_>> {
    let sets = NetworkChain::sets_of(chain);
    let digest =
        |object: AppliedObject<'_>| request::delete_key(POD_TABLE, APPLIED, &object.key().to_ne_bytes());
    let mut requests = vec![request::delete_chain(POD_TABLE, chain), digest(AppliedObject::Chain(chain))];
    for set in sets {
        requests.push(digest(AppliedObject::Set(&set)));
        requests.push(request::delete_set(POD_TABLE, set));
    }
    requests
}

#[cfg(test)]
mod tests {
    use netlink::NetNs;
    use types::IfName;

    use super::*;
    use crate::pod::{AttachMode, FirewallPod, Guard};

    /// Deleting a set also deletes its elements. Only the generation protects the elements of the pod.
    #[test]
    fn f5_a_pod_added_after_the_check_keeps_its_chain() {
        let in_a_namespace = || {
            let link = IfName::try_from("pwabc").unwrap();
            let chain = NetworkChain::new(&"blue".try_into().unwrap(), &["10.0.0.0/24".parse().unwrap()]);
            let pod = FirewallPod {
                link: &link,
                mac: "02:00:00:00:00:07".parse().unwrap(),
                mode: AttachMode::Routed,
                bridge: None,
                addresses: &["10.0.0.2".parse().unwrap(), "fd00::2".parse().unwrap()],
                masquerade: Some(&chain),
                guard: Guard::On,
                ports: &[],
            };
            let mut firewall = Firewall::open().unwrap();
            firewall.add_pod(&pod).unwrap();
            firewall.remove_pod(&pod).unwrap();
            let generation = firewall.generation().unwrap().unwrap();
            let chains = firewall.idle_chains().unwrap();
            assert_eq!(chains, [chain.id()]);
            Firewall::open().unwrap().add_pod(&pod).unwrap();
            assert_eq!(firewall.remove_chains(&chains, generation).unwrap(), 0);
            assert_eq!(firewall.missing(&pod).unwrap(), [""; 0]);
        };
        NetNs::create().unwrap().run(in_a_namespace).unwrap();
    }
}
