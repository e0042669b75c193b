//! All tenants, networks, profiles, groups, policies and shares of the cluster, and the rules between them.
//!
//! ```text
//!   store ──► observe(), forget() ──► Catalog ──► tenants(), groups(), … ──► policy engine
//!   CLI, API ──► set(), remove(), plan() on a copy ──► records to write to the store
//! ```
//!
//! [`Catalog::set`] and [`Catalog::remove`] refuse a change that would break a reference. [`Catalog::observe`] refuses only values
//! that cannot be read: the store decides what exists, and [`Catalog::problems`] lists what does not fit together. The writer of a
//! change must compare the revision of the objects that it has checked.

mod check;
mod edit;
mod error;
mod plan;
mod removal;
mod resolve;
mod rules;
mod set;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use types::{GroupName, NetworkId, Placement, TenantName, closest};

pub use edit::PolicyEdit;
pub use error::{ObjectError, ObjectErrorCause};
pub use plan::{ApplyStep, StepAction};
pub use resolve::PlacementError;
pub use rules::RuleCounter;

use crate::document::{ClusterObject, ObjectId, ObjectKind, ObjectRecord};
use crate::object::DecodeError;
use crate::objects::{GroupPolicy, NodeAccess, Share, Tenant, TenantGroup, TenantNetwork, TrafficProfile};

/// The number of names that a message lists.
const MAX_NAMED: usize = 20;

#[derive(Debug, Clone, PartialEq)]
pub struct Catalog {
    /// The last valid version of each object.
    records: BTreeMap<ObjectId, ObjectRecord>,
    /// Objects whose value in the store cannot be read, and why.
    invalid: BTreeMap<ObjectId, DecodeError>,
    /// Tenant `default` and its network as they are without a value in the store.
    defaults: [ObjectRecord; 2],
    counter: RuleCounter,
}

impl Catalog {
    /// A catalog with tenant `default` and the network that all its pods use by default.
    pub fn new(default_net: TenantNetwork) -> Self {
        let tenant =
            Tenant { name: TenantName::default(), nodes: NodeAccess::default(), default_network: None };
        let default_net =
            TenantNetwork { tenant: TenantName::default(), id: NetworkId::default(), ..default_net };
        let defaults = [
            ObjectRecord::from(ClusterObject::Tenant(tenant)),
            ObjectRecord::from(ClusterObject::Network(default_net)),
        ];
        let records = defaults.iter().map(|record| (record.object.id(), record.clone())).collect();
        Self { records, invalid: BTreeMap::new(), defaults, counter: RuleCounter::default() }
    }

    /// Takes a value from the store. If it cannot be read, the last valid version stays in force.
    pub fn observe(&mut self, id: &ObjectId, value: &[u8]) -> Result<(), DecodeError> {
        match ObjectRecord::decode(id, value) {
            Ok(record) => {
                self.invalid.remove(id);
                self.records.insert(id.clone(), record);
                Ok(())
            }
            Err(error) => {
                self.invalid.insert(id.clone(), error.clone());
                Err(error)
            }
        }
    }

    /// The store has no value for the object any more.
    pub fn forget(&mut self, id: &ObjectId) {
        self.invalid.remove(id);
        match self.defaults.iter().find(|record| record.object.id() == *id) {
            Some(default) => drop(self.records.insert(id.clone(), default.clone())),
            None => drop(self.records.remove(id)),
        }
    }

    /// Forgets all objects but these.
    pub fn retain(&mut self, listed: &BTreeSet<ObjectId>) {
        let known: BTreeSet<ObjectId> = self.records.keys().chain(self.invalid.keys()).cloned().collect();
        known.difference(listed).for_each(|id| self.forget(id));
    }

    pub fn observe_counter(&mut self, counter: RuleCounter) {
        self.counter = counter;
    }

    pub fn get(&self, id: &ObjectId) -> Option<&ObjectRecord> {
        self.records.get(id)
    }

    pub fn records(&self) -> impl Iterator<Item = (&ObjectId, &ObjectRecord)> {
        self.records.iter()
    }

    /// The objects that a store without data lacks.
    pub fn stored(&self) -> impl Iterator<Item = (&ObjectId, &ObjectRecord)> {
        self.records.iter().filter(|(_, record)| !self.defaults.contains(record))
    }

