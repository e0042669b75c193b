//! Who works on what next: a bounded queue with classes, so that a burst of one kind never starves the others.
//!
//! Workers take the classes in turn, first come first served inside each. Every class has some workers (an eighth of all, at
//! least one) that the others leave alone even while it has nothing to do: whoever comes next need not wait for the end
//! of a job that somebody else's burst began. That costs a quarter of the workers in a burst of one kind, which is little:
//! the kernel makes links under one lock, and a few threads keep it busy. It is also what makes it safe for a job to
//! wait for an earlier job of another class: that one always finds a worker. Callers put jobs in in the order in which the jobs
//! wait for each other.
//!
//! ADDs that call another IPAM plugin have a class of their own, because the plugin may take a minute: at most half of the
//! workers serve them, and none is kept free for them.
//!
//! A thread that has a job in its hands need not put it in: it may take a [`WorkerSlot`] and do it itself.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

/// How many may wait; more than all clients that can be connected.
pub(crate) const BOUND: usize = 4096;
/// One worker for each class that has some of its own.
pub(crate) const FEWEST_WORKERS: usize = 3;
/// The engine's deepest call takes a small part of it; a default stack is 2 MiB.
pub(crate) const STACK: usize = 256 << 10;
const CLASSES: usize = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestClass {
    Add,
    Del,
    Other,
    DelegatedAdd,
}

impl RequestClass {
    const ALL: [RequestClass; CLASSES] =
        [RequestClass::Add, RequestClass::Del, RequestClass::Other, RequestClass::DelegatedAdd];

    /// The workers that the other classes leave alone.
    fn share(self, workers: usize) -> usize {
        match self {
            RequestClass::Add | RequestClass::Del | RequestClass::Other => (workers / 8).max(1),
            RequestClass::DelegatedAdd => 0,
        }
    }

    fn uses_share_of(self, other: RequestClass) -> bool {
        self == other || (self, other) == (RequestClass::DelegatedAdd, RequestClass::Add)
    }

    /// The workers that serve it at most.
    fn most(self, workers: usize) -> usize {
        match self {
            RequestClass::Add | RequestClass::Del | RequestClass::Other => workers,
            RequestClass::DelegatedAdd => {
                let allocations: usize =
                    RequestClass::ALL.into_iter().map(|class| class.share(workers)).sum();
                (workers / 2).min(workers.saturating_sub(allocations)).max(1)
            }
        }
    }
}

/// Why a job was not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum QueueRefusal {
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
    shared: Arc<QueueShared>,
}

struct QueueShared {
    state: Mutex<QueueState>,
    /// Something was put in, or no more will be.
    filled: Condvar,
    /// The last job ended.
    idle: Condvar,
}

struct QueueState {
    /// With the number of each, in the order of their arrival.
    waiting: [VecDeque<(u64, Job)>; CLASSES],
    submitted: u64,
    running: [usize; CLASSES],
    /// Whose turn it is.
    next: usize,
    workers: usize,
    bound: usize,
    closed: bool,
}

impl Queue {
    /// Starts the workers, at least one a class.
    pub(crate) fn start(workers: usize) -> std::io::Result<Self> {
        Self::with_bound(workers, BOUND)
    }

    pub(crate) fn with_bound(workers: usize, bound: usize) -> std::io::Result<Self> {
        let workers = workers.max(FEWEST_WORKERS);
        let state = QueueState {
            waiting: Default::default(),
            submitted: 0,
            running: [0; CLASSES],
            next: 0,
            workers,
            bound,
            closed: false,
        };
        let shared =
            Arc::new(QueueShared { state: Mutex::new(state), filled: Condvar::new(), idle: Condvar::new() });
        // Made first: if a thread cannot be started, dropping it sends the others home.
        let queue = Self { shared };
        for number in 0..workers {
            let shared = Arc::clone(&queue.shared);
            let builder = thread::Builder::new().name(format!("podwire-work-{number}")).stack_size(STACK);
            builder.spawn(move || shared.work())?;
        }
        Ok(queue)
    }

