//! The cluster model: objects that all nodes share, the division of a network into blocks, and the routes that result from
//! both for one node.
//!
//! ```text
//!   store ◄── KeyLayout (keys), Object (JSON with a schema version) ──► NetworkSpec, NodeRecord, BlockClaim, AliveRecord
//!   NetworkSpec ──► BlockLayout (blocks of a subnet)
//!   Document (file, request), store ──► ClusterObject ──► Catalog: references, plans, placements ──► policy engine
//!   JSON of the Kubernetes API ──► kubernetes: policies, pods, namespaces and nodes ──► policy engine
//!   NodeRecord + claims + BlockLayout ──► admission: the parts of a record that are used, and why others are not
//!   LocalNode + NodeRecords of the peers ──► mesh: routes, neighbours, FDB entries, and differences to the kernel
//! ```
//!
//! Pure: no I/O, no clock, no runtime. The agent applies the results.

#![forbid(unsafe_code)]

mod admission;
mod allocation;
#[cfg(test)]
mod any_input_tests;
mod block_layout;
mod catalog;
mod difference;
mod document;
mod fields;
mod identity;
mod layout;
mod mesh;
mod object;
mod object_keys;
mod placement;
mod selector;

pub mod kubernetes;
pub mod objects;

pub use admission::{
    AddressRefusal, BlockRefusal, MAX_ADDRESSES, MAX_BLOCKS, RefusedParts, StoredNode, check_address,
    check_block, refusals, shared_parts,
};
pub use allocation::BlockAllocation;
pub use block_layout::{BlockCandidates, BlockLayout, BlockLayoutError};
pub use catalog::{
    ApplyStep, Catalog, ObjectError, ObjectErrorCause, PlacementError, PolicyEdit, RuleCounter, StepAction,
};
pub use difference::{difference, listed};
pub use document::{API_VERSION, ClusterObject, Document, ObjectId, ObjectKind, ObjectRecord, described};
pub use fields::{FieldError, UnknownFields};
pub use identity::{IdentityHash, IdentityHashError, PodRecord};
pub use layout::KeyLayout;
pub use mesh::{
    LocalNode, Mesh, NoPath, ObservedPeers, PeerChanges, PeerFdb, PeerNeighbour, PeerPath, PeerRoute,
    Repaired, SourceChanges, Transport, TransportError, Tunnels, Underlay,
};
pub use object::{AliveRecord, BlockClaim, DecodeError, MAX_SIZE, NetworkSpec, NodeRecord, Object};
pub use placement::PlacementRequest;
pub use selector::{LabelOperator, LabelRequirement, Labels, Selector};
