//! Files left by processes that were killed in the critical section, and corrupt files.

use super::*;

/// Simulates a kill in `begin`: an unfinished record, and claims that link to it.
fn interrupt_begin(state: &TestState, claims: &[&str]) {
    let temp = state.path("attachments/.new-4711");
    fs::write(&temp, "{\"sch").unwrap();
    for claim in claims {
        fs::hard_link(&temp, state.path("addresses").join(claim)).unwrap();
    }
    state.mark();
}

/// Simulates a kill in `release`: the record has lost its name, and its claims exist.
fn interrupt_release(state: &TestState, container: &str) {
    let record = state.path(&format!("attachments/{container}@eth0.ready"));
    fs::rename(record, state.path("attachments/.new-4712")).unwrap();
    state.mark();
}

#[test]
fn c3_an_interrupted_begin_is_repaired() {
    let state = TestState::new(DUAL);
    let existing = state.ready(&key("existing"));
    interrupt_begin(&state, &["10.0.0.3", "fd00::3"]);
    state.network.repair_if_marked().unwrap();
    assert_eq!(state.names("attachments"), ["existing@eth0.ready".to_owned()].into());
    assert_eq!(state.names("addresses"), ["10.0.0.2".to_owned(), "fd00::2".to_owned()].into());
    assert!(ips(&existing).iter().all(|ip| state.network.is_claimed_by(*ip, &existing).unwrap()));
    assert_eq!(fs::read(state.path("lock")).unwrap(), b"0");
    assert_eq!(ips(&state.started(&key("next"))), [ip("10.0.0.3"), ip("fd00::3")]);
}

#[test]
fn c3_without_the_mark_nothing_is_repaired() {
    let state = TestState::new(DUAL);
    interrupt_begin(&state, &["10.0.0.2"]);
    fs::write(state.path("lock"), "0").unwrap();
    assert_eq!(ips(&state.started(&key("c1"))), [ip("10.0.0.3"), ip("fd00::2")]);
}

#[test]
fn c3_an_interrupted_release_leaves_no_record_with_addresses() {
    let state = TestState::new(DUAL);
    drop(state.ready(&key("c1")));
    // A release first removes the name of the record.
    interrupt_release(&state, "c1");
    assert!(state.network.find(&key("c1")).unwrap().is_none());
    state.network.repair_if_marked().unwrap();
    state.expect_empty();
}

/// Otherwise another attachment could get the address while the record still names it, and undoing the record would remove the
/// firewall elements of the new owner.
#[test]
fn c3_a_release_removes_the_record_before_the_claims() {
    let state = TestState::new(DUAL);
    let held = state.ready(&key("c1"));
    // An index that cannot be opened stops the release at its first claim.
    for name in state.names("index") {
        fs::remove_file(state.path("index").join(&name)).unwrap();
        fs::create_dir(state.path("index").join(name)).unwrap();
    }
    held.release(&[]).unwrap_err();
    assert_eq!(state.names("attachments"), [format!(".new-{}", std::process::id())].into());
}

#[test]
fn c3_an_index_with_stale_bits_is_rebuilt_before_exhaustion() {
    let state = TestState::new(DUAL);
    drop(state.ready(&key("c1")));
    for name in state.names("index").iter().filter(|name| name.as_str() != "last") {
        fs::write(state.path("index").join(name), [0xff; 64]).unwrap();
    }
    state.network.check_capacity(&state.pools).unwrap();
    assert_eq!(state.fill("a"), 12);
    state.expect_consistent();
}

#[test]
fn c3_a_lost_index_loses_no_address() {
    let state = TestState::new(DUAL);
    assert_eq!(state.fill("a"), 13);
    for name in state.names("index") {
        fs::remove_file(state.path("index").join(name)).unwrap();
    }
    state.network.find(&key("a7")).unwrap().unwrap().release(&[]).unwrap();
    for name in state.names("index").iter().filter(|name| name.as_str() != "last") {
        fs::write(state.path("index").join(name), []).unwrap();
    }
    assert_eq!(ips(&state.started(&key("b"))), [ip("10.0.0.9"), ip("fd00::9")]);
    assert!(matches!(state.begin(&key("c")), Err(StateError::Exhausted { .. })));
}

