//! ADDs that call another IPAM plugin, which may take long. At most half of the workers serve them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cni::{Error, Request};

use super::try_again;

pub(super) struct Delegated {
    limit: usize,
    in_flight: Arc<AtomicUsize>,
}

/// Counted until it is dropped.
pub(super) struct Permit(Arc<AtomicUsize>);

impl Delegated {
    pub(super) fn new(workers: usize) -> Self {
        Self { limit: (workers / 2).max(1), in_flight: Arc::default() }
    }

    /// None: the request calls no other plugin's ADD.
    pub(super) fn admit(&self, request: &Request) -> Result<Option<Permit>, Error> {
        let Request::Add(call) = request else { return Ok(None) };
        if netconf::foreign_ipam(&call.config).is_none() {
            return Ok(None);
        }
        let one_more = |count| (count < self.limit).then_some(count + 1);
        match self.in_flight.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more) {
            Ok(_) => Ok(Some(Permit(Arc::clone(&self.in_flight)))),
            Err(count) => Err(try_again(format!(
                "{count} ADDs wait for another IPAM plugin, the most that the agent serves at once"
            ))),
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
