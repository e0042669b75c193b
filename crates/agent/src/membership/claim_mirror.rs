//! The claims of all networks as the store has them, and those that are valid. Pure.
//!
//! A network and its claims may appear and disappear in any order. So every claim is kept, and the networks decide when it is read whether
//! it is valid.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use types::{NetworkRef, NodeName};

use super::networks::{BlockFit, NetworkLayouts};
use crate::peers::inputs::ClaimedBlock;

/// The owner of a block. None: the claim cannot be read, and no earlier version of it is known.
type Owner = Option<NodeName>;

#[derive(Debug, Default)]
pub(crate) struct ClaimMirror {
    claims: BTreeMap<IpNet, BTreeMap<NetworkRef, Owner>>,
    /// The valid claims at the last call of `list` or `take_changes`.
    valid: BTreeMap<IpNet, Owner>,
    /// Blocks whose owner may have changed since then.
    touched: BTreeSet<IpNet>,
}

impl ClaimMirror {
    /// Removes all claims that a listing does not have, before its claims are put.
    pub(crate) fn retain(&mut self, listed: &BTreeSet<(NetworkRef, IpNet)>) {
        for (block, claims) in &mut self.claims {
            claims.retain(|network, _| listed.contains(&(network.clone(), *block)));
        }
        self.claims.retain(|_, claims| !claims.is_empty());
    }

    /// A claim that cannot be read does not replace the last known one.
    pub(crate) fn put(&mut self, network: NetworkRef, block: IpNet, owner: Owner) {
        self.touched.insert(block);
        let known = self.claims.entry(block).or_default().entry(network).or_default();
        if owner.is_some() {
            *known = owner;
        }
    }

    pub(crate) fn delete(&mut self, network: &NetworkRef, block: &IpNet) {
        self.touched.insert(*block);
        if let Some(claims) = self.claims.get_mut(block) {
            claims.remove(network);
        }
        self.claims.retain(|_, claims| !claims.is_empty());
    }

    /// Any claim may have become valid or invalid.
    pub(crate) fn networks_changed(&mut self) {
        self.touched.extend(self.claims.keys());
    }

    /// All valid claims.
    pub(crate) fn list(&mut self, networks: &NetworkLayouts) -> Vec<ClaimedBlock> {
        self.touched.clear();
        let blocks = self.claims.keys();
        let valid = blocks.filter_map(|block| Some((*block, self.valid_owner(block, networks)?)));
        self.valid = valid.collect();
        self.valid.iter().map(|(block, owner)| ClaimedBlock { block: *block, owner: owner.clone() }).collect()
    }

    /// The blocks whose owner changed since the last call of this or of `list`.
    pub(crate) fn take_changes(&mut self, networks: &NetworkLayouts) -> Vec<ClaimedBlock> {
        let mut changes = Vec::new();
        for block in std::mem::take(&mut self.touched) {
            let owner = self.valid_owner(&block, networks);
            if self.valid.get(&block) == owner.as_ref() {
                continue;
            }
            changes.push(ClaimedBlock { block, owner: owner.clone().flatten() });
            match owner {
                Some(owner) => drop(self.valid.insert(block, owner)),
                None => drop(self.valid.remove(&block)),
            }
        }
        changes
    }

    fn valid_owner(&self, block: &IpNet, networks: &NetworkLayouts) -> Option<Owner> {
        let mut claims = self.claims.get(block)?.iter();
        let (_, owner) = claims.find(|(network, _)| networks.fit(network, block) == BlockFit::Fits)?;
        Some(owner.clone())
    }
}

#[cfg(test)]
mod tests {
    use model::objects::TenantNetwork;
    use model::{API_VERSION, Catalog, ClusterObject, NetworkSpec, ObjectId, ObjectRecord};
    use serde_json::json;

    use super::*;

    const BLOCK: &str = "10.9.1.0/24";

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    fn network(name: &str) -> NetworkRef {
        NetworkRef::try_from(format!("blue.{name}")).unwrap()
    }

