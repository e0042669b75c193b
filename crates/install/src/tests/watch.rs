use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::*;

/// Whether the watch reports a change within five seconds.
fn wakes(watch: &mut FileWatch) -> bool {
    let wait = Timespec { tv_sec: 5, tv_nsec: 0 };
    for _ in 0..100 {
        let fd = watch.as_fd();
        if poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&wait)).unwrap() == 0 {
            return false;
        }
        if watch.changed().unwrap() {
            return true;
        }
    }
    false
}

fn is_quiet(watch: &mut FileWatch) -> bool {
    !watch.changed().unwrap()
}

#[test]
fn the_watch_reports_changes_of_installed_files_only() {
    let site = Site::new();
    let installer = site.installer();
    installer.install().unwrap();
    let mut watch = FileWatch::new(&installer).unwrap();
    assert!(is_quiet(&mut watch));
    fs::write(site.at("etc/cni/net.d/99-other.conf"), "{}").unwrap();
    fs::write(site.at("opt/cni/bin/bridge"), "x").unwrap();
    fs::write(site.at("other"), "x").unwrap();
    assert!(is_quiet(&mut watch));
    for path in [site.plugin(), site.conflist()] {
        let changes: [&dyn Fn(); 4] = [
            &|| fs::write(&path, "x").unwrap(),
            &|| fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap(),
            &|| fs::remove_file(&path).unwrap(),
            &|| {
                fs::write(site.at("other"), "y").unwrap();
                fs::rename(site.at("other"), &path).unwrap();
            },
        ];
        for change in changes {
            change();
            assert!(wakes(&mut watch));
            installer.install().unwrap();
            // The repair is reported as well, and then nothing more.
            assert!(wakes(&mut watch));
            assert!(is_quiet(&mut watch));
            assert_eq!(installer.install().unwrap(), Vec::<String>::new());
        }
    }
}

#[test]
fn the_watch_survives_removed_and_recreated_directories() {
    let site = Site::new();
    let installer = site.installer();
    // The directories do not exist yet.
    let mut watch = FileWatch::new(&installer).unwrap();
    installer.install().unwrap();
    assert!(wakes(&mut watch));
    for removed in ["etc/cni/net.d", "etc/cni", "etc", "opt/cni/bin", "opt"] {
        while watch.changed().unwrap() {}
        fs::remove_dir_all(site.at(removed)).unwrap();
        assert!(wakes(&mut watch), "{removed} removed");
        while watch.changed().unwrap() {}
        installer.install().unwrap();
        assert!(wakes(&mut watch), "{removed} created again");
        while watch.changed().unwrap() {}
        fs::remove_file(site.conflist()).unwrap();
        assert!(wakes(&mut watch), "config after {removed}");
        while watch.changed().unwrap() {}
        fs::remove_file(site.plugin()).unwrap();
        assert!(wakes(&mut watch), "plugin after {removed}");
        installer.install().unwrap();
    }
    while watch.changed().unwrap() {}
    fs::rename(site.at("etc"), site.at("etc.old")).unwrap();
    assert!(wakes(&mut watch), "moved away");
    while watch.changed().unwrap() {}
    fs::write(site.at("etc.old/cni/net.d/10-podwire.conflist"), "x").unwrap();
    assert!(is_quiet(&mut watch), "the directory is not watched any more");
    installer.install().unwrap();
    assert!(wakes(&mut watch));
    while watch.changed().unwrap() {}
    fs::remove_file(site.conflist()).unwrap();
    assert!(wakes(&mut watch));
}
