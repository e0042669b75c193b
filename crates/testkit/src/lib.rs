//! A lab on one machine: nodes and pods as network namespaces, a CNI plugin called the way a runtime calls it, probes that
//! show what really arrives, and faults (a kill at a given time or at any system call, a namespace that vanishes).
//!
//! ```text
//!   Lab ── node("n1") ── pod("a")      Plugin.add(&pod, &config) ─► runs inside the node's namespace
//!    │         │                       trace::kill_at_syscall(…) ─► the same, killed at its n-th system-call stop
//!    └─ wire(n1, n2)                   ping, tcp_connects, Snapshot::of(&node) ─► what there is to see
//!
//!   Cluster ── n1, n2, … each with its agent, on an underlay of routed subnets, with etcd; cut, kill, reach()
//! ```
//!
//! Called by the kernel tests, the benchmark, `podwire demo` and `podwire lab`. It touches only namespaces whose names
//! start with `pwt-` and its own folders in the temp folder; all of them go when the `Lab` is dropped, and those of killed
//! runs when the next `Lab` is made. Only what `podwire lab` makes (`pwlab-NAME-…`) lives on, until it is taken down.
//! Everything that waits has a deadline. Needs root.

mod agent;
mod call;
mod cluster;
mod dhcp;
mod echo;
mod etcd;
pub mod frames;
pub mod inspect;
mod lab;
mod node;
mod ns;
mod outcome;
mod owner;
mod packet;
mod plugin;
mod probe;
mod process;
mod random;
mod service;
mod snapshot;
mod stream;
mod sweep;
pub mod trace;
mod wait;
mod wire;

pub use agent::{Agent, program as agent_program};
pub use call::{Call, Verb, with_prev_result};
pub use cluster::{
    Cell, Cluster, Condition, Extra, Families, Kept, Matrix, Plan, Progress, Reach, Removed, Spot, Store,
    Tls, Transport, Way, Wired, clear_kept, remove_kept,
};
pub use dhcp::{DHCP_SERVER, Dhcp};
pub use echo::{Echo, tcp_echo, udp_echo};
pub use etcd::{Etcd, Member};
pub use lab::Lab;
pub use node::{Node, Pod};
pub use ns::Ns;
pub use outcome::{CniError, Outcome};
pub use packet::PacketSocket;
pub(crate) use plugin::built;
pub use plugin::{Plugin, REFERENCE_DIR, copy_program};
pub use probe::{PingReport, ping, tcp_connects, udp_connects};
pub use process::{DEADLINE, Running};
pub use random::{Random, soak};
pub use service::Identity;
pub use snapshot::{Difference, Snapshot};
pub use stream::{PingStream, StreamReport};
pub use wait::{uninterrupted, wait_until};
pub use wire::End;
