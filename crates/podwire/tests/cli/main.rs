//! The command-line tool, run on a node of the lab.
#![expect(clippy::unwrap_used, reason = "test helpers panic like tests")]

mod agreement;
mod attachment;
mod check_config;
mod cleanup;
mod cluster;
mod common;
mod conditions;
mod demo;
mod doctor;
mod exit;
mod install;
mod objects;
mod output;
mod pages;
mod pods;
mod policy;
mod reference;
mod schemas;
mod status;
mod terminal;
mod version;
mod width;