#[test]
fn c3_an_unreadable_record_can_be_released() {
    let newer = serde_json::json!({"schema": SCHEMA + 1, "something": "new"}).to_string();
    let unreadable: [&[u8]; 5] = [b"", b"{\"schema\":1,\"net", b"\xff\xfe\x00", b"null", newer.as_bytes()];
    for text in unreadable {
        let state = TestState::new(DUAL);
        let other = state.ready(&key("other"));
        drop(state.ready(&key("broken")));
        let path = state.path("attachments/broken@eth0.ready");
        // Written in place, so the claims are still links to it.
        fs::write(&path, text).unwrap();
        let listed = state.network.list().unwrap();
        let broken = listed.iter().find(|l| l.stem == "broken@eth0").unwrap();
        assert_eq!((&broken.attachment, broken.phase), (&None, RecordPhase::Ready));
        assert!(matches!(state.begin(&key("broken")).unwrap(), Begin::Exists(RecordPhase::Ready)));

        let requested = [(ip("10.0.0.3"), None)];
        let error = begin(&state.network, &key("x"), Some(&state.pools), &requested).unwrap_err().to_string();
        assert!(error.contains("whose record cannot be read"), "{error}");

        let mut held = state.network.find(&key("broken")).unwrap().unwrap();
        held.reopen().unwrap();
        held.release(&[]).unwrap();
        assert_eq!(state.names("attachments"), ["other@eth0.ready".to_owned()].into());
        assert_eq!(state.names("addresses"), ["10.0.0.2".to_owned(), "fd00::2".to_owned()].into());
        drop(other);
        state.expect_consistent();
    }
}

#[test]
fn c3_a_record_with_wrong_addresses_releases_its_claims() {
    let state = TestState::new(DUAL);
    let other = state.ready(&key("other"));
    drop(state.ready(&key("wrong")));
    let path = state.path("attachments/wrong@eth0.ready");
    let text =
        fs::read_to_string(&path).unwrap().replace("10.0.0.3", "10.0.0.2").replace("fd00::3", "fd00::9");
    fs::write(&path, text).unwrap();
    state.network.find(&key("wrong")).unwrap().unwrap().release(&[]).unwrap();
    drop(other);
    assert_eq!(state.names("addresses"), ["10.0.0.2".to_owned(), "fd00::2".to_owned()].into());
    state.expect_consistent();
}

#[test]
fn a_directory_of_another_program_is_refused_and_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("networks")).unwrap();
    fs::write(dir.path().join("networks/unmanaged"), "x").unwrap();
    let refused = NodeState::open(dir.path()).unwrap_err();
    assert!(matches!(refused, StateError::Unmanaged { .. }), "{refused}");
    assert!(refused.to_string().contains("networks"), "{refused}");
    assert!(dir.path().join("networks/unmanaged").exists());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

/// `rm -rf` can remove the mark while a running agent creates directories.
#[test]
fn a_state_directory_without_its_mark_is_recognized_by_content() {
    let state = TestState::new(DUAL);
    drop(state.ready(&key("a")));
    let dir = state.dir.path();
    let open_unmarked = |change: &dyn Fn()| {
        change();
        for mark in ["podwire.lock", "boot"] {
            fs::remove_file(dir.join(mark)).unwrap();
        }
        NodeState::open(dir)
    };
    assert_eq!(
        open_unmarked(&|| ()).unwrap().networks().unwrap().len(),
        0,
        "emptied, to be recovered from the kernel"
    );
    fs::create_dir_all(dir.join("networks/blue/index")).unwrap();
    open_unmarked(&|| ()).unwrap();
    let refused = open_unmarked(&|| fs::write(dir.join("sysctls"), "not a log").unwrap()).unwrap_err();
    assert!(matches!(refused, StateError::Unmanaged { .. }), "{refused}");
}

