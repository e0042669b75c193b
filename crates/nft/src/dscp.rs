//! The table with the DSCP of a network's pods. An ADD adds its element, and the reconciler compares the table.

use netlink::Refusal;
use rustix::io::Errno;
use types::{IfName, NetworkName};

use crate::apply::Surplus;
use crate::desired::dscp::{Dscp, LINKS, element, table};
use crate::desired::{NetworkTable, TableFamily, TableId};
use crate::element::{Element, Field};
use crate::error::Error;
use crate::firewall::Firewall;
use crate::request;

const CHECK: &str = "look up the DSCP of a pod";

impl Firewall {
    /// Adds a pod to the table. Fails without a table, and if a pod with this link had another DSCP: [`Self::keep_dscp`] repairs
    /// both.
    pub fn add_dscp(&mut self, network: &NetworkName, link: &IfName, dscp: Dscp) -> Result<(), Error> {
        let name = NetworkTable::Dscp.name(network);
        self.add_elements(inet(&name), &[element(inet(&name), link, dscp)])
    }

    /// Applies the table with these pods, and repairs drift. Other pods stay. Returns the changes in words.
    pub fn keep_dscp(
        &mut self,
        network: &NetworkName,
        pods: &[(&IfName, Dscp)],
    ) -> Result<Vec<String>, Error> {
        let table = table(network);
        let wanted: Vec<Element<'_>> =
            pods.iter().map(|(link, dscp)| element(table.id(), link, *dscp)).collect();
        self.reconcile_table(&table, &wanted, Surplus::Keep)
    }

    /// Removes pods. Pods that are not in the table are no error.
    pub fn remove_dscp(&mut self, network: &NetworkName, links: &[&IfName]) -> Result<(), Error> {
        let name = NetworkTable::Dscp.name(network);
        let keys = links.iter().map(|link| vec![Field::Link(link)]);
        let elements: Vec<Element<'_>> = keys.map(|key| Element::member(inet(&name), LINKS, key)).collect();
        self.remove_elements(&elements)
    }

    /// The links of pods with a DSCP. Empty without a table.
    pub fn dscp_links(&mut self, network: &NetworkName) -> Result<Vec<IfName>, Error> {
        let stored = self.stored_elements(&table(network))?;
        let keys = stored.into_values().flatten().map(|(key, _)| key.key);
        Ok(keys
            .filter_map(|key| IfName::try_from(String::from_utf8(key).ok()?.trim_end_matches('\0')).ok())
            .collect())
    }

    /// Whether the table has this DSCP for the pod.
    pub fn has_dscp(&mut self, network: &NetworkName, link: &IfName, dscp: Dscp) -> Result<bool, Error> {
        let name = NetworkTable::Dscp.name(network);
        let wanted = element(inet(&name), link, dscp);
        match self.socket.ask(&[request::get(&wanted)])?.pop() {
            Some(Ok(found)) => Ok(request::holds(&wanted, &found)),
            Some(Err(Refusal { errno: Errno::NOENT, .. })) | None => Ok(false),
            Some(Err(refusal)) => Err(Error::refused(CHECK, wanted.to_string(), refusal)),
        }
    }

    /// Deletes the table. Returns whether it existed.
    pub fn delete_dscp(&mut self, network: &NetworkName) -> Result<bool, Error> {
        self.delete_table(inet(&NetworkTable::Dscp.name(network)))
    }
}

fn inet(name: &str) -> TableId<'_> {
    TableId { family: TableFamily::Inet, name }
}
