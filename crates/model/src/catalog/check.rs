//! The rules between objects: references, overlapping subnets, pools inside their network.

use std::collections::BTreeSet;

use ipnet::IpNet;
use types::{Placement, count};

use super::{Catalog, ObjectError, ObjectErrorCause};
use crate::document::{ClusterObject, ObjectId, ObjectKind, overlap};
use crate::fields::FieldError;
use crate::objects::{GroupPeer, SharedPart, TenantGroup, TenantNetwork};

/// An object that another one needs.
pub(super) struct ObjectReference {
    pub(super) field: String,
    pub(super) target: ObjectId,
}

pub(super) fn references(object: &ClusterObject) -> Vec<ObjectReference> {
    let id = object.id();
    let tenant = id.tenant_name();
    let mut found = Vec::new();
    let mut add = |field: String, target: ObjectId| found.push(ObjectReference { field, target });
    if id.kind() != ObjectKind::Tenant {
        add("metadata.tenant".to_owned(), ObjectId::tenant(tenant));
    }
    match object {
        ClusterObject::Tenant(object) => {
            if let Some(network) = &object.default_network {
                add("spec.defaultNetwork".to_owned(), ObjectId::network(tenant, network));
            }
        }
        ClusterObject::Network(_) | ClusterObject::Profile(_) => {}
        ClusterObject::Group(object) => {
            add("spec.network".to_owned(), ObjectId::network(tenant, &object.network));
            for (i, policy) in object.group.policies.iter().enumerate() {
                add(format!("spec.policies[{i}]"), ObjectId::policy(tenant, policy));
            }
            if let Some(profile) = &object.profile {
                add("spec.profile".to_owned(), ObjectId::profile(tenant, profile));
            }
        }
        ClusterObject::Policy(object) => {
            for (i, rule) in object.rules.iter().enumerate() {
                let field = format!("spec.rules[{i}].peer");
                match &rule.peer {
                    GroupPeer::Any | GroupPeer::Block(_) => {}
                    GroupPeer::Group(name) => add(format!("{field}.group"), ObjectId::group(tenant, name)),
                    GroupPeer::Network(name) => {
                        add(format!("{field}.network"), ObjectId::network(tenant, name));
                    }
                }
            }
        }
        ClusterObject::Share(object) => {
            match &object.part {
                SharedPart::AllPods => {}
                SharedPart::Network(name) => add("spec.network".to_owned(), ObjectId::network(tenant, name)),
                SharedPart::Group(name) => add("spec.group".to_owned(), ObjectId::group(tenant, name)),
            }
            for (i, other) in object.with.iter().enumerate() {
                add(format!("spec.with[{i}]"), ObjectId::tenant(other));
            }
        }
    }
    found
}

impl Catalog {
    /// What in the catalog does not fit together. Values of the store that cannot be read are in [`Catalog::invalid`].
    pub fn problems(&self) -> Vec<ObjectError> {
        let check = |object| self.check(object).map_err(|error| ObjectError::field(&object.id(), error));
        self.objects().filter_map(|object| check(object).err()).collect()
    }

    /// The objects that need this object. An object that cannot be read needs at least its tenant.
    pub fn dependents(&self, id: &ObjectId) -> Vec<ObjectId> {
        let needs = |object: &&ClusterObject| references(object).iter().any(|one| one.target == *id);
        let readable = self.objects().filter(needs).map(ClusterObject::id);
        let is_of_tenant = |other: &&ObjectId| {
            other.kind() != ObjectKind::Tenant && ObjectId::tenant(other.tenant_name()) == *id
        };
        let unreadable = self.invalid.keys().filter(is_of_tenant).cloned();
        readable.chain(unreadable).collect::<BTreeSet<ObjectId>>().into_iter().collect()
    }

    /// The objects and pods that need this object.
    pub fn users(&self, id: &ObjectId, pods: &[Placement]) -> Vec<String> {
        let mut users: Vec<String> = self.dependents(id).iter().map(ToString::to_string).collect();
        let pods = pods_of(id, pods);
        if pods > 0 {
            users.push(count(pods as u64, "pod"));
        }
        users
    }

    /// Whether the object concerns a pod with this placement: by its name, or through the pod's group.
    pub fn applies_to(&self, id: &ObjectId, placement: &Placement) -> bool {
        let group = || self.group(&placement.tenant, placement.group.as_ref()?);
        let is_of_tenant = id.tenant_name() == &placement.tenant;
        match id.kind() {
            ObjectKind::Tenant | ObjectKind::Network | ObjectKind::Group => uses(placement, id),
            ObjectKind::Policy => {
                is_of_tenant
                    && group().is_some_and(|it| it.group.policies.iter().any(|name| name == id.name()))
            }
            ObjectKind::Profile => {
                is_of_tenant && group().is_some_and(|it| it.profile.as_deref() == Some(id.name()))
            }
            ObjectKind::Share => {
                let Some(ClusterObject::Share(share)) = self.get(id).map(|record| &record.object) else {
                    return false;
                };
                is_of_tenant
                    && match &share.part {
                        SharedPart::AllPods => true,
                        SharedPart::Network(name) => *name == placement.network,
                        SharedPart::Group(name) => Some(name) == placement.group.as_ref(),
                    }
            }
        }
    }

