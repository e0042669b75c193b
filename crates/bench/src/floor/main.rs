//! podwire-floor: the netlink messages of one ADD and nothing else, for podwire-bench. It reads the call from stdin
//! (`spawned.rs`).

mod pod;

use std::io::Read as _;

use anyhow::{Context as _, Result};
use netlink::RtSocket;
use serde_json::Value;
use types::AttachmentKey;

use pod::FloorPod;

fn main() -> Result<()> {
    let mut input = Vec::new();
    std::io::stdin().read_to_end(&mut input)?;
    let input: Value = serde_json::from_slice(&input)?;
    let text = |name: &str| input[name].as_str().with_context(|| format!("{name} is missing"));
    let key = AttachmentKey {
        network: text("network")?.try_into()?,
        container: text("container")?.try_into()?,
        ifname: text("ifname")?.try_into()?,
    };
    let addresses = serde_json::from_value(input["addresses"].clone())?;
    let bridge = input["bridge"].as_u64().and_then(|index| u32::try_from(index).ok());
    let mut host = RtSocket::open()?;
    let mut pod = FloorPod::open(key, text("netns")?.as_ref(), addresses)?;
    pod.add(&mut host, bridge.context("bridge is missing")?).map(drop)
}
