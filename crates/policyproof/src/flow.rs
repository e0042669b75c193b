use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use model::objects::Direction;
use policy::{PodUid, ProtocolNumber, World};
use types::Protocol;

use crate::naive::{self, NaiveTier};

/// The first packet of a flow, after address translation of Services.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Flow {
    pub source: IpAddr,
    pub destination: IpAddr,
    pub protocol: ProtocolNumber,
    /// The destination port, for the protocols of [`Protocol`] only.
    pub port: Option<u16>,
}

/// A flow as it is judged at one pod in one direction.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JudgedFlow {
    pub pod: PodUid,
    pub direction: Direction,
    pub flow: Flow,
}

impl JudgedFlow {
    /// The flow at its ends that the local node judges: egress, then ingress. A flow from the node itself is not judged.
    pub fn of(world: &World, flow: &Flow) -> Vec<Self> {
        let at = |address, direction| {
            let pod = naive::pod_at(world, address).filter(|pod| pod.node == world.local_node)?;
            let is_judged = naive::judge(world, pod, direction, flow).tier != NaiveTier::OwnNode;
            is_judged.then(|| Self { pod: Arc::clone(&pod.uid), direction, flow: *flow })
        };
        [at(flow.source, Direction::Egress), at(flow.destination, Direction::Ingress)]
            .into_iter()
            .flatten()
            .collect()
    }
}

impl Flow {
    /// The protocol, if it has ports.
    pub fn transport(&self) -> Option<Protocol> {
        Protocol::ALL.into_iter().find(|one| one.number() == self.protocol)
    }

    /// The address of the other end.
    pub fn peer(&self, direction: Direction) -> IpAddr {
        match direction {
            Direction::Ingress => self.source,
            Direction::Egress => self.destination,
        }
    }
}

impl fmt::Display for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} -> {} ", self.source, self.destination)?;
        match (self.transport(), self.port) {
            (Some(transport), Some(port)) => write!(f, "{transport}/{port}"),
            (Some(transport), None) => write!(f, "{transport}"),
            (None, _) => write!(f, "protocol {}", self.protocol),
        }
    }
}
