//! A thread that sleeps in poll(2) and can be stopped.

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
    /// Never carries a value. It closes when the thread ends, also by a panic.
    ended: Mutex<mpsc::Receiver<Infallible>>,
}

/// Whether the thread has been asked to end.
#[derive(Debug, Clone, Default)]
pub(crate) struct StopFlag(Arc<AtomicBool>);

impl StopFlag {
    /// Call it after clearing the waker. A thread that clears the waker later would sleep although it has to end.
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

impl AgentThread {
    /// Starts the thread. `waker` is the waker that it polls.
    pub(crate) fn start(
        name: &str,
        waker: Waker,
        run: impl FnOnce(&StopFlag) + Send + 'static,
    ) -> io::Result<Self> {
        let stop = StopFlag::default();
        let (alive, ended) = mpsc::channel::<Infallible>();
        let thread_stop = stop.clone();
        thread::Builder::new().name(name.to_owned()).stack_size(STACK).spawn(move || {
            let _alive = alive;
            run(&thread_stop);
        })?;
        Ok(Self { stop, waker, ended: Mutex::new(ended) })
    }

    /// Asks the thread to end, without waiting.
    pub(crate) fn stop(&self) {
        self.stop.0.store(true, Ordering::Release);
        self.waker.wake();
    }

    /// Waits at most `timeout` for the end of the thread after [`Self::stop`], because it may hang.
    pub(crate) fn wait(&self, timeout: Duration) {
        let _ = self.ended.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(timeout);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The agent asks all threads to end before it waits for the first one.
    #[test]
    fn stop_does_not_wait_for_the_end_of_the_thread() {
        let (release, released) = mpsc::channel::<()>();
        let (report, reported) = mpsc::channel();
        let thread = AgentThread::start("test", Waker::new().unwrap(), move |stop| {
            released.recv().unwrap();
            report.send(stop.is_set()).unwrap();
        })
        .unwrap();
        thread.stop();
        release.send(()).unwrap();
        assert!(reported.recv().unwrap(), "the flag was not set");
        thread.wait(Duration::from_secs(60));
    }
}
