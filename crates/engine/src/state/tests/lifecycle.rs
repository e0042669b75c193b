//! The lifecycle of a record, and allocation of addresses.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use super::*;

#[test]
fn c3_a_record_is_pending_then_ready_then_released() {
    let state = TestState::new(DUAL);
    let key = key("c1");
    assert!(state.network.find(&key).unwrap().is_none());

    let mut held = state.started(&key);
    assert_eq!(held.phase(), RecordPhase::Pending);
    assert_eq!(ips(&held), [ip("10.0.0.2"), ip("fd00::2")]);
    assert_eq!(state.names("attachments"), ["c1@eth0.pending".to_owned()].into());
    assert!(matches!(state.begin(&key).unwrap(), Begin::Exists(RecordPhase::Pending)));
    assert!(state.network.find_idle(held.stem()).unwrap().is_none(), "this test holds the lock");

    held.commit().unwrap();
    assert_eq!(state.names("attachments"), ["c1@eth0.ready".to_owned()].into());
    let committed = held.attachment().cloned();
    drop(held);
    assert!(matches!(state.begin(&key).unwrap(), Begin::Exists(RecordPhase::Ready)));
    state.expect_consistent();

    let mut held = state.network.find(&key).unwrap().unwrap();
    assert_eq!((held.phase(), held.attachment()), (RecordPhase::Ready, committed.as_ref()));
    held.reopen().unwrap();
    held.reopen().unwrap();
    assert_eq!(state.names("attachments"), ["c1@eth0.pending".to_owned()].into());
    held.release(&[]).unwrap();
    state.expect_empty();
    assert!(state.network.find(&key).unwrap().is_none());
}

#[test]
fn a_claim_is_a_link_to_the_owners_record() {
    let state = TestState::new(DUAL);
    let held = state.ready(&key("c1"));
    let record = fs::read(state.path("attachments/c1@eth0.ready")).unwrap();
    assert_eq!(&serde_json::from_slice::<Attachment>(&record).unwrap(), held.attachment().unwrap());
    for claim in ["10.0.0.2", "fd00::2"] {
        let path = state.path("addresses").join(claim);
        assert_eq!(fs::read(&path).unwrap(), record);
        assert_eq!(fs::metadata(&path).unwrap().nlink(), 3);
        assert!(state.network.is_claimed_by(ip(claim), &held).unwrap());
    }
    assert!(!state.network.is_claimed_by(ip("10.0.0.3"), &held).unwrap());
}

#[test]
fn e18_a_taken_address_is_refused_and_its_owner_is_named() {
    let state = TestState::new(DUAL);
    let held = state.ready(&key("the-owner"));
    let requested = [(ip("fd00::2"), None)];
    let error = begin(&state.network, &key("c2"), Some(&state.pools), &requested).unwrap_err();
    let message = error.to_string();
    assert_eq!(message, "address fd00::2 is already taken by container the-owner (eth0)");
    // The IPv4 address that was claimed before was released.
    assert_eq!(state.names("addresses"), ["10.0.0.2".to_owned(), "fd00::2".to_owned()].into());
    state.expect_consistent();

    held.release(&[]).unwrap();
    let held = started(begin(&state.network, &key("c2"), Some(&state.pools), &requested));
    assert_eq!(ips(&held)[1], ip("fd00::2"));
}

#[test]
fn e18_a_requested_address_does_not_move_the_round_robin() {
    let state = TestState::new("10.0.0.0/28");
    let requested = [(ip("10.0.0.9"), None)];
    let _nine = started(begin(&state.network, &key("c9"), Some(&state.pools), &requested));
    assert_eq!(ips(&state.started(&key("c1"))), [ip("10.0.0.2")]);
}

#[test]
fn c3_all_addresses_are_used_before_one_is_reused() {
    let state = TestState::new("10.0.0.0/28");
    let mut allocated = Vec::new();
    for round in 0..13 {
        let held = state.ready(&key(&format!("c{round}")));
        allocated.extend(ips(&held));
        held.release(&[]).unwrap();
    }
    let expected: Vec<IpAddr> = (2..=14).map(|last| IpAddr::from([10, 0, 0, last])).collect();
    assert_eq!(allocated, expected);
    assert_eq!(ips(&state.started(&key("next"))), [ip("10.0.0.2")]);
}

