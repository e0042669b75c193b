//! The simple implementations for comparison: `ip route add` for each route, and a counter in the store.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use model::NodeRecord;
use store::{Change, Store};
use testkit::Ns;

/// Runs one `ip` process per IPv4 route, sequentially.
pub(super) fn add_routes(ns: &Ns, records: &[NodeRecord]) -> Result<Duration> {
    let routes: Vec<[String; 2]> = records
        .iter()
        .map(|record| {
            let block = record.blocks.iter().next().context("the node has no block")?;
            let via = record.address_for(block).context("the node has no address")?;
            Ok([block.to_string(), via.to_string()])
        })
        .collect::<Result<_>>()?;
    ns.enter(|| {
        let start = Instant::now();
        for [block, via] in &routes {
            let mut command = Command::new("ip");
            command.args(["route", "add", block, "via", via]).stdin(Stdio::null());
            let status = command.status().context("cannot start ip")?;
            ensure!(status.success(), "`ip route add {block} via {via}` exited with {status}");
        }
        Ok(start.elapsed())
    })?
}

/// Writes the counter, reads it, and uses its version as the node's number. Another node may write between the write and the
/// read, so numbers are not unique.
pub(super) async fn take_number(store: Store, directory: String, name: String) -> Result<u64> {
    let put = |key: String, value: String| Change::Put { key, value: value.into_bytes(), lease: None };
    let counter = format!("{directory}/counter");
    store.commit(&[], &[put(counter.clone(), String::new())]).await?;
    let number = store.get(&counter).await?.context("the counter is missing")?.version;
    store.commit(&[], &[put(format!("{directory}/hosts/{name}"), number.to_string())]).await?;
    Ok(number)
}
