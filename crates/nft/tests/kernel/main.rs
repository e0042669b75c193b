//! The firewall against the real kernel. Needs root, the nft, ip and conntrack programs.

mod common;
mod membership;
