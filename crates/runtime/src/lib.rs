//! Real container runtimes for tests on a node of a lab: Debian's containerd and runc, asked for pods through the CRI, and
//! Debian's podman.
//!
//! ```text
//!   Lab ── Node ── Machine (mount and pid namespaces of its own, /run /etc /opt /var/lib /var/log of its own)
//!                     ├── Containerd ◄── Cri: run_pod, exec, addresses, stop_pod, remove_pod
//!                     │       └─ exec ─► CNI plugin, inside the node's network namespace
//!                     ├── Podman: run, exec, remove ─ exec ─► CNI plugin
//!                     └── Service: anything else that runs there, such as the agent
//! ```
//!
//! Called by tests only. The programs see the paths that they have on any machine (`/run/containerd`, `/etc/cni/net.d`,
//! `/opt/cni/bin`), but all of them lie in the lab's directory: the machine's own runtime, if it has one, is never touched.
//! What a `Machine` holds ends with it, also when a test panics or is killed: the kernel kills a pid namespace with its
//! first process, and that one ends when the test's end of a pipe closes. Needs root; `tools/setup test` installs the rest.

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
