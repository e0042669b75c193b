//! The keys of objects in the store.
//!
//! ```text
//! PREFIX/network              settings that are common to all nodes
//! PREFIX/nodes/NAME           the record of a node
//! PREFIX/alive/NAME           the heartbeat of an agent, with a lease
//! COUNTER                     by default PREFIX/counter: where the next node starts its search for a block
//! ```
//!
//! A directory ends with a slash, so that `/hosts` never matches `/hosts2`.

use types::NodeName;

use crate::object::{NodeRecord, Object as _};

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

    /// The directory of claims before schema 2. Not used any more.
    pub fn former_blocks(&self) -> String {
        format!("{}/blocks/", self.prefix)
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
            assert_eq!(layout.counter(), "/hosts/counter");
            assert_eq!(layout.nodes(), "/hosts/nodes/");
            assert_eq!(layout.node_of("/hosts/nodes/a").unwrap().as_str(), "a");
            for other in
                ["/hosts2/nodes/a", "/hosts/nodes2/a", "/hosts/nodes/a/b", "/hosts/nodes/", "/hosts/a"]
            {
                assert_eq!(layout.node_of(other), None, "{other}");
            }
        }
    }
}