#[test]
fn removing_the_state_keeps_files_of_other_programs() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state");
    let state = NodeState::open(&path).unwrap();
    fs::write(path.join("other"), "x").unwrap();
    state.remove().unwrap();
    assert_eq!(fs::read_dir(&path).unwrap().count(), 1);
    fs::remove_file(path.join("other")).unwrap();
    let state = NodeState::open(&path).unwrap();
    // Left by killed processes, also of earlier versions.
    for name in [".boot.podwire-tmp", ".sysctls.podwire-tmp", "boot.new", "sysctls.new"] {
        fs::write(path.join(name), "").unwrap();
    }
    state.remove().unwrap();
    assert!(!path.exists());
}

#[test]
fn f3_a_claim_removed_by_a_repair_is_quarantined() {
    let state = TestState::new("fd00::/125");
    let first = state.ready(&key("c1"));
    let address = ips(&first)[0];
    first.release(&[address]).unwrap();
    // Simulates a process that was killed in a release: the record is removed, the claim is not.
    let second = state.ready(&key("c2"));
    let unreleased = ips(&second)[0];
    drop(second);
    interrupt_release(&state, "c2");
    state.network.check_capacity(&state.pools).unwrap();
    let range = &state.pools.sets()[0].ranges()[0];
    assert!(index::is_quarantined(&state.path(""), range, unreleased).unwrap());
    assert!(!index::is_quarantined(&state.path(""), range, address).unwrap());
}

const NO_LIVE_PODS: OrphanCheck<'static> = OrphanCheck { is_alive: &|_| false, remove_objects: &|_| Ok(()) };

#[test]
fn c3_only_claims_without_a_record_are_freed() {
    let state = TestState::new(DUAL);
    let recorded = state.ready(&key("recorded"));
    drop(state.ready(&key("lost")));
    fs::remove_file(state.path("attachments/lost@eth0.ready")).unwrap();
    assert_eq!(state.network.free_orphans(&NO_LIVE_PODS).unwrap(), 2);
    assert_eq!(state.network.free_orphans(&NO_LIVE_PODS).unwrap(), 0);
    for address in ips(&recorded) {
        assert!(state.network.is_claimed_by(address, &recorded).unwrap());
    }
}

/// Simulates a backup that was restored without hard links: the file has another inode.
fn replace_by_copy(path: &Path) {
    let copy = path.with_extension("copy");
    fs::copy(path, &copy).unwrap();
    fs::rename(&copy, path).unwrap();
}

#[test]
fn a8_copied_claims_of_a_live_pod_become_links_again() {
    let state = TestState::new(DUAL);
    drop(state.ready(&key("c1")));
    for claim in state.names("addresses") {
        replace_by_copy(&state.path("addresses").join(claim));
    }
    // The repair after a kill must not treat them as claims without a record.
    state.mark();
    assert_eq!(ips(&state.ready(&key("c2"))), [ip("10.0.0.3"), ip("fd00::3")]);
    state.expect_consistent();
    assert_eq!(state.names("addresses").len(), 4);
    state.network.find(&key("c1")).unwrap().unwrap().release(&[]).unwrap();
    assert_eq!(state.names("addresses").len(), 2);
}

#[test]
fn a8_copied_claims_are_released_with_their_record() {
    for corruption in [None, Some("{")] {
        let state = TestState::new(DUAL);
        drop(state.ready(&key("c1")));
        for claim in state.names("addresses") {
            replace_by_copy(&state.path("addresses").join(claim));
        }
        if let Some(text) = corruption {
            fs::write(state.path("attachments/c1@eth0.ready"), text).unwrap();
        }
        let held = state.network.find(&key("c1")).unwrap().unwrap();
        assert_eq!(held.claimed().unwrap().len(), 2);
        held.release(&[]).unwrap();
        state.expect_empty();
    }
}

