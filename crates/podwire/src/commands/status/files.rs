//! The status of a node where no agent answers. Pods keep their network, and the plugin may work standalone.

use anyhow::Result;
use api::{ClientError, Condition, Counts, NodeMode, StatusWithoutAgent, Tombstones};
use engine::state::{Attachment, NodeState, RecordPhase, StateError};
use netlink::RtSocket;

use super::page;
use crate::commands::plugins::{PluginFiles, runtimes_of_node};
use crate::commands::{configs, mode};
use crate::directories::AgentDirectories;
use crate::exit::ExitStatus;
use crate::print;

/// The status from files and kernel.
pub(super) struct StatusFromFiles {
    pub(super) status: StatusWithoutAgent,
    /// Describes the process or program that serves pods.
    mode_text: String,
    /// A process has the socket and did not answer.
    is_hanging: bool,
    is_installed: bool,
    is_run_dir_known: bool,
}

impl StatusFromFiles {
    pub(super) fn read(directories: &AgentDirectories, error: &ClientError) -> Result<Self> {
        let run_dir = &directories.run_dir;
        let lock_owner = files::read_text(&run_dir.join("agent.lock")).ok();
        // `engine::inspect` below reports an unusable run directory. Its records are unknown then.
        let state = NodeState::open_existing(run_dir);
        let has_state = !matches!(state, Ok(None));
        let records = state.and_then(|state| count(state.as_ref()));
        let mut configs = configs::of_node();
        let is_hanging = mode::is_hanging(error);
        let is_missing = matches!(error, ClientError::NoListener { .. });
        let is_installed = !is_missing || mode::is_installed(directories, has_state, &configs);
        let mode = match mode::of_node(directories, has_state, &configs) {
            NodeMode::Standalone if !is_hanging => NodeMode::Standalone,
            NodeMode::Standalone | NodeMode::Agent => NodeMode::Agent,
        };
        let mode_text = match (mode, &lock_owner, has_state) {
            (NodeMode::Agent, Some(pid), _) if is_hanging => {
                format!("an agent (process {}) has the socket and does not answer", pid.trim())
            }
            (NodeMode::Agent, None, _) if is_hanging => {
                "a process has the agent's socket and does not answer".to_owned()
            }
            (NodeMode::Agent, Some(pid), _) => {
                format!("the agent (process {}) has ended", pid.trim())
            }
            (NodeMode::Agent, None, _) if !is_installed => "nothing is installed".to_owned(),
            (NodeMode::Agent, None, _) => {
                "no agent is running, and the run directory has no lock file".to_owned()
            }
            (NodeMode::Standalone, _, true) => "standalone: no agent has run here".to_owned(),
            (NodeMode::Standalone, _, false) => "standalone: installed, no pod attached yet".to_owned(),
        };
        let (attachments, running) = match &records {
            // The agent may use another directory.
            Ok((_, running)) if directories.is_guess => (None, running.as_slice()),
            Ok((counts, running)) => (Some(*counts), running.as_slice()),
            Err(_) => (None, Default::default()),
        };
        let inactive = RtSocket::open()
            .map_err(Into::into)
            .and_then(|mut host| engine::inactive_ports(running, &mut host))?;
        // The agent checks configs that name it.
        configs.retain(|config| !configs::names_agent(config));
        let mut found = engine::inspect(run_dir, &configs);
        let runtimes = runtimes_of_node();
        let plugin = PluginFiles::find(directories.state_dir.as_deref());
        found.extend(plugin.into_iter().flat_map(|plugin| plugin.missing(&runtimes)));
        if is_hanging {
            mode::leave_repairs_to_agent(&mut found);
        }
        match mode {
            NodeMode::Agent if is_installed => found.push(mode::agent_missing(directories, error)),
            NodeMode::Agent => found.push(mode::not_installed(directories)),
            NodeMode::Standalone => {}
        }
        found.sort_by_key(|finding| (finding.severity, finding.code));
        let conditions: Vec<Condition> =
            found.into_iter().map(|finding| Condition::new(finding, None)).collect();
        let status = StatusWithoutAgent {
            mode,
            ready: !conditions.iter().any(Condition::prevents_ready),
            run_dir: run_dir.clone(),
            attachments,
            tombstones: Tombstones::new(run_dir).list().ok().map(|tombstones| tombstones.len() as u64),
            inactive_ports: inactive.iter().map(agent::inactive_port).collect(),
            conditions,
        };
        let is_run_dir_known = !directories.is_guess;
        Ok(Self { status, mode_text, is_hanging, is_installed, is_run_dir_known })
    }

    pub(super) fn exit_status(&self) -> ExitStatus {
        match self.status.mode {
            NodeMode::Agent => ExitStatus::AgentUnreachable,
            NodeMode::Standalone => ExitStatus::problem_unless(self.status.ready),
        }
    }

    pub(super) fn page(&self, now: u64) -> String {
        let readiness = match self.is_installed {
            true => page::readiness(self.status.ready),
            false => print::bad("not installed"),
        };
        let title = format!("podwire {}: {readiness}", env!("CARGO_PKG_VERSION"));
        let agent = match self.status.mode {
            NodeMode::Agent if self.is_hanging => "does not answer",
            NodeMode::Agent => "not running",
            NodeMode::Standalone => "not needed",
        };
        let run_dir = self.status.run_dir.display().to_string();
        let mut rows = vec![
            ("agent", agent.to_owned()),
            ("run directory", if self.is_run_dir_known { run_dir } else { page::unknown() }),
            ("mode", self.mode_text.clone()),
            ("attachments", self.status.attachments.map_or_else(page::unknown, page::attachments)),
        ];
        rows.extend(page::inactive_ports(&self.status.inactive_ports));
        if let Some(tombstones) = self.status.tombstones.filter(|tombstones| *tombstones > 0) {
            let dels = print::count(tombstones, "DEL");
            rows.push(("tombstones", format!("{dels} for the agent to process after its start")));
        }
        [title, print::key_values(rows), page::conditions(&self.status.conditions, now)].join("\n\n")
    }
}

fn count(state: Option<&NodeState>) -> Result<(Counts, Vec<Attachment>), StateError> {
    let (mut counts, mut running) = (Counts::default(), Vec::new());
    for network in state.into_iter().map(NodeState::networks).collect::<Result<Vec<_>, _>>()?.concat() {
        for listed in network.list()? {
            match (listed.attachment, listed.phase) {
                (None, _) => counts.unreadable += 1,
                (Some(attachment), RecordPhase::Ready) => {
                    counts.ready += 1;
                    running.push(attachment);
                }
                (Some(_), RecordPhase::Pending) => counts.pending += 1,
            }
        }
    }
    Ok((counts, running))
}
