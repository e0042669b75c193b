//! Surplus elements are removed, and a pod that is added at the same time keeps all of its own.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use netlink::NetNs;
use nft::{AttachMode, Firewall, LiveOwners, Protocol};

use crate::common::{Sample, in_netns};

/// What an ADD writes before its elements: its claim and its record.
#[derive(Default)]
struct Records {
    links: HashSet<String>,
    addresses: HashSet<IpAddr>,
}

impl Records {
    fn add(&mut self, sample: &Sample) {
        self.links.insert(sample.link.to_string());
        self.addresses.extend(&sample.addresses);
    }

    fn remove(&mut self, sample: &Sample) {
        self.links.remove(sample.link.as_str());
        self.addresses.retain(|address| !sample.addresses.contains(address));
    }

    fn alive(&self) -> LiveOwners {
        let mut links = self.links.clone();
        // The bridge of the samples.
        links.insert("br0".to_owned());
        LiveOwners { links, addresses: self.addresses.clone(), has_more_addresses: false }
    }
}

/// Removes surplus elements once, with a pause between the decision and the removal. How many were removed, and how many were
/// found.
fn sweep(records: &Mutex<Records>, pause: impl Fn()) -> (usize, usize) {
    let mut firewall = Firewall::open().unwrap();
    let mut surplus = firewall.pod_elements().unwrap();
    let alive = records.lock().unwrap().alive();
    surplus.elements.retain(|element| alive.lacks(element));
    let found = surplus.elements.len();
    pause();
    let now = || Ok::<_, nft::Error>(records.lock().unwrap().alive());
    (firewall.remove_surplus(surplus, now).unwrap().len(), found)
}

const WORKERS: u16 = 4;
/// ADDs of each worker.
const ADDS: u16 = 80;
/// The pods of each worker, which it adds in turn.
const PODS: u16 = 3;

#[test]
fn surplus_elements_are_removed_and_no_concurrent_add_is_hit() {
    in_netns(|| {
        let here = NetNs::current().unwrap();
        let records = Mutex::new(Records::default());
        let sample = |n: u16| {
            let mode = if n.is_multiple_of(2) { AttachMode::Bridge } else { AttachMode::Routed };
            Sample::new(mode, 10 + n).publish(Protocol::Tcp, 2000 + n, 80)
        };
        let (running, sweeps) = (AtomicU32::new(u32::from(WORKERS)), AtomicUsize::new(0));
        let swept = || sweeps.load(Ordering::SeqCst);
        let added = &AtomicUsize::new(0);
        // Until a pod is added, if one is about to be.
        let pause = || {
            let before = added.load(Ordering::SeqCst);
            (0..2000)
                .take_while(|_| added.load(Ordering::SeqCst) == before)
                .for_each(|_| std::thread::yield_now());
        };
        let mut removed = 0;
        std::thread::scope(|scope| {
            for worker in 0..WORKERS {
                let (records, running, here) = (&records, &running, &here);
                scope.spawn(move || {
                    let adds = || {
                        let mut firewall = Firewall::open().unwrap();
                        for n in 0..ADDS {
                            // At any moment of a sweep.
                            (0..u32::from(worker * 97 + n * 31) % 500).for_each(|_| std::thread::yield_now());
                            let pod = sample(worker * PODS + n % PODS);
                            records.lock().unwrap().add(&pod);
                            firewall.admit(&pod.pod()).unwrap();
                            added.fetch_add(1, Ordering::SeqCst);
                            // Whatever was about to be removed when the pod was added is removed now.
                            let before = swept();
                            while swept() < before + 2 {
                                std::thread::yield_now();
                            }
                            let missing = firewall.missing_of(&[pod.pod()]).unwrap();
                            assert_eq!(missing, [0; 0], "{}", pod.link);
                            // As if its DEL was killed: the elements are surplus until the pod is added again.
                            if n + 1 < ADDS {
                                records.lock().unwrap().remove(&pod);
                            }
                        }
                    };
                    // Also if one fails: the sweeper must end.
                    let done = here.run(|| std::panic::catch_unwind(std::panic::AssertUnwindSafe(adds)));
                    running.fetch_sub(1, Ordering::SeqCst);
                    if let Err(panic) = done.unwrap() {
                        std::panic::resume_unwind(panic);
                    }
                });
            }
            while running.load(Ordering::SeqCst) > 0 {
                removed += sweep(&records, pause).0;
                sweeps.fetch_add(1, Ordering::SeqCst);
            }
        });
        // All that is left is removed by one more: no other process changes tables now.
        let (rest, found) = sweep(&records, || ());
        assert_eq!(rest, found);
        assert!(removed > 0, "no sweep removed an element while pods were added");
        assert_eq!(sweep(&records, || ()), (0, 0));
        for worker in 0..WORKERS {
            let last = sample(worker * PODS + (ADDS - 1) % PODS);
            assert_eq!(Firewall::open().unwrap().missing(&last.pod()).unwrap(), [""; 0]);
        }
    });
}
