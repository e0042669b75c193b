//! Whatever the order of events and whatever the files say.

use proptest::prelude::*;

use super::*;

/// What can happen to one of a few attachments.
#[derive(Debug, Clone, Copy)]
enum Event {
    Begin,
    Commit,
    Reopen,
    Release,
    /// Its process dies; the kernel gives its lock back.
    Die,
    /// A process dies in `begin`, with so many claims made.
    DieInBegin(u8),
    /// A process dies in `release`: the record is gone, and so many claims.
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

/// The files of a world, and the attachments that a living process holds.
struct Model {
    world: World,
    held: BTreeMap<u8, HeldAttachment>,
}

impl Model {
    fn apply(&mut self, slot: u8, event: Event) {
        let key = key(&format!("c{slot}"));
        match event {
            Event::Begin => match self.world.begin(&key) {
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
                for name in self.world.names("index") {
                    fs::remove_file(self.world.path("index").join(name)).unwrap();
                }
            }
        }
    }

    /// Ours, or one that nobody holds any more.
    fn take(&mut self, slot: u8) -> Option<HeldAttachment> {
        self.held.remove(&slot).or_else(|| self.world.network.find(&key(&format!("c{slot}"))).unwrap())
    }

    fn die_in_begin(&self, claims: usize) {
        // Before it does anything, a begin repairs what was left.
        self.world.network.settle().unwrap();
        let temp = self.world.path("attachments/.new-1");
        fs::write(&temp, "").unwrap();
        for claim in ["10.0.0.5", "fd00::6"].into_iter().take(claims) {
            // It may be somebody's: then the begin would have gone on to the next.
            let _ = fs::hard_link(&temp, self.world.path("addresses").join(claim));
        }
        self.world.mark();
    }

    fn die_in_release(&mut self, slot: u8, claims: usize) {
        let Some(held) = self.take(slot) else { return };
        self.world.network.settle().unwrap();
        let record = self.world.names("attachments").into_iter().find(|name| name.starts_with(held.stem()));
        let record = self.world.path("attachments").join(record.unwrap());
        fs::rename(record, self.world.path("attachments/.new-1")).unwrap();
        for claim in ips(&held).iter().take(claims) {
            fs::remove_file(self.world.path("addresses").join(claim.to_string())).unwrap();
        }
        self.world.mark();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    /// 5 addresses of each family for 8 attachments: the pool is often empty.
    #[test]
    fn c3_any_order_of_events_and_deaths_ends_consistent(
        events in prop::collection::vec((0..8u8, event()), 1..60)
    ) {
        let mut model = Model { world: World::new("10.0.0.0/29,fd00::/125"), held: BTreeMap::new() };
        for (slot, event) in events {
            model.apply(slot, event);
            let owners = model.held.values().flat_map(ips);
            let distinct: BTreeSet<IpAddr> = model.held.values().flat_map(ips).collect();
            prop_assert_eq!(owners.count(), distinct.len(), "an address has two owners");
        }
        let Model { world, held } = model;
        for held in held.values() {
            for ip in ips(held) {
                prop_assert!(world.network.is_claimed_by(ip, held).unwrap(), "{} lost {}", held.stem(), ip);
            }
        }
        drop(held);
        world.network.settle().unwrap();
        world.expect_consistent();
        for listed in world.network.list().unwrap() {
            world.network.find_stem(&listed.stem).unwrap().unwrap().release(&[]).unwrap();
        }
        world.expect_empty();
        prop_assert_eq!(world.fill("x"), 5);
    }

    /// The record of somebody else's disk: read or not, never a panic, and its addresses come back.
    #[test]
    fn c3_any_bytes_in_a_record_can_be_listed_and_released(text in any_record()) {
        let world = World::new(DUAL);
        drop(world.ready(&key("c1")));
        fs::write(world.path("attachments/c1@eth0.ready"), &text).unwrap();
        prop_assert_eq!(world.network.list().unwrap().len(), 1);
        let requested = [(ip("10.0.0.2"), None)];
        prop_assert!(begin(&world.network, &key("c2"), Some(&world.pools), &requested).is_err());
        world.network.find(&key("c1")).unwrap().unwrap().release(&[]).unwrap();
        world.expect_empty();
    }
}

/// Bytes without sense, or a record with a few bytes changed, or the first part of one.
fn any_record() -> impl Strategy<Value = Vec<u8>> {
    let given =
        Allocation { address: ip("10.0.0.2"), prefix_len: 28, gateway: ip("10.0.0.1"), used_before: false };
    let whole = serde_json::to_vec(&record(&key("c1"), &[given])).unwrap();
    let (len, cut) = (whole.len(), whole.clone());
    let changed = prop::collection::vec((0..len, any::<u8>()), 1..4).prop_map(move |changes| {
        let mut text = whole.clone();
        changes.into_iter().for_each(|(at, byte)| text[at] = byte);
        text
    });
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..300),
        changed,
        (0..len).prop_map(move |len| cut[..len].to_vec()),
    ]
}
