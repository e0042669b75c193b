//! The node agent, a daemon that runs once per node. It serves CNI requests, repairs drift and connects the node to its peers.
//! Running pods do not depend on it. `podwire agent` calls [`run`]. It may change the kernel's network state and files in its
//! run, state and install directories.
//!
//! ```text
//! podwire-cni ─► server ─► queue ─► work ─► engine ─► kernel, RUN/networks
//!                  │                  └── tombstones: DELs that arrived while no agent ran
//!                  └► status ◄── reconciler: netlink, nftables and file events, timer ─► engine::reconcile
//!                           ◄── installation: plugin and config in the runtime's directories
//! store (etcd, file) ◄─► membership: this node's record and blocks ─► allocation
//!                            └─ records ─► peers: routes to peers ─► kernel
//! ```
//!
//! `app` wires the components from top to bottom: capabilities, locks, slots and wakers, workers, peers, membership,
//! installation, socket, reconciler (first round), server, stop.

mod agent_status;
mod allocation;
mod app;
mod attachments;
mod clock;
mod conditions;
mod contiv;
mod identities;
mod installation;
mod lock;
mod log;
mod membership;
mod memory;
mod metrics;
mod monitor;
mod notify;
mod peers;
mod policies;
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
