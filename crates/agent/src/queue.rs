//! Who works on what next: a bounded queue with three lanes, so that a burst of one kind never starves the others.
//!
//! Workers take the lanes in turn, first come first served inside each. Every lane has some workers (an eighth of all, at
//! least one) that the others leave alone even while it has nothing to do: whoever comes next need not wait for the end
//! of a job that somebody else's burst began. That costs a quarter of the workers in a burst of one kind, which is little:
//! the kernel makes links under one lock, and a few threads keep it busy. It is also what makes it safe for a job to
//! wait for an earlier job of another lane: that one always finds a worker.
//!
//! A thread that has a job in its hands need not put it in: it may ask for a worker's [`Place`] and do it itself.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

/// How many may wait; more than all clients that can be connected.
pub(crate) const BOUND: usize = 4096;
/// One worker for each lane.
pub(crate) const FEWEST_WORKERS: usize = LANES;
/// The engine's deepest call takes a small part of it; a default stack is 2 MiB.
pub(crate) const STACK: usize = 256 << 10;
const LANES: usize = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lane {
    Add,
    Del,
    Other,
}

impl Lane {
    const ALL: [Lane; LANES] = [Lane::Add, Lane::Del, Lane::Other];
}

/// Why a job was not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refused {
    #[error("the agent is busy: {0} requests are waiting already")]
    Full(usize),
    #[error("the agent is stopping")]
    Closed,
}

/// What was still there when the time for draining was over.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Leftover {
    pub(crate) waiting: usize,
    pub(crate) running: usize,
}

type Job = Box<dyn FnOnce() + Send>;

pub(crate) struct Queue {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    /// Something was put in, or no more will be.
    filled: Condvar,
    /// The last job ended.
    idle: Condvar,
}

struct State {
    waiting: [VecDeque<Job>; LANES],
    running: [usize; LANES],
    /// Whose turn it is.
    next: usize,
    workers: usize,
    bound: usize,
    closed: bool,
}

impl Queue {
    /// Starts the workers, at least one a lane.
    pub(crate) fn start(workers: usize) -> std::io::Result<Self> {
        Self::with_bound(workers, BOUND)
    }

    pub(crate) fn with_bound(workers: usize, bound: usize) -> std::io::Result<Self> {
        let workers = workers.max(FEWEST_WORKERS);
        let state = State {
            waiting: Default::default(),
            running: [0; LANES],
            next: 0,
            workers,
            bound,
            closed: false,
        };
        let shared =
            Arc::new(Shared { state: Mutex::new(state), filled: Condvar::new(), idle: Condvar::new() });
        // Made first: if a thread cannot be started, dropping it sends the others home.
        let queue = Self { shared };
        for number in 0..workers {
            let shared = Arc::clone(&queue.shared);
            let builder = thread::Builder::new().name(format!("podwire-work-{number}")).stack_size(STACK);
            builder.spawn(move || shared.work())?;
        }
        Ok(queue)
    }

