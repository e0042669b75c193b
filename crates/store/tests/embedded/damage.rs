//! Files that were cut off, changed or lost.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use store::{Error, Store, StoreConfig, Watched};
use tempfile::TempDir;

use super::open;
use crate::common::{in_time, put, told};

/// A store with three commits.
async fn written() -> (TempDir, PathBuf) {
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
async fn a_torn_last_line_never_happened() {
    let (dir, log) = written().await;
    let whole = fs::read(&log).unwrap();
    let last = whole[..whole.len() - 1].iter().rposition(|byte| *byte == b'\n').unwrap() + 1;
    for length in [last + 1, last + 20, whole.len() - 1] {
        fs::write(&log, &whole[..length]).unwrap();
        assert_eq!(value(dir.path()).await, "2");
        // Reading changes nothing.
        assert_eq!(fs::read(&log).unwrap(), &whole[..length]);
        open(dir.path()).commit(&[], &[put("/a", "again")]).await.unwrap();
        assert_eq!(value(dir.path()).await, "again");
        let now = fs::read(&log).unwrap();
        assert_eq!(&now[..last], &whole[..last]);
        assert_eq!(
            now.iter().filter(|byte| **byte == b'\n').count(),
            whole.iter().filter(|byte| **byte == b'\n').count()
        );
    }
}

#[tokio::test]
async fn holes_of_a_power_cut_never_happened() {
    let (dir, log) = written().await;
    let whole = fs::read(&log).unwrap();
    for tail in [&[0; 300][..], b"0123456789abcdef {\"com\0\0\0\0\n"] {
        fs::write(&log, [&whole, tail].concat()).unwrap();
        assert_eq!(value(dir.path()).await, "3");
        open(dir.path()).commit(&[], &[put("/a", "4")]).await.unwrap();
        assert_eq!(value(dir.path()).await, "4");
    }
}

#[tokio::test]
async fn damage_is_told_and_nothing_is_overwritten() {
    let (dir, log) = written().await;
    let whole = fs::read(&log).unwrap();
    let lines: Vec<&[u8]> = whole.split_inclusive(|byte| *byte == b'\n').collect();
    let mut flipped = whole.clone();
    flipped[lines[0].len() + 60] ^= 0x20;
    let mut last = whole.clone();
    *last.get_mut(whole.len() - 3).unwrap() ^= 1;
    let without_second = [lines[0], lines[2], lines[3]].concat();
    let headless = lines[1..].concat();
    for damaged in [flipped, last, without_second, headless, Vec::new(), b"hello\nworld\n".to_vec()] {
        fs::write(&log, &damaged).unwrap();
        let store = open(dir.path());
        for error in
            [store.get("/a").await.unwrap_err(), store.commit(&[], &[put("/a", "9")]).await.unwrap_err()]
        {
            assert!(matches!(&error, Error::Damaged { path, .. } if *path == log), "{error}");
            assert!(error.to_string().contains("move the file away") && !error.is_transient(), "{error}");
        }
        assert_eq!(fs::read(&log).unwrap(), damaged);
    }
    fs::write(&log, &whole).unwrap();
    assert_eq!(value(dir.path()).await, "3");
}

/// The owner's memory is complete: the next commit rewrites the log.
#[tokio::test]
async fn a_log_that_another_program_changes_is_written_again_by_its_owner() {
    type Change = fn(&Path);
    let changes: [Change; 4] = [
        |log| fs::rename(log, log.with_extension("old")).unwrap(),
        |log| fs::remove_file(log).unwrap(),
        |log| File::options().write(true).open(log).unwrap().set_len(40).unwrap(),
        |log| File::options().append(true).open(log).unwrap().write_all(b"hello\n").unwrap(),
    ];
    for change in changes {
        let (dir, log) = written().await;
        let store = open(dir.path());
        let mut watch = store.watch("/", store.list("/").await.unwrap().revision + 1).await.unwrap();
        change(&log);
        assert_eq!(store.get("/a").await.unwrap().unwrap().value, b"3");
        store.commit(&[], &[put("/a", "4")]).await.unwrap();
        assert_eq!(told(&mut watch, 1).await, ["+/a=4@4"]);
        drop((store, watch));
        let store = open(dir.path());
        assert_eq!(store.get("/a").await.unwrap().unwrap().value, b"4");
        assert_eq!(store.list("/").await.unwrap().entries.len(), 4);
    }
}

/// The lock went with it.
#[tokio::test]
async fn a_store_whose_directory_was_removed_begins_anew_with_a_lock() {
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

/// The log there is another process's, and is not rewritten.
#[tokio::test]
async fn a_store_whose_directory_another_process_made_again_is_left_to_it() {
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
    // The first call takes the lock over, and says that the store is another one.
    assert!(store.get("/b").await.unwrap_err().is_transient());
    assert_eq!(store.get("/b").await.unwrap().unwrap().value, b"5");
    assert_eq!(store.get("/a").await.unwrap(), None);
    assert_eq!(in_time(watch.next()).await.unwrap(), Watched::Compacted, "its revision is higher by now");
}

#[tokio::test]
async fn a_newer_format_is_left_alone() {
    let (dir, log) = written().await;
    // The checksum of the first line has nothing before it.
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
async fn only_its_owner_can_read_it() {
    let dir = tempfile::tempdir().unwrap();
    let directory = dir.path().join("new/store");
    open(&directory).commit(&[], &[put("/a", "1")]).await.unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(
        (mode(&directory), mode(&directory.join("log")), mode(&directory.join("lock"))),
        (0o700, 0o600, 0o600)
    );
}

/// A user who can write there could replace the log, or hold the lock.
#[test]
fn a_directory_that_other_users_can_write_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let config = StoreConfig::Embedded { dir: dir.path().to_owned() };
    let opened = |mode: u32, owner: u32| {
        std::os::unix::fs::chown(dir.path(), Some(owner), None).unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(mode)).unwrap();
        Store::open(&config).map(drop).map_err(|e| e.to_string())
    };
    for (mode, owner, help) in
        [(0o770, 0, "chmod go-w"), (0o1777, 0, "chmod go-w"), (0o700, 65534, "chown 0")]
    {
        let error = opened(mode, owner).unwrap_err();
        assert!(error.contains(help) && error.contains(dir.path().to_str().unwrap()), "{error}");
    }
    assert_eq!(opened(0o755, 0), Ok(()));
}
