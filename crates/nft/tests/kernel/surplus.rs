//! Surplus elements are removed, and a pod that is added at the same time keeps all of its own.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use netlink::NetNs;
use nft::{AttachMode, Firewall, KnownPods, LiveOwners, Protocol};

use crate::common::{Sample, in_netns, nft};

/// The records that ADDs write before they add elements, by link.
#[derive(Default)]
struct Records(HashMap<String, Sample>);

impl Records {
    fn add(&mut self, sample: Sample) {
        self.0.insert(sample.link.to_string(), sample);
    }

    fn remove(&mut self, sample: &Sample) {
        self.0.remove(sample.link.as_str());
    }

    fn alive(&self) -> LiveOwners {
        // The bridge of the samples.
        let links = self.0.keys().cloned().chain(["br0".to_owned()]).collect();
        let addresses = self.0.values().flat_map(|sample| sample.addresses.clone()).collect();
        LiveOwners { links, addresses, known: known(self.0.values()), ..LiveOwners::default() }
    }
}

fn known<'a>(samples: impl IntoIterator<Item = &'a Sample>) -> KnownPods {
    let mut known = KnownPods::default();
    for sample in samples {
        known.set_exclusive(&sample.link, sample.addresses.iter().copied());
        known.add_elements(&sample.pod()).unwrap();
    }
    known
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Swept {
    found: usize,
    removed: usize,
    /// The removed elements that belong to a running pod which should not have them.
    unwanted: usize,
}

/// Removes surplus elements once, with a pause between the decision and the removal.
fn sweep(records: &Mutex<Records>, pause: impl Fn()) -> Swept {
    let mut firewall = Firewall::open().unwrap();
    let mut surplus = firewall.pod_elements().unwrap();
    let alive = records.lock().unwrap().alive();
    surplus.elements.retain(|element| alive.is_orphan(element) || alive.is_unwanted(element));
    let found = surplus.elements.len();
    pause();
    let now = || Ok::<_, nft::Error>(records.lock().unwrap().alive());
    let removed = firewall.remove_surplus(surplus, now).unwrap();
    let unwanted = removed.iter().filter(|element| alive.is_unwanted(element)).count();
    Swept { found, removed: removed.len(), unwanted }
}

/// Elements that refer to a known pod but are not in its record, in both tables and address families.
const UNWANTED: [&str; 12] = [
    "inet podwire source4 { pwpod3 . 10.77.0.99 . 02:00:00:00:00:99 }",
    "inet podwire source6 { pwpod3 . fd77::99 . 02:00:00:00:00:99 }",
    "inet podwire source4 { pwpod3 . 10.77.0.1 . 02:00:00:00:00:99 }",
    "bridge podwire addr4 { pwpod1 . 10.77.0.99 }",
    "bridge podwire addr6 { pwpod1 . fd77::99 }",
    "bridge podwire macs { pwpod1 . 02:00:00:00:00:99 }",
    "bridge podwire dhcp_ports { pwpod1 }",
    "inet podwire via4 { 10.77.0.1 . eth9 }",
    "inet podwire via6 { fd77::1 . eth9 }",
    "inet podwire hostport4_any { tcp . 9999 : 10.77.0.1 . 80 }",
    "inet podwire hostport6_any { tcp . 9999 : fd77::1 . 80 }",
    "inet podwire hairpin4 { 10.77.0.1 . tcp . 80 . 9999 }",
];

/// Elements of a pod without a known record, and of no pod.
const UNCHANGED: [&str; 6] = [
    "inet podwire source4 { pwpod5 . 10.77.0.99 . 02:00:00:00:00:99 }",
    "inet podwire source4 { pwpod5 . 10.77.0.3 . 02:00:00:00:00:99 }",
    "bridge podwire addr6 { pwpod5 . fd77::99 }",
    "inet podwire via4 { 10.77.0.5 . eth9 }",
    "inet podwire hostport6_any { tcp . 9998 : fd77::5 . 80 }",
    "inet podwire bound4 { 10.77.0.99 }",
];

#[test]
fn elements_that_a_running_pod_should_not_have_are_surplus() {
    in_netns(|| {
        let own = [
            Sample::new(AttachMode::Bridge, 1).publish(Protocol::Tcp, 8080, 80),
            Sample::new(AttachMode::Routed, 3),
        ];
        let other = Sample::new(AttachMode::Routed, 5);
        own.iter().chain([&other]).for_each(Sample::add_pod);
        let mut firewall = Firewall::open().unwrap();
        assert_eq!(firewall.list_elements().unwrap().surplus_of(&known(&own)).elements, []);
        for element in UNWANTED.iter().chain(&UNCHANGED) {
            nft(&format!("add element {element}"));
        }
        let alive = || LiveOwners {
            links: ["br0", "pwpod1", "pwpod3", "pwpod5", "eth9"].map(str::to_owned).into(),
            has_more_addresses: true,
            known: known(&own),
            ..LiveOwners::default()
        };
        let surplus = firewall.list_elements().unwrap().surplus_of(&known(&own));
        // Without the values of maps.
        let short = |element: &str| element.split(" : ").next().unwrap().trim_end_matches(" }").to_owned();
        let names = |surplus: &nft::PodElements| {
            let mut names: Vec<String> = surplus.elements.iter().map(|e| short(&e.element)).collect();
            names.sort();
            names
        };
        let mut wanted = UNWANTED.map(short);
        wanted.sort();
        assert_eq!(names(&surplus), wanted);
        // A pod of another run directory has the same addresses.
        let mut shared = alive();
        shared.known.set_shared("pwpod3", own[0].addresses.iter().copied());
        let rest = surplus.elements.iter().filter(|element| shared.is_unwanted(element));
        assert!(rest.map(|e| &e.element).all(|e| e.contains("pwpod1 ")), "{surplus:?}");
        let removed = firewall.remove_surplus(surplus, || Ok::<_, nft::Error>(alive())).unwrap();
        assert_eq!(removed.len(), UNWANTED.len());
        let left = firewall.pod_elements().unwrap();
        assert!(left.elements.iter().all(|element| !alive().is_unwanted(element)), "{left:?}");
        let left = names(&left);
        assert!(UNWANTED.iter().all(|gone| !left.contains(&short(gone))), "{left:?}");
        assert!(UNCHANGED.iter().all(|there| left.contains(&short(there))), "{left:?}");
        let all = [own[0].pod(), own[1].pod(), other.pod()];
        assert_eq!(firewall.missing_of(&all).unwrap(), [0; 0]);
    });
}

const WORKERS: u16 = 4;
/// ADDs of each worker.
const ADDS: u16 = 80;
/// The pods of each worker, which it adds in turn.
const PODS: u16 = 3;

#[test]
fn concurrent_adds_keep_their_elements_while_surplus_is_removed() {
    in_netns(|| {
        let here = NetNs::current().unwrap();
        let records = Mutex::new(Records::default());
        let sample = |n: u16| {
            let mode = if n.is_multiple_of(2) { AttachMode::Bridge } else { AttachMode::Routed };
            Sample::new(mode, 10 + n).publish(Protocol::Tcp, 2000 + n, 80)
        };
        // The same pod with fewer ports and addresses. The rest of its elements is surplus.
        let reduced = |n: u16| {
            let mut pod = sample(n);
            pod.ports.clear();
            pod.addresses.truncate(1);
            pod
        };
        let (running, sweeps) = (AtomicU32::new(u32::from(WORKERS)), AtomicUsize::new(0));
        let swept = || sweeps.load(Ordering::SeqCst);
        let added = &AtomicUsize::new(0);
        // Waits until a pod is added, with a limit: there may be no worker that is about to add one.
        let pause = || {
            let before = added.load(Ordering::SeqCst);
            (0..2000)
                .take_while(|_| added.load(Ordering::SeqCst) == before)
                .for_each(|_| std::thread::yield_now());
        };
        let (mut removed, mut unwanted) = (0, 0);
        std::thread::scope(|scope| {
            for worker in 0..WORKERS {
                let (records, running, here) = (&records, &running, &here);
                scope.spawn(move || {
                    let adds = || {
                        let mut firewall = Firewall::open().unwrap();
                        for n in 0..ADDS {
                            // Vary the time of the ADD relative to a sweep.
                            (0..u32::from(worker * 97 + n * 31) % 500).for_each(|_| std::thread::yield_now());
                            let number = worker * PODS + n % PODS;
                            let pod = sample(number);
                            records.lock().unwrap().add(sample(number));
                            firewall.add_pod(&pod.pod()).unwrap();
                            added.fetch_add(1, Ordering::SeqCst);
                            // A sweep that was running when the pod was added has ended after two more.
                            let before = swept();
                            while swept() < before + 2 {
                                std::thread::yield_now();
                            }
                            let missing = firewall.missing_of(&[pod.pod()]).unwrap();
                            assert_eq!(missing, [0; 0], "{}", pod.link);
                            // As after a DEL that was killed, or with a reduced record: elements are surplus until the pod
                            // is added again.
                            if n + 1 < ADDS {
                                let mut records = records.lock().unwrap();
                                match number.is_multiple_of(PODS) {
                                    true => records.remove(&pod),
                                    false => records.add(reduced(number)),
                                }
                            }
                        }
                    };
                    // Count down also after a panic, so that the sweeps end.
                    let done = here.run(|| std::panic::catch_unwind(std::panic::AssertUnwindSafe(adds)));
                    running.fetch_sub(1, Ordering::SeqCst);
                    if let Err(panic) = done.unwrap() {
                        std::panic::resume_unwind(panic);
                    }
                });
            }
            while running.load(Ordering::SeqCst) > 0 {
                let swept = sweep(&records, pause);
                removed += swept.removed;
                unwanted += swept.unwanted;
                sweeps.fetch_add(1, Ordering::SeqCst);
            }
        });
        // One more sweep removes all remaining surplus, because no ADD runs now.
        let swept = sweep(&records, || ());
        assert_eq!(swept.removed, swept.found);
        assert!(removed > unwanted, "no sweep removed an element of no pod while pods were added");
        assert!(unwanted > 0, "no sweep removed an element that a pod should not have while pods were added");
        assert_eq!(sweep(&records, || ()), Swept::default());
        for worker in 0..WORKERS {
            let last = sample(worker * PODS + (ADDS - 1) % PODS);
            assert_eq!(Firewall::open().unwrap().missing(&last.pod()).unwrap(), [""; 0]);
        }
    });
}
