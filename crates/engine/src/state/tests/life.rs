//! An attachment's life in the state directory, and who is told what about addresses.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use super::*;

#[test]
fn c3_begin_commit_find_release() {
    let world = World::new(DUAL);
    let key = key("c1");
    assert!(world.network.find(&key).unwrap().is_none());

    let mut held = world.started(&key);
    assert_eq!(held.phase(), RecordPhase::Pending);
    assert_eq!(ips(&held), [ip("10.0.0.2"), ip("fd00::2")]);
    assert_eq!(world.names("attachments"), ["c1@eth0.pending".to_owned()].into());
    assert!(matches!(world.begin(&key).unwrap(), Begin::Exists(RecordPhase::Pending)));
    assert!(world.network.find_idle(held.stem()).unwrap().is_none(), "it is in our hands");

    held.commit().unwrap();
    assert_eq!(world.names("attachments"), ["c1@eth0.ready".to_owned()].into());
    let was = held.attachment().cloned();
    drop(held);
    assert!(matches!(world.begin(&key).unwrap(), Begin::Exists(RecordPhase::Ready)));
    world.expect_consistent();

    let mut held = world.network.find(&key).unwrap().unwrap();
    assert_eq!((held.phase(), held.attachment()), (RecordPhase::Ready, was.as_ref()));
    held.reopen().unwrap();
    held.reopen().unwrap();
    assert_eq!(world.names("attachments"), ["c1@eth0.pending".to_owned()].into());
    held.release(&[]).unwrap();
    world.expect_empty();
    assert!(world.network.find(&key).unwrap().is_none());
}

#[test]
fn a_claim_is_a_link_with_the_owners_record_in_it() {
    let world = World::new(DUAL);
    let held = world.ready(&key("c1"));
    let record = fs::read(world.path("attachments/c1@eth0.ready")).unwrap();
    assert_eq!(&serde_json::from_slice::<Attachment>(&record).unwrap(), held.attachment().unwrap());
    for claim in ["10.0.0.2", "fd00::2"] {
        let path = world.path("addresses").join(claim);
        assert_eq!(fs::read(&path).unwrap(), record);
        assert_eq!(fs::metadata(&path).unwrap().nlink(), 3);
        assert!(world.network.is_claimed_by(ip(claim), &held).unwrap());
    }
    assert!(!world.network.is_claimed_by(ip("10.0.0.3"), &held).unwrap());
}

#[test]
fn e18_a_taken_address_is_refused_and_the_holder_is_named() {
    let world = World::new(DUAL);
    let held = world.ready(&key("the-owner"));
    let wanted = [(ip("fd00::2"), None)];
    let error = begin(&world.network, &key("c2"), Some(&world.pools), &wanted).unwrap_err();
    let said = error.to_string();
    assert_eq!(said, "address fd00::2 is already taken by container the-owner (eth0)");
    // The IPv4 address that it had got before was given back.
    assert_eq!(world.names("addresses"), ["10.0.0.2".to_owned(), "fd00::2".to_owned()].into());
    world.expect_consistent();

    held.release(&[]).unwrap();
    let held = started(begin(&world.network, &key("c2"), Some(&world.pools), &wanted));
    assert_eq!(ips(&held)[1], ip("fd00::2"));
}

#[test]
fn e18_a_requested_address_does_not_move_the_round_robin() {
    let world = World::new("10.0.0.0/28");
    let wanted = [(ip("10.0.0.9"), None)];
    let _nine = started(begin(&world.network, &key("c9"), Some(&world.pools), &wanted));
    assert_eq!(ips(&world.started(&key("c1"))), [ip("10.0.0.2")]);
}

#[test]
fn c3_addresses_go_round_before_one_is_used_again() {
    let world = World::new("10.0.0.0/28");
    let mut seen = Vec::new();
    for round in 0..13 {
        let held = world.ready(&key(&format!("c{round}")));
        seen.extend(ips(&held));
        held.release(&[]).unwrap();
    }
    let expected: Vec<IpAddr> = (2..=14).map(|last| IpAddr::from([10, 0, 0, last])).collect();
    assert_eq!(seen, expected);
    assert_eq!(ips(&world.started(&key("again"))), [ip("10.0.0.2")]);
}

