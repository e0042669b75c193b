use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use super::*;

impl Queue {
    /// A job that wants nothing done afterwards.
    fn run_in<T: Send + 'static>(
        &self,
        class: RequestClass,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<oneshot::Receiver<T>, QueueRefusal> {
        self.submit(class, move || (job(), || ()))
    }
}

const SOON: Duration = Duration::from_secs(60);

/// Jobs that report when they begin, and end on a signal of the test.
struct Gate {
    begun: mpsc::Sender<u32>,
    open: Arc<(Mutex<bool>, Condvar)>,
}

impl Gate {
    fn new() -> (Self, mpsc::Receiver<u32>) {
        let (begun, observed) = mpsc::channel();
        (Self { begun, open: Arc::default() }, observed)
    }

    fn job(&self, number: u32) -> impl FnOnce() -> u32 + Send + use<> {
        let (begun, open) = (self.begun.clone(), Arc::clone(&self.open));
        move || {
            begun.send(number).unwrap();
            let is_open = open.0.lock().unwrap();
            let (_open, waited) = open.1.wait_timeout_while(is_open, SOON, |open| !*open).unwrap();
            assert!(!waited.timed_out(), "the gate stayed shut");
            number
        }
    }

    fn open(&self) {
        *self.open.0.lock().unwrap() = true;
        self.open.1.notify_all();
    }
}

/// The classes that have workers of their own.
const OWN: [RequestClass; 3] = [RequestClass::Add, RequestClass::Del, RequestClass::Other];

#[test]
fn a_result_comes_back() {
    let queue = Queue::start(4).unwrap();
    assert_eq!(queue.run_in(RequestClass::Add, || 7).unwrap().blocking_recv(), Ok(7));
    assert_eq!(queue.drain(Instant::now() + SOON), Leftover::default());
}

#[test]
fn a_burst_of_adds_leaves_workers_for_the_others() {
    let queue = Queue::start(16).unwrap();
    let (gate, begun) = Gate::new();
    let adds: Vec<_> = (0..100).map(|n| queue.run_in(RequestClass::Add, gate.job(n)).unwrap()).collect();
    let first: Vec<u32> = (0..12).map(|_| begun.recv_timeout(SOON).unwrap()).collect();
    assert!(first.iter().all(|n| *n < 12), "{first:?}");
    // All ADDs hold their workers for good; the others are served nevertheless.
    assert_eq!(queue.run_in(RequestClass::Del, || 1).unwrap().blocking_recv(), Ok(1));
    assert_eq!(queue.run_in(RequestClass::Other, || 2).unwrap().blocking_recv(), Ok(2));
    assert_eq!(begun.try_recv(), Err(mpsc::TryRecvError::Empty), "a 13th ADD took a worker of the others");
    gate.open();
    for (n, add) in adds.into_iter().enumerate() {
        assert_eq!(add.blocking_recv(), Ok(u32::try_from(n).unwrap()));
    }
}

#[test]
fn lanes_take_turns_and_keep_their_order() {
    let queue = Queue::start(3).unwrap();
    let (gate, begun) = Gate::new();
    for class in OWN {
        queue.run_in(class, gate.job(0)).unwrap();
        begun.recv_timeout(SOON).unwrap();
    }
    // One worker a class: what begins after them keeps each class's order.
    let order = Arc::new(Mutex::new(Vec::new()));
    let results: Vec<_> = (1..=20)
        .flat_map(|n| [(RequestClass::Add, n), (RequestClass::Del, n)])
        .map(|(class, n)| {
            let order = Arc::clone(&order);
            queue.run_in(class, move || order.lock().unwrap().push((class as u32, n))).unwrap()
        })
        .collect();
    gate.open();
    for result in results {
        result.blocking_recv().unwrap();
    }
    let order = order.lock().unwrap();
    for class in [RequestClass::Add, RequestClass::Del] {
        let of_lane: Vec<i32> = order.iter().filter(|(l, _)| *l == class as u32).map(|(_, n)| *n).collect();
        assert_eq!(of_lane, (1..=20).collect::<Vec<_>>());
    }
}

