//! Hanging kernel operations of the peers thread. Meanwhile routes to peers do not change, and the node stays a member.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use api::Status;
use tempfile::TempDir;
use testkit::{Extra, Plan};
use types::Code;

use super::{StoreClient, await_no_problem, mixed, node_key, up_with};
use crate::common::{TIMEOUT, await_that, expect_reach};

/// An `nft` for one agent. It hangs on demand, and executes the real program otherwise.
struct HangingNft(TempDir);

impl HangingNft {
    fn new() -> Self {
        let dir = TempDir::new().unwrap();
        let (at, path) = (dir.path().display(), std::env::var("PATH").unwrap());
        let script = format!(
            "#!/bin/sh\nexport PATH='{path}'\nif [ -e {at}/hang ]; then\n  echo $$ > {at}/pid.new\n  mv {at}/pid.new \
             {at}/pid\n  exec sleep 1000\nfi\nexec nft \"$@\"\n"
        );
        let program = dir.path().join("nft");
        fs::write(&program, script).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        Self(dir)
    }

    /// For the environment of the agent.
    fn env(&self) -> Vec<(String, String)> {
        let path = std::env::var("PATH").unwrap();
        vec![("PATH".to_owned(), format!("{}:{path}", self.0.path().display()))]
    }

    fn switch(&self) -> PathBuf {
        self.0.path().join("hang")
    }

    /// The run of `nft` that currently hangs.
    fn run(&self) -> Option<PathBuf> {
        let pid = fs::read_to_string(self.0.path().join("pid")).ok()?;
        Some(Path::new("/proc").join(pid.trim())).filter(|process| process.exists())
    }

    /// Waits until an operation that started during a run has an effect before that run ends. The agent ends each run after 10
    /// s, so several runs may be necessary.
    #[track_caller]
    fn expect_during_hang(
        &self,
        what: &str,
        mut start: impl FnMut(),
        mut has_happened: impl FnMut() -> bool,
    ) {
        await_that(what, TIMEOUT * 2, || {
            let Some(run) = self.run() else { return false };
            start();
            loop {
                let happened = has_happened();
                if !run.exists() || happened {
                    return run.exists();
                }
            }
        });
    }
}

#[test]
fn a_hanging_peers_thread_is_reported_and_delays_neither_lease_nor_watch() {
    let nft = HangingNft::new();
    let each = [("n1".to_owned(), Extra { env: nft.env(), ..Extra::default() })].into();
    let cluster = up_with("hanging", &Plan { each, ..mixed() }, &["n1", "n2"]);
    let (store_client, agent, n1) =
        (StoreClient::of(&cluster), cluster.agent("n1").unwrap(), cluster.node("n1").unwrap());
    let has = |code: Code, object: &str| {
        let status: Status = serde_json::from_value(agent.get(api::STATUS).unwrap()).unwrap();
        status.conditions.iter().any(|condition| condition.code == code && condition.object == object)
    };
    let table = "table inet podwire-peers-podwire";
    fs::write(nft.switch(), "").unwrap();
    n1.sh(&["nft", &format!("delete {table}")]).unwrap();

    // The agent detects the end of its lease and gets a new one.
    let alive = format!("{}/alive/n1", super::PREFIX);
    let revoke = || {
        if store_client.has(&alive) {
            store_client.revoke_lease_of(&alive);
        }
    };
    nft.expect_during_hang("a new lease", revoke, || store_client.has(&alive));
    // The agent processes events of the store.
    let mut number = 0;
    let junk = |number: u32| node_key(&format!("junk{number}"));
    let key = std::cell::Cell::new(number);
    let put = || {
        number += 1;
        key.set(number);
        store_client.put(&junk(number), b"no record");
    };
    let is_reported = || has(Code::StoreValueUnreadable, &format!("key {}", junk(key.get())));
    nft.expect_during_hang("the report of an unreadable record", put, is_reported);
    nft.expect_during_hang("the report of the hang", || {}, || has(Code::ReconcileStuck, "routes to peers"));

    fs::remove_file(nft.switch()).unwrap();
    await_that("the table", TIMEOUT, || n1.run(&["nft", &format!("list {table}")], b"").unwrap().success());
    (1..=number).for_each(|number| store_client.delete(&junk(number)));
    await_no_problem(agent);
    expect_reach(&cluster, TIMEOUT);
}