#[test]
fn a8_a_newer_record_keeps_its_addresses_and_is_never_overwritten() {
    let state = TestState::new(DUAL);
    drop(state.ready(&key("c1")));
    let path = state.path("attachments/c1@eth0.ready");
    let newer = serde_json::json!({"schema": SCHEMA + 1, "something": "new"}).to_string();
    // A newer version may write another file. Then the claims are links to the old one.
    fs::remove_file(&path).unwrap();
    fs::write(&path, &newer).unwrap();
    state.mark();
    assert_eq!(ips(&state.ready(&key("c2"))), [ip("10.0.0.3"), ip("fd00::3")]);
    assert_eq!(state.network.free_orphans(&NO_LIVE_PODS).unwrap(), 0);
    let listed = state.network.list().unwrap();
    assert!(listed.iter().any(|l| l.newer == Some(SCHEMA + 1) && l.attachment.is_none()), "{listed:?}");
    let mut held = state.network.find(&key("c1")).unwrap().unwrap();
    let refused = held.rewrite(record(&key("c1"), &[])).unwrap_err();
    assert!(matches!(refused, StateError::Newer { .. }), "{refused}");
    assert_eq!(fs::read_to_string(&path).unwrap(), newer);
    assert_eq!(held.key(), Some(key("c1")));
    held.release(&[]).unwrap();
    assert_eq!(state.names("addresses"), ["10.0.0.3".to_owned(), "fd00::3".to_owned()].into());
    state.expect_consistent();
}

#[test]
fn a8_a_record_with_another_pods_name_is_ignored() {
    let state = TestState::new(DUAL);
    drop(state.ready(&key("c1")));
    fs::copy(state.path("attachments/c1@eth0.ready"), state.path("attachments/c2@eth0.ready")).unwrap();
    let held = state.network.find(&key("c2")).unwrap().unwrap();
    assert!(held.attachment().is_none());
    held.release(&[]).unwrap();
    assert_eq!(state.names("addresses").len(), 2, "the claims belong to c1");
    state.expect_consistent();
}

#[test]
fn a8_an_address_on_a_live_link_stays_claimed_without_a_record() {
    let state = TestState::new(DUAL);
    drop(state.ready(&key("lost")));
    fs::remove_file(state.path("attachments/lost@eth0.ready")).unwrap();
    let removed = std::cell::RefCell::new(Vec::<IpAddr>::new());
    let remove_objects = |addresses: &[IpAddr]| {
        removed.borrow_mut().extend(addresses);
        Ok(())
    };
    let check = OrphanCheck { is_alive: &|address| address.is_ipv4(), remove_objects: &remove_objects };
    assert_eq!(state.network.free_orphans(&check).unwrap(), 1);
    assert_eq!(state.names("addresses"), ["10.0.0.2".to_owned()].into());
    assert_eq!(*removed.borrow(), [ip("fd00::2")]);
}

#[test]
fn a8_a_repair_frees_only_claims_of_the_killed_process() {
    let state = TestState::new(DUAL);
    drop(state.ready(&key("lost")));
    fs::remove_file(state.path("attachments/lost@eth0.ready")).unwrap();
    drop(state.ready(&key("released")));
    interrupt_release(&state, "released");
    interrupt_begin(&state, &["10.0.0.4", "fd00::4"]);
    // The next ADD repairs the state, and does not get the address of a pod that may be alive.
    assert_eq!(ips(&state.started(&key("next"))), [ip("10.0.0.4"), ip("fd00::4")]);
    let lost = ["10.0.0.2".to_owned(), "fd00::2".to_owned()];
    let next = ["10.0.0.4".to_owned(), "fd00::4".to_owned()];
    assert_eq!(state.names("addresses"), lost.iter().chain(&next).cloned().collect());
    assert_eq!(state.names("attachments"), ["next@eth0.pending".to_owned()].into());
    // If a range is exhausted, the links are checked, and claims without a live pod are freed.
    assert_eq!(state.network.free_orphans(&NO_LIVE_PODS).unwrap(), 2);
    assert_eq!(state.names("addresses"), next.into());
}