#[test]
fn adds_that_call_an_ipam_plugin_take_at_most_half_of_the_workers_and_wait_for_the_rest() {
    for (workers, most) in [(4, 1), (16, 8)] {
        let queue = Queue::start(workers).unwrap();
        let (gate, begun) = Gate::new();
        let slow: Vec<_> =
            (0..20).map(|n| queue.run_in(RequestClass::DelegatedAdd, gate.job(n)).unwrap()).collect();
        let first: Vec<u32> = (0..most).map(|_| begun.recv_timeout(SOON).unwrap()).collect();
        assert_eq!(first.len(), most);
        for class in [RequestClass::Add, RequestClass::Del, RequestClass::Other] {
            assert_eq!(queue.run_in(class, || 7).unwrap().blocking_recv(), Ok(7), "{class:?}");
        }
        assert!(begun.try_recv().is_err(), "{workers} workers: more than {most} began");
        gate.open();
        for (n, done) in slow.into_iter().enumerate() {
            assert_eq!(done.blocking_recv(), Ok(n as u32));
        }
    }
}

#[test]
fn one_worker_takes_the_lanes_in_turn() {
    let mut state = QueueState {
        waiting: Default::default(),
        submitted: 0,
        running: [0; CLASSES],
        next: 0,
        workers: FEWEST_WORKERS,
        bound: 100,
        closed: false,
    };
    for number in 0..3 * CLASSES {
        state.waiting[number % CLASSES].push_back((number as u64, Box::new(|| ())));
    }
    let mut taken = Vec::new();
    while let Some((class, _)) = state.take() {
        state.running[class as usize] -= 1;
        taken.push(class);
    }
    assert_eq!(taken, RequestClass::ALL.repeat(3));
}

#[test]
fn the_queue_is_bounded() {
    let queue = Queue::with_bound(3, 2).unwrap();
    let (gate, begun) = Gate::new();
    queue.run_in(RequestClass::Add, gate.job(0)).unwrap();
    begun.recv_timeout(SOON).unwrap();
    queue.run_in(RequestClass::Add, gate.job(1)).unwrap();
    queue.run_in(RequestClass::Add, gate.job(2)).unwrap();
    assert_eq!(queue.waiting(), 2);
    assert_eq!(queue.run_in(RequestClass::Add, || ()).err(), Some(QueueRefusal::Full(2)));
    gate.open();
    assert_eq!(queue.drain(Instant::now() + SOON), Leftover::default());
    assert_eq!(queue.run_in(RequestClass::Add, || ()).err(), Some(QueueRefusal::Closed));
}

#[test]
fn a_slot_counts_as_a_worker() {
    let queue = Queue::start(3).unwrap();
    let add = queue.slot(RequestClass::Add).unwrap();
    assert!(queue.slot(RequestClass::Add).is_none(), "it took a worker of the others");
    let others = (queue.slot(RequestClass::Del).unwrap(), queue.slot(RequestClass::Other).unwrap());
    let left = queue.drain(Instant::now() + Duration::from_millis(20));
    assert_eq!(left, Leftover { waiting: 0, running: 3 });
    drop((add, others));
    assert_eq!(queue.drain(Instant::now() + SOON), Leftover::default());
    assert!(queue.slot(RequestClass::Add).is_none(), "the queue is closed");
}

#[test]
fn jobs_that_wait_come_before_a_slot() {
    let queue = Queue::start(3).unwrap();
    let (gate, begun) = Gate::new();
    let place = queue.slot(RequestClass::Add).unwrap();
    let (first, second) = (
        queue.run_in(RequestClass::Add, gate.job(1)).unwrap(),
        queue.run_in(RequestClass::Add, || 2).unwrap(),
    );
    assert_eq!(queue.waiting(), 2);
    drop(place);
    assert_eq!(begun.recv_timeout(SOON), Ok(1));
    assert!(queue.slot(RequestClass::Add).is_none());
    gate.open();
    assert_eq!((first.blocking_recv(), second.blocking_recv()), (Ok(1), Ok(2)));
    let end = Instant::now() + SOON;
    while queue.slot(RequestClass::Add).is_none() {
        assert!(Instant::now() < end, "the worker's place stayed taken");
        thread::yield_now();
    }
}

