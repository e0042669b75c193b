//! Requests another block for an ADD that found no free address.

use cni::Request;
use netconf::NodeNetworks;

use super::Work;
use crate::membership::BlockRequestError;

/// Whether the node got more blocks since the request was served.
pub(super) enum AnotherBlock {
    Received,
    /// The request uses no addresses of the node's blocks.
    NotNeeded,
}

impl Work {
    /// Waits for another block for a request that was served with these networks.
    pub(super) fn wait_for_another_block(
        &self,
        request: &Request,
        served: &NodeNetworks<'_>,
    ) -> Result<AnotherBlock, BlockRequestError> {
        let Request::Add(call) = request else { return Ok(AnotherBlock::NotNeeded) };
        let Some(network) = served.network_for(call) else { return Ok(AnotherBlock::NotNeeded) };
        self.blocks.wait_for_block(network.blocks()).map(|()| AnotherBlock::Received)
    }
}