    /// Objects whose value in the store cannot be read. A last valid version is still in the catalog.
    pub fn invalid(&self) -> impl Iterator<Item = (&ObjectId, &DecodeError)> {
        self.invalid.iter()
    }

    fn objects(&self) -> impl Iterator<Item = &ClusterObject> {
        self.records.values().map(|record| &record.object)
    }

    pub fn tenants(&self) -> impl Iterator<Item = &Tenant> {
        self.objects()
            .filter_map(|object| if let ClusterObject::Tenant(tenant) = object { Some(tenant) } else { None })
    }

    pub fn networks(&self) -> impl Iterator<Item = &TenantNetwork> {
        self.objects().filter_map(|object| {
            if let ClusterObject::Network(network) = object { Some(network) } else { None }
        })
    }

    pub fn groups(&self) -> impl Iterator<Item = &TenantGroup> {
        self.objects()
            .filter_map(|object| if let ClusterObject::Group(group) = object { Some(group) } else { None })
    }

    pub fn policies(&self) -> impl Iterator<Item = &GroupPolicy> {
        self.objects()
            .filter_map(|object| if let ClusterObject::Policy(policy) = object { Some(policy) } else { None })
    }

    pub fn shares(&self) -> impl Iterator<Item = &Share> {
        self.objects()
            .filter_map(|object| if let ClusterObject::Share(share) = object { Some(share) } else { None })
    }

    pub fn profiles(&self) -> impl Iterator<Item = &TrafficProfile> {
        self.objects().filter_map(|object| {
            if let ClusterObject::Profile(profile) = object { Some(profile) } else { None }
        })
    }

    pub fn tenant(&self, name: &TenantName) -> Option<&Tenant> {
        if let ClusterObject::Tenant(tenant) = &self.get(&ObjectId::tenant(name))?.object {
            Some(tenant)
        } else {
            None
        }
    }

    pub fn network(&self, tenant: &TenantName, id: &NetworkId) -> Option<&TenantNetwork> {
        if let ClusterObject::Network(network) = &self.get(&ObjectId::network(tenant, id))?.object {
            Some(network)
        } else {
            None
        }
    }

    /// The network of a placement. A tenant without a network named `default-net` uses the one of tenant `default`.
    pub fn network_of(&self, tenant: &TenantName, id: &NetworkId) -> Option<&TenantNetwork> {
        let shared = || self.network(&TenantName::default(), id).filter(|network| network.is_default());
        self.network(tenant, id).or_else(shared)
    }

    pub fn group(&self, tenant: &TenantName, name: &GroupName) -> Option<&TenantGroup> {
        if let ClusterObject::Group(group) = &self.get(&ObjectId::group(tenant, name))?.object {
            Some(group)
        } else {
            None
        }
    }

    /// The traffic profile of the pods of a placement.
    pub fn profile_of(&self, placement: &Placement) -> Option<&TrafficProfile> {
        let group = self.group(&placement.tenant, placement.group.as_ref()?)?;
        let id = ObjectId::profile(&placement.tenant, group.profile.as_ref()?);
        if let ClusterObject::Profile(profile) = &self.get(&id)?.object { Some(profile) } else { None }
    }

    /// The error for an object that does not exist. It lists what exists.
    pub fn missing(&self, id: &ObjectId) -> ObjectError {
        ObjectError::new(id, ObjectErrorCause::NotFound { existing: self.existing(id) })
    }

    /// The end of a message about a missing object: the closest name, and what exists.
    fn existing(&self, wanted: &ObjectId) -> String {
        let is_tenant = wanted.kind() == ObjectKind::Tenant;
        let is_alike = |id: &&ObjectId| {
            id.kind() == wanted.kind() && (is_tenant || id.tenant_name() == wanted.tenant_name())
        };
        let names: Vec<&str> = self.records.keys().filter(is_alike).map(ObjectId::name).collect();
        let plural = wanted.kind().plural();
        let hint = match closest(wanted.name(), names.iter().copied()) {
            Some(name) => format!("; did you mean {name}?"),
            None => String::new(),
        };
        let owner = if is_tenant { String::new() } else { format!(" of tenant {}", wanted.tenant_name()) };
        if names.is_empty() {
            return format!("{hint}; there are no {plural}{owner}");
        }
        let more = names.len().saturating_sub(MAX_NAMED);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let shown = names[..names.len().min(MAX_NAMED)].join(", ");
        format!("{hint}; the {plural}{owner} are: {shown}{more}")
    }
}
