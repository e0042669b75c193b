//! Checks the placement of a new pod. Pure.

use cni::{Error, ErrorCode};
use model::{Catalog, PlacementRequest};
use types::{AttachMode, Placement, TenantName};

/// `objects` is None until the store was read.
pub(crate) fn check(objects: Option<&Catalog>, placement: &Placement, mode: AttachMode) -> Result<(), Error> {
    if *placement == Placement::default() {
        return Ok(());
    }
    let Placement { tenant, network, group } = placement;
    let Some(objects) = objects else {
        let message = "the agent has not read tenants and groups from the store yet";
        return Err(Error::new(ErrorCode::TryAgainLater, message));
    };
    let has_policies = *tenant != TenantName::default() || group.is_some();
    if mode == AttachMode::Bridge && has_policies {
        return Err(invalid(format!(
            "tenants and groups need attach mode routed, because policies are not enforced in mode bridge: remove tenant \
             {tenant}{} from the pod, or set the mode of the network to routed",
            group.as_ref().map(|group| format!(" and group {group}")).unwrap_or_default()
        )));
    }
    if mode == AttachMode::Bridge && *network != Placement::default().network {
        return Err(invalid(format!(
            "network {network} needs attach mode routed: in mode bridge, all pods share the default network; remove the network \
             from the pod, or set the mode to routed"
        )));
    }
    let request = PlacementRequest {
        tenant: Some(tenant.to_string()),
        network: Some(network.to_string()),
        group: group.as_ref().map(ToString::to_string),
    };
    objects.resolve(&request).map(drop).map_err(|error| invalid(error.to_string()))
}

fn invalid(message: String) -> Error {
    Error::new(ErrorCode::InvalidConfig, message)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn objects() -> Catalog {
        let network = model::objects::TenantNetwork::default_net(Vec::new(), 0);
        let mut catalog = Catalog::new(network);
        for (kind, metadata, spec) in [
            ("Tenant", json!({ "name": "blue" }), json!({})),
            ("Network", json!({ "name": "back", "tenant": "blue" }), json!({ "subnets": ["10.9.0.0/16"] })),
            ("Group", json!({ "name": "web", "tenant": "blue" }), json!({ "network": "default-net" })),
        ] {
            let document =
                json!({ "apiVersion": model::API_VERSION, "kind": kind, "metadata": metadata, "spec": spec });
            let object = model::ClusterObject::from_document(document).unwrap();
            catalog.observe(&object.id(), &model::ObjectRecord::from(object).encode()).unwrap();
        }
        catalog
    }

    fn error(placement: [Option<&str>; 3], mode: AttachMode) -> Option<String> {
        let placement = Placement::parse(placement[0], placement[1], placement[2]).unwrap();
        check(Some(&objects()), &placement, mode).err().map(|error| error.to_string())
    }

    #[test]
    fn d_unknown_names_are_refused_with_the_names_that_exist() {
        use AttachMode::Routed;
        assert_eq!(error([None, None, None], Routed), None);
        assert_eq!(error([Some("blue"), None, Some("web")], Routed), None);
        let unknown = error([Some("blu"), None, None], Routed).unwrap();
        assert!(unknown.contains("tenant blu does not exist; the tenants are: blue, default"), "{unknown}");
        let unknown = error([Some("blue"), Some("front"), None], Routed).unwrap();
        assert!(unknown.contains("the networks of tenant blue are: back"), "{unknown}");
        let other = error([Some("blue"), Some("back"), Some("web")], Routed).unwrap();
        let expected =
            "group web of tenant blue is in network default-net, but the pod asks for network back";
        assert!(other.contains(expected), "{other}");
        // The group belongs to another tenant.
        let unknown = error([None, None, Some("web")], Routed).unwrap();
        assert!(
            unknown.contains(
                "group web of tenant default does not exist; there are no groups of tenant default"
            ),
            "{unknown}"
        );
    }

    #[test]
    fn c_mode_bridge_refuses_placements_that_need_policies() {
        use AttachMode::Bridge;
        assert_eq!(error([None, None, None], Bridge), None);
        let refused = error([None, Some("front"), None], Bridge).unwrap();
        assert!(refused.contains("network front needs attach mode routed"), "{refused}");
        for placement in [[Some("blue"), None, None], [Some("blue"), None, Some("web")]] {
            let refused = error(placement, Bridge).unwrap();
            assert!(refused.contains("not enforced in mode bridge"), "{refused}");
        }
    }

    #[test]
    fn before_the_store_was_read_only_the_default_placement_is_accepted() {
        let blue = Placement::parse(Some("blue"), None, None).unwrap();
        assert_eq!(check(None, &Placement::default(), AttachMode::Routed), Ok(()));
        let error = check(None, &blue, AttachMode::Routed).unwrap_err();
        assert_eq!(error.code, ErrorCode::TryAgainLater);
    }
}
