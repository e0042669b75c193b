use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::*;

/// Whether the watch says something within five seconds.
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
fn the_watch_sees_what_happens_to_our_files_and_nothing_else() {
    let site = Site::new();
    let installer = site.installer();
    installer.put().unwrap();
    let mut watch = FileWatch::new(&installer).unwrap();
    assert!(is_quiet(&mut watch));
    fs::write(site.at("etc/cni/net.d/99-other.conf"), "{}").unwrap();
    fs::write(site.at("opt/cni/bin/bridge"), "x").unwrap();
    fs::write(site.at("other"), "x").unwrap();
    assert!(is_quiet(&mut watch));
    for path in [site.plugin(), site.conflist()] {
        let harm: [&dyn Fn(); 4] = [
            &|| fs::write(&path, "x").unwrap(),
            &|| fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap(),
            &|| fs::remove_file(&path).unwrap(),
            &|| {
                fs::write(site.at("other"), "y").unwrap();
                fs::rename(site.at("other"), &path).unwrap();
            },
        ];
        for harm in harm {
            harm();
            assert!(wakes(&mut watch));
            installer.put().unwrap();
            // Our own repair is seen, too; then it is quiet.
            assert!(wakes(&mut watch));
            assert!(is_quiet(&mut watch));
            assert_eq!(installer.put().unwrap(), Vec::<String>::new());
        }
    }
}

#[test]
fn the_watch_survives_directories_that_go_and_come_back() {
    let site = Site::new();
    let installer = site.installer();
    // Nothing is there yet.
    let mut watch = FileWatch::new(&installer).unwrap();
    installer.put().unwrap();
    assert!(wakes(&mut watch));
    for gone in ["etc/cni/net.d", "etc/cni", "etc", "opt/cni/bin", "opt"] {
        while watch.changed().unwrap() {}
        fs::remove_dir_all(site.at(gone)).unwrap();
        assert!(wakes(&mut watch), "{gone} removed");
        while watch.changed().unwrap() {}
        installer.put().unwrap();
        assert!(wakes(&mut watch), "{gone} made again");
        while watch.changed().unwrap() {}
        fs::remove_file(site.conflist()).unwrap();
        assert!(wakes(&mut watch), "config after {gone}");
        while watch.changed().unwrap() {}
        fs::remove_file(site.plugin()).unwrap();
        assert!(wakes(&mut watch), "plugin after {gone}");
        installer.put().unwrap();
    }
    while watch.changed().unwrap() {}
    fs::rename(site.at("etc"), site.at("etc.old")).unwrap();
    assert!(wakes(&mut watch), "moved away");
    while watch.changed().unwrap() {}
    fs::write(site.at("etc.old/cni/net.d/10-podwire.conflist"), "x").unwrap();
    assert!(is_quiet(&mut watch), "no longer ours");
    installer.put().unwrap();
    assert!(wakes(&mut watch));
    while watch.changed().unwrap() {}
    fs::remove_file(site.conflist()).unwrap();
    assert!(wakes(&mut watch));
}
