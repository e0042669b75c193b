//! A bounded queue of jobs with request classes, so that a burst of one class never starves the other classes.
//!
//! Workers serve the classes round-robin, and each class in order of arrival. Each class has reserved workers (an eighth of all,
//! at least one) that stay free for it even while it has no job. So its next request need not wait for a job of another
//! class. In a burst of one class this costs a quarter of the workers. The cost is small: the kernel creates links under one
//! lock, and a few threads saturate it. Reserved workers also allow a job to wait for an earlier job of another class, because
//! that job always gets a worker. Callers must submit a job after all jobs that it waits for.
//!
//! ADDs that call another IPAM plugin have their own class, because the plugin may take a minute. They get at most half of the
//! workers and have no reserved worker.
//!
//! A thread can take a [`WorkerSlot`] and run a job directly instead of submitting it.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

/// How many jobs may wait. More than the number of clients that can be connected.
pub(crate) const BOUND: usize = 4096;
/// One worker for each class that has reserved workers.
pub(crate) const FEWEST_WORKERS: usize = 3;
/// The engine's deepest call uses a small part of it. The default stack is 2 MiB.
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

    /// The workers that other classes must leave free for this one.
    fn reserved(self, workers: usize) -> usize {
        match self {
            RequestClass::Add | RequestClass::Del | RequestClass::Other => (workers / 8).max(1),
            RequestClass::DelegatedAdd => 0,
        }
    }

    fn may_use_reserved_of(self, other: RequestClass) -> bool {
        self == other || (self, other) == (RequestClass::DelegatedAdd, RequestClass::Add)
    }

    /// The largest number of workers that serve this class.
    fn max_workers(self, workers: usize) -> usize {
        match self {
            RequestClass::Add | RequestClass::Del | RequestClass::Other => workers,
            RequestClass::DelegatedAdd => {
                let reserved: usize =
                    RequestClass::ALL.into_iter().map(|class| class.reserved(workers)).sum();
                (workers / 2).min(workers.saturating_sub(reserved)).max(1)
            }
        }
    }
}

/// Why the queue refused a job.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum QueueRefusal {
    #[error("the agent is busy: {0} requests are waiting")]
    Full(usize),
    #[error("the agent is stopping")]
    Closed,
}

/// Jobs that were not finished at the deadline of a drain.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct UnfinishedRequests {
    pub(crate) waiting: usize,
    pub(crate) running: usize,
}

type Job = Box<dyn FnOnce() + Send>;

pub(crate) struct Queue {
    shared: Arc<QueueShared>,
}

struct QueueShared {
    state: Mutex<QueueState>,
    /// A job was submitted, or the queue was closed.
    job_available: Condvar,
    /// No job is waiting or running.
    idle: Condvar,
}

struct QueueState {
    /// Each job with its sequence number.
    waiting: [VecDeque<(u64, Job)>; CLASSES],
    submitted: u64,
    running: [usize; CLASSES],
    /// The class that is considered next.
    next: usize,
    workers: usize,
    bound: usize,
    closed: bool,
}

