//! The firewall against the real kernel. Needs root and the programs nft, ip and conntrack.

mod common;
mod forgetting;
mod lab;
mod membership;
mod nat;
mod spoofing;
