use std::fmt;

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

/// A network of a tenant. `Display` writes `blue.front`, as keys of the store and node records have it. Names of objects contain
/// no dots, so a reference to an existing network can be read back.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NetworkRef {
    pub tenant: TenantName,
    pub network: NetworkId,
}

impl NetworkRef {
    pub fn new(tenant: &TenantName, network: &NetworkId) -> Self {
        Self { tenant: tenant.clone(), network: network.clone() }
    }

    /// Whether this is the default network of the cluster.
    pub fn is_default(&self) -> bool {
        self.tenant.as_str() == DEFAULT_TENANT && self.network.as_str() == DEFAULT_NETWORK
    }
}

impl fmt::Display for NetworkRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.tenant, self.network)
    }
}

impl From<NetworkRef> for String {
    fn from(network: NetworkRef) -> Self {
        network.to_string()
    }
}

impl TryFrom<String> for NetworkRef {
    type Error = NameError;
    fn try_from(text: String) -> Result<Self, NameError> {
        let (tenant, network) = text.split_once('.').unwrap_or((&text, ""));
        if network.contains('.') {
            return Err(NameError::Charset { what: "network name", value: network.to_owned() });
        }
        Ok(Self { tenant: tenant.try_into()?, network: network.try_into()? })
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

    #[test]
    fn d_a_reference_to_a_network_round_trips() {
        assert_eq!(NetworkRef::default().to_string(), "default.default-net");
        assert!(NetworkRef::default().is_default());
        let front = NetworkRef::try_from("blue.front".to_owned()).unwrap();
        assert_eq!((front.tenant.as_str(), front.network.as_str()), ("blue", "front"));
        assert_eq!((front.to_string().as_str(), front.is_default()), ("blue.front", false));
        for bad in ["", "blue", "blue.", ".front", "blue.front.x", "blue.fr/nt"] {
            assert!(NetworkRef::try_from(bad.to_owned()).is_err(), "{bad}");
        }
    }
}