impl Queue {
    /// Starts the workers, at least one per class.
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
        let shared = Arc::new(QueueShared {
            state: Mutex::new(state),
            job_available: Condvar::new(),
            idle: Condvar::new(),
        });
        // Created before the threads: if one cannot be started, dropping the queue ends the other ones.
        let queue = Self { shared };
        for number in 0..workers {
            let shared = Arc::clone(&queue.shared);
            let builder = thread::Builder::new().name(format!("podwire-work-{number}")).stack_size(STACK);
            builder.spawn(move || shared.work())?;
        }
        Ok(queue)
    }

    /// Submits a job. Its result arrives through the receiver. An error there means that the job was dropped. The job also
    /// returns a function that runs after the result was sent.
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
            // The receiver may have been dropped.
            let _ = sender.send(result);
            afterwards();
        });
        state.submitted += 1;
        let number = state.submitted;
        state.waiting[class as usize].push_back((number, job));
        drop(state);
        self.shared.job_available.notify_one();
        Ok(receiver)
    }

    /// Reserves a worker's slot for the calling thread, which then runs a job directly. None if no slot is free or if a waiting
    /// job may start now.
    pub(crate) fn slot(&self, class: RequestClass) -> Option<WorkerSlot> {
        let mut state = self.shared.lock();
        let has_waiting = RequestClass::ALL.into_iter().any(|class| state.has_startable_job(class));
        if state.closed || has_waiting || !state.may_start(class) {
            return None;
        }
        state.running[class as usize] += 1;
        Some(WorkerSlot { shared: Arc::clone(&self.shared), class })
    }

    pub(crate) fn waiting(&self) -> usize {
        self.shared.lock().waiting()
    }

    /// Refuses new jobs, and waits until all jobs are done or the deadline has passed.
    pub(crate) fn drain(&self, deadline: Instant) -> UnfinishedRequests {
        self.shared.close();
        let mut state = self.shared.lock();
        loop {
            let unfinished =
                UnfinishedRequests { waiting: state.waiting(), running: state.running.iter().sum() };
            let remaining = deadline.saturating_duration_since(Instant::now());
            if unfinished == UnfinishedRequests::default() || remaining == Duration::ZERO {
                return unfinished;
            }
            let woken = self.shared.idle.wait_timeout(state, remaining);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Counts as a busy worker until it is dropped.
pub(crate) struct WorkerSlot {
    shared: Arc<QueueShared>,
    class: RequestClass,
}

impl Drop for WorkerSlot {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        self.shared.ended(&mut state, self.class);
        let has_waiting = state.waiting() > 0;
        drop(state);
        if has_waiting {
            self.shared.job_available.notify_one();
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
        self.job_available.notify_all();
    }

    fn ended(&self, state: &mut QueueState, class: RequestClass) {
        state.running[class as usize] -= 1;
        if state.waiting() == 0 && state.running.iter().all(|n| *n == 0) {
            self.idle.notify_all();
        }
    }

    /// The loop of a worker thread.
    fn work(&self) {
        let mut state = self.lock();
        loop {
            if let Some((class, job)) = state.take() {
                drop(state);
                // A panic aborts the agent (`panic = "abort"`), and systemd restarts it.
                job();
                state = self.lock();
                self.ended(&mut state, class);
            } else if state.closed && state.waiting() == 0 {
                return;
            } else {
                state = self.job_available.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

impl QueueState {
    fn waiting(&self) -> usize {
        self.waiting.iter().map(VecDeque::len).sum()
    }

    /// Removes the next job that may start now.
    fn take(&mut self) -> Option<(RequestClass, Job)> {
        for step in 0..CLASSES {
            let class = self.first_of_adds(RequestClass::ALL[(self.next + step) % CLASSES]);
            if self.may_start(class)
                && let Some((_, job)) = self.waiting[class as usize].pop_front()
            {
                self.next = (class as usize + 1) % CLASSES;
                self.running[class as usize] += 1;
                return Some((class, job));
            }
        }
        None
    }

    /// Replaces a class of ADDs by the class with the oldest ADD. Both classes of ADDs use the same workers. If both ADDs are about one attachment, the younger one waits for the older
    /// one. It must not take the last worker from it.
    fn first_of_adds(&self, class: RequestClass) -> RequestClass {
        if !matches!(class, RequestClass::Add | RequestClass::DelegatedAdd) {
            return class;
        }
        let adds =
            [RequestClass::Add, RequestClass::DelegatedAdd].into_iter().filter(|add| self.may_start(*add));
        let oldest =
            adds.filter_map(|add| Some((self.waiting[add as usize].front()?.0, add))).min_by_key(|(n, _)| *n);
        oldest.map_or(class, |(_, add)| add)
    }

    /// Whether this class has a job that may start now.
    fn has_startable_job(&self, class: RequestClass) -> bool {
        !self.waiting[class as usize].is_empty() && self.may_start(class)
    }

    /// Whether a worker is free that is not reserved for another class.
    fn may_start(&self, class: RequestClass) -> bool {
        let free = self.workers - self.running.iter().sum::<usize>();
        let other_classes = RequestClass::ALL.into_iter().filter(|other| !class.may_use_reserved_of(*other));
        let running = |class: RequestClass| self.running[class as usize];
        let reserved: usize =
            other_classes.map(|other| other.reserved(self.workers).saturating_sub(running(other))).sum();
        free > reserved && running(class) < class.max_workers(self.workers)
    }
}

#[cfg(test)]
mod tests;
