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
        "the pod cannot be placed: {group} is in network {network}, but the pod asks for network {wanted}"
    )]
    OtherNetwork { group: ObjectId, network: NetworkId, wanted: NetworkId },
}

impl Catalog {
    /// The placement of a pod.
    pub fn resolve(&self, request: &PlacementRequest) -> Result<Placement, PlacementError> {
        let tenant = request.tenant.as_deref().map(TenantName::try_from).transpose()?.unwrap_or_default();
        self.tenant(&tenant).ok_or_else(|| self.missing_for_pod(ObjectId::tenant(&tenant)))?;
        let group = request.group.as_deref().map(GroupName::try_from).transpose()?;
        let found = group.as_ref().map(|name| {
            self.group(&tenant, name).ok_or_else(|| self.missing_for_pod(ObjectId::group(&tenant, name)))
        });
        let found = found.transpose()?;
        let wanted = request.network.as_deref().map(NetworkId::try_from).transpose()?;
        let network = wanted.or_else(|| self.unnamed_network(&tenant, group.as_ref())).unwrap_or_default();
        if self.network_of(&tenant, &network).is_none() {
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

    /// The network of a pod that names none: that of its group, or the default one of its tenant. None: `default-net`.
    pub fn unnamed_network(&self, tenant: &TenantName, group: Option<&GroupName>) -> Option<NetworkId> {
        let of_group = group.and_then(|group| Some(self.group(tenant, group)?.network.clone()));
        of_group.or_else(|| self.tenant(tenant)?.default_network.clone())
    }

    fn missing_for_pod(&self, wanted: ObjectId) -> PlacementError {
        PlacementError::Missing { existing: self.existing(&wanted), wanted }
    }
}
