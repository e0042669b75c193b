//! The plain ways, as one would write them down first: `ip route add` for each route, and a counter in the store.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use model::NodeRecord;
use store::{Change, Store};
use testkit::Ns;

/// One process for each IPv4 route, one after the other.
pub(super) fn add_routes(ns: &Ns, records: &[NodeRecord]) -> Result<Duration> {
    let routes: Vec<[String; 2]> = records
        .iter()
        .map(|record| {
            let block = record.blocks.first().context("a node without a block")?;
            let via = record.address(block).context("a node without an address")?;
            Ok([block.to_string(), via.to_string()])
        })
        .collect::<Result<_>>()?;
    ns.enter(|| {
        let start = Instant::now();
        for [block, via] in &routes {
            let mut command = Command::new("ip");
            command.args(["route", "add", block, "via", via]).stdin(Stdio::null());
            let status = command.status().context("cannot start ip")?;
            ensure!(status.success(), "`ip route add {block} via {via}` ended with {status}");
        }
        Ok(start.elapsed())
    })?
}

/// Writes the counter, reads it again, takes its version for its own number and writes that down: between the write and
/// the read somebody else may have written.
pub(super) async fn take_number(store: Store, directory: String, name: String) -> Result<u64> {
    let put = |key: String, value: String| Change::Put { key, value: value.into_bytes(), lease: None };
    let counter = format!("{directory}/counter");
    store.commit(&[], &[put(counter.clone(), String::new())]).await?;
    let number = store.get(&counter).await?.context("the counter is gone")?.version;
    store.commit(&[], &[put(format!("{directory}/hosts/{name}"), number.to_string())]).await?;
    Ok(number)
}
