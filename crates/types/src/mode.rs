use std::fmt;

use serde::{Deserialize, Serialize};

/// How a pod is connected to its node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AttachMode {
    /// The host end is a port of the bridge. Pods share a layer 2 segment.
    Bridge,
    /// The node has a route per pod through the host end. Every packet passes the node's IP layer.
    Routed,
}

impl fmt::Display for AttachMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bridge => "bridge",
            Self::Routed => "routed",
        })
    }
}