    /// Puts a job in. Its result comes through the receiver; an error there means that the job was dropped. What the
    /// job wants done afterwards is done when the result is on its way.
    pub(crate) fn submit<T: Send + 'static, A: FnOnce()>(
        &self,
        class: RequestClass,
        job: impl FnOnce() -> (T, A) + Send + 'static,
    ) -> Result<oneshot::Receiver<T>, QueueRefusal> {
        let (sender, receiver) = oneshot::channel();
        let mut state = self.shared.lock();
        if state.closed {
            return Err(QueueRefusal::Closed);
        }
        if state.waiting() >= state.bound {
            return Err(QueueRefusal::Full(state.bound));
        }
        let job = Box::new(move || {
            let (result, afterwards) = job();
            // Nobody may be waiting for the result any more, and that is their choice.
            let _ = sender.send(result);
            afterwards();
        });
        state.submitted += 1;
        let number = state.submitted;
        state.waiting[class as usize].push_back((number, job));
        drop(state);
        self.shared.filled.notify_one();
        Ok(receiver)
    }

    /// A worker's slot for the calling thread, which then does a job itself. None if no slot is free, or if a job that
    /// waits may begin now.
    pub(crate) fn slot(&self, class: RequestClass) -> Option<WorkerSlot> {
        let mut state = self.shared.lock();
        let has_waiting = RequestClass::ALL.into_iter().any(|class| state.may_take(class));
        if state.closed || has_waiting || !state.may_begin(class) {
            return None;
        }
        state.running[class as usize] += 1;
        Some(WorkerSlot { shared: Arc::clone(&self.shared), class })
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
pub(crate) struct WorkerSlot {
    shared: Arc<QueueShared>,
    class: RequestClass,
}

impl Drop for WorkerSlot {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        self.shared.ended(&mut state, self.class);
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

impl QueueShared {
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&self) {
        self.lock().closed = true;
        self.filled.notify_all();
    }

    fn ended(&self, state: &mut QueueState, class: RequestClass) {
        state.running[class as usize] -= 1;
        if state.waiting() == 0 && state.running.iter().all(|n| *n == 0) {
            self.idle.notify_all();
        }
    }

    /// A worker's life.
    fn work(&self) {
        let mut state = self.lock();
        loop {
            if let Some((class, job)) = state.take() {
                drop(state);
                // A panic ends the agent (`panic = "abort"`), and systemd starts it again.
                job();
                state = self.lock();
                self.ended(&mut state, class);
            } else if state.closed && state.waiting() == 0 {
                return;
            } else {
                state = self.filled.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

impl QueueState {
    fn waiting(&self) -> usize {
        self.waiting.iter().map(VecDeque::len).sum()
    }

    /// The next job that may begin now.
    fn take(&mut self) -> Option<(RequestClass, Job)> {
        for step in 0..CLASSES {
            let class = self.first_of_adds(RequestClass::ALL[(self.next + step) % CLASSES]);
            if self.may_begin(class)
                && let Some((_, job)) = self.waiting[class as usize].pop_front()
            {
                self.next = (class as usize + 1) % CLASSES;
                self.running[class as usize] += 1;
                return Some((class, job));
            }
        }
        None
    }

    /// ADDs of both classes use the same workers. The younger one may wait for the older one if both are about one attachment,
    /// so it must not take the last worker from it.
    fn first_of_adds(&self, class: RequestClass) -> RequestClass {
        if !matches!(class, RequestClass::Add | RequestClass::DelegatedAdd) {
            return class;
        }
        let adds =
            [RequestClass::Add, RequestClass::DelegatedAdd].into_iter().filter(|add| self.may_begin(*add));
        let oldest =
            adds.filter_map(|add| Some((self.waiting[add as usize].front()?.0, add))).min_by_key(|(n, _)| *n);
        oldest.map_or(class, |(_, add)| add)
    }

    /// Is there a job that may begin now?
    fn may_take(&self, class: RequestClass) -> bool {
        !self.waiting[class as usize].is_empty() && self.may_begin(class)
    }

    /// Is there a worker more than the other classes still have a right to?
    fn may_begin(&self, class: RequestClass) -> bool {
        let free = self.workers - self.running.iter().sum::<usize>();
        let others = RequestClass::ALL.into_iter().filter(|other| !class.uses_share_of(*other));
        let running = |class: RequestClass| self.running[class as usize];
        let owed: usize = others.map(|other| other.share(self.workers).saturating_sub(running(other))).sum();
        free > owed && running(class) < class.most(self.workers)
    }
}

#[cfg(test)]
mod tests;
