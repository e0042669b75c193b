//! Namespaces: which paths can be opened, the errors of other paths, and the return to the original namespace.

use std::path::Path;

use netlink::{NetNs, NetNsError, RtSocket};

#[test]
fn missing_paths_files_and_other_namespaces_have_distinct_errors() {
    let dir = tempfile::tempdir().unwrap();
    let missing = NetNs::open(&dir.path().join("nothing")).unwrap_err();
    assert!(matches!(missing, NetNsError::Missing { .. }), "{missing}");
    assert!(missing.is_gone());

    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let plain = NetNs::open(&file).unwrap_err();
    assert!(matches!(plain, NetNsError::NotNamespace { .. }), "{plain}");
    assert!(plain.to_string().starts_with(file.to_str().unwrap()), "{plain}");
    assert!(matches!(NetNs::open(&file.join("below")), Err(NetNsError::Missing { .. })));
    assert!(matches!(NetNs::open(dir.path()), Err(NetNsError::NotNamespace { .. })));

    let mount = NetNs::open(Path::new("/proc/self/ns/mnt")).unwrap_err();
    assert_eq!(mount.to_string(), "/proc/self/ns/mnt is a mount namespace, not a network namespace");
    assert!(!mount.is_gone());
}

#[test]
fn a_pipe_and_a_socket_are_refused_without_blocking() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    assert!(matches!(NetNs::open(&pipe), Err(NetNsError::NotNamespace { .. })));
    let socket = dir.path().join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    assert!(matches!(NetNs::open(&socket), Err(NetNsError::NotNamespace { .. })));
}

#[test]
fn cookies_are_unique_and_constant() {
    let (a, b) = (NetNs::create().unwrap(), NetNs::create().unwrap());
    let (first, second) = (a.cookie().unwrap(), b.cookie().unwrap());
    assert_ne!(first, second);
    assert_eq!(a.cookie().unwrap(), first);
    assert_eq!(RtSocket::open_in(&a).unwrap().netns_cookie().unwrap(), first);
    assert_ne!(NetNs::current().unwrap().cookie().unwrap(), first);
}

#[test]
fn is_same_compares_namespaces_not_paths() {
    let (a, b) = (NetNs::create().unwrap(), NetNs::create().unwrap());
    let reopened = a.run(NetNs::current).unwrap().unwrap();
    assert!(a.is_same(&reopened).unwrap());
    assert!(!a.is_same(&b).unwrap());
}

#[test]
fn a_thread_returns_after_nesting_and_after_panics() {
    let original = NetNs::current().unwrap();
    let (a, b) = (NetNs::create().unwrap(), NetNs::create().unwrap());
    let nested = a.run(|| {
        let inner = b.run(|| NetNs::current().unwrap()).unwrap();
        (NetNs::current().unwrap(), inner)
    });
    let (outer, inner) = nested.unwrap();
    assert!(outer.is_same(&a).unwrap() && inner.is_same(&b).unwrap());
    assert!(NetNs::current().unwrap().is_same(&original).unwrap());

    let panic = std::panic::catch_unwind(|| a.run(|| panic!("inside"))).unwrap_err();
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"inside"));
    assert!(NetNs::current().unwrap().is_same(&original).unwrap());
}

#[test]
fn a_socket_stays_in_its_namespace_on_other_threads() {
    let ns = NetNs::create().unwrap();
    let mut socket = RtSocket::open_in(&ns).unwrap();
    let links = std::thread::spawn(move || socket.links().unwrap()).join().unwrap();
    // A new namespace has lo and, on some kernels, tunnel devices. None of them is up.
    assert!(links.iter().any(|l| l.name == "lo") && links.iter().all(|l| !l.up));
}

#[test]
fn without_cap_sys_admin_the_closure_does_not_run() {
    let ns = NetNs::create().unwrap();
    let entered = std::thread::spawn(move || {
        let mut sets = rustix::thread::capabilities(None).unwrap();
        sets.effective.remove(rustix::thread::CapabilitySet::SYS_ADMIN);
        rustix::thread::set_capabilities(None, sets).unwrap();
        let mut has_run = false;
        let result = ns.run(|| has_run = true);
        (has_run, result)
    });
    let (has_run, result) = entered.join().unwrap();
    assert!(!has_run);
    let error = result.unwrap_err();
    assert!(matches!(error, NetNsError::Enter { .. }), "{error}");
    assert_eq!(error.errno(), Some(rustix::io::Errno::PERM));
}

/// Opening a device can have side effects, and a client of the agent may name a file that it cannot open itself.
#[test]
fn a_file_that_is_not_a_namespace_is_not_opened() {
    use rustix::fs::inotify;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "x").unwrap();
    let events = inotify::init(inotify::CreateFlags::NONBLOCK).unwrap();
    inotify::add_watch(&events, &file, inotify::WatchFlags::OPEN).unwrap();
    assert!(matches!(NetNs::open(&file), Err(NetNsError::NotNamespace { .. })));
    let mut buffer = [std::mem::MaybeUninit::uninit(); 512];
    let mut reader = inotify::Reader::new(&events, &mut buffer);
    assert_eq!(reader.next().err(), Some(rustix::io::Errno::AGAIN));
    std::fs::File::open(&file).unwrap();
    assert!(reader.next().is_ok(), "inotify reports an open");
}
