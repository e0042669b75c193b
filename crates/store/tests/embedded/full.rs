//! A full disk: a small tmpfs in a separate mount namespace.

use std::fs;
use std::process::Command;

use store::Error;

use super::{child, open};
use crate::common::put;

#[tokio::test]
#[ignore = "the child process of a_full_disk_fails_the_commit_and_keeps_the_store"]
async fn fills_its_disk() {
    let Some(dir) = child::directory() else { return };
    fs::write(dir.join("ballast"), vec![b'x'; 100_000]).unwrap();
    let store = open(&dir.join("store"));
    let value = "v".repeat(5000);
    let mut n = 0;
    let error = loop {
        match store.commit(&[], &[put("/last", &format!("{n} {value}"))]).await {
            Ok(_) => n += 1,
            Err(error) => break error,
        }
        assert!(n < 1000, "the disk does not fill");
    };
    let Error::Io { source, .. } = &error else { panic!("{error}") };
    assert_eq!(source.kind(), std::io::ErrorKind::StorageFull, "{error}");
    assert!(error.is_transient() && error.to_string().contains("log: "), "{error}");
    // No incomplete data is left, in memory or on disk.
    let log = fs::read(dir.join("store/log")).unwrap();
    assert!(log.ends_with(b"}\n"));
    let expect_last = async |store: &store::Store| {
        let last = store.get("/last").await.unwrap().unwrap();
        assert!(last.value.starts_with(format!("{} ", n - 1).as_bytes()));
    };
    expect_last(&store).await;
    drop(store);
    let store = open(&dir.join("store"));
    expect_last(&store).await;
    fs::remove_file(dir.join("ballast")).unwrap();
    store.commit(&[], &[put("/last", "end")]).await.unwrap();
    drop(store);
    assert_eq!(open(&dir.join("store")).get("/last").await.unwrap().unwrap().value, b"end");
    println!("filled");
}

#[test]
fn a_full_disk_fails_the_commit_and_keeps_the_store() {
    let dir = tempfile::tempdir().unwrap();
    let mut unshare = Command::new("unshare");
    let script = r#"mount -t tmpfs -o size=400k none "$PODWIRE_TEST_STORE" && exec "$0" "$@""#;
    unshare.args(["--mount", "sh", "-c", script]).arg(std::env::current_exe().unwrap());
    let output = child::command(unshare, "embedded::full::fills_its_disk", dir.path()).output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && stdout.contains("filled"), "{output:?}");
}
