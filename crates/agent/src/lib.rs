//! The node agent: one daemon per node. It makes pods' networks fast and keeps them right, and nothing that runs depends
//! on it staying up.
//!
//! ```text
//! podwire-cni ─► server ─► queue ─► work ─► engine ─► kernel, RUN/networks
//!                  │                  └── tombstones: what was deleted while nobody was here
//!                  └► status ◄── reconciler: netlink, nftables and file events, timer ─► engine::reconcile
//!                           ◄── installation: plugin and config in the runtime's directories
//! store (etcd, file) ◄─► membership: this node's record and blocks ─► allocation
//!                            └─ records ─► peers: routes to the other nodes ─► kernel
//! ```
//!
//! `app` wires it all, top to bottom: capabilities, locks, slots and wakers, workers, peers, membership, installation, socket,
//! reconciler (first reconcile), server, end.

mod agent_status;
mod allocation;
mod app;
mod attachments;
mod clock;
mod conditions;
mod contiv;
mod installation;
mod lock;
mod log;
mod membership;
mod memory;
mod metrics;
mod monitor;
mod notify;
mod peers;
mod preflight;
mod privileges;
mod queue;
mod reconciler;
mod server;
mod thread;
mod tombstones;
mod waker;
mod work;

pub use app::{AppError, run};
pub use attachments::{attachment_view, inactive_port};
pub use lock::agents_here;
#[doc(hidden)]
pub use membership::measured;
pub use membership::{Forgotten, forget};
pub use preflight::{Note, Preflight, StartRefusal, check};
pub use privileges::{Capability, missing_capabilities};