#[test]
fn f3_quarantined_addresses_are_cleaned_once_before_reuse() {
    let state = TestState::new("10.0.0.0/29,fd00::/125");
    let cleaned = RefCell::new(Vec::new());
    let in_use = ip("10.0.0.2");
    let remove_conntrack = |range: &ipam::Range, is_used: &dyn Fn(IpAddr) -> bool| {
        cleaned.borrow_mut().push((range.subnet().to_string(), is_used(in_use)));
        Ok(())
    };
    let add = |name: &str| {
        let key = key(name);
        let request = AllocationRequest {
            key: &key,
            pools: Some(&state.pools),
            requested: &[],
            remove_conntrack: &remove_conntrack,
            is_avoided: &|_| false,
        };
        started(state.network.begin(&request, |allocated| record(&key, allocated)))
    };
    // A new range is quarantined and cleaned once.
    let first = add("first");
    assert_eq!(ips(&first)[0], in_use);
    assert_eq!(cleaned.take(), [("10.0.0.0/29".to_owned(), false), ("fd00::/125".to_owned(), true)]);
    // Four more use all addresses. The IPv4 addresses are released without conntrack entries, the IPv6 addresses are quarantined.
    for n in 0..4 {
        let held = add(&format!("c{n}"));
        let v4: Vec<IpAddr> = ips(&held).into_iter().filter(IpAddr::is_ipv4).collect();
        held.release(&v4).unwrap();
    }
    assert_eq!(cleaned.take(), []);
    let mut reused = Vec::new();
    for n in 0..3 {
        reused.push(add(&format!("d{n}")));
    }
    // Once for all quarantined addresses, and never for an address in use.
    assert_eq!(cleaned.take(), [("fd00::/125".to_owned(), true)]);
}

#[test]
fn f3_an_address_that_cannot_be_cleaned_is_not_allocated() {
    let state = TestState::new("10.0.0.0/29");
    let failing = |range: &ipam::Range, _: &dyn Fn(IpAddr) -> bool| {
        Err(StateError::FormerOwner { range: range.to_string(), reason: "no".to_owned() })
    };
    let key = key("c1");
    let request = AllocationRequest {
        key: &key,
        pools: Some(&state.pools),
        requested: &[],
        remove_conntrack: &failing,
        is_avoided: &|_| false,
    };
    let refused = state.network.begin(&request, |allocated| record(&key, allocated)).unwrap_err();
    assert!(matches!(refused, StateError::FormerOwner { .. }), "{refused}");
    assert_eq!((state.names("addresses").len(), state.names("attachments").len()), (0, 0));
}

#[test]
fn c3_an_exhausted_range_is_reported_and_claims_are_undone() {
    // The IPv6 set is smaller, so an IPv4 address is claimed before it fails.
    let state = TestState::new("10.0.0.0/24,fd00::/125");
    assert_eq!(state.fill("a"), 6);
    let error = state.begin(&key("late")).unwrap_err().to_string();
    assert!(error.contains("fd00::") && error.contains("6 of 6 in use"), "{error}");
    assert!(state.network.check_capacity(&state.pools).unwrap_err().to_string().contains("6 of 6 in use"));
    assert_eq!(state.names("addresses").len(), 12);
    assert_eq!(state.names("attachments").len(), 6);
    state.network.find(&key("a3")).unwrap().unwrap().release(&[]).unwrap();
    state.network.check_capacity(&state.pools).unwrap();
    assert_eq!(state.fill("b"), 1);
}

#[test]
fn c3_a_changed_range_neither_loses_nor_duplicates_an_address() {
    let state = TestState::new("10.0.0.0/28");
    assert_eq!(state.fill("a"), 13);
    // The same addresses with another config have another index.
    let wider = TestState { pools: pools("10.0.0.0/27"), ..state };
    assert_eq!(wider.fill("b"), 16);
    wider.network.find(&key("a0")).unwrap().unwrap().release(&[]).unwrap();
    let narrow = TestState { pools: pools("10.0.0.0/28"), ..wider };
    assert_eq!(narrow.fill("c"), 1);
}

#[test]
fn e19_delegated_addresses_are_not_claimed() {
    let state = TestState::new(DUAL);
    let held = started(begin(&state.network, &key("c1"), None, &[]));
    assert_eq!(state.names("addresses"), BTreeSet::new());
    held.release(&[]).unwrap();
    state.expect_empty();
}