#[test]
fn f3_an_address_is_cleaned_once_before_it_is_handed_out_again() {
    let world = World::new("10.0.0.0/29,fd00::/125");
    let cleaned = RefCell::new(Vec::new());
    let spared = ip("10.0.0.2");
    let clean = |range: &ipam::Range, is_used: &dyn Fn(IpAddr) -> bool| {
        cleaned.borrow_mut().push((range.subnet().to_string(), is_used(spared)));
        Ok(())
    };
    let add = |name: &str| {
        let key = key(name);
        let wanted =
            AllocationRequest { key: &key, pools: Some(&world.pools), requested: &[], clean: &clean };
        started(world.network.begin(&wanted, |given| record(&key, given)))
    };
    // Nothing is known of a range at first: it is cleaned once.
    let stays = add("stays");
    assert_eq!(ips(&stays)[0], spared);
    assert_eq!(cleaned.take(), [("10.0.0.0/29".to_owned(), false), ("fd00::/125".to_owned(), true)]);
    // Four more fill the round; the IPv4 addresses are given back clean, the IPv6 ones are not.
    for n in 0..4 {
        let held = add(&format!("c{n}"));
        let v4: Vec<IpAddr> = ips(&held).into_iter().filter(IpAddr::is_ipv4).collect();
        held.release(&v4).unwrap();
    }
    assert_eq!(cleaned.take(), []);
    let mut rounds = Vec::new();
    for n in 0..3 {
        rounds.push(add(&format!("d{n}")));
    }
    // Once for all that rest, and never touching who has an address.
    assert_eq!(cleaned.take(), [("fd00::/125".to_owned(), true)]);
}

#[test]
fn f3_what_cannot_be_cleaned_is_not_handed_out() {
    let world = World::new("10.0.0.0/29");
    let failing = |range: &ipam::Range, _: &dyn Fn(IpAddr) -> bool| {
        Err(StateError::Clean { range: range.to_string(), reason: "no".to_owned() })
    };
    let key = key("c1");
    let wanted = AllocationRequest { key: &key, pools: Some(&world.pools), requested: &[], clean: &failing };
    let refused = world.network.begin(&wanted, |given| record(&key, given)).unwrap_err();
    assert!(matches!(refused, StateError::Clean { .. }), "{refused}");
    assert_eq!((world.names("addresses").len(), world.names("attachments").len()), (0, 0));
}

#[test]
fn c3_a_full_range_says_how_many_are_in_use_and_gives_everything_back() {
    // The IPv6 set is the smaller one: an IPv4 address was claimed already when it fails.
    let world = World::new("10.0.0.0/24,fd00::/125");
    assert_eq!(world.fill("a"), 6);
    let error = world.begin(&key("late")).unwrap_err().to_string();
    assert!(error.contains("fd00::") && error.contains("6 of 6 in use"), "{error}");
    assert!(world.network.has_room(&world.pools).unwrap_err().to_string().contains("6 of 6 in use"));
    assert_eq!(world.names("addresses").len(), 12);
    assert_eq!(world.names("attachments").len(), 6);
    world.network.find(&key("a3")).unwrap().unwrap().release(&[]).unwrap();
    world.network.has_room(&world.pools).unwrap();
    assert_eq!(world.fill("b"), 1);
}

#[test]
fn c3_a_changed_range_neither_hides_nor_doubles_an_address() {
    let world = World::new("10.0.0.0/28");
    assert_eq!(world.fill("a"), 13);
    // The same addresses under another config: another range, another index.
    let wider = World { pools: pools("10.0.0.0/27"), ..world };
    assert_eq!(wider.fill("b"), 16);
    wider.network.find(&key("a0")).unwrap().unwrap().release(&[]).unwrap();
    let narrow = World { pools: pools("10.0.0.0/28"), ..wider };
    assert_eq!(narrow.fill("c"), 1);
}

