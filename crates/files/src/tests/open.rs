//! Opening files on a real file system.

use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::os::unix::net::UnixListener;

use rustix::fs::{CWD, FileType as Kind, Mode, mknodat};

use super::*;
use crate::write_new;

/// One file of every type except regular, with its name in error messages.
fn special_files(dir: &Path) -> Vec<(PathBuf, &'static str)> {
    let create = |name: &str, kind, device| {
        let path = dir.join(name);
        mknodat(CWD, &path, kind, Mode::from_raw_mode(0o600), device).unwrap();
        path
    };
    let (link, inner, socket) = (dir.join("link"), dir.join("dir"), dir.join("socket"));
    symlink("/etc/hostname", &link).unwrap();
    fs::create_dir(&inner).unwrap();
    drop(UnixListener::bind(&socket).unwrap());
    vec![
        (create("fifo", Kind::Fifo, 0), "a FIFO"),
        (create("zero", Kind::CharacterDevice, makedev(1, 5)), "a device"),
        (link, "a symlink"),
        (inner, "a directory"),
        (socket, "a socket"),
    ]
}

/// A plain open of a FIFO would block here.
#[test]
fn a10_only_regular_files_are_opened() {
    let dir = tempfile::tempdir().unwrap();
    for (path, kind) in special_files(dir.path()) {
        let modes = [File::options(), File::options(), File::options(), File::options()];
        let [mut read, mut write, mut create, mut append] = modes;
        read.read(true);
        write.write(true);
        create.read(true).write(true).create(true);
        append.append(true).create(true);
        for mut options in [read, write, create, append] {
            let error = open(&path, &mut options).unwrap_err();
            assert!(is_refused(&error), "{kind}: {error:?}");
            assert!(error.to_string().contains(kind), "{error}");
        }
    }
}

#[test]
fn regular_files_are_read_and_missing_ones_are_not_found() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    assert_eq!(read(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
    write_new(&path, b"text").unwrap();
    assert_eq!(
        (read_text(&path).unwrap().as_str(), fs::metadata(&path).unwrap().mode() & 0o777),
        ("text", 0o600)
    );
    symlink(&path, dir.path().join("link")).unwrap();
    assert!(open_config(&dir.path().join("link")).is_ok());
    assert!(open_config(Path::new("/dev/null")).is_ok());
    assert!(is_refused(&open_config(Path::new("/dev/zero")).unwrap_err()));
    fs::write(&path, b"\xff").unwrap();
    assert_eq!(read_text(&path).unwrap_err().kind(), io::ErrorKind::InvalidData);
}

#[test]
fn a_file_over_the_size_limit_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    File::create(&path).unwrap().set_len(MAX_SIZE + 1).unwrap();
    assert_eq!(read(&path).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
}

#[test]
fn a14_state_files_writable_by_other_users_are_refused_with_a_fix() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    write_new(&path, b"text").unwrap();
    for (owner, mode, command) in
        [(0, 0o660, "chmod go-w "), (0, 0o602, "chmod go-w "), (1000, 0o600, "chown 0 ")]
    {
        chown(&path, Some(owner), None).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let error = read(&path).unwrap_err();
        let command = format!("{command}{}", path.display());
        assert!(is_refused(&error) && error.to_string().contains(&command), "{error}");
        // Unmanaged files are not checked.
        assert_eq!(read_unmanaged(&path).unwrap(), b"text");
    }
    chown(&path, Some(0), None).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(read(&path).unwrap(), b"text");
}
