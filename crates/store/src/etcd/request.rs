//! One call to etcd, with its retries.

use std::future::Future;
use std::time::Duration;

use etcd_client::Error as EtcdError;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::EtcdBackend;
use super::backoff::Backoff;
use super::connect::Connection;
use super::failure::EtcdFailure;
use crate::Result;
use crate::error::Error;
use crate::store::StoreCall;

/// Whether a request may be sent again if it is unknown whether it was executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RetryPolicy {
    Safe,
    /// Executing the request twice differs from executing it once.
    Unsafe,
}

/// After a timeout of at least this length the connection is dropped. A shorter one is due to the caller's deadline.
const MIN_CONNECTION_TIMEOUT: Duration = Duration::from_secs(1);
/// Limits the retries on a connection that fails repeatedly.
const MAX_TRIES: u32 = 8;

impl EtcdBackend {
    /// Sends a request, and retries it until the deadline.
    pub(super) async fn request<T, F>(
        &self,
        call: &StoreCall,
        retry: RetryPolicy,
        send: impl Fn(Connection) -> F,
    ) -> Result<T, EtcdFailure>
    where
        F: Future<Output = Result<T, EtcdError>>,
    {
        let mut backoff = Backoff::new();
        let mut tries = 0;
        loop {
            tries += 1;
            let failure = match self.try_once(call, retry, &send).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            let can_retry = match failure {
                EtcdFailure::NotExecuted(_) => true,
                EtcdFailure::Unknown(_) | EtcdFailure::Timeout => retry == RetryPolicy::Safe,
                _ => false,
            };
            let next = Instant::now() + backoff.pause();
            if !can_retry || tries == MAX_TRIES || next >= call.deadline {
                return Err(failure);
            }
            sleep_until(next).await;
        }
    }

    async fn try_once<T, F>(
        &self,
        call: &StoreCall,
        retry: RetryPolicy,
        send: &impl Fn(Connection) -> F,
    ) -> Result<T, EtcdFailure>
    where
        F: Future<Output = Result<T, EtcdError>>,
    {
        let connection = self.connector.connection(call.deadline).await?;
        let now = Instant::now();
        let remaining = call.deadline.saturating_duration_since(now);
        // Leaves time to try another member if this one does not answer.
        let timeout = if retry == RetryPolicy::Safe && self.connector.has_several_targets() {
            remaining / 2
        } else {
            remaining
        };
        let number = connection.number;
        let failure = match timeout_at(now + timeout, send(connection)).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) => EtcdFailure::from(error),
            Err(_) => EtcdFailure::Timeout,
        };
        let is_bad_connection = match failure {
            EtcdFailure::NotExecuted(_) | EtcdFailure::Unknown(_) => true,
            EtcdFailure::Timeout => timeout >= MIN_CONNECTION_TIMEOUT,
            _ => false,
        };
        if is_bad_connection {
            self.connector.forget(number);
        }
        Err(failure)
    }

    pub(super) fn error(&self, call: &StoreCall, failure: EtcdFailure) -> Error {
        match failure {
            EtcdFailure::Timeout => call.timed_out(self.describe()),
            other => other.into_error(call.operation.clone(), self.describe()),
        }
    }
}
