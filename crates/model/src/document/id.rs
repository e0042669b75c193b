use std::fmt;

use types::{DEFAULT_NETWORK, DEFAULT_TENANT, GroupName, NetworkId, NetworkRef, TenantName};

/// In the order in which objects are created: most references point to earlier kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObjectKind {
    Tenant,
    Network,
    Profile,
    Group,
    Policy,
    Share,
}

impl ObjectKind {
    pub const ALL: [Self; 6] =
        [Self::Tenant, Self::Network, Self::Profile, Self::Group, Self::Policy, Self::Share];

    /// In messages, and in the JSON of the store.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tenant => "tenant",
            Self::Network => "network",
            Self::Profile => "profile",
            Self::Group => "group",
            Self::Policy => "policy",
            Self::Share => "share",
        }
    }

    /// The `kind` of documents.
    pub fn title(self) -> &'static str {
        match self {
            Self::Tenant => "Tenant",
            Self::Network => "Network",
            Self::Profile => "Profile",
            Self::Group => "Group",
            Self::Policy => "Policy",
            Self::Share => "Share",
        }
    }

    /// `tenants`: the directory in the store, and the word for several objects.
    pub fn plural(self) -> &'static str {
        match self {
            Self::Tenant => "tenants",
            Self::Network => "networks",
            Self::Profile => "profiles",
            Self::Group => "groups",
            Self::Policy => "policies",
            Self::Share => "shares",
        }
    }

    /// The schema version that this program writes, and the newest that it reads. It is increased if a version that does not know a
    /// change would do harm. A new optional field does not need it: older versions keep fields that they do not know.
    pub fn schema(self) -> u32 {
        match self {
            // Version 1 of a network is the record of the settings that are common to all nodes.
            Self::Network => 2,
            Self::Tenant | Self::Profile | Self::Group | Self::Policy | Self::Share => 1,
        }
    }
}

impl fmt::Display for ObjectKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Identifies an object in the cluster. `Display` writes `group web of tenant blue`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId {
    kind: ObjectKind,
    /// Of a tenant: its own name.
    tenant: TenantName,
    name: String,
}

impl ObjectId {
    /// The name has been checked, or is looked up only.
    pub(super) fn unchecked(kind: ObjectKind, tenant: TenantName, name: String) -> Self {
        Self { kind, tenant, name }
    }

    pub fn tenant(name: &TenantName) -> Self {
        Self::unchecked(ObjectKind::Tenant, name.clone(), name.as_str().to_owned())
    }

    pub fn network(tenant: &TenantName, id: &NetworkId) -> Self {
        Self::unchecked(ObjectKind::Network, tenant.clone(), id.as_str().to_owned())
    }

    pub fn profile(tenant: &TenantName, name: &str) -> Self {
        Self::unchecked(ObjectKind::Profile, tenant.clone(), name.to_owned())
    }

    pub fn group(tenant: &TenantName, name: &GroupName) -> Self {
        Self::unchecked(ObjectKind::Group, tenant.clone(), name.as_str().to_owned())
    }

    pub fn policy(tenant: &TenantName, name: &str) -> Self {
        Self::unchecked(ObjectKind::Policy, tenant.clone(), name.to_owned())
    }

    pub fn share(tenant: &TenantName, name: &str) -> Self {
        Self::unchecked(ObjectKind::Share, tenant.clone(), name.to_owned())
    }

    /// From the words of a command or a request. The error names the field of a document that has the invalid name.
    pub fn parse(kind: ObjectKind, tenant: &str, name: &str) -> Result<Self, crate::FieldError> {
        crate::fields::dns_label("metadata.name", name)?;
        let tenant = if kind == ObjectKind::Tenant { name } else { tenant };
        crate::fields::dns_label("metadata.tenant", tenant)?;
        Ok(Self::unchecked(kind, super::tenant_name(tenant.to_owned()), name.to_owned()))
    }

    /// The network, if this is one.
    pub fn network_ref(&self) -> Option<NetworkRef> {
        match self.kind {
            ObjectKind::Network => {
                let network = NetworkId::try_from(self.name.as_str()).ok()?;
                Some(NetworkRef { tenant: self.tenant.clone(), network })
            }
            ObjectKind::Tenant
            | ObjectKind::Profile
            | ObjectKind::Group
            | ObjectKind::Policy
            | ObjectKind::Share => None,
        }
    }

    pub fn kind(&self) -> ObjectKind {
        self.kind
    }

    /// Of a tenant: its own name.
    pub fn tenant_name(&self) -> &TenantName {
        &self.tenant
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Tenant `default` and its network `default-net` exist from the first start and cannot be removed.
    pub fn is_default(&self) -> bool {
        self.tenant.as_str() == DEFAULT_TENANT
            && match self.kind {
                ObjectKind::Tenant => true,
                ObjectKind::Network => self.name == DEFAULT_NETWORK,
                ObjectKind::Profile | ObjectKind::Group | ObjectKind::Policy | ObjectKind::Share => false,
            }
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.name)?;
        if self.kind == ObjectKind::Tenant {
            return Ok(());
        }
        write!(f, " of tenant {}", self.tenant)
    }
}
