//! The tables of one network beside the tables of pods: peers, limit and clamp. Only the network's agent changes them.

use types::{IfName, NetworkName, PeerSource};

use crate::apply::Surplus;
use crate::desired::limit::ConnectionLimit;
use crate::desired::peers::PeerRules;
use crate::desired::{NetworkTable, TableFamily, TableId, clamp};
use crate::element::Element;
use crate::error::Error;
use crate::firewall::Firewall;

/// The table of peers of one network, in one network namespace.
pub struct PeerTable {
    firewall: Firewall,
    network: NetworkName,
    name: String,
    /// The rules of the applied table. None: not applied yet.
    rules: Option<PeerRules>,
}

impl PeerTable {
    /// For the network namespace of the calling thread.
    pub fn open(network: &NetworkName) -> Result<Self, Error> {
        let name = NetworkTable::Peers.name(network);
        Ok(Self { firewall: Firewall::open()?, network: network.clone(), name, rules: None })
    }

    /// Applies these rules and sources, and returns the changes in words. A missing or different table gets its rules with all
    /// sources in one transaction, so that packets of peers are not dropped meanwhile. With [`Surplus::Keep`], elements of unknown
    /// peers stay.
    pub fn reconcile(
        &mut self,
        rules: &PeerRules,
        sources: &[PeerSource],
        surplus: Surplus,
    ) -> Result<Vec<String>, Error> {
        self.rules = Some(rules.clone());
        let table = rules.table(&self.network);
        let wanted: Vec<Element<'_>> =
            sources.iter().flat_map(|source| rules.elements(table.id(), source)).collect();
        self.firewall.reconcile_table(&table, &wanted, surplus)
    }

    /// Adds sources to a table that `reconcile` applied. An error means that another process changed the table: call `reconcile` again.
    pub fn add(&mut self, sources: &[PeerSource]) -> Result<(), Error> {
        let elements = elements(self.rules.as_ref(), &self.name, sources);
        self.firewall.add_elements(inet(&self.name), &elements)
    }

    /// Removes sources. Sources that are not in the table are no error.
    pub fn remove(&mut self, sources: &[PeerSource]) -> Result<(), Error> {
        let elements = elements(self.rules.as_ref(), &self.name, sources);
        self.firewall.remove_elements(&elements)
    }

    /// Deletes the table. Returns whether it existed.
    pub fn delete(&mut self) -> Result<bool, Error> {
        self.rules = None;
        self.firewall.delete_table(inet(&self.name))
    }
}

fn elements<'a>(rules: Option<&PeerRules>, table: &'a str, sources: &[PeerSource]) -> Vec<Element<'a>> {
    let of = |rules: &PeerRules| {
        sources.iter().flat_map(|source| rules.elements(inet(table), source)).collect::<Vec<_>>()
    };
    rules.map_or_else(Vec::new, of)
}

fn inet(name: &str) -> TableId<'_> {
    TableId { family: TableFamily::Inet, name }
}

impl Firewall {
    /// Applies or removes the limit. Returns the change in words. A changed limit starts to count at zero.
    pub fn limit_connections(&mut self, limit: &ConnectionLimit<'_>) -> Result<Option<String>, Error> {
        let network = limit.network;
        let Some(per_pod) = limit.per_pod else {
            let removed = self.delete_table(inet(&limit.table()))?;
            return Ok(removed.then(|| format!("connections of pods of {network} are no longer limited")));
        };
        let changes = self.reconcile_table(&limit.desired(per_pod), &[], Surplus::Keep)?;
        let sentence =
            || format!("pods of {network} may have {per_pod} connections each ({})", changes.join(", "));
        Ok((!changes.is_empty()).then(sentence))
    }

    /// Clamps the MSS of connections through exactly these tunnels of the network. Returns the change in words.
    pub fn clamp(&mut self, network: &NetworkName, tunnels: &[IfName]) -> Result<Option<String>, Error> {
        let table = clamp::table(network);
        if tunnels.is_empty() {
            let removed = self.delete_table(table.id())?;
            return Ok(
                removed.then(|| format!("connections through tunnels of {network} are no longer clamped"))
            );
        }
        let wanted: Vec<Element<'_>> =
            tunnels.iter().map(|tunnel| clamp::element(table.id(), tunnel)).collect();
        let changes = self.reconcile_table(&table, &wanted, Surplus::Remove)?;
        let names: Vec<&str> = tunnels.iter().map(IfName::as_str).collect();
        let sentence = || {
            let (names, changes) = (names.join(" and "), changes.join(", "));
            format!("the MSS of connections through {names} is clamped ({changes})")
        };
        Ok((!changes.is_empty()).then(sentence))
    }

    /// Deletes the tables of the chosen networks, which are named as their directories. Returns the names of the tables.
    pub fn delete_network_tables(&mut self, is_chosen: &dyn Fn(&str) -> bool) -> Result<Vec<String>, Error> {
        let mut deleted = Vec::new();
        for name in self.managed_tables(TableFamily::Inet)? {
            let is_one = NetworkTable::of(&name).is_some_and(|(_, network)| is_chosen(network));
            if is_one && self.delete_table(inet(&name))? {
                deleted.push(name);
            }
        }
        Ok(deleted)
    }
}
