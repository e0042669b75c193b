//! A lab on one host: nodes and pods as network namespaces, real agents and a real etcd, the CNI plugin called as a container
//! runtime calls it, and probes that show which packets arrive.
//!
//! ```text
//!   Lab ── node("n1") ── pod("a")      Plugin.add(&pod, &config) ─► runs inside the node's namespace
//!    │         │
//!    └─ wire(n1, n2)                   ping, Snapshot::of(&node) ─► the state of the namespace
//!
//!   Cluster ── n1, n2, … each with its agent, on an underlay of routed subnets, with etcd; cut, kill, reach()
//! ```
//!
//! Used by `podwire lab`, `podwire demo` and, through `testkit`, by the tests and the benchmark. It touches only namespaces with
//! names that start with `pwt-` and its own directories in the temporary directory. All of them are removed when the `Lab` is
//! dropped. Those of killed runs are removed when the next `Lab` is created. Only namespaces of `podwire lab` (`pwlab-NAME-…`) stay until
//! `podwire lab down`. Every wait has a deadline. Needs root.

mod agent;
mod call;
mod cluster;
mod etcd;
pub mod inspect;
mod lab;
mod node;
mod ns;
mod outcome;
mod owner;
mod ping;
mod plugin;
mod process;
mod program;
mod service;
mod snapshot;
mod sweep;
mod wait;
mod wire;

pub use agent::{Agent, program as agent_program};
pub use call::{Call, Verb, with_prev_result};
pub use cluster::{
    AttachedPod, Cluster, Extra, Families, LabState, LabStore, Matrix, MatrixCell, MatrixPod, Plan, PodPath,
    PodPlacement, ProgressFn, Reachability, RemovedLab, SavedLab, Tls, TransportMode, clear_saved,
    remove_saved,
};
pub use etcd::{EtcdCluster, EtcdMember};
pub use lab::Lab;
pub use node::{Node, Pod};
pub use ns::Ns;
pub use outcome::{CniError, Outcome};
pub use ping::{PingReport, ping};
pub use plugin::{Plugin, REFERENCE_DIR};
pub use process::{DEADLINE, RunningProgram, wait_for_group};
pub(crate) use program::search_path;
pub use service::ProcessIdentity;
pub use snapshot::{Difference, Snapshot};
pub use wait::{uninterrupted, wait_until};
pub use wire::CableEnd;
