//! Tests of the store's guarantees: one suite for both backends, then tests of each backend.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

// libtest starts tests in alphabetical order. This slow test has to start first.
#[path = "etcd/after_waiting.rs"]
mod after_waiting;
mod common;
mod conformance;
mod embedded;
mod etcd;
