//! The engine: how a pod gets its network and loses it again. One engine, two callers: the plugin in its own process
//! (standalone), and the agent.
//!
//! ```text
//! serve(Request) ─► attach   allocate ─► firewall ─► veth ─► inside the pod ─► routes ─► shaping ─► ready
//!                ├► detach   link ─► firewall ─► conntrack ─► address back ─► forgotten
//!                ├► check    the record against the kernel
//!                ├► gc       what is not listed goes
//!                └► status   could an ADD be served?
//! ```
//!
//! It touches the kernel of the namespace it is called in, the pod's namespace, and its state directory (see [`state`]).
//! On the way of a pod there is no child process, no dump, no fsync, and no lock across a system call but the short one
//! around allocation. The record is written before the kernel is touched: whoever is killed leaves a pending record, and
//! the next one undoes it.

pub mod alias;
mod attach;
mod bridge;
mod check;
mod cleanup;
mod condition;
mod delegate;
mod detach;
mod error;
mod firewall;
mod gc;
mod inspect;
mod kernel_cache;
mod layer2;
mod lease;
mod mode;
pub mod overlap;
mod privileges;
pub mod reconcile;
mod relearn;
mod remaining;
mod replay;
mod result;
mod serve;
mod settle;
mod shaping;
pub mod state;
mod status;
mod sysctl;
pub mod tunnel;
mod wire;

pub use cleanup::{CleanupReport, cleanup};
pub use condition::{LinkUse, Space, run_dir_space, show_space};
pub use delegate::{AllowedDelegates, DELEGATE_TIMEOUT, Delegates};
pub use error::Error;
pub use firewall::{
    InactivePortMapping, Replacing, drift as firewall_drift, inactive_ports, orphans as firewall_orphans,
    repair as repair_firewall,
};
pub use inspect::{before_start, inspect, ipam_program, run_dir_findings, unwritable};
pub use kernel_cache::KernelCache;
pub use serve::{Caller, Done, Wait, Warn, serve};