#[test]
fn state_of_another_boot_is_discarded() {
    let state = TestState::new(DUAL);
    drop(state.ready(&key("c1")));
    let node_state = NodeState::open(state.dir.path()).unwrap();
    let sysctl = Sysctl::parse("/proc/sys/net/ipv4/ip_forward").unwrap();
    node_state.sysctls().record(&sysctl, "0", "1").unwrap();
    fs::write(state.dir.path().join("boot"), "another-boot\n").unwrap();

    assert!(NodeState::open_existing(state.dir.path()).unwrap().is_none());
    assert!(state.path("attachments/c1@eth0.ready").exists(), "reading must not empty the state");

    let node_state = NodeState::open(state.dir.path()).unwrap();
    assert!(node_state.networks().unwrap().is_empty());
    assert!(node_state.sysctls().read().unwrap().known.is_empty());
    assert!(NodeState::open_existing(state.dir.path()).unwrap().is_some());
    let state = TestState { network: open(state.dir.path()), ..state };
    assert_eq!(ips(&state.started(&key("c1"))), [ip("10.0.0.2"), ip("fd00::2")]);
}

#[test]
fn a_lost_network_is_recovered_from_its_links() {
    let dir = tempfile::tempdir().unwrap();
    let (complete, digest_stem) = (key("complete"), format!("#{}@eth0", "d".repeat(51)));
    let allocation =
        Allocation { address: ip("10.0.0.2"), prefix_len: 28, gateway: ip("10.0.0.1"), used_before: false };
    let recovered_links = || {
        let attachment = Some(record(&complete, std::slice::from_ref(&allocation)));
        let stem = digest_stem.clone();
        Ok::<_, StateError>(vec![
            RecoveredLink { stem: complete.file_stem(), addresses: vec![ip("10.0.0.2")], attachment },
            RecoveredLink { stem, addresses: vec![ip("10.0.0.3"), ip("fd00::3")], attachment: None },
        ])
    };
    let node_state = NodeState::open(dir.path()).unwrap();
    // A process was killed while it created the network.
    let incomplete = dir.path().join("networks/blue/addresses");
    fs::create_dir_all(&incomplete).unwrap();
    fs::write(incomplete.join("10.0.0.4"), "").unwrap();

    let network = node_state.network(&network_name(), recovered_links).unwrap();
    let reopened = node_state
        .network(&network_name(), || -> Result<_, StateError> { panic!("the network exists already") });
    assert_eq!(reopened.unwrap().list().unwrap().len(), 2);
    let state = TestState { dir, network, pools: pools("10.0.0.0/28") };
    state.mark();
    assert_eq!(ips(&state.started(&key("next"))), [ip("10.0.0.4")]);
    state.expect_consistent();
    assert!(matches!(state.begin(&complete).unwrap(), Begin::Exists(RecordPhase::Ready)));
    assert!(state.network.find(&complete).unwrap().unwrap().attachment().is_some());
    let held = state.network.find_stem(&digest_stem).unwrap().unwrap();
    assert!(held.attachment().is_none());
    held.release(&[]).unwrap();
    assert_eq!(state.names("addresses"), ["10.0.0.2".to_owned(), "10.0.0.4".to_owned()].into());
}

#[test]
fn waiting_for_a_held_lock_times_out() {
    let state = TestState::new(DUAL);
    // Like a stopped process.
    let holder = fs::File::open(state.path("lock")).unwrap();
    holder.lock().unwrap();
    let mine = fs::File::open(state.path("lock")).unwrap();
    let timeout = Duration::from_millis(30);
    let start = Instant::now();
    let error = file::lock(&mine, &state.path("lock"), timeout).unwrap_err();
    assert!(matches!(error, StateError::Busy { .. }), "{error}");
    assert!(start.elapsed() >= timeout, "{:?}", start.elapsed());
    drop(holder);
    file::lock(&mine, &state.path("lock"), timeout).unwrap();
}

#[test]
fn d_an_avoided_address_is_assigned_only_if_there_is_no_other() {
    let state = TestState::new("10.0.0.0/29");
    let avoided = ["10.0.0.2", "10.0.0.3", "10.0.0.5"].map(ip);
    let add = |name: &str| {
        let key = key(name);
        let request = AllocationRequest {
            key: &key,
            pools: Some(&state.pools),
            requested: &[],
            remove_conntrack: &|_, _| Ok(()),
            is_avoided: &|address| avoided.contains(&address),
        };
        let begun = state.network.begin(&request, |allocated| record(&key, allocated));
        begun.map(|begun| ips(&started(Ok(begun))).into_iter().find(IpAddr::is_ipv4).unwrap())
    };
    let assigned: Vec<IpAddr> = (0..5).map(|n| add(&format!("c{n}")).unwrap()).collect();
    assert_eq!(assigned[..2], ["10.0.0.4", "10.0.0.6"].map(ip));
    let mut last = assigned[2..].to_vec();
    last.sort();
    assert_eq!(last, avoided);
    assert!(matches!(add("full"), Err(StateError::Exhausted { .. })));
}
