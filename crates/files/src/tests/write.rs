//! Replacing files on a real file system.

use std::os::unix::fs::{MetadataExt as _, symlink};
use std::time::SystemTime;

use rustix::fs::{CWD, FileType as Kind, Mode, mknodat};

use super::*;

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[test]
fn write_new_replaces_a_symlink_or_fifo_of_that_name() {
    let dir = tempfile::tempdir().unwrap();
    let victim = dir.path().join("victim");
    fs::write(&victim, "unrelated").unwrap();
    let path = dir.path().join(".new");
    symlink(&victim, &path).unwrap();
    write_new(&path, b"new").unwrap();
    assert_eq!(
        (fs::read(&path).unwrap(), fs::read(&victim).unwrap()),
        (b"new".to_vec(), b"unrelated".to_vec())
    );
    mknodat(CWD, dir.path().join("fifo"), Kind::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    write_new(&dir.path().join("fifo"), b"new").unwrap();
}

/// A symlink at the path is replaced, not followed.
#[test]
fn a_replaced_file_has_content_and_mode_and_no_temporary_file_remains() {
    let dir = tempfile::tempdir().unwrap();
    let (path, victim) = (dir.path().join("file"), dir.path().join("victim"));
    fs::write(&victim, "unrelated").unwrap();
    symlink(&victim, &path).unwrap();
    for (mode, durability, writers) in [
        (0o600, Durability::Boot, Writers::One),
        (0o755, Durability::Disk, Writers::Many),
        (0o644, Durability::Disk, Writers::One),
    ] {
        let content = format!("{mode:o}");
        replace(&path, content.as_bytes(), Replacement { mode, durability, writers }).unwrap();
        let meta = fs::symlink_metadata(&path).unwrap();
        assert!(meta.is_file());
        assert_eq!((fs::read_to_string(&path).unwrap(), meta.mode() & 0o7777), (content, mode));
    }
    assert_eq!(fs::read_to_string(&victim).unwrap(), "unrelated");
    assert_eq!(names(dir.path()), ["file", "victim"]);
}

#[test]
fn a_failed_replacement_keeps_the_old_entry_and_no_temporary_file() {
    let dir = tempfile::tempdir().unwrap();
    // rename(2) of a file to a directory fails.
    fs::create_dir_all(dir.path().join("file/inner")).unwrap();
    for writers in [Writers::One, Writers::Many] {
        let how = Replacement { writers, ..Replacement::STATE };
        replace(&dir.path().join("file"), b"new", how).unwrap_err();
    }
    assert_eq!(names(dir.path()), ["file"]);
}

#[test]
fn temporary_files_of_killed_processes_are_overwritten_or_removed() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    // A writer that was killed before the rename.
    write_temp(&at(&temp_name(OsStr::new("boot"), Writers::One).unwrap()), b"half", Replacement::STATE)
        .unwrap();
    replace(&at("boot"), b"whole", Replacement::STATE).unwrap();
    assert_eq!(names(dir.path()), ["boot"]);
    let killed: Vec<PathBuf> = ["boot", "boot", "other"]
        .map(|name| at(&temp_name(OsStr::new(name), Writers::Many).unwrap()))
        .into_iter()
        .inspect(|path| drop(write_new(path, b"half").unwrap()))
        .collect();
    fs::write(at(".boot.swp"), "unrelated").unwrap();
    let hour = Duration::from_secs(3600);
    let aged = File::options().write(true).open(&killed[0]).unwrap();
    aged.set_modified(SystemTime::now() - 2 * hour).unwrap();
    assert_eq!(remove_leftovers(dir.path(), None, hour).unwrap(), killed[..1]);
    assert_eq!(remove_leftovers(dir.path(), Some(OsStr::new("boot")), Duration::ZERO).unwrap(), killed[1..2]);
    assert_eq!(remove_leftovers(dir.path(), None, Duration::ZERO).unwrap(), killed[2..]);
    assert_eq!(names(dir.path()), [".boot.swp", "boot"]);
    assert!(remove_leftovers(&at("missing"), None, hour).unwrap().is_empty());
}
