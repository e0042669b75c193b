//! The keys of objects that tenants and policies need.
//!
//! ```text
//! PREFIX/tenants/NAME                         a tenant
//! PREFIX/networks/TENANT.NAME                 a network; groups, policies, profiles and shares alike
//! PREFIX/networks/TENANT.NAME/blocks/10.2.3.0-24   the claim of a block of this network
//! PREFIX/identities/HASH                      the properties of pods that rules select
//! PREFIX/pods/NODE/IP                         a running pod with this address
//! PREFIX/rule-counter                         the next id of a rule
//! ```
//!
//! Names of objects are DNS labels, so the dot separates them. Only the canonical form of a key is valid.

use std::net::IpAddr;

use ipnet::IpNet;
use types::{NetworkRef, NodeName};

use crate::document::{ObjectId, ObjectKind};
use crate::identity::IdentityHash;
use crate::layout::KeyLayout;
use crate::object::{BlockClaim, Object as _};

impl KeyLayout {
    /// The directory of all objects of a kind. That of networks also contains their claims.
    pub fn objects(&self, kind: ObjectKind) -> String {
        format!("{}/{}/", self.prefix(), kind.plural())
    }

    pub fn object(&self, id: &ObjectId) -> String {
        format!("{}{}", self.objects(id.kind()), object_segment(id))
    }

    /// The object of a key in one of the directories of objects.
    pub fn object_of(&self, key: &str) -> Option<ObjectId> {
        ObjectKind::ALL
            .into_iter()
            .find_map(|kind| parse_object(kind, key.strip_prefix(&self.objects(kind))?))
    }

    /// The directory of all networks with their claims.
    pub fn networks(&self) -> String {
        self.objects(ObjectKind::Network)
    }

    /// The directory of all claims of a network.
    pub fn network_blocks(&self, network: &NetworkRef) -> String {
        format!("{}{network}/blocks/", self.networks())
    }

    pub fn network_block(&self, network: &NetworkRef, block: &IpNet) -> String {
        format!("{}{}-{}", self.network_blocks(network), block.network(), block.prefix_len())
    }

    /// The claim of a block of the default network.
    pub fn default_block(&self, block: &IpNet) -> String {
        self.network_block(&NetworkRef::default(), block)
    }

    /// The network and the block of the key of a claim. Only the canonical form is valid: otherwise there could be two claims for a
    /// block.
    pub fn network_block_of(&self, key: &str) -> Option<(NetworkRef, IpNet)> {
        let (network, block) = key.strip_prefix(&self.networks())?.split_once("/blocks/")?;
        let network = parse_object(ObjectKind::Network, network)?.network_ref()?;
        let (address, length) = block.rsplit_once('-')?;
        let block = IpNet::new(address.parse().ok()?, length.parse().ok()?).ok()?.trunc();
        (self.network_block(&network, &block) == key).then_some((network, block))
    }

    /// The block of the key of a claim, and its owner or the reason why the claim is not used.
    pub fn claim_at(&self, key: &str, value: &[u8]) -> Option<(NetworkRef, IpNet, Result<NodeName, String>)> {
        let (network, block) = self.network_block_of(key)?;
        let read = BlockClaim::decode(value).map(|claim| claim.node);
        Some((network, block, read.map_err(|error| format!("{key} in the store is not used: {error}"))))
    }

    /// The directory of all identities.
    pub fn identities(&self) -> String {
        format!("{}/identities/", self.prefix())
    }

    pub fn identity(&self, hash: &IdentityHash) -> String {
        format!("{}{hash}", self.identities())
    }

    pub fn identity_of(&self, key: &str) -> Option<IdentityHash> {
        IdentityHash::try_from(key.strip_prefix(&self.identities())?.to_owned()).ok()
    }

    /// The directory of the pods of all nodes.
    pub fn pods(&self) -> String {
        format!("{}/pods/", self.prefix())
    }

    /// The directory of the pods of a node.
    pub fn node_pods(&self, node: &NodeName) -> String {
        format!("{}{node}/", self.pods())
    }

    pub fn pod(&self, node: &NodeName, address: IpAddr) -> String {
        format!("{}{address}", self.node_pods(node))
    }

    /// The node and the address of a key in `pods`.
    pub fn pod_of(&self, key: &str) -> Option<(NodeName, IpAddr)> {
        let (node, address) = key.strip_prefix(&self.pods())?.split_once('/')?;
        let node = NodeName::try_from(node).ok()?;
        let address: IpAddr = address.parse().ok()?;
        let is_canonical = address.to_canonical() == address && self.pod(&node, address) == key;
        is_canonical.then_some((node, address))
    }

    pub fn rule_counter(&self) -> String {
        format!("{}/rule-counter", self.prefix())
    }
}

