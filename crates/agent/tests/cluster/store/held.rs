//! Kernel work that hangs. Routes to peers stay as they are meanwhile, and the node stays a member of the cluster.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use api::Status;
use tempfile::TempDir;
use testkit::{Extra, Plan};
use types::Code;

use super::{Desk, await_no_problem, mixed, node_key, up_with};
use crate::common::{SOON, TIMEOUT, await_that, expect_reach};

/// A program `nft` for one agent. It hangs on demand, and runs the real program otherwise.
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

    /// The run that hangs now.
    fn run(&self) -> Option<PathBuf> {
        let pid = fs::read_to_string(self.0.path().join("pid")).ok()?;
        Some(Path::new("/proc").join(pid.trim())).filter(|process| process.exists())
    }

    /// Waits until something that was begun during a run has happened before the same run ended. The agent ends each run
    /// after 10 s, so there may have to be several.
    #[track_caller]
    fn expect_during_a_run(
        &self,
        what: &str,
        mut begin: impl FnMut(),
        mut has_happened: impl FnMut() -> bool,
    ) {
        await_that(what, TIMEOUT * 2, || {
            let Some(run) = self.run() else { return false };
            begin();
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
fn a_peers_thread_that_hangs_delays_neither_lease_nor_watch_and_is_reported() {
    let nft = HangingNft::new();
    let each = [("n1".to_owned(), Extra { env: nft.env(), ..Extra::default() })].into();
    let cluster = up_with("held", &Plan { each, ..mixed() }, &["n1", "n2"]);
    let (desk, agent, n1) = (Desk::of(&cluster), cluster.agent("n1").unwrap(), cluster.node("n1").unwrap());
    let has = |code: Code, object: &str| {
        let status: Status = serde_json::from_value(agent.get(api::STATUS).unwrap()).unwrap();
        status.conditions.iter().any(|one| one.code == code && one.object == object)
    };
    let table = "table inet podwire-peers-podwire";
    fs::write(nft.switch(), "").unwrap();
    n1.sh(&["nft", &format!("delete {table}")]).unwrap();

    // The agent finds out that its lease is gone, and takes another one.
    let alive = format!("{}/alive/n1", super::PREFIX);
    let revoke = || {
        if desk.has(&alive) {
            desk.revoke_lease_of(&alive);
        }
    };
    nft.expect_during_a_run("a new lease", revoke, || desk.has(&alive));
    // It processes events of the store.
    let mut number = 0;
    let junk = |number: u32| node_key(&format!("junk{number}"));
    let key = std::cell::Cell::new(number);
    let put = || {
        number += 1;
        key.set(number);
        desk.put(&junk(number), b"no record");
    };
    let is_reported = || has(Code::StoreValueUnreadable, &format!("key {}", junk(key.get())));
    nft.expect_during_a_run("the report of a record that cannot be read", put, is_reported);
    nft.expect_during_a_run("the report of the hang", || {}, || has(Code::ReconcileStuck, "routes to peers"));

    fs::remove_file(nft.switch()).unwrap();
    await_that("the table", SOON, || n1.run(&["nft", &format!("list {table}")], b"").unwrap().success());
    (1..=number).for_each(|number| desk.delete(&junk(number)));
    await_no_problem(agent);
    expect_reach(&cluster, SOON);
}
