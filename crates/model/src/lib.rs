//! The cluster as its nodes see it: objects that all of them share, how a network is cut into blocks, and what follows from
//! both for one node's routes.
//!
//! ```text
//!   store ◄── Layout (keys), Object (JSON with a schema version) ──► NetworkSpec, NodeRecord, BlockClaim, Alive
//!   NetworkSpec ──► Cut (the n-th block, which block is it)
//!   NodeRecord + claims + Cut ──► admission: the parts of a record that are used, and why the others are not
//!   Facts of this node + NodeRecords of the others ──► mesh: routes, neighbours, forwarding entries; what differs
//! ```
//!
//! Pure: no I/O, no clock, no runtime. The agent does what it says.

#![forbid(unsafe_code)]

mod admission;
mod block_layout;
mod difference;
mod layout;
mod mesh;
mod object;

pub use admission::{
    AddressRefusal, BlockRefusal, MAX_ADDRESSES, MAX_BLOCKS, RefusedParts, StoredNode, check_address,
    check_block, refusals, shared_parts,
};
pub use block_layout::{BlockLayout, BlockLayoutError, Offered};
pub use difference::{difference, listed};
pub use layout::KeyLayout;
pub use mesh::{
    LocalNode, Mesh, NoPath, ObservedPeers, PeerChanges, PeerFdb, PeerNeighbour, PeerPath, PeerRoute,
    Repaired, SourceChanges, Transport, TransportError, Tunnels, Underlay,
};
pub use object::{AliveRecord, BlockClaim, DecodeError, NetworkSpec, NodeRecord, Object};
