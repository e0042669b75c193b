//! Real container runtimes for tests on a node of a lab: Debian's containerd and runc, used through the CRI, and
//! Debian's podman.
//!
//! ```text
//!   Lab ── Node ── Machine (own mount and pid namespaces, own /run /etc /opt /var/lib /var/log)
//!                     ├── Containerd ◄── Cri: run_pod, exec, addresses, stop_pod, remove_pod
//!                     │       └─ exec ─► CNI plugin, inside the node's network namespace
//!                     ├── Podman: run, exec, remove ─ exec ─► CNI plugin
//!                     └── Service: anything else that runs there, such as the agent
//! ```
//!
//! Called by tests only. The programs use their default paths (`/run/containerd`, `/etc/cni/net.d`, `/opt/cni/bin`), which are
//! mounted from the lab's directory. A runtime of the host is never changed. All processes of a `Machine` are killed with it,
//! also when a test panics or is killed: its init process exits when the test's end of a pipe closes, and the kernel then kills
//! the pid namespace. Needs root; `tools/setup test` installs the required packages.

mod cgroups;
mod containerd;
mod cri;
mod image;
mod machine;
mod message;
mod podman;
mod service;

pub use containerd::Containerd;
pub use cri::{Cri, ExecResult, PodSpec, RunningPod};
pub use image::IMAGE;
pub use machine::Machine;
pub use message::{CriPortMapping, CriProtocol};
pub use podman::Podman;
pub use service::{Service, Stop};
