//! The firewall of this node: our own nftables tables, named `podwire`, and the conntrack entries of our pods.
//!
//! ```text
//! Firewall::admit ──► element (a pod as set elements) ──► socket: ONE send over nfnetlink
//!        │  the kernel says: no such table, set or chain (first use, or somebody flushed them)
//!        └─────────► ruleset (the structure as text)  ──► program: `nft -f -`, one transaction; then once more
//! ```
//!
//! Called by the engine for ADD, DEL, CHECK and clean-up. It works in the network namespace of the calling thread.
//! It may touch: tables `inet podwire` and `bridge podwire`, and conntrack entries of the addresses it is given;
//! nothing of anybody else.

mod element;
mod error;
mod firewall;
mod number;
mod pod;
mod program;
mod prune;
mod request;
mod ruleset;
mod socket;
mod sweep;

pub mod conntrack;

pub use error::Error;
pub use firewall::Firewall;
pub use pod::{Guard, HostPort, Mode, NetworkChain, Pod, Protocol};
pub use prune::Idle;
pub use sweep::Stray;
