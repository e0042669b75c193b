//! The firewall of this node: our own nftables tables, named `podwire`, and the conntrack entries of our pods.
//!
//! ```text
//! Firewall::admit ──► element (a pod as set elements) ──► socket: ONE send over nfnetlink
//!        │  the kernel says: no such table, set or chain (first use, or somebody flushed them)
//!        └─────────► ruleset (the structure as text)  ──► program: `nft -f -`, one transaction; then once more
//! ```
//!
//! The agent, which heals what others break, hears of changes from [`Monitor`], then looks ([`Firewall::damage`],
//! [`Firewall::missing_of`], [`foreign_drops`]) and repairs ([`Firewall::repair`], [`Firewall::rebuild`]).
//!
//! Called by the engine for ADD, DEL, CHECK and clean-up. It works in the network namespace of the calling thread.
//! It may touch: tables `inet podwire`, `bridge podwire`, `inet podwire-peers-NETWORK` and `inet podwire-limit-NETWORK`, and
//! conntrack entries of the addresses it is given;
//! nothing of anybody else, but for the rules that [`accept_in_others`] is asked to put there.

mod census;
mod condition;
mod damage;
mod element;
mod error;
mod firewall;
mod foreign;
mod limit;
mod monitor;
mod number;
mod orphan;
mod peers;
mod pod;
mod program;
mod prune;
mod rebuild;
mod request;
mod rule;
mod ruleset;
mod shape;
mod socket;
mod sweep;
mod tunnel;

pub mod conntrack;

pub use error::Error;
pub use firewall::{Firewall, NoOthers, Others};
pub use foreign::{
    Certainty, ForeignDrop, ForeignFamily, ForwardingChain, InputChain, LegacyTables, accept_in_others,
    foreign_drops, forwarding_chains, input_drops, legacy_tables, withdraw_from_others,
};
pub use limit::ConnectionLimit;
pub use monitor::{Change, Monitor, Ours};
pub use orphan::{Alive, Bindings, Orphan};
pub use peers::{PeerRules, PeerSource, PeerTable, Surplus, delete_peer_tables};
pub use pod::{Guard, HostPort, Mode, NetworkChain, Pod, Protocol};
pub use program::{INSTALL, is_installed, missing_program};
pub use prune::Idle;
pub use sweep::Stray;
