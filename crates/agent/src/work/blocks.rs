//! More blocks for an ADD that found all addresses of the node's blocks in use.

use cni::Request;
use ipnet::IpNet;
use netconf::NodeNetworks;

use super::Work;
use crate::membership::GrowError;

/// Gets this node more addresses beside those of these blocks, which have none left; it may take a while.
pub(crate) type Grow = dyn Fn(&[IpNet]) -> Result<(), GrowError> + Send + Sync;

pub(super) struct Growth(Box<Grow>);

/// Whether the node owns more blocks than those that a request was served with.
pub(super) enum Grown {
    Yes,
    /// The request gets no addresses of the node's blocks.
    NotWanted,
}

impl Work {
    /// How this node gets more addresses.
    pub(crate) fn grow_by(&self, grow: Box<Grow>) {
        // It is said once, at the start.
        let _ = self.growth.set(Growth(grow));
    }

    /// Gets more blocks for a request that was served with these networks.
    pub(super) fn grow(&self, request: &Request, served: &NodeNetworks<'_>) -> Result<Grown, GrowError> {
        let Request::Add(call) = request else { return Ok(Grown::NotWanted) };
        match (self.growth.get(), served.network_for(call)) {
            (Some(growth), Some(network)) => (growth.0)(network.blocks()).map(|()| Grown::Yes),
            (None, _) | (_, None) => Ok(Grown::NotWanted),
        }
    }
}
