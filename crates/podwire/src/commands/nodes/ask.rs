//! What the agent is asked about the cluster, and its refusals as it words them.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use api::{Client, ErrorAnswer, HttpAnswer, PAGE_NOT_FOUND};
use serde::de::DeserializeOwned;

use crate::cli::Which;
use crate::directories::AgentDirectories;

/// Longer than the agent waits for its store: it knows better why there is no answer.
pub(in crate::commands) const TIMEOUT: Duration = Duration::from_secs(12);

/// The agent that runs is not the one that is installed with this program.
const OTHER_VERSION: &str = "the agent is of another version; restart it with 'systemctl restart podwire'";

/// The agent that is asked.
pub(crate) struct AgentClient(Client);

impl AgentClient {
    pub(crate) fn find(which: &Which) -> Self {
        Self(Client::new(&AgentDirectories::find(which, None).socket))
    }

    pub(crate) fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        read(&self.0.get(path, TIMEOUT)?)
    }

    pub(crate) fn delete<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        read(&self.0.delete(path, TIMEOUT)?)
    }
}

/// The answer, or its refusal as an error.
pub(in crate::commands) fn read<T: DeserializeOwned>(answer: &HttpAnswer) -> Result<T> {
    if answer.status == 200 {
        return serde_json::from_slice(&answer.body).context(OTHER_VERSION);
    }
    match serde_json::from_slice(&answer.body) {
        // An agent that does not know the path has no sentence for it.
        Ok(ErrorAnswer { error }) if answer.status == 404 && error == PAGE_NOT_FOUND => {
            bail!("{OTHER_VERSION} (it does not know the question)")
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
    fn refusals_are_told_in_the_agents_words() {
        let said = |status, body: &str| {
            read::<Vec<u32>>(&HttpAnswer { status, body: body.as_bytes().to_vec() })
                .map_err(|e| e.to_string())
        };
        assert_eq!(said(200, "[1]"), Ok(vec![1]));
        assert_eq!(said(409, r#"{"error": "it is alive"}"#), Err("it is alive".to_owned()));
        assert_eq!(said(404, r#"{"error": "no node n9"}"#), Err("no node n9".to_owned()));
        assert_eq!(said(500, "oops"), Err("the agent answers 500: oops".to_owned()));
        for (status, body) in [(404, r#"{"error": "page not found"}"#), (200, "{}")] {
            let error = said(status, body).unwrap_err();
            assert!(
                error.starts_with("the agent is of another version; restart it with 'systemctl"),
                "{error}"
            );
        }
    }
}
