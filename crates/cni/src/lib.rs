//! The CNI protocol, versions 0.1.0 to 1.1.0: parses requests and formats answers.
//!
//! ```text
//!  CNI_* variables ─▶ Env ──┐                       ┌─▶ CniResult::to_json(version)   ADD
//!                           ├─▶ Request::parse ─▶ … ─┼─▶ version_answer(version)       VERSION
//!  stdin (JSON) ────────────┘        │              └─▶ nothing                       DEL, CHECK, GC, STATUS
//!                                    └─▶ Failure::to_json                             errors
//! ```
//!
//! Called by the plugin and the agent. `netconf` reads the plugin's own config keys through [`json::Obj`]. Pure: no I/O, no
//! clock, no runtime. No input causes a panic.

#![forbid(unsafe_code)]

mod address;
mod args;
mod config;
mod dns;
mod env;
mod error;
pub mod json;
mod render;
mod request;
mod result;
mod runtime;
mod version;

#[cfg(test)]
mod tests;

pub use address::RequestedIp;
pub use args::{Args, MAX_POD_NAME};
pub use config::NetworkConfig;
pub use dns::Dns;
pub use env::{Command, Env, Var};
pub use error::{Error, ErrorCode, Failure};
pub use request::{AttachmentRequest, Gc, MAX_STDIN, Request};
pub use result::{CniResult, Interface, IpConfig, PodRoute};
pub use runtime::{Bandwidth, PortMapping, RuntimeConfig};
pub use version::{Version, version_answer};