fn object_segment(id: &ObjectId) -> String {
    match id.kind() {
        ObjectKind::Tenant => id.name().to_owned(),
        ObjectKind::Network
        | ObjectKind::Profile
        | ObjectKind::Group
        | ObjectKind::Policy
        | ObjectKind::Share => format!("{}.{}", id.tenant_name(), id.name()),
    }
}

fn parse_object(kind: ObjectKind, segment: &str) -> Option<ObjectId> {
    let (tenant, name) = match kind {
        ObjectKind::Tenant => (segment, segment),
        ObjectKind::Network
        | ObjectKind::Profile
        | ObjectKind::Group
        | ObjectKind::Policy
        | ObjectKind::Share => segment.split_once('.')?,
    };
    ObjectId::parse(kind, tenant, name).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout() -> KeyLayout {
        KeyLayout::new("/pw/", None)
    }

    fn id(kind: ObjectKind) -> ObjectId {
        ObjectId::parse(kind, "blue", "web-1").unwrap()
    }

    #[test]
    fn a_key_of_an_object_has_one_canonical_form() {
        for (kind, key) in [
            (ObjectKind::Tenant, "/pw/tenants/web-1"),
            (ObjectKind::Network, "/pw/networks/blue.web-1"),
            (ObjectKind::Profile, "/pw/profiles/blue.web-1"),
            (ObjectKind::Group, "/pw/groups/blue.web-1"),
            (ObjectKind::Policy, "/pw/policies/blue.web-1"),
            (ObjectKind::Share, "/pw/shares/blue.web-1"),
        ] {
            assert_eq!(layout().object(&id(kind)), key);
            assert_eq!(layout().object_of(key), Some(id(kind)));
        }
        for other in [
            "/pw/groups/web-1",
            "/pw/groups/blue.web.1",
            "/pw/groups/blue.Web",
            "/pw/groups/.web",
            "/pw/groups/blue.web/x",
            "/pw/groups/",
            "/pw/tenants/a.b",
            "/pw/networks/blue.web-1/blocks/10.2.3.0-24",
            "/pw/network",
            "/pw/nodes/blue.web-1",
            "/pw2/groups/blue.web-1",
        ] {
            assert_eq!(layout().object_of(other), None, "{other}");
        }
    }

    #[test]
    fn a_claim_belongs_to_a_block_of_a_network() {
        let network = id(ObjectKind::Network).network_ref().unwrap();
        for block in ["10.2.3.0/24", "fd00:2::/72"] {
            let block: IpNet = block.parse().unwrap();
            let key = layout().network_block(&network, &block);
            assert_eq!(layout().network_block_of(&key), Some((network.clone(), block)));
        }
        for other in [
            "/pw/networks/blue.web-1/blocks/10.2.3.1-24",
            "/pw/networks/blue.web-1/blocks/10.2.3.0-024",
            "/pw/networks/blue.web-1/blocks/FD00:2::-72",
            "/pw/networks/blue.web-1/blocks/",
            "/pw/networks/web-1/blocks/10.2.3.0-24",
            "/pw/networks/blue.web-1/blocks/10.2.3.0-24/x",
            "/pw/blocks/10.2.3.0-24",
        ] {
            assert_eq!(layout().network_block_of(other), None, "{other}");
        }
    }

    #[test]
    fn a_pod_has_a_node_and_a_canonical_address() {
        let node = NodeName::try_from("n1").unwrap();
        for address in ["10.2.3.4", "fd00::4"] {
            let address: IpAddr = address.parse().unwrap();
            let key = layout().pod(&node, address);
            assert!(key.starts_with(&layout().node_pods(&node)));
            assert_eq!(layout().pod_of(&key), Some((node.clone(), address)));
        }
        for other in [
            "/pw/pods/n1/fd00:0::4",
            "/pw/pods/n1/FD00::4",
            "/pw/pods/n1/::ffff:10.2.3.4",
            "/pw/pods/n1/10.2.3.4/x",
            "/pw/pods/n1",
            "/pw/pods/a b/10.2.3.4",
            "/pw/pods/10.2.3.4",
        ] {
            assert_eq!(layout().pod_of(other), None, "{other}");
        }
    }

    #[test]
    fn an_identity_has_its_hash() {
        let hash = IdentityHash::of(b"x");
        assert_eq!(layout().identity_of(&layout().identity(&hash)), Some(hash));
        for other in ["/pw/identities/", "/pw/identities/abc", "/pw/identities/../nodes/n1"] {
            assert_eq!(layout().identity_of(other), None, "{other}");
        }
        assert_eq!(layout().rule_counter(), "/pw/rule-counter");
    }
}
