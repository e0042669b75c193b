//! What a process leaves that is killed in the critical section, and what chance does to files.

use super::*;

/// What a kill in `begin` leaves: the new record under its first name, and claims that are links to it.
fn cut_begin(world: &World, claims: &[&str]) {
    let temp = world.path("attachments/.new-4711");
    fs::write(&temp, "{\"sch").unwrap();
    for claim in claims {
        fs::hard_link(&temp, world.path("addresses").join(claim)).unwrap();
    }
    world.mark();
}

/// What a kill in `release` leaves: the record without its name, and its claims.
fn cut_release(world: &World, container: &str) {
    let record = world.path(&format!("attachments/{container}@eth0.ready"));
    fs::rename(record, world.path("attachments/.new-4712")).unwrap();
    world.mark();
}

#[test]
fn c3_a_begin_that_was_cut_off_is_repaired() {
    let world = World::new(DUAL);
    let kept = world.ready(&key("kept"));
    cut_begin(&world, &["10.0.0.3", "fd00::3"]);
    world.network.settle().unwrap();
    assert_eq!(world.names("attachments"), ["kept@eth0.ready".to_owned()].into());
    assert_eq!(world.names("addresses"), ["10.0.0.2".to_owned(), "fd00::2".to_owned()].into());
    assert!(ips(&kept).iter().all(|ip| world.network.is_claimed_by(*ip, &kept).unwrap()));
    assert_eq!(fs::read(world.path("lock")).unwrap(), b"0");
    assert_eq!(ips(&world.started(&key("next"))), [ip("10.0.0.3"), ip("fd00::3")]);
}

#[test]
fn c3_without_the_mark_nothing_is_searched() {
    let world = World::new(DUAL);
    cut_begin(&world, &["10.0.0.2"]);
    fs::write(world.path("lock"), "0").unwrap();
    assert_eq!(ips(&world.started(&key("c1"))), [ip("10.0.0.3"), ip("fd00::2")]);
}

#[test]
fn c3_a_release_that_was_cut_off_names_no_address_that_others_may_have() {
    let world = World::new(DUAL);
    drop(world.ready(&key("c1")));
    // The first thing that a release takes away is the record's name.
    cut_release(&world, "c1");
    assert!(world.network.find(&key("c1")).unwrap().is_none());
    world.network.settle().unwrap();
    world.expect_empty();
}

/// The other way round, another attachment could get the address while the record still names it, and whoever undoes
/// the record would take the firewall entries of the new owner away.
#[test]
fn c3_a_release_removes_the_record_before_the_claims() {
    let world = World::new(DUAL);
    let held = world.ready(&key("c1"));
    // An index that cannot be opened stops the release at its first claim.
    for name in world.names("index") {
        fs::remove_file(world.path("index").join(&name)).unwrap();
        fs::create_dir(world.path("index").join(name)).unwrap();
    }
    held.release(&[]).unwrap_err();
    assert_eq!(world.names("attachments"), [format!(".new-{}", std::process::id())].into());
}

#[test]
fn c3_an_index_with_stale_bits_is_not_believed_when_it_says_full() {
    let world = World::new(DUAL);
    drop(world.ready(&key("c1")));
    for name in world.names("index").iter().filter(|name| name.as_str() != "last") {
        fs::write(world.path("index").join(name), [0xff; 64]).unwrap();
    }
    world.network.has_room(&world.pools).unwrap();
    assert_eq!(world.fill("a"), 12);
    world.expect_consistent();
}

#[test]
fn c3_an_index_that_forgot_everything_costs_time_and_no_address() {
    let world = World::new(DUAL);
    assert_eq!(world.fill("a"), 13);
    for name in world.names("index") {
        fs::remove_file(world.path("index").join(name)).unwrap();
    }
    world.network.find(&key("a7")).unwrap().unwrap().release(&[]).unwrap();
    for name in world.names("index").iter().filter(|name| name.as_str() != "last") {
        fs::write(world.path("index").join(name), []).unwrap();
    }
    assert_eq!(ips(&world.started(&key("b"))), [ip("10.0.0.9"), ip("fd00::9")]);
    assert!(matches!(world.begin(&key("c")), Err(StateError::Exhausted { .. })));
}

