//! What is in our sets, for many pods at once: each set is read whole, which is far quicker than to ask for every
//! element by itself. Not for the way of a pod.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use netlink::Refusal;
use rustix::io::Errno;

use crate::element::{self, Data, Element, bytes};
use crate::error::Error;
use crate::firewall::Firewall;
use crate::pod::Pod;
use crate::request;
use crate::rule::ANONYMOUS;
use crate::ruleset::{Family, REVISION, TABLE, TUNNELS};
use crate::socket::Request;

const COUNT: &str = "count the pods in the firewall";
const EVICT: &str = "remove what belongs to no pod from the firewall";
/// So many requests in one transaction.
pub(crate) const BATCH: usize = 1000;

/// The keys of a set, and what a map has for them.
type Contents = HashMap<Vec<u8>, Option<Vec<u8>>>;

impl Firewall {
    /// The places of the pods that lack an element, over one socket. The structure is for [`Firewall::damage`].
    pub fn missing_of(&mut self, pods: &[Pod<'_>]) -> Result<Vec<usize>, Error> {
        let elements = pods.iter().map(element::of).collect::<Result<Vec<_>, _>>()?;
        let mut sets: HashMap<(Family, &str), Contents> = HashMap::new();
        for element in elements.iter().flatten() {
            if let Entry::Vacant(set) = sets.entry((element.family, element.set)) {
                set.insert(self.contents(element.family, element.set)?);
            }
        }
        let is_there = |element: &Element<'_>| {
            let set = sets.get(&(element.family, element.set));
            set.and_then(|set| set.get(&bytes(&element.key))).is_some_and(|value| match &element.data {
                Data::None => true,
                Data::Value(fields) => value.as_deref() == Some(bytes(fields).as_slice()),
            })
        };
        let mut lacking = Vec::new();
        for (place, elements) in elements.iter().enumerate() {
            let doubtful: Vec<&Element<'_>> = elements.iter().filter(|e| !is_there(e)).collect();
            // A reading that others overtake may have gaps: who seems to lack something is asked for by name.
            if !doubtful.is_empty() && self.lacks_any(&doubtful)? {
                lacking.push(place);
            }
        }
        Ok(lacking)
    }

    fn lacks_any(&mut self, elements: &[&Element<'_>]) -> Result<bool, Error> {
        let questions: Vec<Request<'_>> = elements.iter().map(|e| request::get(e)).collect();
        for (element, answer) in elements.iter().zip(self.socket.ask(&questions)?) {
            match answer {
                Ok(found) if request::holds(element, &found) && !request::expires(&found) => {}
                Ok(_) | Err(Refusal { errno: Errno::NOENT, .. }) => return Ok(true),
                Err(refusal) => return Err(Error::refused(COUNT, element.to_string(), refusal)),
            }
        }
        Ok(false)
    }

    /// Without those that are about to expire.
    pub(crate) fn contents(&mut self, family: Family, set: &str) -> Result<Contents, Error> {
        let mut contents = Contents::new();
        self.dump_if_there(&request::get_elements(family, set), |answer| {
            let lasting = request::elements(answer).filter(|e| !e.expires);
            contents.extend(lasting.map(|e| (e.key.to_vec(), e.value.map(<[u8]>::to_vec))));
        })?;
        Ok(contents)
    }

    /// Removes every element that is none of these pods'; returns how many.
    pub(crate) fn evict(&mut self, pods: &[Pod<'_>]) -> Result<usize, Error> {
        let mut own: HashSet<(Family, String, Vec<u8>)> = HashSet::new();
        for pod in pods {
            let keys = element::of(pod)?;
            own.extend(keys.iter().map(|e| (e.family, e.set.to_owned(), bytes(&e.key))));
        }
        let mut strangers: Vec<(Family, String, Vec<u8>)> = Vec::new();
        for family in [Family::Inet, Family::Bridge] {
            let sets = self.sets(family)?;
            let is_of_pods =
                |set: &&String| *set != REVISION && *set != TUNNELS && !set.starts_with(ANONYMOUS);
            for set in sets.iter().filter(is_of_pods) {
                let keys = self.contents(family, set)?.into_keys().map(|key| (family, set.clone(), key));
                strangers.extend(keys.filter(|key| !own.contains(key)));
            }
        }
        for some in strangers.chunks(BATCH) {
            let deletions = some.iter().map(|(family, set, key)| request::delete_key(*family, set, key));
            self.delete_all(deletions.collect())?;
        }
        Ok(strangers.len())
    }

    /// One that is gone already makes the kernel refuse all, but it names every such one: the second try is without them.
    pub(crate) fn delete_all(&mut self, mut deletions: Vec<Request<'_>>) -> Result<(), Error> {
        while !deletions.is_empty() {
            let Err(refused) = self.socket.transact(&deletions, None)? else { return Ok(()) };
            let mut gone = HashSet::new();
            let whole = refused.whole.map(|refusal| (usize::MAX, refusal));
            for (place, refusal) in whole.into_iter().chain(refused.requests) {
                if refusal.errno != Errno::NOENT {
                    return Err(Error::refused(EVICT, TABLE.to_owned(), refusal));
                }
                gone.insert(place);
            }
            let mut places = 0..;
            deletions.retain(|_| places.next().is_some_and(|place| !gone.contains(&place)));
        }
        Ok(())
    }
}
