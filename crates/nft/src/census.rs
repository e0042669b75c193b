//! The contents of sets, for many pods at once: each set is listed as a whole, which is far quicker than to ask for every
//! element by itself. Not for the path of a pod.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use netlink::Refusal;
use rustix::io::Errno;

use crate::desired::TableId;
use crate::element::{self, Data, Element, bytes};
use crate::error::Error;
use crate::firewall::Firewall;
use crate::pod::FirewallPod;
use crate::request;
use crate::socket::NftRequest;

const COUNT: &str = "count the pods in the firewall";

/// The keys of a set, and what a map has for them.
type SetContents = HashMap<Vec<u8>, Option<Vec<u8>>>;

impl Firewall {
    /// The places of the pods that lack an element, over one socket. The structure is for [`Firewall::drift`].
    pub fn missing_of(&mut self, pods: &[FirewallPod<'_>]) -> Result<Vec<usize>, Error> {
        let elements = pods.iter().map(element::of).collect::<Result<Vec<_>, _>>()?;
        let mut sets: HashMap<(TableId<'_>, &str), SetContents> = HashMap::new();
        for element in elements.iter().flatten() {
            if let Entry::Vacant(set) = sets.entry((element.table, &element.set)) {
                set.insert(self.contents(element.table, &element.set)?);
            }
        }
        let is_there = |element: &Element<'_>| {
            let set = sets.get(&(element.table, &*element.set));
            set.and_then(|set| set.get(&bytes(&element.key))).is_some_and(|value| match &element.data {
                Data::None => true,
                Data::Value(fields) => value.as_deref() == Some(bytes(fields).as_slice()),
            })
        };
        let mut lacking = Vec::new();
        for (place, elements) in elements.iter().enumerate() {
            let doubtful: Vec<&Element<'_>> = elements.iter().filter(|e| !is_there(e)).collect();
            // A listing that another process changes may have gaps: elements that seem to be missing are asked for by key.
            if !doubtful.is_empty() && self.lacks_any(&doubtful)? {
                lacking.push(place);
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
                Err(refusal) => return Err(Error::refused(COUNT, element.to_string(), refusal)),
            }
        }
        Ok(false)
    }

    /// Without those that are about to expire.
    pub(crate) fn contents(&mut self, table: TableId<'_>, set: &str) -> Result<SetContents, Error> {
        let mut contents = SetContents::new();
        self.dump_if_there(&request::get_elements(table, set), |answer| {
            let lasting = request::elements(answer).filter(|e| !e.expires);
            contents.extend(lasting.map(|e| (e.key.to_vec(), e.value.map(<[u8]>::to_vec))));
        })?;
        Ok(contents)
    }
}