#[test]
fn c3_a_record_that_cannot_be_read_can_be_released() {
    let newer = serde_json::json!({"schema": SCHEMA + 1, "something": "new"}).to_string();
    let damaged: [&[u8]; 5] = [b"", b"{\"schema\":1,\"net", b"\xff\xfe\x00", b"null", newer.as_bytes()];
    for text in damaged {
        let world = World::new(DUAL);
        let other = world.ready(&key("other"));
        drop(world.ready(&key("broken")));
        let path = world.path("attachments/broken@eth0.ready");
        // In place, as a disk does it: the claims are still links to it.
        fs::write(&path, text).unwrap();
        let listed = world.network.list().unwrap();
        let broken = listed.iter().find(|l| l.stem == "broken@eth0").unwrap();
        assert_eq!((&broken.attachment, broken.phase), (&None, RecordPhase::Ready));
        assert!(matches!(world.begin(&key("broken")).unwrap(), Begin::Exists(RecordPhase::Ready)));

        let requested = [(ip("10.0.0.3"), None)];
        let error = begin(&world.network, &key("x"), Some(&world.pools), &requested).unwrap_err().to_string();
        assert!(error.contains("whose record cannot be read"), "{error}");

        let mut held = world.network.find(&key("broken")).unwrap().unwrap();
        held.reopen().unwrap();
        held.release(&[]).unwrap();
        assert_eq!(world.names("attachments"), ["other@eth0.ready".to_owned()].into());
        assert_eq!(world.names("addresses"), ["10.0.0.2".to_owned(), "fd00::2".to_owned()].into());
        drop(other);
        world.expect_consistent();
    }
}

#[test]
fn c3_a_record_that_names_other_addresses_gives_back_its_own() {
    let world = World::new(DUAL);
    let other = world.ready(&key("other"));
    drop(world.ready(&key("confused")));
    let path = world.path("attachments/confused@eth0.ready");
    let text =
        fs::read_to_string(&path).unwrap().replace("10.0.0.3", "10.0.0.2").replace("fd00::3", "fd00::9");
    fs::write(&path, text).unwrap();
    world.network.find(&key("confused")).unwrap().unwrap().release(&[]).unwrap();
    drop(other);
    assert_eq!(world.names("addresses"), ["10.0.0.2".to_owned(), "fd00::2".to_owned()].into());
    world.expect_consistent();
}

#[test]
fn a_directory_that_is_somebody_elses_is_refused_and_not_touched() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("networks")).unwrap();
    fs::write(dir.path().join("networks/theirs"), "x").unwrap();
    let refused = NodeState::open(dir.path()).unwrap_err();
    assert!(matches!(refused, StateError::Foreign { .. }), "{refused}");
    assert!(refused.to_string().contains("networks"), "{refused}");
    assert!(dir.path().join("networks/theirs").exists());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

/// `rm -rf` removes the mark while a running agent makes directories again.
#[test]
fn a_state_directory_that_lost_its_mark_is_known_by_its_content() {
    let world = World::new(DUAL);
    drop(world.ready(&key("a")));
    let dir = world.dir.path();
    let unmarked = |change: &dyn Fn()| {
        change();
        for mark in ["podwire.lock", "boot"] {
            fs::remove_file(dir.join(mark)).unwrap();
        }
        NodeState::open(dir)
    };
    assert_eq!(
        unmarked(&|| ()).unwrap().networks().unwrap().len(),
        0,
        "emptied, to be learnt from the kernel"
    );
    fs::create_dir_all(dir.join("networks/blue/index")).unwrap();
    unmarked(&|| ()).unwrap();
    let refused = unmarked(&|| fs::write(dir.join("sysctls"), "not a log").unwrap()).unwrap_err();
    assert!(matches!(refused, StateError::Foreign { .. }), "{refused}");
}

#[test]
fn only_what_is_ours_is_removed_with_the_state() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state");
    let state = NodeState::open(&path).unwrap();
    fs::write(path.join("other"), "x").unwrap();
    state.remove().unwrap();
    assert_eq!(fs::read_dir(&path).unwrap().count(), 1);
    fs::remove_file(path.join("other")).unwrap();
    let state = NodeState::open(&path).unwrap();
    // As killed processes leave them, also those of earlier versions.
    for name in [".boot.podwire-tmp", ".sysctls.podwire-tmp", "boot.new", "sysctls.new"] {
        fs::write(path.join(name), "").unwrap();
    }
    state.remove().unwrap();
    assert!(!path.exists());
}

#[test]
fn f3_an_address_whose_claim_was_dropped_by_a_repair_rests() {
    let world = World::new("fd00::/125");
    let first = world.ready(&key("c1"));
    let address = ips(&first)[0];
    first.release(&[address]).unwrap();
    // As if the next owner had been killed while it was released: the record is gone, the claim is not.
    let second = world.ready(&key("c2"));
    let left = ips(&second)[0];
    drop(second);
    cut_release(&world, "c2");
    world.network.has_room(&world.pools).unwrap();
    let range = &world.pools.sets()[0].ranges()[0];
    assert!(index::rests(&world.path(""), range, left).unwrap());
    assert!(!index::rests(&world.path(""), range, address).unwrap());
}

