//! The status of a node without an agent: pods live on, and the plugin may work standalone.

use anyhow::Result;
use api::{ClientError, Condition, Counts, NodeMode, StatusWithoutAgent, Tombstones};
use engine::state::{Attachment, Phase, State};
use netlink::RtSocket;

use super::page;
use crate::commands::{configs, mode};
use crate::exit::ExitStatus;
use crate::folders::Folders;
use crate::print;

/// What a node without an agent reports, and in words who serves its pods.
pub(super) struct Files {
    pub(super) status: StatusWithoutAgent,
    served_by: String,
}

impl Files {
    pub(super) fn read(folders: &Folders, error: &ClientError) -> Result<Self> {
        let run_dir = &folders.run_dir;
        let holder = files::read_text(&run_dir.join("agent.lock")).ok();
        let state = State::open_existing(run_dir)?;
        let mut configs = configs::of_node();
        let mode = mode::of_node(folders, state.is_some(), &configs);
        let served_by = match (mode, &holder, &state) {
            (NodeMode::Agent, Some(pid), _) => {
                format!("an agent worked here (process {}), and is gone", pid.trim())
            }
            (NodeMode::Agent, None, _) => {
                "no agent is running, and none has left its lock in the run directory".to_owned()
            }
            (NodeMode::Standalone, _, Some(_)) => "standalone: no agent has worked here".to_owned(),
            (NodeMode::Standalone, _, None) => {
                "standalone: installed, and no pod was attached yet".to_owned()
            }
        };
        let (attachments, running) = count(state.as_ref())?;
        let inactive = RtSocket::open()
            .map_err(Into::into)
            .and_then(|mut host| engine::inactive_ports(&running, &mut host))?;
        // An agent completes its config.
        configs.retain(|config| !configs::names_agent(config));
        let mut found = engine::inspect(run_dir, &configs);
        if mode == NodeMode::Agent {
            found.push(mode::agent_missing(folders, error));
        }
        found.sort_by_key(|finding| (finding.severity, finding.code));
        let conditions: Vec<Condition> = found.into_iter().map(|one| Condition::new(one, None)).collect();
        let status = StatusWithoutAgent {
            mode,
            ready: !conditions.iter().any(Condition::keeps_from_ready),
            run_dir: run_dir.clone(),
            attachments,
            tombstones: Tombstones::new(run_dir).list()?.len() as u64,
            inactive_ports: inactive.iter().map(agent::inactive_port).collect(),
            conditions,
        };
        Ok(Self { status, served_by })
    }

    pub(super) fn exit_status(&self) -> ExitStatus {
        match self.status.mode {
            NodeMode::Agent => ExitStatus::AgentUnreachable,
            NodeMode::Standalone => ExitStatus::problem_unless(self.status.ready),
        }
    }

    pub(super) fn page(&self, now: u64) -> String {
        let ready = if self.status.ready { "ready" } else { "not ready" };
        let title = format!("podwire {}: {ready}", env!("CARGO_PKG_VERSION"));
        let agent = match self.status.mode {
            NodeMode::Agent => "not running",
            NodeMode::Standalone => "none, and none is needed",
        };
        let mut rows = vec![
            ("agent", agent.to_owned()),
            ("run directory", self.status.run_dir.display().to_string()),
            ("mode", self.served_by.clone()),
            ("attachments", page::attachments(self.status.attachments)),
        ];
        rows.extend(page::inactive_ports(&self.status.inactive_ports));
        if self.status.tombstones > 0 {
            let dels = print::count(self.status.tombstones, "DEL");
            rows.push(("tombstones", format!("{dels}, which the agent will serve when it is back")));
        }
        [title, print::facts(rows), page::conditions(&self.status.conditions, now)].join("\n\n")
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
