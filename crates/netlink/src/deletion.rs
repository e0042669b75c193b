//! Deleting a link. The kernel holds the caller for a grace period, some 20 ms, but the link, its routes and its name are
//! gone after one: it says so to everybody who listens.

use std::time::Duration;

use crate::error::Error;
use crate::op::Op;
use crate::rtsocket::RtSocket;
use crate::socket::{Content, Socket};

/// How often the deletion itself is asked whether it has ended: it may be refused, and then nothing is announced.
const GLANCE: Duration = Duration::from_millis(5);

impl RtSocket {
    /// Deletes a link and runs `meanwhile` as soon as it is gone, beside the rest of the deletion. If the link cannot be
    /// deleted, `meanwhile` runs all the same.
    pub fn delete_link<T>(&mut self, index: u32, meanwhile: impl FnOnce() -> T) -> (Result<(), Error>, T) {
        let Ok(mut news) = Socket::open_for_links(GLANCE) else {
            return (self.run(&Op::DelLink(index)), meanwhile());
        };
        std::thread::scope(|scope| {
            let deletion = scope.spawn(|| self.run(&Op::DelLink(index)));
            while !deletion.is_finished() && !says_gone(&mut news, index) {}
            let done = meanwhile();
            (deletion.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), done)
        })
    }
}

/// Waits a moment for news; true if the link is gone.
fn says_gone(news: &mut Socket, index: u32) -> bool {
    match news.receive() {
        Ok(mut replies) => replies.any(|reply| match reply.content {
            Content::Data(body) => reply.kind == libc::RTM_DELLINK && is_link(body, index),
            Content::Ack | Content::Refused(_) | Content::Done => false,
        }),
        Err(Error::Timeout { .. }) => false,
        // There was more news than room for it: the end of the deletion will tell.
        Err(_) => {
            std::thread::sleep(GLANCE);
            false
        }
    }
}

/// `struct ifinfomsg`: the family, which is `AF_BRIDGE` where a link only leaves its bridge, and the index.
fn is_link(body: &[u8], index: u32) -> bool {
    body.first().is_some_and(|family| i32::from(*family) == libc::AF_UNSPEC)
        && body.get(4..8).and_then(|bytes| bytes.try_into().ok()).map(u32::from_ne_bytes) == Some(index)
}