    /// Checks an object against all others. The catalog may contain it or an older version of it.
    pub(super) fn check(&self, object: &ClusterObject) -> Result<(), FieldError> {
        let id = object.id();
        for ObjectReference { field, target } in references(object) {
            if !self.records.contains_key(&target) {
                let reason = match self.invalid.get(&target) {
                    Some(error) => format!("{target} cannot be used: {error}"),
                    None => format!("{target} does not exist{}", self.existing(&target)),
                };
                return Err(FieldError { field, reason });
            }
        }
        match object {
            ClusterObject::Network(network) => self.check_network(&id, network),
            ClusterObject::Group(group) => self.check_group(&id, group),
            ClusterObject::Tenant(_)
            | ClusterObject::Profile(_)
            | ClusterObject::Policy(_)
            | ClusterObject::Share(_) => Ok(()),
        }
    }

    /// Pods keep their addresses, so a network or group with pods keeps its addresses, too.
    pub(super) fn check_pods(&self, object: &ClusterObject, pods: &[Placement]) -> Result<(), FieldError> {
        let id = object.id();
        let pods = pods_of(&id, pods);
        let previous = self.get(&id).map(|record| &record.object);
        let changed = match (previous, object) {
            (Some(ClusterObject::Network(old)), ClusterObject::Network(new))
                if old.subnets != new.subnets =>
            {
                "spec.subnets"
            }
            (Some(ClusterObject::Network(old)), ClusterObject::Network(new)) if old.margin != new.margin => {
                "spec.blockMargin"
            }
            (Some(ClusterObject::Group(old)), ClusterObject::Group(new)) if old.network != new.network => {
                "spec.network"
            }
            (None | Some(_), _) => return Ok(()),
        };
        if pods == 0 {
            return Ok(());
        }
        let users = count(pods as u64, "pod");
        Err(FieldError::new(changed, format!("cannot be changed: {id} is in use by {users}")))
    }

    fn check_network(&self, id: &ObjectId, network: &TenantNetwork) -> Result<(), FieldError> {
        let configured = ClusterObject::Network(network.clone());
        if network.is_default() && !self.defaults.iter().any(|default| default.object == configured) {
            let reason = "the configuration of the agents sets this network (network.subnets, network.margin, network.mtu, \
                          network.masquerade); remove the document";
            return Err(FieldError { field: "spec".to_owned(), reason: reason.to_owned() });
        }
        let others = || self.networks().filter(|other| ObjectId::network(&other.tenant, &other.id) != *id);
        for (i, subnet) in network.subnets.iter().enumerate() {
            let found = others()
                .find_map(|other| Some((other, other.subnets.iter().find(|known| overlap(known, subnet))?)));
            if let Some((other, known)) = found {
                let other = ObjectId::network(&other.tenant, &other.id);
                let reason = format!("{subnet} overlaps {known} of {other}");
                return Err(FieldError { field: format!("spec.subnets[{i}]"), reason });
            }
        }
        let groups = self
            .groups()
            .filter(|group| (&group.group.tenant, &group.network) == (&network.tenant, &network.id));
        for group in groups {
            if let Some(pool) = group.pools.iter().find(|pool| !is_inside(pool, &network.subnets)) {
                let group = ObjectId::group(&group.group.tenant, &group.group.name);
                let reason = format!("{pool}, a pool of {group}, would be outside");
                return Err(FieldError { field: "spec.subnets".to_owned(), reason });
            }
        }
        Ok(())
    }

    fn check_group(&self, id: &ObjectId, group: &TenantGroup) -> Result<(), FieldError> {
        let tenant = &group.group.tenant;
        let Some(network) = self.network(tenant, &group.network) else { return Ok(()) };
        let others = || {
            self.groups().filter(|other| {
                (&other.group.tenant, &other.network) == (tenant, &group.network)
                    && ObjectId::group(&other.group.tenant, &other.group.name) != *id
            })
        };
        for (i, pool) in group.pools.iter().enumerate() {
            let field = || format!("spec.pools[{i}]");
            if !is_inside(pool, &network.subnets) {
                let subnets: Vec<String> = network.subnets.iter().map(ToString::to_string).collect();
                let network = ObjectId::network(tenant, &group.network);
                let reason = format!("{pool} is outside of {network}, which has {}", subnets.join(" and "));
                return Err(FieldError { field: field(), reason });
            }
            let found = others()
                .find_map(|other| Some((other, other.pools.iter().find(|known| overlap(known, pool))?)));
            if let Some((other, known)) = found {
                let other = ObjectId::group(&other.group.tenant, &other.group.name);
                let reason = format!("{pool} overlaps {known} of {other}");
                return Err(FieldError { field: field(), reason });
            }
        }
        Ok(())
    }

    pub(super) fn in_use(&self, id: &ObjectId, pods: &[Placement]) -> Result<(), ObjectError> {
        let users = self.users(id, pods);
        if users.is_empty() {
            return Ok(());
        }
        Err(ObjectError::new(id, ObjectErrorCause::InUse { users }))
    }
}

fn is_inside(pool: &IpNet, subnets: &[IpNet]) -> bool {
    subnets.iter().any(|subnet| subnet.contains(pool))
}

/// The number of pods that need this object.
pub(super) fn pods_of(id: &ObjectId, pods: &[Placement]) -> usize {
    pods.iter().filter(|placement| uses(placement, id)).count()
}

fn uses(placement: &Placement, id: &ObjectId) -> bool {
    let Placement { tenant, network, group } = placement;
    ObjectId::tenant(tenant) == *id
        || ObjectId::network(tenant, network) == *id
        || group.as_ref().is_some_and(|group| ObjectId::group(tenant, group) == *id)
}
