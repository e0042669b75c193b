use serde::{Deserialize, Serialize};

use crate::{GroupName, NameError, NetworkId, TenantName};

pub const DEFAULT_TENANT: &str = "default";
pub const DEFAULT_NETWORK: &str = "default-net";

/// A pod's tenant, the tenant's network and the group that policies select.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    pub tenant: TenantName,
    pub network: NetworkId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<GroupName>,
}

impl Placement {
    /// None means the default. Returns an error for the first invalid name.
    pub fn parse(
        tenant: Option<&str>,
        network: Option<&str>,
        group: Option<&str>,
    ) -> Result<Self, NameError> {
        Ok(Self {
            tenant: tenant.unwrap_or(DEFAULT_TENANT).try_into()?,
            network: network.unwrap_or(DEFAULT_NETWORK).try_into()?,
            group: group.map(GroupName::try_from).transpose()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b10_placements_have_defaults_and_invalid_names_are_refused() {
        let placement = Placement::parse(None, None, None).unwrap();
        assert_eq!(placement, Placement::default());
        assert_eq!(placement.tenant.as_str(), "default");
        assert_eq!(placement.network.as_str(), "default-net");
        assert_eq!(placement.group, None);
        let full = Placement::parse(Some("blue"), Some("front"), Some("web")).unwrap();
        assert_eq!(full.group.as_ref().map(GroupName::as_str), Some("web"));
        assert_eq!(serde_json::from_value::<Placement>(serde_json::to_value(&full).unwrap()).unwrap(), full);
        assert!(Placement::parse(Some("a b"), None, None).is_err());
        assert!(Placement::parse(None, None, Some("/")).is_err());
    }
}
