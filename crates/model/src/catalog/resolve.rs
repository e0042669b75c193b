use types::{GroupName, NameError, NetworkId, Placement, TenantName};

use super::Catalog;
use crate::document::ObjectId;
use crate::placement::PlacementRequest;

/// Why a pod has no placement.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlacementError {
    #[error("the pod cannot be placed: {0}")]
    Name(#[from] NameError),
    #[error("the pod cannot be placed: {wanted} does not exist{existing}")]
    Missing { wanted: ObjectId, existing: String },
    #[error(
        "the pod cannot be placed: tenant {tenant} has no default network; set spec.defaultNetwork of the tenant or the label podwire.io/network of the pod"
    )]
    NoDefaultNetwork { tenant: TenantName },
    #[error(
        "the pod cannot be placed: {group} is in network {network}, but the pod asks for network {wanted}"
    )]
    OtherNetwork { group: ObjectId, network: NetworkId, wanted: NetworkId },
}

impl Catalog {
    /// The placement of a pod. Without a network: that of its group, or the default one of its tenant.
    pub fn resolve(&self, request: &PlacementRequest) -> Result<Placement, PlacementError> {
        let tenant = request.tenant.as_deref().map(TenantName::try_from).transpose()?.unwrap_or_default();
        let record = self.tenant(&tenant).ok_or_else(|| self.missing_for_pod(ObjectId::tenant(&tenant)))?;
        let group = request.group.as_deref().map(GroupName::try_from).transpose()?;
        let found = group.as_ref().map(|name| {
            self.group(&tenant, name).ok_or_else(|| self.missing_for_pod(ObjectId::group(&tenant, name)))
        });
        let found = found.transpose()?;
        let wanted = request.network.as_deref().map(NetworkId::try_from).transpose()?;
        let network = wanted.clone().or_else(|| Some(found?.network.clone()));
        let network = match network.or_else(|| record.default_network.clone()) {
            Some(network) => network,
            None if self.network(&tenant, &NetworkId::default()).is_some() => NetworkId::default(),
            None => return Err(PlacementError::NoDefaultNetwork { tenant }),
        };
        if self.network(&tenant, &network).is_none() {
            return Err(self.missing_for_pod(ObjectId::network(&tenant, &network)));
        }
        if let Some(found) = found.filter(|found| found.network != network) {
            let group = ObjectId::group(&tenant, &found.group.name);
            return Err(PlacementError::OtherNetwork {
                group,
                network: found.network.clone(),
                wanted: network,
            });
        }
        Ok(Placement { tenant, network, group })
    }

    fn missing_for_pod(&self, wanted: ObjectId) -> PlacementError {
        PlacementError::Missing { existing: self.existing(&wanted), wanted }
    }
}
