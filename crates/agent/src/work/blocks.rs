//! Requests another block for an ADD that found no free address.

use cni::Request;
use netconf::NodeNetworks;

use super::Work;
use crate::membership::GrowError;

/// Whether the node got more blocks since the request was served.
pub(super) enum Grown {
    Yes,
    /// The request uses no addresses of the node's blocks.
    NotNeeded,
}

impl Work {
    /// Waits for another block for a request that was served with these networks.
    pub(super) fn grow(&self, request: &Request, served: &NodeNetworks<'_>) -> Result<Grown, GrowError> {
        let Request::Add(call) = request else { return Ok(Grown::NotNeeded) };
        let Some(network) = served.network_for(call) else { return Ok(Grown::NotNeeded) };
        self.blocks.wait_for_block(network.blocks()).map(|()| Grown::Yes)
    }
}