const NOBODY_LIVES: Freeing<'static> = Freeing { is_alive: &|_| false, forget: &|_| Ok(()) };

#[test]
fn c3_claims_whose_record_somebody_removed_are_freed_and_no_others() {
    let world = World::new(DUAL);
    let stays = world.ready(&key("stays"));
    drop(world.ready(&key("lost")));
    fs::remove_file(world.path("attachments/lost@eth0.ready")).unwrap();
    assert_eq!(world.network.free_orphans(&NOBODY_LIVES).unwrap(), 2);
    assert_eq!(world.network.free_orphans(&NOBODY_LIVES).unwrap(), 0);
    for address in ips(&stays) {
        assert!(world.network.is_claimed_by(address, &stays).unwrap());
    }
}

/// As a backup that was restored without its hard links: the file is another one.
fn copy_over(path: &Path) {
    let copy = path.with_extension("copy");
    fs::copy(path, &copy).unwrap();
    fs::rename(&copy, path).unwrap();
}

#[test]
fn a8_copied_claims_of_a_living_pod_become_links_again() {
    let world = World::new(DUAL);
    drop(world.ready(&key("c1")));
    for claim in world.names("addresses") {
        copy_over(&world.path("addresses").join(claim));
    }
    // The repair after a kill must not take them for claims without a record.
    world.mark();
    assert_eq!(ips(&world.ready(&key("c2"))), [ip("10.0.0.3"), ip("fd00::3")]);
    world.expect_consistent();
    assert_eq!(world.names("addresses").len(), 4);
    world.network.find(&key("c1")).unwrap().unwrap().release(&[]).unwrap();
    assert_eq!(world.names("addresses").len(), 2);
}

#[test]
fn a8_copied_claims_are_given_back_with_their_record() {
    for damage in [None, Some("{")] {
        let world = World::new(DUAL);
        drop(world.ready(&key("c1")));
        for claim in world.names("addresses") {
            copy_over(&world.path("addresses").join(claim));
        }
        if let Some(text) = damage {
            fs::write(world.path("attachments/c1@eth0.ready"), text).unwrap();
        }
        let held = world.network.find(&key("c1")).unwrap().unwrap();
        assert_eq!(held.claimed().unwrap().len(), 2);
        held.release(&[]).unwrap();
        world.expect_empty();
    }
}

#[test]
fn a8_a_newer_record_keeps_its_addresses_and_is_never_overwritten() {
    let world = World::new(DUAL);
    drop(world.ready(&key("c1")));
    let path = world.path("attachments/c1@eth0.ready");
    let newer = serde_json::json!({"schema": SCHEMA + 1, "something": "new"}).to_string();
    // Another file, as a newer version may write it: the claims are links to the old one.
    fs::remove_file(&path).unwrap();
    fs::write(&path, &newer).unwrap();
    world.mark();
    assert_eq!(ips(&world.ready(&key("c2"))), [ip("10.0.0.3"), ip("fd00::3")]);
    assert_eq!(world.network.free_orphans(&NOBODY_LIVES).unwrap(), 0);
    let listed = world.network.list().unwrap();
    assert!(listed.iter().any(|l| l.newer == Some(SCHEMA + 1) && l.attachment.is_none()), "{listed:?}");
    let mut held = world.network.find(&key("c1")).unwrap().unwrap();
    let refused = held.rewrite(record(&key("c1"), &[])).unwrap_err();
    assert!(matches!(refused, StateError::Newer { .. }), "{refused}");
    assert_eq!(fs::read_to_string(&path).unwrap(), newer);
    assert_eq!(held.key(), Some(key("c1")));
    held.release(&[]).unwrap();
    assert_eq!(world.names("addresses"), ["10.0.0.3".to_owned(), "fd00::3".to_owned()].into());
    world.expect_consistent();
}

#[test]
fn a8_a_record_under_another_pods_name_is_not_believed() {
    let world = World::new(DUAL);
    drop(world.ready(&key("c1")));
    fs::copy(world.path("attachments/c1@eth0.ready"), world.path("attachments/c2@eth0.ready")).unwrap();
    let held = world.network.find(&key("c2")).unwrap().unwrap();
    assert!(held.attachment().is_none());
    held.release(&[]).unwrap();
    assert_eq!(world.names("addresses").len(), 2, "the claims are of the other");
    world.expect_consistent();
}

