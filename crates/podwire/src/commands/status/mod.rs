//! `podwire status`: how the agent is doing. Without an agent: what its folder still tells.

mod page;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use api::{Client, ClientError, Tombstones};
use engine::state::{Phase, State};
use netlink::RtSocket;

use crate::cli::{Output, Status};
use crate::folders::Folders;
use crate::{print, when};

/// The agent reads its state for this; a busy machine with thousands of pods takes its time.
const PATIENCE: Duration = Duration::from_secs(10);
const NOT_READY: u8 = 1;
const NO_AGENT: u8 = 2;

pub(crate) fn run(args: &Status) -> Result<ExitCode> {
    let folders = Folders::find(&args.which, None);
    let answer = match Client::new(&folders.socket).get(api::STATUS, PATIENCE) {
        Ok(answer) => answer,
        Err(error @ ClientError::NobodyListens { .. }) => {
            if args.output == Output::Table {
                print::say(without_agent(&folders)?)?;
            }
            print::warn(format_args!("podwire: {error}"));
            print::warn("podwire: as a service: `systemctl start podwire`");
            return Ok(ExitCode::from(NO_AGENT));
        }
        Err(error) => return Err(error.into()),
    };
    let text = String::from_utf8_lossy(&answer.body);
    ensure!(
        answer.status == 200,
        "the agent on {} answers {}: {text}",
        folders.socket.display(),
        answer.status
    );
    let status: api::Status = serde_json::from_str(&text).context("the agent is of another version")?;
    match args.output {
        Output::Json => print::say_json(&status)?,
        Output::Table => print::say(page::page(&status, when::now()))?,
    }
    Ok(if status.ready { ExitCode::SUCCESS } else { ExitCode::from(NOT_READY) })
}

/// What the files tell: pods live on without an agent.
fn without_agent(folders: &Folders) -> Result<String> {
    let run_dir = &folders.run_dir;
    let holder = files::read_text(&run_dir.join("agent.lock")).ok();
    let state = State::open_existing(run_dir)?;
    let mode = match (&holder, &state) {
        (Some(pid), _) => format!("an agent worked here (process {}), and is gone", pid.trim()),
        (None, Some(_)) => "standalone: no agent has worked here".to_owned(),
        (None, None) => "nothing was attached here since this machine was started".to_owned(),
    };
    let (mut ready, mut pending, mut unreadable) = (0, 0, 0);
    let mut running = Vec::new();
    for network in state.iter().map(State::networks).collect::<Result<Vec<_>, _>>()?.concat() {
        for listed in network.list()? {
            match (listed.attachment, listed.phase) {
                (None, _) => unreadable += 1,
                (Some(attachment), Phase::Ready) => {
                    ready += 1;
                    running.push(attachment);
                }
                (Some(_), Phase::Pending) => pending += 1,
            }
        }
    }
    let counts = api::Counts { ready, pending, unreadable };
    let waiting = Tombstones::new(run_dir).list()?.len() as u64;
    let mut rows = vec![
        ("agent", "not running".to_owned()),
        ("run folder", run_dir.display().to_string()),
        ("mode", mode),
        ("attachments", page::attachments(counts)),
    ];
    let inactive = RtSocket::open()
        .map_err(Into::into)
        .and_then(|mut host| engine::inactive_ports(&running, &mut host))?;
    let inactive: Vec<String> = inactive.iter().map(ToString::to_string).collect();
    rows.extend(page::inactive_ports(&inactive));
    if waiting > 0 {
        rows.push((
            "tombstones",
            format!("{}, which the agent will serve when it is back", print::count(waiting, "DEL")),
        ));
    }
    Ok(print::facts(rows))
}
