use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use super::*;

impl Queue {
    /// A job without a function that runs after the result.
    fn run_in<T: Send + 'static>(
        &self,
        class: RequestClass,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<oneshot::Receiver<T>, QueueRefusal> {
        self.submit(class, move || (job(), || ()))
    }
}

const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Jobs that report when they start, and end when the test opens the barrier.
struct Barrier {
    started: mpsc::Sender<u32>,
    open: Arc<(Mutex<bool>, Condvar)>,
}

impl Barrier {
    fn new() -> (Self, mpsc::Receiver<u32>) {
        let (started, receiver) = mpsc::channel();
        (Self { started, open: Arc::default() }, receiver)
    }

    fn job(&self, number: u32) -> impl FnOnce() -> u32 + Send + use<> {
        let (started, open) = (self.started.clone(), Arc::clone(&self.open));
        move || {
            started.send(number).unwrap();
            let is_open = open.0.lock().unwrap();
            let (_open, waited) = open.1.wait_timeout_while(is_open, TEST_TIMEOUT, |open| !*open).unwrap();
            assert!(!waited.timed_out(), "the test did not open the barrier");
            number
        }
    }

    fn open(&self) {
        *self.open.0.lock().unwrap() = true;
        self.open.1.notify_all();
    }
}

/// The classes that have reserved workers.
const WITH_RESERVED: [RequestClass; 3] = [RequestClass::Add, RequestClass::Del, RequestClass::Other];

#[test]
fn a_job_returns_its_result() {
    let queue = Queue::start(4).unwrap();
    assert_eq!(queue.run_in(RequestClass::Add, || 7).unwrap().blocking_recv(), Ok(7));
    assert_eq!(queue.drain(Instant::now() + TEST_TIMEOUT), UnfinishedRequests::default());
}

#[test]
fn a_burst_of_adds_leaves_workers_for_other_classes() {
    let queue = Queue::start(16).unwrap();
    let (barrier, started) = Barrier::new();
    let adds: Vec<_> = (0..100).map(|n| queue.run_in(RequestClass::Add, barrier.job(n)).unwrap()).collect();
    let first: Vec<u32> = (0..12).map(|_| started.recv_timeout(TEST_TIMEOUT).unwrap()).collect();
    assert!(first.iter().all(|n| *n < 12), "{first:?}");
    // The running ADDs block their workers. The other classes are served nevertheless.
    assert_eq!(queue.run_in(RequestClass::Del, || 1).unwrap().blocking_recv(), Ok(1));
    assert_eq!(queue.run_in(RequestClass::Other, || 2).unwrap().blocking_recv(), Ok(2));
    assert_eq!(started.try_recv(), Err(mpsc::TryRecvError::Empty), "a 13th ADD took a reserved worker");
    barrier.open();
    for (n, add) in adds.into_iter().enumerate() {
        assert_eq!(add.blocking_recv(), Ok(u32::try_from(n).unwrap()));
    }
}

#[test]
fn each_class_is_served_in_order_of_arrival() {
    let queue = Queue::start(3).unwrap();
    let (barrier, started) = Barrier::new();
    for class in WITH_RESERVED {
        queue.run_in(class, barrier.job(0)).unwrap();
        started.recv_timeout(TEST_TIMEOUT).unwrap();
    }
    // One worker per class: jobs that start after these keep the order of their class.
    let order = Arc::new(Mutex::new(Vec::new()));
    let results: Vec<_> = (1..=20)
        .flat_map(|n| [(RequestClass::Add, n), (RequestClass::Del, n)])
        .map(|(class, n)| {
            let order = Arc::clone(&order);
            queue.run_in(class, move || order.lock().unwrap().push((class as u32, n))).unwrap()
        })
        .collect();
    barrier.open();
    for result in results {
        result.blocking_recv().unwrap();
    }
    let order = order.lock().unwrap();
    for class in [RequestClass::Add, RequestClass::Del] {
        let of_class: Vec<i32> = order.iter().filter(|(l, _)| *l == class as u32).map(|(_, n)| *n).collect();
        assert_eq!(of_class, (1..=20).collect::<Vec<_>>());
    }
}

#[test]
fn delegated_adds_use_at_most_half_of_the_workers() {
    for (workers, most) in [(4, 1), (16, 8)] {
        let queue = Queue::start(workers).unwrap();
        let (barrier, started) = Barrier::new();
        let slow: Vec<_> =
            (0..20).map(|n| queue.run_in(RequestClass::DelegatedAdd, barrier.job(n)).unwrap()).collect();
        let first: Vec<u32> = (0..most).map(|_| started.recv_timeout(TEST_TIMEOUT).unwrap()).collect();
        assert_eq!(first.len(), most);
        for class in [RequestClass::Add, RequestClass::Del, RequestClass::Other] {
            assert_eq!(queue.run_in(class, || 7).unwrap().blocking_recv(), Ok(7), "{class:?}");
        }
        assert!(started.try_recv().is_err(), "{workers} workers: more than {most} started");
        barrier.open();
        for (n, done) in slow.into_iter().enumerate() {
            assert_eq!(done.blocking_recv(), Ok(n as u32));
        }
    }
}

#[test]
fn one_worker_serves_the_classes_round_robin() {
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
    let (barrier, started) = Barrier::new();
    queue.run_in(RequestClass::Add, barrier.job(0)).unwrap();
    started.recv_timeout(TEST_TIMEOUT).unwrap();
    queue.run_in(RequestClass::Add, barrier.job(1)).unwrap();
    queue.run_in(RequestClass::Add, barrier.job(2)).unwrap();
    assert_eq!(queue.waiting(), 2);
    assert_eq!(queue.run_in(RequestClass::Add, || ()).err(), Some(QueueRefusal::Full(2)));
    barrier.open();
    assert_eq!(queue.drain(Instant::now() + TEST_TIMEOUT), UnfinishedRequests::default());
    assert_eq!(queue.run_in(RequestClass::Add, || ()).err(), Some(QueueRefusal::Closed));
}

