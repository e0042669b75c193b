//! Directories on a real file system.

use std::os::unix::fs::{PermissionsExt as _, symlink};

use super::*;

#[test]
fn a14_directories_writable_by_other_users_are_refused_with_a_fix() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state");
    check_dir(&path).unwrap();
    fs::create_dir(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    check_dir(&path).unwrap();
    for mode in [0o777, 0o775, 0o1777] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let error = check_dir(&path).unwrap_err().to_string();
        assert!(error.contains(&format!("chmod go-w {}", path.display())), "{error}");
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
    // A symlink to a directory is accepted unless another user created the symlink.
    let link = dir.path().join("link");
    symlink(&path, &link).unwrap();
    check_dir(&link).unwrap();
    std::os::unix::fs::lchown(&link, Some(1000), None).unwrap();
    for link in ["link", "link/"] {
        assert!(matches!(check_dir(&dir.path().join(link)), Err(UnsafeDir::Symlink(_))), "{link}");
    }
    std::os::unix::fs::lchown(&link, Some(0), None).unwrap();
    std::os::unix::fs::chown(&path, Some(1000), None).unwrap();
    assert!(matches!(check_dir(&link), Err(UnsafeDir::Owner { .. })));
    let error = check_dir(&path).unwrap_err().to_string();
    assert!(error.contains("user 1000") && error.contains("chown 0 "), "{error}");
}
