//! One call to etcd, with all its tries.

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

/// May a request be sent again when nobody knows whether it was served?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Repeat {
    Safe,
    /// Twice is not the same as once.
    Never,
}

/// Silence for so long is the connection's fault; less is that of a caller in a hurry.
const LONG: Duration = Duration::from_secs(1);
/// A connection that breaks again and again is not worth more.
const MOST_TRIES: u32 = 8;

impl EtcdBackend {
    /// What comes of a request, or what is wrong with it.
    pub(super) async fn ask<T, F>(
        &self,
        call: &StoreCall,
        repeat: Repeat,
        request: impl Fn(Connection) -> F,
    ) -> Result<T, EtcdFailure>
    where
        F: Future<Output = Result<T, EtcdError>>,
    {
        let mut backoff = Backoff::new();
        let mut tries = 0;
        loop {
            tries += 1;
            let failure = match self.try_once(call, repeat, &request).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            let again = match failure {
                EtcdFailure::NotDone(_) => true,
                EtcdFailure::Unknown(_) | EtcdFailure::Silent => repeat == Repeat::Safe,
                _ => false,
            };
            let next = Instant::now() + backoff.pause();
            if !again || tries == MOST_TRIES || next >= call.deadline {
                return Err(failure);
            }
            sleep_until(next).await;
        }
    }

    async fn try_once<T, F>(
        &self,
        call: &StoreCall,
        repeat: Repeat,
        request: &impl Fn(Connection) -> F,
    ) -> Result<T, EtcdFailure>
    where
        F: Future<Output = Result<T, EtcdError>>,
    {
        let connection = self.link.connection(call.deadline).await?;
        let now = Instant::now();
        let left = call.deadline.saturating_duration_since(now);
        // A member that went silent must not use up the time of the others.
        let share = if repeat == Repeat::Safe && self.link.has_choice() { left / 2 } else { left };
        let number = connection.number;
        let failure = match timeout_at(now + share, request(connection)).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) => EtcdFailure::from(error),
            Err(_) => EtcdFailure::Silent,
        };
        let is_bad = match failure {
            EtcdFailure::NotDone(_) | EtcdFailure::Unknown(_) => true,
            EtcdFailure::Silent => share >= LONG,
            _ => false,
        };
        if is_bad {
            self.link.forget(number);
        }
        Err(failure)
    }

    pub(super) fn error(&self, call: &StoreCall, failure: EtcdFailure) -> Error {
        match failure {
            EtcdFailure::Silent => call.too_late(self.describe()),
            other => other.into_error(call.operation.clone(), self.describe()),
        }
    }
}
