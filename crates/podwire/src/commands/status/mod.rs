//! `podwire status`: the agent's status and conditions, or the state in files and kernel if no agent answers.

mod files;
mod page;
mod pod_names;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use api::Client;

use crate::cli::{Output, StatusArgs};
use crate::commands::lab::adapt_fixes;
use crate::commands::mode;
use crate::directories::AgentDirectories;
use crate::exit::ExitStatus;
use crate::{print, time};
use files::StatusFromFiles;
use pod_names::PodNames;

/// The agent reads all records for its status, which takes seconds on a busy node with thousands of pods.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The status of an agent as text, with the names of pods.
pub(crate) fn page(status: &api::Status) -> String {
    let mut status = status.clone();
    let names = PodNames::read(&status.run_dir);
    names.add_to_conditions(&mut status.conditions);
    names.add_to_repairs(&mut status.reconcile.recent_repairs);
    page::page(&status, time::now())
}

pub(crate) fn run(args: &StatusArgs) -> Result<ExitStatus> {
    let directories = AgentDirectories::find(&args.agent, None);
    let answer = match Client::new(&directories.socket).get(api::STATUS, TIMEOUT) {
        Ok(answer) => answer,
        Err(error) if mode::is_unreachable(&error) => {
            let mut files = StatusFromFiles::read(&directories, &error)?;
            adapt_fixes(&mut files.status.conditions);
            match args.output {
                Output::Json => print::json(&files.status)?,
                Output::Table | Output::Wide => {
                    PodNames::read(&files.status.run_dir).add_to_conditions(&mut files.status.conditions);
                    print::line(files.page(time::now()))?;
                }
            }
            return Ok(files.exit_status());
        }
        Err(error) => return Err(error.into()),
    };
    let text = String::from_utf8_lossy(&answer.body);
    ensure!(
        answer.status == 200,
        "the agent on {} answers {}: {text}",
        directories.socket.display(),
        answer.status
    );
    let mut status: api::Status = serde_json::from_str(&text).context("the agent has another version")?;
    adapt_fixes(&mut status.conditions);
    match args.output {
        Output::Json => print::json(&status)?,
        Output::Table | Output::Wide => print::line(page(&status))?,
    }
    Ok(ExitStatus::problem_unless(status.ready))
}
