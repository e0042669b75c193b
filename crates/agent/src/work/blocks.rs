//! The blocks that an ADD of our network gets its addresses of: those that are this node's when it is served, which may be
//! others than when it came.

use std::borrow::Cow;
use std::sync::PoisonError;

use cni::{Error, Request};
use ipnet::IpNet;

use super::{Work, try_again};
use crate::membership::GrowError;

/// Gets this node more addresses beside those of these blocks, which have none left; it may take a while.
pub(crate) type Grow = dyn Fn(&[IpNet]) -> Result<(), GrowError> + Send + Sync;

pub(super) struct Growth(Box<Grow>);

impl Work {
    /// How this node gets more addresses.
    pub(crate) fn grow_by(&self, grow: Box<Grow>) {
        // It is said once, at the start.
        let _ = self.growth.set(Growth(grow));
    }

    /// This node's blocks are another's: whoever was to get an address of them, waiting or not, gets none.
    pub(crate) fn withdraw(&self, why: &str) {
        *self.lacking.write().unwrap_or_else(PoisonError::into_inner) = Some(why.to_owned());
    }

    /// The request with the blocks that are this node's now.
    pub(super) fn with_current<'a>(&self, request: &'a Request) -> Result<Cow<'a, Request>, Error> {
        let Request::Add(call) = request else { return Ok(Cow::Borrowed(request)) };
        let lacking = self.lacking.read().unwrap_or_else(PoisonError::into_inner).clone();
        if call.config.name != self.network || (lacking.is_none() && self.defaults.is_current(&call.config)) {
            return Ok(Cow::Borrowed(request));
        }
        if self.defaults.filled_blocks(&call.config).is_none() {
            return Ok(Cow::Borrowed(request));
        }
        if let Some(why) = lacking {
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
        let growth = self.growth.get().filter(|_| call.config.name == self.network);
        let seen = self.defaults.filled_blocks(&call.config);
        let (Some(growth), Some(seen)) = (growth, seen) else { return Ok(None) };
        (growth.0)(&seen)?;
        let mut call = call.clone();
        self.defaults.refill(&mut call.config);
        Ok(Some(Request::Add(call)))
    }
}
