//! The blocks that an ADD of our network gets its addresses of: those that are this node's when it is served, which may be
//! others than when it came.

use std::borrow::Cow;

use cni::{Error, Request};

use super::{Work, try_again};
use crate::membership::GrowError;

impl Work {
    /// The request with the blocks that are this node's now.
    pub(super) fn with_current<'a>(&self, request: &'a Request) -> Result<Cow<'a, Request>, Error> {
        let Request::Add(call) = request else { return Ok(Cow::Borrowed(request)) };
        let share = self.shares.get();
        if call.config.name != self.network || (share.is_ok() && self.defaults.is_current(&call.config)) {
            return Ok(Cow::Borrowed(request));
        }
        if self.defaults.filled_blocks(&call.config).is_none() {
            return Ok(Cow::Borrowed(request));
        }
        // Its blocks may be another node's by now.
        if let Err(why) = share {
            return Err(try_again(format!("this node has no addresses to give: {why}")));
        }
        let mut call = call.clone();
        self.defaults.refill(&mut call.config);
        Ok(Cow::Owned(Request::Add(call)))
    }

    /// The same request once more, for a node that has more addresses now than when it was made. None: they are not ours to
    /// get; an error: why there are no more.
    pub(super) fn with_more(&self, request: &Request) -> Result<Option<Request>, GrowError> {
        let Request::Add(call) = request else { return Ok(None) };
        let is_own = call.config.name == self.network;
        let Some(seen) = self.defaults.filled_blocks(&call.config).filter(|_| is_own) else {
            return Ok(None);
        };
        self.blocks.wait_for_block(&seen)?;
        let mut call = call.clone();
        self.defaults.refill(&mut call.config);
        Ok(Some(Request::Add(call)))
    }
}
