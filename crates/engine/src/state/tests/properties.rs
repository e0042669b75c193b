//! Property tests: any order of events, and any content of records.

use proptest::prelude::*;

use super::*;

/// An event of one of a few attachments.
#[derive(Debug, Clone, Copy)]
enum Event {
    Begin,
    Commit,
    Reopen,
    Release,
    /// Its process dies, and the kernel releases its lock.
    Die,
    /// A process dies in `begin` after this number of claims.
    DieInBegin(u8),
    /// A process dies in `release` after it removed the record and this number of claims.
    DieInRelease(u8),
    LoseIndex,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => Just(Event::Begin),
        3 => Just(Event::Commit),
        1 => Just(Event::Reopen),
        3 => Just(Event::Release),
        2 => Just(Event::Die),
        1 => (0..=2u8).prop_map(Event::DieInBegin),
        1 => (0..=2u8).prop_map(Event::DieInRelease),
        1 => Just(Event::LoseIndex),
    ]
}

/// The state, and the attachments that a live process holds.
struct Model {
    state: TestState,
    held: BTreeMap<u8, HeldAttachment>,
}

impl Model {
    fn apply(&mut self, slot: u8, event: Event) {
        let key = key(&format!("c{slot}"));
        match event {
            Event::Begin => match self.state.begin(&key) {
                Ok(Begin::Started(held)) => assert!(self.held.insert(slot, *held).is_none()),
                Ok(Begin::Exists(_)) => {}
                Err(error) => assert!(matches!(error, StateError::Exhausted { .. }), "{error}"),
            },
            Event::Commit => {
                if let Some(held) = self.held.get_mut(&slot) {
                    held.commit().unwrap();
                }
            }
            Event::Reopen => self.take(slot).into_iter().for_each(|mut held| {
                held.reopen().unwrap();
                self.held.insert(slot, held);
            }),
            Event::Release => self.take(slot).into_iter().for_each(|held| held.release(&[]).unwrap()),
            Event::Die => drop(self.held.remove(&slot)),
            Event::DieInBegin(claims) => self.die_in_begin(usize::from(claims)),
            Event::DieInRelease(claims) => self.die_in_release(slot, usize::from(claims)),
            Event::LoseIndex => {
                for name in self.state.names("index") {
                    fs::remove_file(self.state.path("index").join(name)).unwrap();
                }
            }
        }
    }

    /// A held attachment, or one that no process holds.
    fn take(&mut self, slot: u8) -> Option<HeldAttachment> {
        self.held.remove(&slot).or_else(|| self.state.network.find(&key(&format!("c{slot}"))).unwrap())
    }

    fn die_in_begin(&self, claims: usize) {
        // A begin first repairs the state.
        self.state.network.repair_if_marked().unwrap();
        let temp = self.state.path("attachments/.new-1");
        fs::write(&temp, "").unwrap();
        for claim in ["10.0.0.5", "fd00::6"].into_iter().take(claims) {
            // The address may be claimed. Then a begin would have tried the next one.
            let _ = fs::hard_link(&temp, self.state.path("addresses").join(claim));
        }
        self.state.mark();
    }

    fn die_in_release(&mut self, slot: u8, claims: usize) {
        let Some(held) = self.take(slot) else { return };
        self.state.network.repair_if_marked().unwrap();
        let record = self.state.names("attachments").into_iter().find(|name| name.starts_with(held.stem()));
        let record = self.state.path("attachments").join(record.unwrap());
        fs::rename(record, self.state.path("attachments/.new-1")).unwrap();
        for claim in ips(&held).iter().take(claims) {
            fs::remove_file(self.state.path("addresses").join(claim.to_string())).unwrap();
        }
        self.state.mark();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    /// 5 addresses of each family for 8 attachments, so the pool is often exhausted.
    #[test]
    fn c3_state_is_consistent_after_any_events_and_deaths(
        events in prop::collection::vec((0..8u8, event()), 1..60)
    ) {
        let mut model = Model { state: TestState::new("10.0.0.0/29,fd00::/125"), held: BTreeMap::new() };
        for (slot, event) in events {
            model.apply(slot, event);
            let owners = model.held.values().flat_map(ips);
            let distinct: BTreeSet<IpAddr> = model.held.values().flat_map(ips).collect();
            prop_assert_eq!(owners.count(), distinct.len(), "an address has two owners");
        }
        let Model { state, held } = model;
        for held in held.values() {
            for ip in ips(held) {
                prop_assert!(state.network.is_claimed_by(ip, held).unwrap(), "{} lost {}", held.stem(), ip);
            }
        }
        drop(held);
        state.network.repair_if_marked().unwrap();
        state.expect_consistent();
        for listed in state.network.list().unwrap() {
            state.network.find_stem(&listed.stem).unwrap().unwrap().release(&[]).unwrap();
        }
        state.expect_empty();
        prop_assert_eq!(state.fill("x"), 5);
    }

    /// Any content is listed without a panic, and its addresses can be released.
    #[test]
    fn c3_any_bytes_in_a_record_can_be_listed_and_released(text in any_record()) {
        let state = TestState::new(DUAL);
        drop(state.ready(&key("c1")));
        fs::write(state.path("attachments/c1@eth0.ready"), &text).unwrap();
        prop_assert_eq!(state.network.list().unwrap().len(), 1);
        let requested = [(ip("10.0.0.2"), None)];
        prop_assert!(begin(&state.network, &key("c2"), Some(&state.pools), &requested).is_err());
        state.network.find(&key("c1")).unwrap().unwrap().release(&[]).unwrap();
        state.expect_empty();
    }
}

/// Random bytes, a record with a few changed bytes, or a truncated record.
fn any_record() -> impl Strategy<Value = Vec<u8>> {
    let allocation =
        Allocation { address: ip("10.0.0.2"), prefix_len: 28, gateway: ip("10.0.0.1"), used_before: false };
    let complete = serde_json::to_vec(&record(&key("c1"), &[allocation])).unwrap();
    let (len, truncated) = (complete.len(), complete.clone());
    let changed = prop::collection::vec((0..len, any::<u8>()), 1..4).prop_map(move |changes| {
        let mut text = complete.clone();
        changes.into_iter().for_each(|(at, byte)| text[at] = byte);
        text
    });
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..300),
        changed,
        (0..len).prop_map(move |len| truncated[..len].to_vec()),
    ]
}
