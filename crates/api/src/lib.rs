//! The agent's API, shared by the agent and its clients: paths, messages, tombstones, and a small synchronous client.
//!
//! ```text
//! podwire-cni ──POST /v1/cni──► agent        podwire status, pods, … ──GET──► agent
//!      └─ no agent: a tombstone in RUN/tombstones, which the agent serves later
//! ```
//!
//! HTTP/1.1 with JSON over a Unix socket that only root can open. The crate does not depend on engine or network.

mod attachment;
mod client;
mod cluster;
mod condition;
mod doctor;
mod lab;
mod message;
mod objects;
mod paths;
mod policy;
mod status;
mod timestamp;
mod tombstone;

pub use attachment::{
    AddressView, AttachmentDetails, AttachmentPhase, AttachmentRecord, AttachmentView, AttachmentsView,
    BandwidthView, DnsView, IpamView, KernelCheck, KernelState, MasqueradeView, PlacementView, PodGroupView,
    PodRouteView, PodView, PortView,
};
pub use client::{Client, ClientError, HttpAnswer};
pub use cluster::{
    AgentState, BlockView, BlocksView, Freshness, NodeView, NodesView, Removed, RouteState, RouteTransport,
    RouteView, RoutesView, SubnetView,
};
pub use condition::{Condition, ConditionCode, Readiness};
pub use doctor::{DoctorCheck, DoctorReport, Verdict};
pub use lab::{
    LabAgent, LabEntry, LabEntryState, LabKilledNode, LabLink, LabList, LabMember, LabMemberState, LabNode,
    LabPath, LabPod, LabReach, LabStatus, LabTest, LabTransport,
};
pub use message::{CniAnswer, CniCall, ErrorAnswer, VersionAnswer};
pub use objects::{
    ObjectAction, ObjectChange, ObjectDetails, ObjectDocument, ObjectList, ObjectName, ObjectPod,
    ObjectProblem, ObjectStep, ObjectSteps, PolicyRules, RuleChange, RuleView, VersionInForce,
};
pub use paths::{
    API_VERSION, ATTACHMENTS, BLOCKS, CNI, CNI_CONFIG, HEALTH, MAX_BODY, METRICS, NODES, OBJECT_DETAILS,
    OBJECTS, PAGE_NOT_FOUND, READY, ROUTES, STATUS, VERSION,
};
pub use policy::{PolicyCaseResult, PolicyTestAnswer};
pub use status::{
    BlockUse, Counts, InactivePort, InstalledFile, NetworkStatus, NodeMode, ReconcileStatus, Repair, Status,
    StatusWithoutAgent,
};
pub use timestamp::{Timestamp, utc};
pub use tombstone::{Tombstone, TombstoneError, Tombstones};
