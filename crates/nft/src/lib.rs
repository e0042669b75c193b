//! The firewall of this node: Podwire's nftables tables, and the conntrack entries of pods.
//!
//! ```text
//! desired ─► tables, chains, rules, sets and maps as values                              pure
//! pod_elements ─► the elements of a pod                                                  pure
//! Firewall::add_pod  pod_elements ─► socket: ONE send over nfnetlink
//!        │  the kernel answers: no such table, set or chain (first use, or another process flushed them)
//!        └► apply: text of the tables ─► `nft -f -`, one transaction ─► digests of the listing ─► retry
//! Firewall::drift  observe ─► diff against desired;  Firewall::repair  apply, then the elements of all pods
//! ```
//!
//! All tables are rendered, applied, observed and compared by the same code; a further table is one more value in `desired`.
//! The agent gets events from [`RulesetMonitor`], compares ([`Firewall::drift`], [`Firewall::missing_of`], [`unmanaged_drops`]) and
//! repairs ([`Firewall::repair`]).
//!
//! Called by the engine for ADD, DEL, CHECK and cleanup, and by the agent. It works in the network namespace of the calling
//! thread. It may change tables `inet podwire`, `bridge podwire`, `inet podwire-{peers,limit,clamp,dscp}-NETWORK` and
//! `inet podwire-policy`, conntrack entries of given addresses, and one bit of the mark of flows. In unmanaged tables it changes
//! only the rules of [`accept_in_unmanaged`].

mod apply;

mod condition;
mod denied_log;
mod diff;
mod dscp;
mod element;
mod error;
mod firewall;
mod listing;
mod monitor;
mod network;
mod number;
mod observe;
mod pod;
mod pod_elements;
mod policies;
mod policy_elements;
mod program;
mod prune;
mod repair;
mod request;
mod rule;
mod socket;
mod surplus;
mod unmanaged;

pub mod conntrack;
pub mod desired;

pub use apply::Surplus;
pub use denied_log::{DeniedLog, DeniedPacket};
pub use desired::dscp::Dscp;
pub use desired::limit::ConnectionLimit;
pub use desired::peers::PeerRules;
pub use desired::pods::Structure;
pub use error::Error;
pub use firewall::{Firewall, NoOthers, OtherPods};
pub use listing::ListedElements;
pub use monitor::{ManagedChange, RulesetChange, RulesetMonitor};
pub use network::PeerTable;
pub use pod::{AttachMode, FirewallPod, Guard, HostPort, NetworkChain, Protocol};
pub use policies::DeniedPackets;
pub use program::{INSTALL, check_program};
pub use prune::IdleChains;
pub use surplus::{KnownPods, LiveOwners, PodElement, PodElements, RecordlessPod};
pub use unmanaged::{
    Certainty, ChainFamily, ForwardingChain, LegacyTables, UnmanagedDrop, accept_in_unmanaged,
    forwarding_chains, legacy_tables, unmanaged_drops, withdraw_from_unmanaged,
};
