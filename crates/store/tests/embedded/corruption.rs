//! Truncated, changed and lost files.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use store::{Error, Store, StoreConfig, Watched};
use tempfile::TempDir;

use super::open;
use crate::common::{in_time, next_events, put};

/// Creates a store with three commits.
async fn create() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    for n in 1..=3 {
        store.commit(&[], &[put("/a", &n.to_string()), put(&format!("/n{n}"), "x")]).await.unwrap();
    }
    let log = dir.path().join("log");
    (dir, log)
}

async fn value(dir: &Path) -> String {
    String::from_utf8(open(dir).get("/a").await.unwrap().unwrap().value).unwrap()
}

#[tokio::test]
async fn a_torn_last_line_is_ignored() {
    let (dir, log) = create().await;
    let complete = fs::read(&log).unwrap();
    let last = complete[..complete.len() - 1].iter().rposition(|byte| *byte == b'\n').unwrap() + 1;
    for length in [last + 1, last + 20, complete.len() - 1] {
        fs::write(&log, &complete[..length]).unwrap();
        assert_eq!(value(dir.path()).await, "2");
        // Reading changes nothing.
        assert_eq!(fs::read(&log).unwrap(), &complete[..length]);
        open(dir.path()).commit(&[], &[put("/a", "new")]).await.unwrap();
        assert_eq!(value(dir.path()).await, "new");
        let now = fs::read(&log).unwrap();
        assert_eq!(&now[..last], &complete[..last]);
        assert_eq!(
            now.iter().filter(|byte| **byte == b'\n').count(),
            complete.iter().filter(|byte| **byte == b'\n').count()
        );
    }
}

#[tokio::test]
async fn a_tail_of_zeros_after_a_power_failure_is_ignored() {
    let (dir, log) = create().await;
    let complete = fs::read(&log).unwrap();
    for tail in [&[0; 300][..], b"0123456789abcdef {\"com\0\0\0\0\n"] {
        fs::write(&log, [&complete, tail].concat()).unwrap();
        assert_eq!(value(dir.path()).await, "3");
        open(dir.path()).commit(&[], &[put("/a", "4")]).await.unwrap();
        assert_eq!(value(dir.path()).await, "4");
    }
}

#[tokio::test]
async fn corruption_is_reported_and_the_log_is_not_overwritten() {
    let (dir, log) = create().await;
    let complete = fs::read(&log).unwrap();
    let lines: Vec<&[u8]> = complete.split_inclusive(|byte| *byte == b'\n').collect();
    let mut flipped = complete.clone();
    flipped[lines[0].len() + 60] ^= 0x20;
    let mut last = complete.clone();
    *last.get_mut(complete.len() - 3).unwrap() ^= 1;
    let without_second = [lines[0], lines[2], lines[3]].concat();
    let without_header = lines[1..].concat();
    for corrupt in [flipped, last, without_second, without_header, Vec::new(), b"hello\nworld\n".to_vec()] {
        fs::write(&log, &corrupt).unwrap();
        let store = open(dir.path());
        for error in
            [store.get("/a").await.unwrap_err(), store.commit(&[], &[put("/a", "9")]).await.unwrap_err()]
        {
            assert!(matches!(&error, Error::Corrupt { path, .. } if *path == log), "{error}");
            assert!(error.to_string().contains("move the file away") && !error.is_transient(), "{error}");
        }
        assert_eq!(fs::read(&log).unwrap(), corrupt);
    }
    fs::write(&log, &complete).unwrap();
    assert_eq!(value(dir.path()).await, "3");
}

/// The owner has the complete state in memory, and rewrites the log with the next commit.
#[tokio::test]
async fn a_log_changed_by_another_program_is_rewritten() {
    type Change = fn(&Path);
    let changes: [Change; 4] = [
        |log| fs::rename(log, log.with_extension("old")).unwrap(),
        |log| fs::remove_file(log).unwrap(),
        |log| File::options().write(true).open(log).unwrap().set_len(40).unwrap(),
        |log| File::options().append(true).open(log).unwrap().write_all(b"hello\n").unwrap(),
    ];
    for change in changes {
        let (dir, log) = create().await;
        let store = open(dir.path());
        let mut watch = store.watch("/", store.list("/").await.unwrap().revision + 1).await.unwrap();
        change(&log);
        assert_eq!(store.get("/a").await.unwrap().unwrap().value, b"3");
        store.commit(&[], &[put("/a", "4")]).await.unwrap();
        assert_eq!(next_events(&mut watch, 1).await, ["+/a=4@4"]);
        drop((store, watch));
        let store = open(dir.path());
        assert_eq!(store.get("/a").await.unwrap().unwrap().value, b"4");
        assert_eq!(store.list("/").await.unwrap().entries.len(), 4);
    }
}

