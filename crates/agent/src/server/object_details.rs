//! Objects with their problems, users, rules and pods. Pure.

use std::net::IpAddr;

use api::{ObjectDetails, ObjectPod, ObjectProblem, PlacementView, RuleView, VersionInForce};
use engine::state::Attachment;
use model::objects::{Direction, GroupPolicy, GroupRule};
use model::{Catalog, ClusterObject, DecodeError, ObjectErrorCause, ObjectId};
use types::{NodeName, Placement};

use crate::membership::{ClusterPod, object_name};

/// The objects that cannot be read, and those that do not fit to the others.
pub(super) fn problems(objects: &Catalog, is_wanted: impl Fn(&ObjectId) -> bool) -> Vec<ObjectProblem> {
    let unreadable = objects.invalid().filter(|(id, _)| is_wanted(id)).map(|(id, error)| {
        let (field, reason) = match error {
            DecodeError::Field { source, .. } => (Some(source.field.clone()), source.reason.clone()),
            DecodeError::Newer { .. } | DecodeError::Older { .. } | DecodeError::Unreadable { .. } => {
                (None, error.to_string())
            }
        };
        let in_force =
            if objects.get(id).is_some() { VersionInForce::LastValid } else { VersionInForce::None };
        ObjectProblem { object: object_name(id), field, reason, in_force }
    });
    let unfit = objects.problems().into_iter().filter_map(|error| {
        let id = error.object.filter(|id| is_wanted(id))?;
        let (field, reason) = match *error.cause {
            ObjectErrorCause::Field(error) => (Some(error.field), error.reason),
            cause => (None, cause.to_string()),
        };
        Some(ObjectProblem { object: object_name(&id), field, reason, in_force: VersionInForce::Stored })
    });
    unreadable.chain(unfit).collect()
}

/// The pods to which an object may apply.
pub(super) struct CandidatePods<'a> {
    pub(super) node: &'a NodeName,
    pub(super) local: &'a [Attachment],
    pub(super) others: &'a [ClusterPod],
}

/// None if there is no such object, not even an invalid one.
pub(super) fn details(objects: &Catalog, id: &ObjectId, pods: &CandidatePods<'_>) -> Option<ObjectDetails> {
    let record = objects.get(id);
    let problems = problems(objects, |other| other == id);
    if record.is_none() && problems.is_empty() {
        return None;
    }
    let applies = |placement: &&Placement| objects.applies_to(id, placement);
    let local = pods.local.iter().filter_map(|pod| {
        let placement = pod.placement.as_ref().filter(applies)?;
        Some(ObjectPod {
            node: pods.node.to_string(),
            container_id: Some(pod.key.container.to_string()),
            interface: Some(pod.key.ifname.to_string()),
            pod: pod.pod.as_ref().map(|name| match name.namespace.as_str() {
                "" => name.name.clone(),
                namespace => format!("{namespace}/{}", name.name),
            }),
            addresses: pod.ips().collect::<Vec<IpAddr>>(),
            placement: placement_view(placement),
        })
    });
    let others = pods.others.iter().filter(|pod| applies(&&pod.placement)).map(|pod| ObjectPod {
        node: pod.node.to_string(),
        container_id: None,
        interface: None,
        pod: Some(pod.name.to_string()),
        addresses: pod.addresses.clone(),
        placement: placement_view(&pod.placement),
    });
    Some(ObjectDetails {
        document: record.map(|record| record.object.to_document()),
        problems,
        users: objects.dependents(id).iter().map(object_name).collect(),
        rules: record.map(|record| rules(objects, &record.object)).unwrap_or_default(),
        pods: local.chain(others).collect(),
        pods_missing: None,
        blocks: None,
    })
}

fn placement_view(placement: &Placement) -> PlacementView {
    PlacementView {
        tenant: placement.tenant.to_string(),
        network: placement.network.to_string(),
        group: placement.group.as_ref().map(ToString::to_string),
    }
}

/// The rules of a policy, or of all policies of a group, in the order in which they are evaluated.
fn rules(objects: &Catalog, object: &ClusterObject) -> Vec<RuleView> {
    let policies: Vec<&GroupPolicy> = match object {
        ClusterObject::Policy(policy) => vec![policy],
        ClusterObject::Group(group) => objects
            .policies()
            .filter(|policy| {
                policy.tenant == group.group.tenant && group.group.policies.contains(&policy.name)
            })
            .collect(),
        ClusterObject::Tenant(_)
        | ClusterObject::Network(_)
        | ClusterObject::Profile(_)
        | ClusterObject::Share(_) => Vec::new(),
    };
    let of_policy = |policy: &'_ GroupPolicy| {
        policy.rules.iter().map(|rule| (policy.name.clone(), rule.clone())).collect::<Vec<_>>()
    };
    let mut rules: Vec<(String, GroupRule)> = policies.into_iter().flat_map(of_policy).collect();
    rules.sort_by_key(|(_, rule)| rule.order());
    rules.iter().map(|(policy, rule)| rule_view(policy, rule)).collect()
}

