//! A socket that hears what the kernel announces, and notices when it missed something.

use std::os::fd::{AsFd, BorrowedFd};

use crate::error::Error;
use crate::monitor::Where;
use crate::socket::{Glance, Reply, Socket};

/// Datagrams per `read`: somebody who changes things without end must not keep the reader for ever.
const MOST: usize = 4096;

#[derive(Debug)]
pub(crate) struct Listener {
    socket: Socket,
    /// The kernel reports an overrun once, and may drop what comes until everything was read.
    lossy: bool,
}

/// Whether all news were read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EventsRead {
    All,
    /// There was more than the socket could keep.
    NotAll,
}

impl Listener {
    pub(crate) fn new(socket: Socket) -> Self {
        Self { socket, lossy: false }
    }

    /// Everything that is there to read now, without waiting.
    pub(crate) fn read(&mut self, mut each: impl FnMut(&Reply<'_>, Where)) -> Result<EventsRead, Error> {
        let mut observed = if self.lossy { EventsRead::NotAll } else { EventsRead::All };
        for _ in 0..MOST {
            match self.socket.glance() {
                Ok(Glance::Nothing) => {
                    self.lossy = false;
                    break;
                }
                Ok(Glance::Overrun) => {
                    self.lossy = true;
                    observed = EventsRead::NotAll;
                }
                Ok(Glance::LinkEvent(replies, place)) => replies.for_each(|reply| each(&reply, place)),
                Err(error) => {
                    // What was read before goes down with it.
                    self.lossy = true;
                    return Err(error);
                }
            }
        }
        Ok(observed)
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
