//! Tombstones on a real file system.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::time::SystemTime;

use types::RequestId;

use super::*;

fn key(container: &str) -> AttachmentKey {
    AttachmentKey {
        network: "blue".try_into().unwrap(),
        container: container.try_into().unwrap(),
        ifname: "eth0".try_into().unwrap(),
    }
}

fn call(number: u8) -> CniCall {
    let env = BTreeMap::from([("CNI_COMMAND".to_owned(), "DEL".to_owned())]);
    CniCall { request_id: RequestId::from_random([number; 16]), env, config: r#"{"name":"blue"}"#.to_owned() }
}

fn directory() -> (tempfile::TempDir, Tombstones) {
    let dir = tempfile::tempdir().unwrap();
    let tombstones = Tombstones::new(&dir.path().join("run/podwire"));
    (dir, tombstones)
}

fn mode(path: &Path) -> u32 {
    path.metadata().unwrap().permissions().mode() & 0o7777
}

#[test]
fn there_is_one_tombstone_per_key() {
    let (_dir, tombstones) = directory();
    assert!(
        tombstones.is_empty().unwrap()
            && tombstones.list().unwrap().is_empty()
            && !tombstones.exists(&key("a")).unwrap()
    );
    tombstones.write(&call(1), &key("a")).unwrap();
    tombstones.write(&call(2), &key("b")).unwrap();
    tombstones.write(&call(3), &key("a")).unwrap();
    assert!(
        !tombstones.is_empty().unwrap()
            && tombstones.exists(&key("a")).unwrap()
            && !tombstones.exists(&key("c")).unwrap()
    );
    let mut all = tombstones.list().unwrap();
    all.sort_by_key(|tombstone| tombstone.key.clone());
    let contents: Vec<_> =
        all.iter().map(|s| (s.key.clone().unwrap(), s.call.as_ref().unwrap().clone())).collect();
    assert_eq!(contents, [(key("a"), call(3)), (key("b"), call(2))]);
    assert_eq!((mode(tombstones.dir()), mode(&all[0].path)), (0o700, 0o600));
    // The file is also a valid call without the key, for agents of other versions.
    let bare: CniCall = serde_json::from_slice(&fs::read(&all[0].path).unwrap()).unwrap();
    assert_eq!(bare, call(3));
    for tombstone in &all {
        tombstones.remove(tombstone).unwrap();
        tombstones.remove(tombstone).unwrap();
    }
    assert!(tombstones.is_empty().unwrap());
    assert_eq!(fs::read_dir(tombstones.dir()).unwrap().count(), 0);
}

#[test]
fn a_replaced_tombstone_is_not_removed() {
    let (_dir, tombstones) = directory();
    tombstones.write(&call(1), &key("a")).unwrap();
    let old = tombstones.list().unwrap().remove(0);
    tombstones.write(&call(2), &key("a")).unwrap();
    tombstones.remove(&old).unwrap();
    assert_eq!(tombstones.put_aside(&old).unwrap(), None);
    assert!(tombstones.exists(&key("a")).unwrap());
    let new = tombstones.list().unwrap().remove(0);
    assert_eq!(new.call.as_ref().unwrap(), &call(2));
    tombstones.remove(&new).unwrap();
    assert!(tombstones.is_empty().unwrap());
}

/// If the agent is killed between the two steps of `remove`, the file has its private name and is served again.
#[test]
fn an_interrupted_removal_loses_no_tombstone() {
    let (_dir, tombstones) = directory();
    tombstones.write(&call(1), &key("a")).unwrap();
    let tombstone = tombstones.list().unwrap().remove(0);
    tombstones.rename_if_same(&tombstone, |name| format!("{name}-served")).unwrap().unwrap();
    assert!(!tombstones.is_empty().unwrap());
    let renamed = tombstones.list().unwrap().remove(0);
    assert_eq!(renamed.key, Some(key("a")));
    tombstones.remove(&renamed).unwrap();
    assert!(tombstones.is_empty().unwrap());
}

#[test]
fn an_unreadable_tombstone_is_listed_and_put_aside() {
    let (_dir, tombstones) = directory();
    tombstones.write(&call(1), &key("a")).unwrap();
    let path = tombstones.list().unwrap().remove(0).path;
    fs::create_dir(tombstones.dir().join("directory")).unwrap();
    for (name, text) in [("x", &b""[..]), ("y", b"{\"key\":1}"), ("z", &vec![b' '; MAX_SIZE + 1])] {
        fs::write(path.with_file_name(name), text).unwrap();
    }
    let (good, bad): (Vec<_>, Vec<_>) = tombstones.list().unwrap().into_iter().partition(|s| s.call.is_ok());
    assert_eq!((good.len(), bad.len()), (1, 4));
    for tombstone in bad {
        let message = tombstone.call.as_ref().unwrap_err().to_string();
        assert!(tombstone.key.is_none() && message.contains(tombstone.path.to_str().unwrap()), "{message}");
        assert!(tombstones.put_aside(&tombstone).unwrap().unwrap().exists());
    }
    tombstones.remove(&good[0]).unwrap();
    assert!(tombstones.is_empty().unwrap() && tombstones.list().unwrap().is_empty());
}

#[test]
fn temporary_files_of_killed_plugins_are_removed() {
    let (_dir, tombstones) = directory();
    fs::create_dir_all(tombstones.dir()).unwrap();
    let (old, new) = (tombstones.dir().join(".a.1.podwire-tmp"), tombstones.dir().join(".a.2.podwire-tmp"));
    for path in [&old, &new] {
        fs::write(path, "{").unwrap();
    }
    File::options()
        .write(true)
        .open(&old)
        .unwrap()
        .set_modified(SystemTime::now() - MAX_TEMPORARY_AGE * 2)
        .unwrap();
    assert!(tombstones.is_empty().unwrap() && tombstones.list().unwrap().is_empty());
    assert!(!old.exists() && new.exists());
}

#[test]
fn a_directory_that_cannot_be_created_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let message = Tombstones::new(&file).write(&call(1), &key("a")).unwrap_err().to_string();
    assert!(message.contains("create") && message.contains(file.to_str().unwrap()), "{message}");
}