#[test]
fn a8_a_kill_while_a_lost_record_is_restored_keeps_its_claims() {
    let state = TestState::new(DUAL);
    drop(state.ready(&key("lost")));
    fs::rename(state.path("attachments/lost@eth0.ready"), state.path("attachments/.lost-4711")).unwrap();
    state.mark();
    state.network.repair_if_marked().unwrap();
    assert_eq!(state.names("attachments"), BTreeSet::new());
    assert_eq!(state.names("addresses").len(), 2);
    let recovered_link = RecoveredLink {
        stem: "lost@eth0".to_owned(),
        addresses: vec![ip("10.0.0.2"), ip("fd00::2")],
        attachment: None,
    };
    assert!(state.network.restore_record(&recovered_link).unwrap());
    state.expect_consistent();
}

#[test]
fn a10_claims_that_are_not_files_are_removed() {
    let state = TestState::new(DUAL);
    drop(state.ready(&key("c1")));
    let claims = state.path("addresses");
    let fifo = |name: &str| {
        let status = std::process::Command::new("mkfifo").arg(claims.join(name)).status().unwrap();
        assert!(status.success());
    };
    fs::remove_file(claims.join("10.0.0.2")).unwrap();
    fifo("10.0.0.2");
    fifo("10.0.0.3");
    fs::create_dir(claims.join("10.0.0.4")).unwrap();
    std::os::unix::fs::symlink("/nonexistent", claims.join("10.0.0.5")).unwrap();
    let requested = [(ip("10.0.0.3"), None)];
    let taken = begin(&state.network, &key("x"), Some(&state.pools), &requested).unwrap_err();
    assert!(matches!(taken, StateError::Taken { .. }), "{taken}");
    assert_eq!(state.network.free_orphans(&NO_LIVE_PODS).unwrap(), 3);
    assert_eq!(state.names("addresses"), ["10.0.0.2".to_owned(), "fd00::2".to_owned()].into());
    state.expect_consistent();
}

#[test]
fn a14_a_state_directory_that_other_users_can_write_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run");
    drop(NodeState::open(&path).unwrap());
    fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    for refused in [NodeState::open(&path).unwrap_err(), NodeState::open_existing(&path).unwrap_err()] {
        assert!(refused.to_string().contains(&format!("chmod go-w {}", path.display())), "{refused}");
    }
    fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    drop(NodeState::open(&link).unwrap());
    std::os::unix::fs::lchown(&link, Some(1000), None).unwrap();
    assert!(matches!(NodeState::open(&link), Err(StateError::Unsafe(_))));
}

/// The former content is unknown. An empty result would remove the links of all pods.
#[test]
fn a_directory_replaced_by_a_file_is_an_error() {
    let state = TestState::new(DUAL);
    drop(state.ready(&key("c1")));
    for name in ["attachments", "addresses"] {
        let (dir, aside) = (state.path(name), state.dir.path().join("aside"));
        fs::rename(&dir, &aside).unwrap();
        fs::write(&dir, "").unwrap();
        let outcomes = match name {
            "attachments" => vec![
                state.network.list().map(drop),
                state.network.has_record("c1@eth0").map(drop),
                state.network.find(&key("c1")).map(drop),
            ],
            _ => vec![state.network.claimed().map(drop), state.network.is_owned(ip("10.0.0.2")).map(drop)],
        };
        for outcome in outcomes {
            let error = outcome.unwrap_err();
            assert!(
                matches!(&error, StateError::Io { source, .. } if source.kind() == std::io::ErrorKind::NotADirectory),
                "{name}: {error:?}"
            );
        }
        fs::remove_file(&dir).unwrap();
        fs::rename(&aside, &dir).unwrap();
    }
    assert!(state.network.has_record("c1@eth0").unwrap());
    state.expect_consistent();
}