#[test]
fn e19_addresses_from_elsewhere_are_recorded_and_not_claimed() {
    let world = World::new(DUAL);
    let held = started(begin(&world.network, &key("c1"), None, &[]));
    assert_eq!(world.names("addresses"), BTreeSet::new());
    held.release(&[]).unwrap();
    world.expect_empty();
}

#[test]
fn another_boot_id_means_empty() {
    let world = World::new(DUAL);
    drop(world.ready(&key("c1")));
    let state = NodeState::open(world.dir.path()).unwrap();
    let sysctl = Sysctl::parse("/proc/sys/net/ipv4/ip_forward").unwrap();
    state.sysctls().note(&sysctl, "0", "1").unwrap();
    fs::write(world.dir.path().join("boot"), "another-boot\n").unwrap();

    assert!(NodeState::open_existing(world.dir.path()).unwrap().is_none());
    assert!(world.path("attachments/c1@eth0.ready").exists(), "who only reads must not empty it");

    let state = NodeState::open(world.dir.path()).unwrap();
    assert!(state.networks().unwrap().is_empty());
    assert!(state.sysctls().read().unwrap().known.is_empty());
    assert!(NodeState::open_existing(world.dir.path()).unwrap().is_some());
    let world = World { network: open(world.dir.path()), ..world };
    assert_eq!(ips(&world.started(&key("c1"))), [ip("10.0.0.2"), ip("fd00::2")]);
}

#[test]
fn a_lost_network_begins_with_what_lives() {
    let dir = tempfile::tempdir().unwrap();
    let (known, short) = (key("known"), format!("#{}@eth0", "d".repeat(51)));
    let allocation =
        Allocation { address: ip("10.0.0.2"), prefix_len: 28, gateway: ip("10.0.0.1"), used_before: false };
    let survivors = || {
        let attachment = Some(record(&known, std::slice::from_ref(&allocation)));
        let stem = short.clone();
        Ok::<_, StateError>(vec![
            Survivor { stem: known.file_stem(), addresses: vec![ip("10.0.0.2")], attachment },
            Survivor { stem, addresses: vec![ip("10.0.0.3"), ip("fd00::3")], attachment: None },
        ])
    };
    let state = NodeState::open(dir.path()).unwrap();
    // Somebody was killed while it was made.
    let half = dir.path().join("networks/blue/addresses");
    fs::create_dir_all(&half).unwrap();
    fs::write(half.join("10.0.0.4"), "").unwrap();

    let network = state.network(&network_name(), survivors).unwrap();
    let replay =
        state.network(&network_name(), || -> Result<_, StateError> { panic!("it is there already") });
    assert_eq!(replay.unwrap().list().unwrap().len(), 2);
    let world = World { dir, network, pools: pools("10.0.0.0/28") };
    world.mark();
    assert_eq!(ips(&world.started(&key("next"))), [ip("10.0.0.4")]);
    world.expect_consistent();
    assert!(matches!(world.begin(&known).unwrap(), Begin::Exists(RecordPhase::Ready)));
    assert!(world.network.find(&known).unwrap().unwrap().attachment().is_some());
    let held = world.network.find_stem(&short).unwrap().unwrap();
    assert!(held.attachment().is_none());
    held.release(&[]).unwrap();
    assert_eq!(world.names("addresses"), ["10.0.0.2".to_owned(), "10.0.0.4".to_owned()].into());
}

#[test]
fn a_lock_that_somebody_keeps_is_not_awaited_for_ever() {
    let world = World::new(DUAL);
    // As a process that was stopped does.
    let reconciler = fs::File::open(world.path("lock")).unwrap();
    reconciler.lock().unwrap();
    let mine = fs::File::open(world.path("lock")).unwrap();
    let timeout = Duration::from_millis(30);
    let start = Instant::now();
    let error = file::lock(&mine, &world.path("lock"), timeout).unwrap_err();
    assert!(matches!(error, StateError::Busy { .. }), "{error}");
    assert!(start.elapsed() >= timeout, "{:?}", start.elapsed());
    drop(reconciler);
    file::lock(&mine, &world.path("lock"), timeout).unwrap();
}