#[test]
fn a_slot_counts_as_a_worker() {
    let queue = Queue::start(3).unwrap();
    let add = queue.slot(RequestClass::Add).unwrap();
    assert!(queue.slot(RequestClass::Add).is_none(), "the slot took a reserved worker");
    let other_slots = (queue.slot(RequestClass::Del).unwrap(), queue.slot(RequestClass::Other).unwrap());
    let unfinished = queue.drain(Instant::now() + Duration::from_millis(20));
    assert_eq!(unfinished, UnfinishedRequests { waiting: 0, running: 3 });
    drop((add, other_slots));
    assert_eq!(queue.drain(Instant::now() + TEST_TIMEOUT), UnfinishedRequests::default());
    assert!(queue.slot(RequestClass::Add).is_none(), "the queue is closed");
}

#[test]
fn waiting_jobs_have_priority_over_a_slot() {
    let queue = Queue::start(3).unwrap();
    let (barrier, started) = Barrier::new();
    let slot = queue.slot(RequestClass::Add).unwrap();
    let (first, second) = (
        queue.run_in(RequestClass::Add, barrier.job(1)).unwrap(),
        queue.run_in(RequestClass::Add, || 2).unwrap(),
    );
    assert_eq!(queue.waiting(), 2);
    drop(slot);
    assert_eq!(started.recv_timeout(TEST_TIMEOUT), Ok(1));
    assert!(queue.slot(RequestClass::Add).is_none());
    barrier.open();
    assert_eq!((first.blocking_recv(), second.blocking_recv()), (Ok(1), Ok(2)));
    let end = Instant::now() + TEST_TIMEOUT;
    while queue.slot(RequestClass::Add).is_none() {
        assert!(Instant::now() < end, "the worker was not freed");
        thread::yield_now();
    }
}

#[test]
fn draining_ends_at_the_deadline() {
    let queue = Queue::start(3).unwrap();
    let (barrier, started) = Barrier::new();
    queue.run_in(RequestClass::Add, barrier.job(0)).unwrap();
    started.recv_timeout(TEST_TIMEOUT).unwrap();
    queue.run_in(RequestClass::Add, barrier.job(1)).unwrap();
    let unfinished = queue.drain(Instant::now() + Duration::from_millis(20));
    assert_eq!(unfinished, UnfinishedRequests { waiting: 1, running: 1 });
    barrier.open();
    assert_eq!(queue.drain(Instant::now() + TEST_TIMEOUT), UnfinishedRequests::default());
}

#[test]
fn the_stack_of_a_worker_suffices_for_the_deepest_config() {
    let queue = Queue::start(3).unwrap();
    let deepest = "[".repeat(127) + &"]".repeat(127);
    let parse = move || serde_json::from_str::<serde_json::Value>(&deepest).map(|value| value.to_string());
    let text = queue.run_in(RequestClass::Add, parse).unwrap().blocking_recv().unwrap();
    assert_eq!(text.unwrap().len(), 254);
}

#[test]
fn no_job_is_lost_under_load() {
    let queue = Queue::start(8).unwrap();
    let done = Arc::new(AtomicUsize::new(0));
    for n in 0..4000 {
        let done = Arc::clone(&done);
        let job = move || done.fetch_add(1, Ordering::Relaxed);
        queue.run_in(RequestClass::ALL[n % CLASSES], job).unwrap();
    }
    assert_eq!(queue.drain(Instant::now() + TEST_TIMEOUT), UnfinishedRequests::default());
    assert_eq!(done.load(Ordering::Relaxed), 4000);
}

/// With three workers the ADDs have one. The younger ADD of an attachment would hold it for 30 s while it waits for the older
/// one.
#[test]
fn an_older_add_runs_before_a_younger_add_of_another_class() {
    for [first, older, younger] in [
        [RequestClass::DelegatedAdd, RequestClass::DelegatedAdd, RequestClass::Add],
        [RequestClass::Other, RequestClass::Add, RequestClass::DelegatedAdd],
        [RequestClass::Add, RequestClass::Add, RequestClass::DelegatedAdd],
    ] {
        let queue = Queue::start(FEWEST_WORKERS).unwrap();
        let (blocker, started) = Barrier::new();
        // The only worker of ADDs is busy, and `first` decides which class is next.
        let mut all = vec![queue.run_in(RequestClass::Add, blocker.job(0)).unwrap()];
        assert_eq!(started.recv_timeout(TEST_TIMEOUT), Ok(0));
        if first != RequestClass::Add {
            let done = queue.run_in(RequestClass::Other, || 9).unwrap();
            assert_eq!(done.blocking_recv(), Ok(9));
        }
        let (barrier, order) = Barrier::new();
        if first == RequestClass::DelegatedAdd {
            all.push(queue.run_in(first, barrier.job(1)).unwrap());
        }
        all.push(queue.run_in(older, barrier.job(2)).unwrap());
        all.push(queue.run_in(younger, barrier.job(3)).unwrap());
        barrier.open();
        blocker.open();
        let expected: &[u32] = if first == RequestClass::DelegatedAdd { &[1, 2, 3] } else { &[2, 3] };
        let started: Vec<u32> = expected.iter().map(|_| order.recv_timeout(TEST_TIMEOUT).unwrap()).collect();
        assert_eq!(started, expected, "{older:?} before {younger:?}");
        all.into_iter().for_each(|job| assert!(job.blocking_recv().is_ok()));
    }
}
