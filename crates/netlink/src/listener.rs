//! A socket that receives the kernel's notifications and detects overruns.

use std::os::fd::{AsFd, BorrowedFd};

use crate::error::Error;
use crate::monitor::EventNamespace;
use crate::socket::{Received, Reply, Socket};

/// Datagrams per `read`, so that a constant stream of changes cannot block the reader.
const MAX_DATAGRAMS: usize = 4096;

#[derive(Debug)]
pub(crate) struct Listener {
    socket: Socket,
    /// The kernel reports an overrun once, and may drop events until the buffer is empty.
    has_lost_events: bool,
}

/// Whether all events were read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EventsRead {
    All,
    /// The receive buffer overran and events were lost.
    Overrun,
}

impl Listener {
    pub(crate) fn new(socket: Socket) -> Self {
        Self { socket, has_lost_events: false }
    }

    /// Reads all pending events without waiting.
    pub(crate) fn read(
        &mut self,
        mut each: impl FnMut(&Reply<'_>, EventNamespace),
    ) -> Result<EventsRead, Error> {
        let mut events_read = if self.has_lost_events { EventsRead::Overrun } else { EventsRead::All };
        for _ in 0..MAX_DATAGRAMS {
            match self.socket.try_receive() {
                Ok(Received::Nothing) => {
                    self.has_lost_events = false;
                    break;
                }
                Ok(Received::Overrun) => {
                    self.has_lost_events = true;
                    events_read = EventsRead::Overrun;
                }
                Ok(Received::Events(replies, namespace)) => replies.for_each(|reply| each(&reply, namespace)),
                Err(error) => {
                    // The caller drops the events that were read before the error.
                    self.has_lost_events = true;
                    return Err(error);
                }
            }
        }
        Ok(events_read)
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
