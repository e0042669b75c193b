//! The command-line tool as a person runs it, on a node of the lab.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod attachment;
mod cleanup;
mod cluster;
mod common;
mod conditions;
mod demo;
mod doctor;
mod install;
mod output;
mod pods;
mod readme;
mod status;
