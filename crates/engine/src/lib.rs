//! The engine attaches pods to their network and detaches them. It has two callers: the plugin in its own process
//! (standalone) and the agent.
//!
//! ```text
//! serve(Request) ─► attach   allocate ─► firewall ─► veth ─► pod end ─► routes ─► shaping ─► ready
//!                ├► detach   link ─► firewall ─► conntrack ─► release addresses ─► remove the record
//!                ├► check    compare the record with the kernel
//!                ├► gc       remove attachments that the runtime does not list
//!                └► status   can an ADD be served?
//! ```
//!
//! The engine changes the network namespace of the calling thread, the pod's namespace, and its state directory (see
//! [`state`]). Attaching a pod starts no child process, dumps no tables and calls no fsync. No lock is held across a system
//! call, except a short one around the allocation. The record is written before the kernel is changed. If a process is
//! killed, it leaves a pending record, and the next process undoes it.

pub mod alias;
mod attach;
mod bridge;
mod check;
mod cleanup;
mod condition;
mod delegate;
mod detach;
mod dscp;
mod error;
mod firewall;
mod gc;
mod inspect;
mod kernel_cache;
mod layer2;
mod lease;
mod mode;
pub mod overlap;
pub mod policy;
mod privileges;
pub mod reconcile;
mod recover;
mod replay;
mod result;
mod serve;
mod settle;
mod shaping;
mod sibling_routes;
pub mod state;
mod status;
mod sysctl;
pub mod tunnel;
mod veth;

pub use cleanup::{CleanupReport, cleanup};
pub use condition::{LinkUse, Space, run_dir_space, show_space};
pub use delegate::{AllowedDelegates, DELEGATE_TIMEOUT, Delegates};
pub use error::Error;
pub use firewall::{
    InactivePortMapping, Replacing, drift as firewall_drift, inactive_ports, orphans as firewall_orphans,
    repair as repair_firewall,
};
pub use inspect::{inspect, ipam_program, run_dir_findings, startup_findings, write_error};
pub use kernel_cache::KernelCache;
pub use serve::{Caller, Done, Wait, Warn, serve};