fn rule_view(policy: &str, rule: &GroupRule) -> RuleView {
    let direction = match rule.direction {
        Direction::Ingress => "in",
        Direction::Egress => "out",
    };
    RuleView {
        policy: policy.to_owned(),
        id: rule.id,
        direction: direction.to_owned(),
        priority: rule.priority,
        peer: rule.peer.to_string(),
        traffic: rule.traffic(),
        action: rule.action.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use model::ObjectKind;
    use model::objects::TenantNetwork;
    use serde_json::{Value, json};

    use super::*;

    fn objects(documents: &[(&str, &str, Value)]) -> Catalog {
        let mut catalog = Catalog::new(TenantNetwork::default_net(Vec::new(), 0));
        for (kind, name, spec) in documents {
            let metadata = match *kind {
                "Tenant" => json!({ "name": name }),
                _ => json!({ "name": name, "tenant": "blue" }),
            };
            let document =
                json!({ "apiVersion": model::API_VERSION, "kind": kind, "metadata": metadata, "spec": spec });
            let object = ClusterObject::from_document(document).unwrap();
            catalog.observe(&object.id(), &model::ObjectRecord::from(object).encode()).unwrap();
        }
        catalog
    }

    fn id(kind: ObjectKind, name: &str) -> ObjectId {
        ObjectId::parse(kind, "blue", name).unwrap()
    }

    fn show(objects: &Catalog, id: &ObjectId) -> Option<ObjectDetails> {
        details(objects, id, &CandidatePods { node: &"n1".try_into().unwrap(), local: &[], others: &[] })
    }

    #[test]
    fn d_rules_of_a_group_are_shown_in_the_order_of_evaluation() {
        let rule = |id: u32, priority: u8, peer: Value| json!({ "id": id, "direction": "in", "priority": priority, "peer": peer, "protocol": "tcp", "port": 80, "action": "deny" });
        let objects = objects(&[
            ("Tenant", "blue", json!({})),
            ("Network", "n", json!({ "subnets": ["10.1.0.0/16"] })),
            (
                "Policy",
                "a",
                json!({ "rules": [rule(4, 1, json!("any")), rule(2, 9, json!({ "cidr": "10.0.0.0/8" }))] }),
            ),
            ("Policy", "b", json!({ "rules": [rule(3, 9, json!({ "group": "web" }))] })),
            ("Group", "web", json!({ "network": "n", "policies": ["b", "a"] })),
        ]);
        let web = show(&objects, &id(ObjectKind::Group, "web")).unwrap();
        let shown: Vec<(&str, u32, &str, &str)> = web
            .rules
            .iter()
            .map(|rule| (rule.policy.as_str(), rule.id, rule.peer.as_str(), rule.traffic.as_str()))
            .collect();
        assert_eq!(
            shown,
            [("a", 2, "10.0.0.0/8", "tcp/80"), ("b", 3, "group:web", "tcp/80"), ("a", 4, "any", "tcp/80")]
        );
        let policy = show(&objects, &id(ObjectKind::Policy, "b")).unwrap();
        assert_eq!((policy.rules.len(), policy.users[0].name.as_str()), (1, "web"));
        assert_eq!(show(&objects, &id(ObjectKind::Policy, "c")), None);
    }

    #[test]
    fn d_an_invalid_object_is_shown_with_field_reason_and_the_version_in_force() {
        let mut objects = objects(&[
            ("Tenant", "blue", json!({})),
            ("Group", "lost", json!({ "network": "gone" })),
            ("Profile", "p", json!({ "dscp": 10 })),
        ]);
        let profile = id(ObjectKind::Profile, "p");
        let value = br#"{"schema":1,"profile":{"metadata":{"name":"p","tenant":"blue"},"spec":{"dscp":99}}}"#;
        objects.observe(&profile, value).unwrap_err();
        objects.observe(&id(ObjectKind::Share, "s"), b"{").unwrap_err();
        let shown: Vec<_> = problems(&objects, |_| true)
            .into_iter()
            .map(|it| (it.object.name, it.field.unwrap_or_default(), it.in_force))
            .collect();
        let problem = |name: &str, field: &str, in_force| (name.to_owned(), field.to_owned(), in_force);
        assert_eq!(
            shown,
            [
                problem("p", "spec.dscp", VersionInForce::LastValid),
                problem("s", "", VersionInForce::None),
                problem("lost", "spec.network", VersionInForce::Stored),
            ]
        );
        let details = show(&objects, &profile).unwrap();
        assert_eq!(details.document.unwrap()["spec"]["dscp"], 10, "the last valid version");
        assert_eq!(details.problems[0].reason, "99 is not allowed: 0 to 63");
        let share = show(&objects, &id(ObjectKind::Share, "s")).unwrap();
        assert_eq!((share.document, share.problems.len()), (None, 1));
    }
}
