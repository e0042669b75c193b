//! The tables that one network has beside the tables of pods: peers, limit and clamp. Only the network's agent changes them.

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
    /// What the table was made from. None: not known yet.
    rules: Option<PeerRules>,
}

impl PeerTable {
    /// For the network namespace of the calling thread.
    pub fn open(network: &NetworkName) -> Result<Self, Error> {
        let name = NetworkTable::Peers.name(network);
        Ok(Self { firewall: Firewall::open()?, network: network.clone(), name, rules: None })
    }

    /// Makes the table follow these rules and hold these sources. Returns what was changed. A missing or different table gets
    /// its rules with all sources in one transaction, so that peers are not locked out meanwhile. With [`Surplus::Keep`],
    /// elements of unknown peers stay.
    pub fn keep(
        &mut self,
        rules: &PeerRules,
        sources: &[PeerSource],
        surplus: Surplus,
    ) -> Result<Vec<String>, Error> {
        self.rules = Some(rules.clone());
        let table = rules.table(&self.network);
        let wanted: Vec<Element<'_>> =
            sources.iter().flat_map(|source| rules.elements(table.id(), source)).collect();
        self.firewall.keep_table(&table, &wanted, surplus)
    }

    /// Adds sources to a table that `keep` has made. An error: it is not there as it was, and must be kept again.
    pub fn add(&mut self, sources: &[PeerSource]) -> Result<(), Error> {
        let elements = elements(self.rules.as_ref(), &self.name, sources);
        self.firewall.add_elements(inet(&self.name), &elements)
    }

    /// Removes sources. Those that are gone already are no error.
    pub fn remove(&mut self, sources: &[PeerSource]) -> Result<(), Error> {
        let elements = elements(self.rules.as_ref(), &self.name, sources);
        self.firewall.remove_elements(&elements)
    }

    /// Deletes the table. Was there one?
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
    /// Puts the limit in force, or removes it; says what was changed. Another limit begins to count at zero.
    pub fn limit_connections(&mut self, limit: &ConnectionLimit<'_>) -> Result<Option<String>, Error> {
        let network = limit.network;
        let Some(per_pod) = limit.per_pod else {
            let removed = self.delete_table(inet(&limit.table()))?;
            return Ok(removed.then(|| format!("connections of pods of {network} are no longer limited")));
        };
        let changes = self.keep_table(&limit.desired(per_pod), &[], Surplus::Keep)?;
        let sentence =
            || format!("pods of {network} may have {per_pod} connections each ({})", changes.join(", "));
        Ok((!changes.is_empty()).then(sentence))
    }

    /// Makes connections through these tunnels of a network learn what fits, and through no others of it; says what was changed.
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
        let changes = self.keep_table(&table, &wanted, Surplus::Remove)?;
        let names: Vec<&str> = tunnels.iter().map(IfName::as_str).collect();
        let sentence = || {
            let (names, changes) = (names.join(" and "), changes.join(", "));
            format!("connections through {names} are clamped to what fits ({changes})")
        };
        Ok((!changes.is_empty()).then(sentence))
    }

    /// Deletes the tables of the chosen networks, which are named as their directories are. Returns the tables' names.
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
