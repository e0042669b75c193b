//! One connection to one member, opened when a call needs it, to the endpoint that answers first.
//!
//! An endpoint has answered when it has served a request: the kernel of a stopped member still accepts connections, and a
//! member without its peers accepts requests that it cannot serve.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use etcd_client::{Channel, Client, Error as EtcdError};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use super::backoff::{Backoff, random_below};
use super::failure::{EtcdFailure, Reason};
use super::target::{CONNECT_TIMEOUT, EtcdTarget, options, targets};
use crate::Result;
use crate::config::EtcdConfig;

/// How long one endpoint is tried alone before the next one is tried in parallel.
const HEAD_START: Duration = Duration::from_millis(300);

#[derive(Debug)]
pub(super) struct EtcdConnector {
    config: EtcdConfig,
    targets: Vec<EtcdTarget>,
    state: Mutex<ConnectorState>,
    /// Held by the task that connects. Other tasks wait for its result.
    connecting: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
struct ConnectorState {
    connection: Option<Connection>,
    /// The endpoint that is tried first.
    first: usize,
    /// Counts connections.
    number: u64,
    /// The last failure.
    failure: Option<EtcdFailure>,
}

#[derive(Clone)]
pub(super) struct Connection {
    pub(super) client: Client,
    /// The sequence number of this connection.
    pub(super) number: u64,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("number", &self.number).finish_non_exhaustive()
    }
}

impl EtcdConnector {
    pub(super) fn new(config: &EtcdConfig) -> Result<Self> {
        let targets = targets(config)?;
        // Random, so that not all nodes use the same member.
        let first = random_below(u32::try_from(targets.len()).unwrap_or(1)) as usize;
        let state = Mutex::new(ConnectorState { connection: None, first, number: 0, failure: None });
        Ok(Self { config: config.clone(), targets, state, connecting: tokio::sync::Mutex::new(()) })
    }

    pub(super) fn describe(&self) -> String {
        let urls: Vec<&str> = self.targets.iter().map(|target| target.url.as_str()).collect();
        format!("etcd at {}", urls.join(", "))
    }

    pub(super) fn has_several_targets(&self) -> bool {
        self.targets.len() > 1
    }

    fn state(&self) -> MutexGuard<'_, ConnectorState> {
        // No code panics while it is held, and every assignment leaves it consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn last_failure(&self) -> EtcdFailure {
        self.state().failure.clone().unwrap_or_else(no_answer)
    }

    /// Drops this connection. The next call opens another one and starts with another endpoint.
    pub(super) fn forget(&self, number: u64) {
        let mut state = self.state();
        if state.connection.as_ref().is_some_and(|connection| connection.number == number) {
            state.connection = None;
            state.first = (state.first + 1) % self.targets.len();
        }
    }

    /// The existing connection, or a new one. Retries until the deadline, except for failures that need an operator.
    pub(super) async fn connection(&self, deadline: Instant) -> Result<Connection, EtcdFailure> {
        if let Some(connection) = self.state().connection.clone() {
            return Ok(connection);
        }
        let Ok(_connecting) = timeout_at(deadline, self.connecting.lock()).await else {
            return Err(self.last_failure());
        };
        if let Some(connection) = self.state().connection.clone() {
            return Ok(connection);
        }
        let mut backoff = Backoff::new();
        loop {
            let failure = match timeout_at(deadline, self.connect_any()).await {
                Ok(Ok((client, index))) => return Ok(self.adopt(client, index)),
                Ok(Err(failure)) => failure,
                // No endpoint answered. The previous failure is more specific.
                Err(_) => return Err(self.last_failure()),
            };
            self.state().failure = Some(failure.clone());
            let next = Instant::now() + backoff.pause();
            if matches!(failure, EtcdFailure::Denied { .. }) || next >= deadline {
                return Err(failure);
            }
            sleep_until(next).await;
        }
    }

    fn adopt(&self, client: Client, index: usize) -> Connection {
        let mut state = self.state();
        state.number += 1;
        state.first = index;
        state.failure = None;
        let connection = Connection { client, number: state.number };
        state.connection = Some(connection.clone());
        connection
    }

    /// Tries all endpoints, starting the next one if an endpoint does not answer soon. The first that answers is used.
    async fn connect_any(&self) -> Result<(Client, usize), EtcdFailure> {
        let first = self.state().first;
        let mut remaining = (0..self.targets.len()).map(|n| (first + n) % self.targets.len());
        let mut tries = JoinSet::new();
        let mut failure = None;
        loop {
            if let Some(index) = remaining.next() {
                tries.spawn(connect(self.targets[index].clone(), self.config.clone(), index));
            }
            let ended = match timeout(HEAD_START, tries.join_next()).await {
                // Each attempt has a timeout, so the loop ends.
                Err(_) => continue,
                Ok(None) => return Err(failure.unwrap_or_else(no_answer)),
                Ok(Some(ended)) => ended,
            };
            let attempt_failure = match ended {
                Ok(Ok(connected)) => return Ok(connected),
                Ok(Err(failure)) => failure,
                Err(join) => EtcdFailure::NotExecuted(Reason::from(join.to_string())),
            };
            failure = Some(match failure {
                Some(earlier) => EtcdFailure::and(earlier, attempt_failure),
                None => attempt_failure,
            });
        }
    }
}

fn no_answer() -> EtcdFailure {
    EtcdFailure::NotExecuted(Reason::from("no endpoint answers".to_owned()))
}

async fn connect(
    target: EtcdTarget,
    config: EtcdConfig,
    index: usize,
) -> Result<(Client, usize), EtcdFailure> {
    match timeout(CONNECT_TIMEOUT, log_in(&target, &config)).await {
        Ok(Ok(client)) => Ok((client, index)),
        Ok(Err(EtcdFailure::NotExecuted(reason) | EtcdFailure::Unknown(reason))) => {
            Err(EtcdFailure::NotExecuted(reason.of_endpoint(&target.url)))
        }
        Ok(Err(other)) => Err(other),
        Err(_) => {
            let waited = CONNECT_TIMEOUT.as_secs();
            Err(EtcdFailure::NotExecuted(Reason::from(format!(
                "{}: no answer within {waited} s",
                target.url
            ))))
        }
    }
}

async fn log_in(target: &EtcdTarget, config: &EtcdConfig) -> Result<Client, EtcdFailure> {
    let endpoint = target.endpoint(config).await?;
    let channel = endpoint.connect().await.map_err(|error| EtcdFailure::of_transport(&error))?;
    let channel = Channel::Tonic(channel);
    let mut client = match Client::from_channel(channel.clone(), Some(options(config))).await {
        // Authentication is disabled in etcd.
        Err(error) if is_auth_disabled(&error) => {
            let without_user = EtcdConfig { user: None, password: None, ..config.clone() };
            Client::from_channel(channel, Some(options(&without_user))).await?
        }
        other => other?,
    };
    match client.status().await.map_err(EtcdFailure::from) {
        Ok(_) => Ok(client),
        // Newer versions restrict the status call. The member answered and accepted the user, so the connection works.
        Err(EtcdFailure::Denied { .. }) if config.user.is_some() => Ok(client),
        Err(failure) => Err(failure),
    }
}

fn is_auth_disabled(error: &EtcdError) -> bool {
    matches!(error, EtcdError::GRpcStatus(status) if status.message().contains("authentication is not enabled"))
}
