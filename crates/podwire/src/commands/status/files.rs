//! The status of a node without an agent: pods live on, and the plugin may work standalone.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use api::{ClientError, Condition, Counts, Tombstones};
use engine::state::{Attachment, Phase, State};
use netlink::RtSocket;
use serde::Serialize;
use types::{Code, Finding};

use super::{NO_AGENT, NOT_READY, page};
use crate::folders::Folders;
use crate::print;

/// Who serves pods here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Mode {
    /// The plugin itself: no agent has worked here, and none is missing.
    Standalone,
    /// An agent worked here, or nothing did yet.
    Agent,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Files {
    mode: Mode,
    ready: bool,
    run_dir: PathBuf,
    attachments: Counts,
    /// DELs that an agent will serve.
    tombstones: u64,
    inactive_ports: Vec<String>,
    conditions: Vec<Condition>,
    /// In words.
    #[serde(skip)]
    served_by: String,
}

impl Files {
    pub(super) fn read(folders: &Folders, error: &ClientError) -> Result<Self> {
        let run_dir = &folders.run_dir;
        let holder = files::read_text(&run_dir.join("agent.lock")).ok();
        let state = State::open_existing(run_dir)?;
        let (mode, served_by) = match (&holder, &state) {
            (Some(pid), _) => {
                (Mode::Agent, format!("an agent worked here (process {}), and is gone", pid.trim()))
            }
            (None, Some(_)) => (Mode::Standalone, "standalone: no agent has worked here".to_owned()),
            (None, None) if folders.state_dir.as_deref().is_some_and(agent::install::is_standalone) => {
                (Mode::Standalone, "standalone: installed, and no pod was attached yet".to_owned())
            }
            (None, None) => {
                (Mode::Agent, "nothing was attached here since this machine was started".to_owned())
            }
        };
        let (attachments, running) = count(state.as_ref())?;
        let inactive = RtSocket::open()
            .map_err(Into::into)
            .and_then(|mut host| engine::inactive_ports(&running, &mut host))?;
        let mut found = match engine::inspect(run_dir) {
            Ok(found) => found,
            Err(error) => vec![engine::reconcile::failure(error, run_dir)],
        };
        if mode == Mode::Agent {
            let object = format!("socket {}", folders.socket.display());
            found.push(Finding::new(Code::AgentUnreachable, object, error).fix("systemctl start podwire"));
        }
        found.sort_by_key(|finding| (finding.severity, finding.code));
        let conditions: Vec<Condition> = found.into_iter().map(|one| Condition::new(one, None)).collect();
        Ok(Self {
            mode,
            ready: !conditions.iter().any(Condition::keeps_from_ready),
            run_dir: run_dir.clone(),
            attachments,
            tombstones: Tombstones::new(run_dir).list()?.len() as u64,
            inactive_ports: inactive.iter().map(ToString::to_string).collect(),
            conditions,
            served_by,
        })
    }

    pub(super) fn exit_code(&self) -> ExitCode {
        match (self.mode, self.ready) {
            (Mode::Agent, _) => ExitCode::from(NO_AGENT),
            (Mode::Standalone, true) => ExitCode::SUCCESS,
            (Mode::Standalone, false) => ExitCode::from(NOT_READY),
        }
    }

    pub(super) fn page(&self, now: u64) -> String {
        let ready = if self.ready { "ready" } else { "not ready" };
        let title = format!("podwire {}: {ready}", env!("CARGO_PKG_VERSION"));
        let agent = match self.mode {
            Mode::Agent => "not running",
            Mode::Standalone => "none, and none is needed",
        };
        let mut rows = vec![
            ("agent", agent.to_owned()),
            ("run folder", self.run_dir.display().to_string()),
            ("mode", self.served_by.clone()),
            ("attachments", page::attachments(self.attachments)),
        ];
        rows.extend(page::inactive_ports(&self.inactive_ports));
        if self.tombstones > 0 {
            let dels = print::count(self.tombstones, "DEL");
            rows.push(("tombstones", format!("{dels}, which the agent will serve when it is back")));
        }
        [title, print::facts(rows), page::conditions(&self.conditions, now)].join("\n\n")
    }
}

fn count(state: Option<&State>) -> Result<(Counts, Vec<Attachment>)> {
    let (mut counts, mut running) = (Counts::default(), Vec::new());
    for network in state.into_iter().map(State::networks).collect::<Result<Vec<_>, _>>()?.concat() {
        for listed in network.list()? {
            match (listed.attachment, listed.phase) {
                (None, _) => counts.unreadable += 1,
                (Some(attachment), Phase::Ready) => {
                    counts.ready += 1;
                    running.push(attachment);
                }
                (Some(_), Phase::Pending) => counts.pending += 1,
            }
        }
    }
    Ok((counts, running))
}
