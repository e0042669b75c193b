//! The policy engine: which flows of this node's pods are allowed.
//!
//! ```text
//!   WorldChange (pods, nodes, networks, objects) ──► World ──► PolicyEngine ──┬► Delta: elements and profiles that changed
//!                                                                        ├► elements(): all of them, to compare with the kernel
//!                                                                        └► explain(), answer(): the deciding rule, tier by tier
//! ```
//!
//! A *profile* is the set of rules that apply to a local pod, a *class* is a set of addresses that no rule distinguishes. Both are
//! numbers. The firewall looks up profile, class, protocol and port, so its cost does not depend on the number of policies.
//!
//! Called by the agent and the CLI. Pure: no I/O, no clock, no runtime.

#![forbid(unsafe_code)]

mod address;
mod any_pod;
mod cidr;
mod class;
mod counts;
mod direction;
mod dirty;
mod element;
mod elements;
mod encode;
mod engine;
mod explain;
mod journal;
mod numbers;
mod predicate;
mod problems;
mod profile;
mod profiles;
mod query;
mod rules;
mod side;
#[cfg(test)]
mod tests;
mod traffic;
mod uses;
mod world;

pub use counts::{ElementKind, PolicyCounts};
pub use element::{ClassId, Delta, PolicyElement, PolicyVerdict, ProfileId, ProtocolNumber, VerdictKey};
pub use engine::PolicyEngine;
pub use explain::{Explanation, FlowEnd, FlowParty, Judgement, JudgementReason, PolicyFlow, TierStep};
pub use problems::{PolicyObject, PolicyProblem, ProblemReason};
pub use query::{EndError, FlowAnswers, FlowQuery, FlowQueryError, FlowTraffic, QueryEnd, TrafficError};
pub use rules::{PolicyTier, RuleOutcome, RuleSource};
pub use world::{NodeEntry, PodEntry, PodPhase, PodUid, PolicyNetwork, World, WorldChange};
