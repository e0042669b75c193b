//! One ADD of the floor by a process that is started for it.

use std::net::IpAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use ipnet::IpNet;
use serde_json::{Value, json};
use types::AttachmentKey;

use crate::runner;

pub(super) struct SpawnedAdd {
    pub(super) key: AttachmentKey,
    pub(super) netns: PathBuf,
    pub(super) addresses: Vec<(IpNet, IpAddr)>,
    pub(super) bridge: u32,
}

impl SpawnedAdd {
    /// Starts the process in the namespace of the calling thread, and returns the time from the start to its exit.
    pub(super) fn run(&self) -> Result<Duration> {
        let addresses: Vec<Value> =
            self.addresses.iter().map(|(address, gateway)| json!([address, gateway])).collect();
        let input = json!({
            "network": self.key.network.as_str(),
            "container": self.key.container.as_str(),
            "ifname": self.key.ifname.as_str(),
            "netns": self.netns,
            "addresses": addresses,
            "bridge": self.bridge,
        });
        let finished = runner::run(Command::new(program()?).env_clear(), input.to_string().as_bytes())?;
        ensure!(finished.status.success(), "the spawned floor exited with {}", finished.status);
        Ok(finished.took)
    }
}

/// `make bench` links it statically, as the plugin is.
fn program() -> Result<PathBuf> {
    let bench = std::env::current_exe().context("cannot find this program")?;
    Ok(bench.with_file_name("podwire-floor"))
}
