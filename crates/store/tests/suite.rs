//! The store against its promises: the same suite for both backends, then what is special to each.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "etcd/awaited.rs"]
mod awaited;
mod common;
mod conformance;
mod embedded;
mod etcd;
