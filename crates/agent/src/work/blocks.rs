//! Requests another block for an ADD that found no free address.

use cni::{ErrorCode, Request};
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
    /// Waits for a block for a request that failed with this error and was served with these networks.
    pub(super) fn wait_for_another_block(
        &self,
        request: &Request,
        (served, error): (&NodeNetworks<'_>, ErrorCode),
    ) -> Result<AnotherBlock, BlockRequestError> {
        let Request::Add(call) = request else { return Ok(AnotherBlock::NotNeeded) };
        let Some(id) = served.network_ref_for(call) else { return Ok(AnotherBlock::NotNeeded) };
        match (error, served.network_for(call)) {
            (ErrorCode::AddressesExhausted, Some(network)) => {
                let pools = served.pools_for(call);
                self.blocks.wait_for_block(&id, network.blocks(), pools)?;
            }
            // The first pod of a network on this node.
            (ErrorCode::TryAgainLater, None) if served.lacks_block_of(&id) => {
                self.blocks.wait_for_first_block(&id)?;
            }
            (_, _) => return Ok(AnotherBlock::NotNeeded),
        }
        Ok(AnotherBlock::Received)
    }
}
