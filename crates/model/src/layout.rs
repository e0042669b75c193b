//! The keys of objects in the store.
//!
//! ```text
//! PREFIX/network              settings that are common to all nodes
//! PREFIX/nodes/NAME           the record of a node
//! PREFIX/blocks/10.2.3.0-24   the claim of a block
//! PREFIX/alive/NAME           the heartbeat of an agent, with a lease
//! COUNTER                     by default PREFIX/counter: where the next node starts its search for a block
//! ```
//!
//! A directory ends with a slash, so that `/hosts` never matches `/hosts2`.

use ipnet::IpNet;
use types::NodeName;

use crate::object::{BlockClaim, NodeRecord, Object as _};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyLayout {
    /// Without a trailing slash. May be empty.
    prefix: String,
    counter: String,
}

impl KeyLayout {
    /// The key of the counter is used unchanged.
    pub fn new(prefix: &str, counter: Option<&str>) -> Self {
        let prefix = prefix.trim_end_matches('/').to_owned();
        let counter = counter.map_or_else(|| format!("{prefix}/counter"), str::to_owned);
        Self { prefix, counter }
    }

    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    pub fn counter(&self) -> &str {
        &self.counter
    }

    /// The directory of all objects. One listing returns records and claims of the same revision.
    pub fn root(&self) -> String {
        format!("{}/", self.prefix)
    }

    pub fn network(&self) -> String {
        format!("{}/network", self.prefix)
    }

    /// The directory of all node records.
    pub fn nodes(&self) -> String {
        format!("{}/nodes/", self.prefix)
    }

    pub fn node(&self, name: &NodeName) -> String {
        format!("{}/nodes/{name}", self.prefix)
    }

    /// The directory of all claims.
    pub fn blocks(&self) -> String {
        format!("{}/blocks/", self.prefix)
    }

    pub fn block(&self, block: &IpNet) -> String {
        format!("{}/blocks/{}-{}", self.prefix, block.network(), block.prefix_len())
    }

    /// The directory of all heartbeats.
    pub fn alives(&self) -> String {
        format!("{}/alive/", self.prefix)
    }

    pub fn alive(&self, name: &NodeName) -> String {
        format!("{}/alive/{name}", self.prefix)
    }

    /// The node of a key in `nodes`.
    pub fn node_of(&self, key: &str) -> Option<NodeName> {
        NodeName::try_from(key.strip_prefix(&self.nodes())?).ok()
    }

    /// The node of a key in `nodes`, and its record or the reason why the record is not used.
    pub fn node_at(&self, key: &str, value: &[u8]) -> Option<(NodeName, Result<NodeRecord, String>)> {
        let name = self.node_of(key)?;
        let read = match NodeRecord::decode(value) {
            Ok(record) if record.name == name => Ok(record),
            Ok(record) => Err(format!("{key} in the store is not used: it is the record of {}", record.name)),
            Err(error) => Err(format!("{key} in the store is not used: {error}")),
        };
        Some((name, read))
    }

    /// The block of a key in `blocks`. Only the canonical form is valid: otherwise there could be two claims for a block.
    pub fn block_of(&self, key: &str) -> Option<IpNet> {
        let (address, length) = key.strip_prefix(&self.blocks())?.rsplit_once('-')?;
        let block = IpNet::new(address.parse().ok()?, length.parse().ok()?).ok()?;
        (self.block(&block.trunc()) == key).then_some(block)
    }

    /// The block of a key in `blocks`, and its owner or the reason why the claim is not used.
    pub fn claim_at(&self, key: &str, value: &[u8]) -> Option<(IpNet, Result<NodeName, String>)> {
        let block = self.block_of(key)?;
        let read = BlockClaim::decode(value).map(|claim| claim.node);
        Some((block, read.map_err(|error| format!("{key} in the store is not used: {error}"))))
    }

    /// The node of a key in `alives`.
    pub fn alive_of(&self, key: &str) -> Option<NodeName> {
        NodeName::try_from(key.strip_prefix(&self.alives())?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a4_a_prefix_matches_complete_segments() {
        for prefix in ["/hosts", "/hosts/", "/hosts//"] {
            let layout = KeyLayout::new(prefix, None);
            assert_eq!(layout.nodes(), "/hosts/nodes/");
            assert_eq!(layout.node_of("/hosts/nodes/a").unwrap().as_str(), "a");
            for other in
                ["/hosts2/nodes/a", "/hosts/nodes2/a", "/hosts/nodes/a/b", "/hosts/nodes/", "/hosts/a"]
            {
                assert_eq!(layout.node_of(other), None, "{other}");
            }
        }
    }

    #[test]
    fn the_key_of_a_block_has_one_canonical_form() {
        let layout = KeyLayout::new("/pw", Some("/elsewhere"));
        assert_eq!(layout.counter(), "/elsewhere");
        for text in ["10.2.3.0/24", "fd00:2:0:300::/72"] {
            let block: IpNet = text.parse().unwrap();
            assert_eq!(layout.block_of(&layout.block(&block)), Some(block));
        }
        for other in [
            "/pw/blocks/fd00:2:0:300:0:0:0:0-72",
            "/pw/blocks/FD00:2:0:300::-72",
            "/pw/blocks/fd00:2:0:300::-072",
            "/pw/blocks/10.2.3.0-+24",
        ] {
            assert_eq!(layout.block_of(other), None, "not canonical: {other}");
        }
        for bad in
            ["/pw/blocks/10.2.3.0", "/pw/blocks/10.2.3.1-24", "/pw/blocks/10.2.3.0-33", "/pw/blocks/-8"]
        {
            assert_eq!(layout.block_of(bad), None, "{bad}");
        }
    }
}