    /// The default network and these networks, with `-` before those that cannot be read. All have the same subnet.
    fn networks(names: &[&str], margin: u8) -> NetworkLayouts {
        let mut objects = Catalog::new(TenantNetwork::default_net(vec![net("10.2.0.0/16")], 8));
        for name in names {
            let metadata = json!({ "name": name.trim_start_matches('-'), "tenant": "blue" });
            let spec = json!({ "subnets": ["10.9.0.0/16"], "blockMargin": margin });
            let document =
                json!({ "apiVersion": API_VERSION, "kind": "Network", "metadata": metadata, "spec": spec });
            let object = ClusterObject::from_document(document).unwrap();
            let id: ObjectId = object.id();
            match name.starts_with('-') {
                true => drop(objects.observe(&id, b"{}").unwrap_err()),
                false => objects.observe(&id, &ObjectRecord::from(object).encode()).unwrap(),
            }
        }
        let spec = NetworkSpec { subnets: vec![net("10.2.0.0/16")], margin: 8, vni: 1, vxlan_port: 4789 };
        NetworkLayouts::of_default(&spec).unwrap().with_objects(&objects)
    }

    fn put(mirror: &mut ClaimMirror, name: &str, block: &str, owner: Option<&str>) {
        mirror.put(network(name), net(block), owner.map(|owner| owner.try_into().unwrap()));
    }

    fn texts(claims: &[ClaimedBlock]) -> Vec<String> {
        let owner = |claim: &ClaimedBlock| claim.owner.as_ref().map_or("-", NodeName::as_str).to_owned();
        claims.iter().map(|claim| format!("{} {}", claim.block, owner(claim))).collect()
    }

    fn changes(mirror: &mut ClaimMirror, networks: &NetworkLayouts) -> Vec<String> {
        texts(&mirror.take_changes(networks))
    }

    #[test]
    fn d_claims_count_while_their_network_exists_and_can_be_read() {
        let mut mirror = ClaimMirror::default();
        put(&mut mirror, "front", BLOCK, Some("n1"));
        assert_eq!(changes(&mut mirror, &networks(&[], 8)), [""; 0], "the claim arrived before its network");
        for (names, expected) in [
            (&["-front"][..], None),
            (&["front"], Some("10.9.1.0/24 n1")),
            (&["front"], None),
            (&[], Some("10.9.1.0/24 -")),
            (&["-front"], None),
            (&["front"], Some("10.9.1.0/24 n1")),
        ] {
            mirror.networks_changed();
            let expected: Vec<&str> = expected.into_iter().collect();
            assert_eq!(changes(&mut mirror, &networks(names, 8)), expected, "{names:?}");
        }
        let listed = mirror.list(&networks(&["front"], 8));
        assert_eq!(texts(&listed), ["10.9.1.0/24 n1"]);
        assert_eq!(texts(&mirror.list(&networks(&["front"], 7))), [""; 0], "another block size");
    }

    #[test]
    fn d_a_claim_that_is_returned_after_its_network_was_removed_leaves_nothing() {
        let mut mirror = ClaimMirror::default();
        put(&mut mirror, "front", BLOCK, Some("n1"));
        let both = networks(&["front", "next"], 8);
        assert_eq!(changes(&mut mirror, &both), ["10.9.1.0/24 n1"]);
        mirror.networks_changed();
        assert_eq!(changes(&mut mirror, &networks(&[], 8)), ["10.9.1.0/24 -"]);
        // Another network gets the subnet before the block is returned.
        mirror.networks_changed();
        let next = networks(&["next"], 8);
        assert_eq!(changes(&mut mirror, &next), [""; 0]);
        put(&mut mirror, "next", BLOCK, Some("n2"));
        assert_eq!(changes(&mut mirror, &next), ["10.9.1.0/24 n2"]);
        mirror.delete(&network("front"), &net(BLOCK));
        assert_eq!(changes(&mut mirror, &next), [""; 0]);
        mirror.delete(&network("next"), &net(BLOCK));
        assert_eq!(changes(&mut mirror, &next), ["10.9.1.0/24 -"]);
        assert!(mirror.claims.is_empty() && mirror.valid.is_empty(), "{mirror:?}");
    }

    #[test]
    fn d_an_unreadable_claim_does_not_replace_the_last_known_one() {
        let (mut mirror, front) = (ClaimMirror::default(), networks(&["front"], 8));
        put(&mut mirror, "front", BLOCK, Some("n1"));
        put(&mut mirror, "front", "10.9.2.0/24", None);
        assert_eq!(texts(&mirror.list(&front)), ["10.9.1.0/24 n1", "10.9.2.0/24 -"]);
        put(&mut mirror, "front", BLOCK, None);
        put(&mut mirror, "front", "10.9.2.0/24", Some("n2"));
        assert_eq!(changes(&mut mirror, &front), ["10.9.2.0/24 n2"]);
        mirror.retain(&BTreeSet::from([(network("front"), net(BLOCK))]));
        assert_eq!(texts(&mirror.list(&front)), ["10.9.1.0/24 n1"]);
    }
}