#[test]
fn a8_the_address_of_a_living_link_stays_claimed_without_a_record() {
    let world = World::new(DUAL);
    drop(world.ready(&key("lost")));
    fs::remove_file(world.path("attachments/lost@eth0.ready")).unwrap();
    let forgotten = std::cell::RefCell::new(Vec::<IpAddr>::new());
    let forget = |addresses: &[IpAddr]| {
        forgotten.borrow_mut().extend(addresses);
        Ok(())
    };
    let how = Freeing { is_alive: &|address| address.is_ipv4(), forget: &forget };
    assert_eq!(world.network.free_orphans(&how).unwrap(), 1);
    assert_eq!(world.names("addresses"), ["10.0.0.2".to_owned()].into());
    assert_eq!(*forgotten.borrow(), [ip("fd00::2")]);
}

#[test]
fn a8_a_kill_frees_only_claims_of_the_killed_process() {
    let world = World::new(DUAL);
    drop(world.ready(&key("lost")));
    fs::remove_file(world.path("attachments/lost@eth0.ready")).unwrap();
    drop(world.ready(&key("released")));
    cut_release(&world, "released");
    cut_begin(&world, &["10.0.0.4", "fd00::4"]);
    // The next ADD repairs, and does not get the address of a pod that may live.
    assert_eq!(ips(&world.started(&key("next"))), [ip("10.0.0.4"), ip("fd00::4")]);
    let lost = ["10.0.0.2".to_owned(), "fd00::2".to_owned()];
    let next = ["10.0.0.4".to_owned(), "fd00::4".to_owned()];
    assert_eq!(world.names("addresses"), lost.iter().chain(&next).cloned().collect());
    assert_eq!(world.names("attachments"), ["next@eth0.pending".to_owned()].into());
    // A full range asks the links, and frees them where no pod lives.
    assert_eq!(world.network.free_orphans(&NOBODY_LIVES).unwrap(), 2);
    assert_eq!(world.names("addresses"), next.into());
}

#[test]
fn a8_a_kill_while_a_lost_record_is_remade_keeps_its_claims() {
    let world = World::new(DUAL);
    drop(world.ready(&key("lost")));
    fs::rename(world.path("attachments/lost@eth0.ready"), world.path("attachments/.lost-4711")).unwrap();
    world.mark();
    world.network.settle().unwrap();
    assert_eq!(world.names("attachments"), BTreeSet::new());
    assert_eq!(world.names("addresses").len(), 2);
    let survivor = Survivor {
        stem: "lost@eth0".to_owned(),
        addresses: vec![ip("10.0.0.2"), ip("fd00::2")],
        attachment: None,
    };
    assert!(world.network.readopt(&survivor).unwrap());
    world.expect_consistent();
}

#[test]
fn a10_claims_that_are_no_files_are_removed() {
    let world = World::new(DUAL);
    drop(world.ready(&key("c1")));
    let claims = world.path("addresses");
    let fifo = |name: &str| {
        let made = std::process::Command::new("mkfifo").arg(claims.join(name)).status().unwrap();
        assert!(made.success());
    };
    fs::remove_file(claims.join("10.0.0.2")).unwrap();
    fifo("10.0.0.2");
    fifo("10.0.0.3");
    fs::create_dir(claims.join("10.0.0.4")).unwrap();
    std::os::unix::fs::symlink("/nonexistent", claims.join("10.0.0.5")).unwrap();
    let requested = [(ip("10.0.0.3"), None)];
    let taken = begin(&world.network, &key("x"), Some(&world.pools), &requested).unwrap_err();
    assert!(matches!(taken, StateError::Taken { .. }), "{taken}");
    assert_eq!(world.network.free_orphans(&NOBODY_LIVES).unwrap(), 3);
    assert_eq!(world.names("addresses"), ["10.0.0.2".to_owned(), "fd00::2".to_owned()].into());
    world.expect_consistent();
}

#[test]
fn a14_a_state_directory_that_others_can_write_is_refused() {
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

/// What the directory held is unknown: an empty answer would have the links of all pods removed.
#[test]
fn a_directory_that_became_a_file_is_not_an_empty_one() {
    let world = World::new(DUAL);
    drop(world.ready(&key("c1")));
    for name in ["attachments", "addresses"] {
        let (dir, aside) = (world.path(name), world.dir.path().join("aside"));
        fs::rename(&dir, &aside).unwrap();
        fs::write(&dir, "").unwrap();
        let outcomes = match name {
            "attachments" => vec![
                world.network.list().map(drop),
                world.network.knows("c1@eth0").map(drop),
                world.network.find(&key("c1")).map(drop),
            ],
            _ => vec![world.network.claimed().map(drop), world.network.is_owned(ip("10.0.0.2")).map(drop)],
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
    assert!(world.network.knows("c1@eth0").unwrap());
    world.expect_consistent();
}