/// The lock was removed with the directory.
#[tokio::test]
async fn a_store_with_a_removed_directory_starts_empty_and_locked() {
    let dir = tempfile::tempdir().unwrap();
    let store_dir = dir.path().join("store");
    let store = open(&store_dir);
    store.commit(&[], &[put("/a", "1")]).await.unwrap();
    let mut watch = store.watch("/", store.list("/").await.unwrap().revision + 1).await.unwrap();
    fs::remove_dir_all(&store_dir).unwrap();
    let error = store.commit(&[], &[put("/a", "2")]).await.unwrap_err();
    assert!(error.is_transient(), "{error}");
    assert_eq!(store.get("/a").await.unwrap(), None);
    assert_eq!(in_time(watch.next()).await.unwrap(), Watched::Compacted);
    assert!(watch.next().await.is_err());
    let error = Store::open(&StoreConfig::Embedded { dir: store_dir }).unwrap_err();
    assert!(matches!(error, Error::Held { .. }), "{error}");
}

/// The new log belongs to another process and must not be rewritten.
#[tokio::test]
async fn a_directory_recreated_by_another_process_is_not_used() {
    let dir = tempfile::tempdir().unwrap();
    let store_dir = dir.path().join("store");
    let store = open(&store_dir);
    store.commit(&[], &[put("/a", "1")]).await.unwrap();
    let mut watch = store.watch("/", store.list("/").await.unwrap().revision + 1).await.unwrap();
    fs::remove_dir_all(&store_dir).unwrap();
    let other = open(&store_dir);
    for n in 0..5 {
        other.commit(&[], &[put("/b", &n.to_string())]).await.unwrap();
    }
    let log = || fs::read(store_dir.join("log")).unwrap();
    let before = log();
    for _ in 0..2 {
        let error = store.commit(&[], &[put("/a", "2")]).await.unwrap_err();
        assert!(matches!(error, Error::Held { .. }), "{error}");
    }
    let error = store.get("/a").await.unwrap_err();
    assert!(matches!(error, Error::Held { .. }), "{error}");
    assert!(matches!(in_time(watch.next()).await.unwrap_err(), Error::Held { .. }));
    assert_eq!(log(), before);
    other.commit(&[], &[put("/b", "5")]).await.unwrap();
    drop(other);
    // The first call takes over the lock, and reports that the store was replaced.
    assert!(store.get("/b").await.unwrap_err().is_transient());
    assert_eq!(store.get("/b").await.unwrap().unwrap().value, b"5");
    assert_eq!(store.get("/a").await.unwrap(), None);
    assert_eq!(in_time(watch.next()).await.unwrap(), Watched::Compacted, "although the revision is higher");
}

#[tokio::test]
async fn a_newer_format_is_not_changed() {
    let (dir, log) = create().await;
    // The checksum of the first line has no predecessor.
    let json = r#"{"head":{"format":2,"revision":1,"compacted":0}}"#;
    let sum: String =
        <sha2::Sha256 as sha2::Digest>::digest(json)[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    fs::write(&log, format!("{sum} {json}\n")).unwrap();
    let error = open(dir.path()).get("/a").await.unwrap_err();
    assert!(
        error.to_string().contains("format 2, which is newer than this podwire: update podwire"),
        "{error}"
    );
}

#[tokio::test]
async fn only_the_owner_can_read_the_files() {
    let dir = tempfile::tempdir().unwrap();
    let directory = dir.path().join("new/store");
    open(&directory).commit(&[], &[put("/a", "1")]).await.unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(
        (mode(&directory), mode(&directory.join("log")), mode(&directory.join("lock"))),
        (0o700, 0o600, 0o600)
    );
}

/// Other users could replace the log, or hold the lock.
#[test]
fn a_directory_writable_by_other_users_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let config = StoreConfig::Embedded { dir: dir.path().to_owned() };
    let opened = |mode: u32, owner: u32| {
        std::os::unix::fs::chown(dir.path(), Some(owner), None).unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(mode)).unwrap();
        Store::open(&config).map(drop).map_err(|e| e.to_string())
    };
    for (mode, owner, command) in
        [(0o770, 0, "chmod go-w"), (0o1777, 0, "chmod go-w"), (0o700, 65534, "chown 0")]
    {
        let error = opened(mode, owner).unwrap_err();
        assert!(error.contains(command) && error.contains(dir.path().to_str().unwrap()), "{error}");
    }
    assert_eq!(opened(0o755, 0), Ok(()));
}
