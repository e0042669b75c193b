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

    /// On a machine without Podwire, a start of the agent cannot help.
    fn read<T: DeserializeOwned>(&self, answer: Result<HttpAnswer, ClientError>) -> Result<T> {
        if let Err(ClientError::NoListener { .. }) = answer {
            let has_state = !matches!(NodeState::open_existing(&self.directories.run_dir), Ok(None));
            if !mode::is_installed(&self.directories, has_state, &configs::of_node()) {
                return Err(NotInstalled(mode::not_installed(&self.directories).message).into());
            }
        }
        read(&answer?)
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
