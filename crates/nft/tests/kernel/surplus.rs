//! Surplus elements are removed, and a pod that is added at the same time keeps all of its own.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use netlink::NetNs;
use nft::{Alive, Firewall, Mode, Protocol};

use crate::common::{Sample, all_elements, in_netns};

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

    fn alive(&self) -> Alive {
        let mut links = self.links.clone();
        // The bridge of the samples.
        links.insert("br0".to_owned());
        Alive { links, addresses: self.addresses.clone(), has_more_addresses: false }
    }
}

/// Removes surplus elements once. How many were removed, and how many were found.
fn sweep(records: &Mutex<Records>) -> (usize, usize) {
    let mut firewall = Firewall::open().unwrap();
    let mut surplus = firewall.pod_elements().unwrap();
    let alive = records.lock().unwrap().alive();
    surplus.elements.retain(|element| alive.lacks(element));
    let found = surplus.elements.len();
    let is_removed = found > 0 && firewall.remove_surplus(&surplus).unwrap();
    (if is_removed { found } else { 0 }, found)
}

const WORKERS: u16 = 4;
/// ADDs of each worker, at least.
const ADDS: u16 = 60;
/// Pods that are gone, with all their elements left.
const GONE: u16 = 40;

#[test]
fn surplus_elements_are_removed_and_no_concurrent_add_is_hit() {
    in_netns(|| {
        let here = NetNs::current().unwrap();
        let records = Mutex::new(Records::default());
        let mode = |n: u16| if n % 2 == 0 { Mode::Bridge } else { Mode::Routed };
        let sample = |n: u16| Sample::new(mode(n), n).publish(Protocol::Tcp, 2000 + n, 80);
        (2..2 + GONE).map(|n| sample(5000 + n)).for_each(|gone| gone.admit());
        let (running, sweeps) = (AtomicU32::new(u32::from(WORKERS)), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for worker in 0..WORKERS {
                let (records, running, here) = (&records, &running, &here);
                scope.spawn(move || {
                    let adds = || {
                        let mut firewall = Firewall::open().unwrap();
                        for n in 0..ADDS {
                            // Half of them have the address of a pod that is gone.
                            let of_gone = 5002 + worker * (GONE / WORKERS) + n % (GONE / WORKERS);
                            let n = if n % 2 == 0 { 10 + worker * ADDS + n } else { of_gone };
                            let pod = sample(n);
                            records.lock().unwrap().add(&pod);
                            firewall.admit(&pod.pod()).unwrap();
                            let missing = firewall.missing_of(&[pod.pod()]).unwrap();
                            assert_eq!(missing, [0; 0], "{}", pod.link);
                            firewall.expel(&pod.pod()).unwrap();
                            records.lock().unwrap().remove(&pod);
                        }
                        // The last one stays.
                        let last = sample(1000 + worker);
                        records.lock().unwrap().add(&last);
                        firewall.admit(&last.pod()).unwrap();
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
                sweep(&records);
                sweeps.fetch_add(1, Ordering::SeqCst);
            }
        });
        assert!(sweeps.load(Ordering::SeqCst) > 0);
        // All that is left is removed by one more: no other process changes tables now.
        all_elements();
        let (removed, found) = sweep(&records);
        assert_eq!(removed, found);
        assert_eq!(sweep(&records), (0, 0));
        for worker in 0..WORKERS {
            let pod = sample(1000 + worker);
            assert_eq!(Firewall::open().unwrap().missing(&pod.pod()).unwrap(), [""; 0]);
        }
    });
}