    /// Puts a job in. Its result comes through the receiver; an error there means that the job panicked. What the job
    /// wants done afterwards is done when the result is on its way.
    pub(crate) fn submit<T: Send + 'static, A: FnOnce()>(
        &self,
        lane: Lane,
        job: impl FnOnce() -> (T, A) + Send + 'static,
    ) -> Result<oneshot::Receiver<T>, Refused> {
        let (sender, receiver) = oneshot::channel();
        let mut state = self.shared.lock();
        if state.closed {
            return Err(Refused::Closed);
        }
        if state.waiting() >= state.bound {
            return Err(Refused::Full(state.bound));
        }
        state.waiting[lane as usize].push_back(Box::new(move || {
            let (result, afterwards) = job();
            // Nobody may be waiting for the result any more, and that is their choice.
            let _ = sender.send(result);
            afterwards();
        }));
        drop(state);
        self.shared.filled.notify_one();
        Ok(receiver)
    }

    /// A worker's place for the calling thread, which then does a job itself. None where it would have to wait for one,
    /// or would be before somebody who waits.
    pub(crate) fn place(&self, lane: Lane) -> Option<Place<'_>> {
        let mut state = self.shared.lock();
        let somebody_is_next = Lane::ALL.into_iter().any(|lane| state.may_take(lane));
        if state.closed || somebody_is_next || !state.may_begin(lane) {
            return None;
        }
        state.running[lane as usize] += 1;
        Some(Place { shared: &self.shared, lane })
    }

    pub(crate) fn waiting(&self) -> usize {
        self.shared.lock().waiting()
    }

    /// Takes nothing more, and waits until all that is in is done, or the time is over.
    pub(crate) fn drain(&self, deadline: Instant) -> Leftover {
        self.shared.close();
        let mut state = self.shared.lock();
        loop {
            let left = Leftover { waiting: state.waiting(), running: state.running.iter().sum() };
            let remaining = deadline.saturating_duration_since(Instant::now());
            if left == Leftover::default() || remaining == Duration::ZERO {
                return left;
            }
            let woken = self.shared.idle.wait_timeout(state, remaining);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Counts as a worker at work until it is dropped.
pub(crate) struct Place<'a> {
    shared: &'a Shared,
    lane: Lane,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        self.shared.ended(&mut state, self.lane);
        let somebody_waits = state.waiting() > 0;
        drop(state);
        if somebody_waits {
            self.shared.filled.notify_one();
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.shared.close();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&self) {
        self.lock().closed = true;
        self.filled.notify_all();
    }

    fn ended(&self, state: &mut State, lane: Lane) {
        state.running[lane as usize] -= 1;
        if state.waiting() == 0 && state.running.iter().all(|n| *n == 0) {
            self.idle.notify_all();
        }
    }

    /// A worker's life.
    fn work(&self) {
        let mut state = self.lock();
        loop {
            if let Some((lane, job)) = state.take() {
                drop(state);
                // A panic drops the job's sender, so that whoever waits is told. (Where panics abort, the whole agent
                // ends here and is started again.)
                if catch_unwind(AssertUnwindSafe(job)).is_err() {
                    tracing::error!("a request made the agent panic: please report it");
                }
                state = self.lock();
                self.ended(&mut state, lane);
            } else if state.closed && state.waiting() == 0 {
                return;
            } else {
                state = self.filled.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

impl State {
    fn waiting(&self) -> usize {
        self.waiting.iter().map(VecDeque::len).sum()
    }

    /// The next job that may begin now.
    fn take(&mut self) -> Option<(Lane, Job)> {
        for step in 0..LANES {
            let lane = Lane::ALL[(self.next + step) % LANES];
            if self.may_begin(lane)
                && let Some(job) = self.waiting[lane as usize].pop_front()
            {
                self.next = (lane as usize + 1) % LANES;
                self.running[lane as usize] += 1;
                return Some((lane, job));
            }
        }
        None
    }

    /// Is there a job that may begin now?
    fn may_take(&self, lane: Lane) -> bool {
        !self.waiting[lane as usize].is_empty() && self.may_begin(lane)
    }

    /// Is there a worker more than the other lanes still have a right to?
    fn may_begin(&self, lane: Lane) -> bool {
        let share = (self.workers / 8).max(1);
        let free = self.workers - self.running.iter().sum::<usize>();
        let others = Lane::ALL.into_iter().filter(|other| *other != lane);
        let owed: usize = others.map(|other| share.saturating_sub(self.running[other as usize])).sum();
        free > owed
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    use super::*;

    impl Queue {
        /// A job that wants nothing done afterwards.
        fn run_in<T: Send + 'static>(
            &self,
            lane: Lane,
            job: impl FnOnce() -> T + Send + 'static,
        ) -> Result<oneshot::Receiver<T>, Refused> {
            self.submit(lane, move || (job(), || ()))
        }
    }

    const SOON: Duration = Duration::from_secs(60);

    /// Jobs that say when they begin and end when told.
    struct Gate {
        begun: mpsc::Sender<u32>,
        open: Arc<(Mutex<bool>, Condvar)>,
    }

    impl Gate {
        fn new() -> (Self, mpsc::Receiver<u32>) {
            let (begun, seen) = mpsc::channel();
            (Self { begun, open: Arc::default() }, seen)
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

    #[test]
    fn a_result_comes_back() {
        let queue = Queue::start(4).unwrap();
        assert_eq!(queue.run_in(Lane::Add, || 7).unwrap().blocking_recv(), Ok(7));
        assert_eq!(queue.drain(Instant::now() + SOON), Leftover::default());
    }

    #[test]
    fn a_burst_of_adds_leaves_workers_for_the_others() {
        let queue = Queue::start(16).unwrap();
        let (gate, begun) = Gate::new();
        let adds: Vec<_> = (0..100).map(|n| queue.run_in(Lane::Add, gate.job(n)).unwrap()).collect();
        let first: Vec<u32> = (0..12).map(|_| begun.recv_timeout(SOON).unwrap()).collect();
        assert!(first.iter().all(|n| *n < 12), "{first:?}");
        // All ADDs hold their workers for good; the others are served nevertheless.
        assert_eq!(queue.run_in(Lane::Del, || 1).unwrap().blocking_recv(), Ok(1));
        assert_eq!(queue.run_in(Lane::Other, || 2).unwrap().blocking_recv(), Ok(2));
        assert_eq!(
            begun.try_recv(),
            Err(mpsc::TryRecvError::Empty),
            "a 13th ADD took a worker of the others"
        );
        gate.open();
        for (n, add) in adds.into_iter().enumerate() {
            assert_eq!(add.blocking_recv(), Ok(u32::try_from(n).unwrap()));
        }
    }

    #[test]
    fn lanes_take_turns_and_keep_their_order() {
        let queue = Queue::start(3).unwrap();
        let (gate, begun) = Gate::new();
        for lane in Lane::ALL {
            queue.run_in(lane, gate.job(0)).unwrap();
            begun.recv_timeout(SOON).unwrap();
        }
        // One worker a lane: what begins after them keeps each lane's order.
        let order = Arc::new(Mutex::new(Vec::new()));
        let results: Vec<_> = (1..=20)
            .flat_map(|n| [(Lane::Add, n), (Lane::Del, n)])
            .map(|(lane, n)| {
                let order = Arc::clone(&order);
                queue.run_in(lane, move || order.lock().unwrap().push((lane as u32, n))).unwrap()
            })
            .collect();
        gate.open();
        for result in results {
            result.blocking_recv().unwrap();
        }
        let order = order.lock().unwrap();
        for lane in [Lane::Add, Lane::Del] {
            let of_lane: Vec<i32> =
                order.iter().filter(|(l, _)| *l == lane as u32).map(|(_, n)| *n).collect();
            assert_eq!(of_lane, (1..=20).collect::<Vec<_>>());
        }
    }

    #[test]
    fn one_worker_takes_the_lanes_in_turn() {
        let mut state = State {
            waiting: Default::default(),
            running: [0; LANES],
            next: 0,
            workers: 3,
            bound: 100,
            closed: false,
        };
        for lane in Lane::ALL {
            (0..3).for_each(|_| state.waiting[lane as usize].push_back(Box::new(|| ())));
        }
        let mut taken = Vec::new();
        while let Some((lane, _)) = state.take() {
            state.running[lane as usize] -= 1;
            taken.push(lane);
        }
        assert_eq!(taken, Lane::ALL.repeat(3));
    }

    #[test]
    fn the_queue_is_bounded() {
        let queue = Queue::with_bound(3, 2).unwrap();
        let (gate, begun) = Gate::new();
        queue.run_in(Lane::Add, gate.job(0)).unwrap();
        begun.recv_timeout(SOON).unwrap();
        queue.run_in(Lane::Add, gate.job(1)).unwrap();
        queue.run_in(Lane::Add, gate.job(2)).unwrap();
        assert_eq!(queue.waiting(), 2);
        assert_eq!(queue.run_in(Lane::Add, || ()).err(), Some(Refused::Full(2)));
        gate.open();
        assert_eq!(queue.drain(Instant::now() + SOON), Leftover::default());
        assert_eq!(queue.run_in(Lane::Add, || ()).err(), Some(Refused::Closed));
    }

    #[test]
    fn a_place_counts_as_a_worker() {
        let queue = Queue::start(3).unwrap();
        let add = queue.place(Lane::Add).unwrap();
        assert!(queue.place(Lane::Add).is_none(), "it took a worker of the others");
        let others = (queue.place(Lane::Del).unwrap(), queue.place(Lane::Other).unwrap());
        let left = queue.drain(Instant::now() + Duration::from_millis(20));
        assert_eq!(left, Leftover { waiting: 0, running: 3 });
        drop((add, others));
        assert_eq!(queue.drain(Instant::now() + SOON), Leftover::default());
        assert!(queue.place(Lane::Add).is_none(), "the queue is closed");
    }

    #[test]
    fn who_waits_comes_before_who_wants_a_place() {
        let queue = Queue::start(3).unwrap();
        let (gate, begun) = Gate::new();
        let place = queue.place(Lane::Add).unwrap();
        let (first, second) =
            (queue.run_in(Lane::Add, gate.job(1)).unwrap(), queue.run_in(Lane::Add, || 2).unwrap());
        assert_eq!(queue.waiting(), 2);
        drop(place);
        assert_eq!(begun.recv_timeout(SOON), Ok(1));
        assert!(queue.place(Lane::Add).is_none());
        gate.open();
        assert_eq!((first.blocking_recv(), second.blocking_recv()), (Ok(1), Ok(2)));
        let end = Instant::now() + SOON;
        while queue.place(Lane::Add).is_none() {
            assert!(Instant::now() < end, "the worker's place stayed taken");
            thread::yield_now();
        }
    }

    #[test]
    fn draining_has_an_end() {
        let queue = Queue::start(3).unwrap();
        let (gate, begun) = Gate::new();
        queue.run_in(Lane::Add, gate.job(0)).unwrap();
        begun.recv_timeout(SOON).unwrap();
        queue.run_in(Lane::Add, gate.job(1)).unwrap();
        let left = queue.drain(Instant::now() + Duration::from_millis(20));
        assert_eq!(left, Leftover { waiting: 1, running: 1 });
        gate.open();
        assert_eq!(queue.drain(Instant::now() + SOON), Leftover::default());
    }

    #[test]
    fn a_panic_is_told_and_the_worker_goes_on() {
        let queue = Queue::start(3).unwrap();
        for _ in 0..10 {
            assert!(queue.run_in(Lane::Del, || panic!("on purpose")).unwrap().blocking_recv().is_err());
        }
        assert_eq!(queue.run_in(Lane::Del, || 5).unwrap().blocking_recv(), Ok(5));
    }

    #[test]
    fn a_worker_has_stack_enough_for_the_deepest_config() {
        let queue = Queue::start(3).unwrap();
        let deepest = "[".repeat(127) + &"]".repeat(127);
        let parse =
            move || serde_json::from_str::<serde_json::Value>(&deepest).map(|value| value.to_string());
        let text = queue.run_in(Lane::Add, parse).unwrap().blocking_recv().unwrap();
        assert_eq!(text.unwrap().len(), 254);
    }

    #[test]
    fn nothing_is_lost_under_load() {
        let queue = Queue::start(8).unwrap();
        let done = Arc::new(AtomicUsize::new(0));
        for n in 0..4000 {
            let done = Arc::clone(&done);
            let job = move || done.fetch_add(1, Ordering::Relaxed);
            queue.run_in(Lane::ALL[n % LANES], job).unwrap();
        }
        assert_eq!(queue.drain(Instant::now() + SOON), Leftover::default());
        assert_eq!(done.load(Ordering::Relaxed), 4000);
    }
}
