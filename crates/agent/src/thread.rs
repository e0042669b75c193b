//! A thread of the agent that sleeps in poll(2), and how it ends.

use std::convert::Infallible;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use crate::waker::Waker;

const STACK: usize = 512 << 10;

pub(crate) struct AgentThread {
    stop: StopFlag,
    waker: Waker,
    /// Nothing is ever sent: it is closed when the thread ends, however it does.
    ended: Mutex<mpsc::Receiver<Infallible>>,
}

/// Whether the thread is to end.
#[derive(Debug, Clone, Default)]
pub(crate) struct StopFlag(Arc<AtomicBool>);

impl StopFlag {
    /// To be called after the waker was cleared: a thread that clears it later sleeps although it is to end.
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

impl AgentThread {
    /// Starts the thread. `waker` is the one that it sleeps with.
    pub(crate) fn start(
        name: &str,
        waker: Waker,
        run: impl FnOnce(&StopFlag) + Send + 'static,
    ) -> io::Result<Self> {
        let stop = StopFlag::default();
        let (alive, ended) = mpsc::channel::<Infallible>();
        let its = stop.clone();
        thread::Builder::new().name(name.to_owned()).stack_size(STACK).spawn(move || {
            let _alive = alive;
            run(&its);
        })?;
        Ok(Self { stop, waker, ended: Mutex::new(ended) })
    }

    /// Ends the thread, and waits for its end at most so long: it may hang.
    pub(crate) fn end(&self, timeout: Duration) {
        self.stop.0.store(true, Ordering::Release);
        self.waker.wake();
        let _ = self.ended.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(timeout);
    }
}
