//! The elements of many pods. Each set is listed as a whole, which is much faster than a request for each element. Too slow
//! for every ADD and DEL.

use std::collections::HashMap;

use netlink::Refusal;
use rustix::io::Errno;

use crate::desired::{TableFamily, TableId};
use crate::element::{Element, bytes};
use crate::error::Error;
use crate::firewall::{BOTH, Firewall};
use crate::observe::ObservedSet;
use crate::pod::FirewallPod;
use crate::pod_elements;
use crate::request;
use crate::socket::NftRequest;
use crate::surplus;

const LIST: &str = "list the elements of pods in the firewall";

/// The keys of a set or map, with their values.
pub(crate) type SetContents = HashMap<Vec<u8>, Option<Vec<u8>>>;

/// The contents of all sets with elements of pods, in both tables. Elements that expire are left out.
#[derive(Debug)]
pub struct ListedElements {
    pub(crate) sets: Vec<(TableFamily, ObservedSet, SetContents)>,
    /// The generation of the tables, read before the sets. None if the kernel lacks nf_tables.
    pub(crate) generation: Option<u32>,
}

impl ListedElements {
    fn contents(&self, family: TableFamily, name: &str) -> Option<&SetContents> {
        let mut sets = self.sets.iter();
        sets.find(|(of, set, _)| *of == family && set.name == name).map(|(_, _, contents)| contents)
    }

    fn has(&self, element: &Element<'_>) -> bool {
        let found =
            self.contents(element.table.family, &element.set).and_then(|set| set.get(&bytes(&element.key)));
        found.is_some_and(|value| *value == element.value())
    }
}

impl Firewall {
    /// Lists the elements of all pods.
    pub fn list_elements(&mut self) -> Result<ListedElements, Error> {
        // Read first, so that later changes are detected.
        let generation = self.generation()?;
        let mut sets = Vec::new();
        for family in BOTH {
            let table = TableId::of_pods(family);
            for set in self.sets(table)?.into_iter().filter(|set| surplus::is_of_pods(family, set)) {
                let contents = self.contents(table, &set.name)?;
                sets.push((family, set, contents));
            }
        }
        Ok(ListedElements { sets, generation })
    }

    /// The indexes of the pods that lack an element. [`Firewall::drift`] compares the structure.
    pub fn missing_of(&mut self, pods: &[FirewallPod<'_>]) -> Result<Vec<usize>, Error> {
        let listing = self.list_elements()?;
        self.missing_in(&listing, pods)
    }

    /// As [`missing_of`](Self::missing_of), with a listing that the caller has.
    pub fn missing_in(
        &mut self,
        listing: &ListedElements,
        pods: &[FirewallPod<'_>],
    ) -> Result<Vec<usize>, Error> {
        let elements = pods.iter().map(pod_elements::of).collect::<Result<Vec<_>, _>>()?;
        let mut lacking = Vec::new();
        for (index, elements) in elements.iter().enumerate() {
            let unlisted: Vec<&Element<'_>> = elements.iter().filter(|e| !listing.has(e)).collect();
            // If another process changes a set, its listing may be incomplete: missing elements are requested by key.
            if !unlisted.is_empty() && self.lacks_any(&unlisted)? {
                lacking.push(index);
            }
        }
        Ok(lacking)
    }

    fn lacks_any(&mut self, elements: &[&Element<'_>]) -> Result<bool, Error> {
        let questions: Vec<NftRequest<'_>> = elements.iter().map(|e| request::get(e)).collect();
        for (element, answer) in elements.iter().zip(self.socket.ask(&questions)?) {
            match answer {
                Ok(found) if request::holds(element, &found) && !request::expires(&found) => {}
                Ok(_) | Err(Refusal { errno: Errno::NOENT, .. }) => return Ok(true),
                Err(refusal) => return Err(Error::refused(LIST, element.to_string(), refusal)),
            }
        }
        Ok(false)
    }

    /// Elements that expire are left out.
    pub(crate) fn contents(&mut self, table: TableId<'_>, set: &str) -> Result<SetContents, Error> {
        let mut contents = SetContents::new();
        self.dump_if_there(&request::get_elements(table, set), |answer| {
            let lasting = request::elements(answer).filter(|e| !e.expires);
            contents.extend(lasting.map(|e| (e.key.to_vec(), e.value)));
        })?;
        Ok(contents)
    }
}
