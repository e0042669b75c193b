//! The profiles of groups, as pods get them. Pure.

use std::collections::BTreeMap;

use cni::Bandwidth;
use engine::policy::PodProfile;
use model::objects::{TenantGroup, TrafficLimit, TrafficProfile};
use model::{Catalog, ClusterObject, ObjectId};
use nft::Dscp;
use types::Placement;

/// The profile of a placement's group. Empty without a group, and if the group or its profile does not exist.
pub(super) fn of_placement(objects: &Catalog, placement: &Placement) -> PodProfile {
    let id = placement.group.as_ref().map(|group| ObjectId::group(&placement.tenant, group));
    match id.and_then(|id| objects.get(&id)).map(|record| &record.object) {
        Some(ClusterObject::Group(group)) => of_group(objects, group),
        Some(
            ClusterObject::Tenant(_)
            | ClusterObject::Network(_)
            | ClusterObject::Profile(_)
            | ClusterObject::Policy(_)
            | ClusterObject::Share(_),
        )
        | None => PodProfile::default(),
    }
}

/// The profiles of all groups that have one.
pub(super) fn of_groups(objects: &Catalog) -> BTreeMap<ObjectId, PodProfile> {
    let of = |group: &TenantGroup| {
        let id = ObjectId::group(&group.group.tenant, &group.group.name);
        (id, of_group(objects, group))
    };
    objects.groups().map(of).filter(|(_, profile)| *profile != PodProfile::default()).collect()
}

fn of_group(objects: &Catalog, group: &TenantGroup) -> PodProfile {
    let id = group.profile.as_ref().map(|profile| ObjectId::profile(&group.group.tenant, profile));
    match id.and_then(|id| objects.get(&id)).map(|record| &record.object) {
        Some(ClusterObject::Profile(profile)) => of_profile(profile),
        Some(
            ClusterObject::Tenant(_)
            | ClusterObject::Network(_)
            | ClusterObject::Group(_)
            | ClusterObject::Policy(_)
            | ClusterObject::Share(_),
        )
        | None => PodProfile::default(),
    }
}

fn of_profile(profile: &TrafficProfile) -> PodProfile {
    let none = TrafficLimit { rate: 0, burst: 0 };
    let (ingress, egress) = (profile.ingress.unwrap_or(none), profile.egress.unwrap_or(none));
    let bandwidth = (ingress != none || egress != none).then_some(Bandwidth {
        ingress_rate: ingress.rate,
        ingress_burst: ingress.burst,
        egress_rate: egress.rate,
        egress_burst: egress.burst,
    });
    PodProfile { bandwidth, dscp: profile.dscp.and_then(Dscp::new) }
}

#[cfg(test)]
mod tests {
    use model::objects::TenantNetwork;
    use serde_json::{Value, json};

    use super::*;

    fn objects(profile: &Value, of_group: &Value) -> Catalog {
        let mut catalog = Catalog::new(TenantNetwork::default_net(Vec::new(), 0));
        for (kind, name, spec) in [("Profile", "slow", profile), ("Group", "web", of_group)] {
            let document = json!({ "apiVersion": model::API_VERSION, "kind": kind, "metadata": { "name": name }, "spec": spec });
            let object = ClusterObject::from_document(document).unwrap();
            catalog.observe(&object.id(), &model::ObjectRecord::from(object).encode()).unwrap();
        }
        catalog
    }

    #[test]
    fn pods_get_the_profile_of_their_group() {
        let slow = json!({ "egress": { "rate": "8M", "burst": 800_000 }, "dscp": 46 });
        let group = json!({ "network": "default-net", "profile": "slow" });
        let placed = |group: Option<&str>| Placement::parse(None, None, group).unwrap();
        let catalog = objects(&slow, &group);
        let limited = PodProfile {
            bandwidth: Some(Bandwidth {
                ingress_rate: 0,
                ingress_burst: 0,
                egress_rate: 8_000_000,
                egress_burst: 800_000,
            }),
            dscp: Dscp::new(46),
        };
        assert_eq!(of_placement(&catalog, &placed(Some("web"))), limited);
        assert_eq!(of_placement(&catalog, &placed(Some("db"))), PodProfile::default());
        assert_eq!(of_placement(&catalog, &placed(None)), PodProfile::default());
        assert_eq!(of_groups(&catalog).into_values().collect::<Vec<_>>(), [limited]);
        let without = objects(&slow, &json!({ "network": "default-net" }));
        assert_eq!(of_placement(&without, &placed(Some("web"))), PodProfile::default());
        assert!(of_groups(&without).is_empty());
    }
}
