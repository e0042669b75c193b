//! More blocks for an ADD that found all addresses of the node's blocks in use.

use cni::Request;
use netconf::NodeNetworks;

use super::Work;
use crate::membership::GrowError;

/// Whether the node owns more blocks than those that a request was served with.
pub(super) enum Grown {
    Yes,
    /// The request gets no addresses of the node's blocks.
    NotWanted,
}

impl Work {
    /// Gets more blocks for a request that was served with these networks.
    pub(super) fn grow(&self, request: &Request, served: &NodeNetworks<'_>) -> Result<Grown, GrowError> {
        let Request::Add(call) = request else { return Ok(Grown::NotWanted) };
        let Some(network) = served.network_for(call) else { return Ok(Grown::NotWanted) };
        self.blocks.wait_for_block(network.blocks()).map(|()| Grown::Yes)
    }
}
