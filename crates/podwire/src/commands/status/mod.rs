//! `podwire status`: the state of the agent and its conditions. If none answers: the state in files and kernel.

mod files;
mod page;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use api::Client;

use crate::cli::{Output, StatusArgs};
use crate::commands::lab::adapt_fixes;
use crate::commands::mode;
use crate::directories::AgentDirectories;
use crate::exit::ExitStatus;
use crate::{print, when};
use files::Files;

/// The agent reads its state for this; a busy machine with thousands of pods takes its time.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The page of an agent that answered.
pub(crate) fn page(status: &api::Status) -> String {
    page::page(status, when::now())
}

pub(crate) fn run(args: &StatusArgs) -> Result<ExitStatus> {
    let directories = AgentDirectories::find(&args.which, None);
    let answer = match Client::new(&directories.socket).get(api::STATUS, TIMEOUT) {
        Ok(answer) => answer,
        Err(error) if mode::is_unreachable(&error) => {
            let mut files = Files::read(&directories, &error)?;
            adapt_fixes(files.status.conditions.iter_mut().map(|one| &mut one.fix));
            match args.output {
                Output::Json => print::say_json(&files.status)?,
                Output::Table | Output::Wide => print::say(files.page(when::now()))?,
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
    let mut status: api::Status = serde_json::from_str(&text).context("the agent is of another version")?;
    adapt_fixes(status.conditions.iter_mut().map(|one| &mut one.fix));
    match args.output {
        Output::Json => print::say_json(&status)?,
        Output::Table | Output::Wide => print::say(page(&status))?,
    }
    Ok(ExitStatus::problem_unless(status.ready))
}