#[test]
fn draining_has_an_end() {
    let queue = Queue::start(3).unwrap();
    let (gate, begun) = Gate::new();
    queue.run_in(RequestClass::Add, gate.job(0)).unwrap();
    begun.recv_timeout(SOON).unwrap();
    queue.run_in(RequestClass::Add, gate.job(1)).unwrap();
    let left = queue.drain(Instant::now() + Duration::from_millis(20));
    assert_eq!(left, Leftover { waiting: 1, running: 1 });
    gate.open();
    assert_eq!(queue.drain(Instant::now() + SOON), Leftover::default());
}

#[test]
fn a_worker_has_stack_enough_for_the_deepest_config() {
    let queue = Queue::start(3).unwrap();
    let deepest = "[".repeat(127) + &"]".repeat(127);
    let parse = move || serde_json::from_str::<serde_json::Value>(&deepest).map(|value| value.to_string());
    let text = queue.run_in(RequestClass::Add, parse).unwrap().blocking_recv().unwrap();
    assert_eq!(text.unwrap().len(), 254);
}

#[test]
fn nothing_is_lost_under_load() {
    let queue = Queue::start(8).unwrap();
    let done = Arc::new(AtomicUsize::new(0));
    for n in 0..4000 {
        let done = Arc::clone(&done);
        let job = move || done.fetch_add(1, Ordering::Relaxed);
        queue.run_in(RequestClass::ALL[n % CLASSES], job).unwrap();
    }
    assert_eq!(queue.drain(Instant::now() + SOON), Leftover::default());
    assert_eq!(done.load(Ordering::Relaxed), 4000);
}

/// With three workers the ADDs have one. The younger ADD of an attachment waits for the older one, and would hold it for 30 s.
#[test]
fn an_older_add_gets_the_worker_before_a_younger_one_of_the_other_class() {
    for [first, older, younger] in [
        [RequestClass::DelegatedAdd, RequestClass::DelegatedAdd, RequestClass::Add],
        [RequestClass::Other, RequestClass::Add, RequestClass::DelegatedAdd],
        [RequestClass::Add, RequestClass::Add, RequestClass::DelegatedAdd],
    ] {
        let queue = Queue::start(FEWEST_WORKERS).unwrap();
        let (blocker, begun) = Gate::new();
        // The one worker of ADDs is busy, and `first` decides whose turn is next.
        let mut all = vec![queue.run_in(RequestClass::Add, blocker.job(0)).unwrap()];
        assert_eq!(begun.recv_timeout(SOON), Ok(0));
        if first != RequestClass::Add {
            let turn = queue.run_in(RequestClass::Other, || 9).unwrap();
            assert_eq!(turn.blocking_recv(), Ok(9));
        }
        let (gate, order) = Gate::new();
        if first == RequestClass::DelegatedAdd {
            all.push(queue.run_in(first, gate.job(1)).unwrap());
        }
        all.push(queue.run_in(older, gate.job(2)).unwrap());
        all.push(queue.run_in(younger, gate.job(3)).unwrap());
        gate.open();
        blocker.open();
        let expected: &[u32] = if first == RequestClass::DelegatedAdd { &[1, 2, 3] } else { &[2, 3] };
        let begun: Vec<u32> = expected.iter().map(|_| order.recv_timeout(SOON).unwrap()).collect();
        assert_eq!(begun, expected, "{older:?} before {younger:?}");
        all.into_iter().for_each(|job| assert!(job.blocking_recv().is_ok()));
    }
}
