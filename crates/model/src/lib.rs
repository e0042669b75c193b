//! The cluster model: objects that all nodes share, the division of a network into blocks, and the routes that result from
//! both for one node.
//!
//! ```text
//!   store ◄── KeyLayout (keys), Object (JSON with a schema version) ──► NetworkSpec, NodeRecord, BlockClaim, AliveRecord
//!   NetworkSpec ──► BlockLayout (blocks of a subnet)
//!   NodeRecord + claims + BlockLayout ──► admission: the parts of a record that are used, and why others are not
//!   LocalNode + NodeRecords of the peers ──► mesh: routes, neighbours, FDB entries, and differences to the kernel
//! ```
//!
//! Pure: no I/O, no clock, no runtime. The agent applies the results.

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
pub use block_layout::{BlockCandidates, BlockLayout, BlockLayoutError};
pub use difference::{difference, listed};
pub use layout::KeyLayout;
pub use mesh::{
    LocalNode, Mesh, NoPath, ObservedPeers, PeerChanges, PeerFdb, PeerNeighbour, PeerPath, PeerRoute,
    Repaired, SourceChanges, Transport, TransportError, Tunnels, Underlay,
};
pub use object::{AliveRecord, BlockClaim, DecodeError, NetworkSpec, NodeRecord, Object};
