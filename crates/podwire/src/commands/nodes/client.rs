//! Queries to the agent. Its error messages are shown unchanged.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use api::{Client, ClientError, ErrorAnswer, HttpAnswer, PAGE_NOT_FOUND};
use engine::state::NodeState;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::cli::AgentSelector;
use crate::commands::{configs, mode};
use crate::directories::AgentDirectories;
use crate::exit::NotInstalled;

/// Longer than the agent's own timeout for the store, so that the agent's error message arrives.
pub(in crate::commands) const TIMEOUT: Duration = Duration::from_secs(12);

/// The running agent was started before this program was installed.
const OTHER_VERSION: &str = "the agent has another version; restart it with 'systemctl restart podwire'";

pub(crate) struct AgentClient {
    client: Client,
    directories: AgentDirectories,
}

impl AgentClient {
    pub(crate) fn find(selector: &AgentSelector) -> Self {
        let directories = AgentDirectories::find(selector, None);
        Self { client: Client::new(&directories.socket), directories }
    }

    pub(crate) fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        self.read(self.client.get(path, TIMEOUT))
    }

    pub(crate) fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T> {
        self.read(self.client.post(path, body, TIMEOUT))
    }

    pub(crate) fn delete<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        self.read(self.client.delete(path, TIMEOUT))
    }

    /// Passes each line of a stream to `on_line`. The stream ends only by an error: of `on_line`, or because the agent stops.
    pub(crate) fn follow<T: DeserializeOwned>(
        &self,
        path: &str,
        mut on_line: impl FnMut(T) -> Result<()>,
    ) -> Result<()> {
        let answer = self
            .client
            .follow(path, TIMEOUT, |line| on_line(serde_json::from_slice(line).context(OTHER_VERSION)?));
        let answer = answer.map_err(|error: anyhow::Error| match error.downcast() {
            Ok(error) => self.explained(error),
            Err(other) => other,
        })?;
        match answer.status {
            200 => bail!("the agent ended the stream"),
            _ => read(&answer),
        }
    }

    fn read<T: DeserializeOwned>(&self, answer: Result<HttpAnswer, ClientError>) -> Result<T> {
        read(&answer.map_err(|error| self.explained(error))?)
    }

    /// On a machine without Podwire, a start of the agent cannot help.
    fn explained(&self, error: ClientError) -> anyhow::Error {
        if let ClientError::NoListener { .. } = error {
            let has_state = !matches!(NodeState::open_existing(&self.directories.run_dir), Ok(None));
            if !mode::is_installed(&self.directories, has_state, &configs::of_node()) {
                return NotInstalled(mode::not_installed(&self.directories).message).into();
            }
        }
        error.into()
    }
}

/// Parses the answer. An error answer becomes an error.
pub(in crate::commands) fn read<T: DeserializeOwned>(answer: &HttpAnswer) -> Result<T> {
    if answer.status == 200 {
        return serde_json::from_slice(&answer.body).context(OTHER_VERSION);
    }
    match serde_json::from_slice(&answer.body) {
        // An older agent does not know the path.
        Ok(ErrorAnswer { error }) if answer.status == 404 && error == PAGE_NOT_FOUND => {
            bail!("{OTHER_VERSION} (unknown request path)")
        }
        Ok(ErrorAnswer { error }) => bail!(error),
        Err(_) => {
            bail!("the agent answers {}: {}", answer.status, String::from_utf8_lossy(&answer.body))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_messages_of_the_agent_are_shown_unchanged() {
        let result = |status, body: &str| {
            read::<Vec<u32>>(&HttpAnswer { status, body: body.as_bytes().to_vec() })
                .map_err(|e| e.to_string())
        };
        assert_eq!(result(200, "[1]"), Ok(vec![1]));
        assert_eq!(result(409, r#"{"error": "it is alive"}"#), Err("it is alive".to_owned()));
        assert_eq!(result(404, r#"{"error": "no node n9"}"#), Err("no node n9".to_owned()));
        assert_eq!(result(500, "oops"), Err("the agent answers 500: oops".to_owned()));
        for (status, body) in [(404, r#"{"error": "page not found"}"#), (200, "{}")] {
            let error = result(status, body).unwrap_err();
            assert!(
                error.starts_with("the agent has another version; restart it with 'systemctl"),
                "{error}"
            );
        }
    }
}
