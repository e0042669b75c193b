//! State of the node that all checks use: from its agent, or from files and configuration.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::time::Duration;

use api::{Client, ClientError, NodeMode};
use cni::NetworkConfig;
use engine::alias::LinkMark;
use engine::state::{Attachment, NodeState, RecordPhase};
use ipnet::IpNet;
use netlink::{Link, RtSocket};
use types::{AttachMode, Code, Finding, IfName};

use super::check::Check;
use crate::cli::DoctorArgs;
use crate::commands::{configs, mode};
use crate::directories::AgentDirectories;

/// The status of a busy agent with thousands of pods takes seconds.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The process that serves pods on this node.
pub(super) enum NodeServer {
    Agent(Box<api::Status>),
    /// The socket cannot be used, or no valid answer came from it.
    Unclear(Finding),
    /// An agent may run. This process has no access to its socket.
    Denied(String),
    /// No agent, and none is needed: the plugin works alone.
    Standalone,
    /// The node needs an agent, and none listens.
    Missing(ClientError),
    /// No agent listens, and nothing is installed.
    NotInstalled,
}

pub(super) struct CheckedNode {
    pub(super) directories: AgentDirectories,
    pub(super) server: NodeServer,
    pub(super) client: Client,
    pub(super) attachments: Vec<Attachment>,
    pub(super) links: Vec<Link>,
    /// Configs in the directories of runtimes.
    pub(super) configs: Vec<NetworkConfig>,
}

impl CheckedNode {
    pub(super) fn observe(args: &DoctorArgs) -> Self {
        let directories = AgentDirectories::find(&args.agent, args.state_dir.clone());
        // The check of Podwire's tables reports unreadable state.
        let attachments = attachments(&directories).unwrap_or_default();
        let client = Client::new(&directories.socket);
        let configs = configs::of_node();
        let server = node_server(&client, &directories, &configs);
        // Checks that need links report the error.
        let links = RtSocket::open().and_then(|mut host| host.links()).unwrap_or_default();
        Self { directories, server, client, attachments, links, configs }
    }

    pub(super) fn status(&self) -> Option<&api::Status> {
        match &self.server {
            NodeServer::Agent(status) => Some(status),
            NodeServer::Unclear(_)
            | NodeServer::Denied(_)
            | NodeServer::Standalone
            | NodeServer::Missing(_)
            | NodeServer::NotInstalled => None,
        }
    }

    /// The agent's condition if it reports the same problem, because its message knows the agent's configuration.
    pub(super) fn as_reported(&self, check: &'static str, found: Finding) -> Check {
        let is_same =
            |one: &&api::Condition| one.object == found.object && one.code.to_string() == found.code.as_str();
        match self.status().and_then(|status| status.conditions.iter().find(is_same)) {
            Some(one) => Check::condition(check, one),
            None => Check::problem(check, found),
        }
    }

    /// Whether the agent reports a condition with this code.
    pub(super) fn has_condition(&self, code: Code) -> bool {
        let conditions = self.status().map(|status| &status.conditions);
        conditions.is_some_and(|all| all.iter().any(|one| one.code == code))
    }

    /// Blocks of the network and addresses of all pods.
    pub(super) fn addresses(&self) -> Vec<IpNet> {
        let pods = self.attachments.iter().flat_map(Attachment::ips).map(IpNet::from);
        pods.chain(self.blocks()).collect()
    }

    /// Blocks of this node in the agent's network.
    pub(super) fn blocks(&self) -> impl Iterator<Item = IpNet> {
        let blocks = self.status().into_iter().flat_map(|status| &status.network.blocks);
        blocks.map(|block| block.block)
    }

    pub(super) fn bridges(&self) -> Vec<IfName> {
        let of_agent = self.status().and_then(|status| IfName::try_from(status.network.bridge.as_str()).ok());
        let pods = self.attachments.iter().map(|attachment| attachment.bridge.clone());
        pods.chain(of_agent).collect::<BTreeSet<_>>().into_iter().collect()
    }

    pub(super) fn has_mode(&self, mode: AttachMode) -> bool {
        let word = match mode {
            AttachMode::Bridge => "bridge",
            AttachMode::Routed => "routed",
        };
        self.attachments.iter().any(|attachment| attachment.mode == mode)
            || self.status().is_some_and(|status| status.network.mode == word)
    }

    /// Podwire's tunnel devices.
    pub(super) fn tunnels(&self) -> impl Iterator<Item = &Link> {
        let is_tunnel = |link: &&Link| matches!(LinkMark::of(link), Some(LinkMark::Tunnel(_)));
        self.links.iter().filter(is_tunnel)
    }
}

fn attachments(directories: &AgentDirectories) -> Result<Vec<Attachment>, engine::state::StateError> {
    let mut all = Vec::new();
    let Some(state) = NodeState::open_existing(&directories.run_dir)? else { return Ok(all) };
    for network in state.networks()? {
        let ready = network.list()?.into_iter().filter(|listed| listed.phase == RecordPhase::Ready);
        all.extend(ready.filter_map(|listed| listed.attachment));
    }
    Ok(all)
}

fn node_server(client: &Client, directories: &AgentDirectories, configs: &[NetworkConfig]) -> NodeServer {
    let unclear = |reason: String| {
        let object = format!("socket {}", directories.socket.display());
        NodeServer::Unclear(
            Finding::new(Code::AgentUnreachable, object, reason).fix("systemctl restart podwire"),
        )
    };
    match client.get(api::STATUS, TIMEOUT) {
        Ok(answer) if answer.status == 200 => match serde_json::from_slice(&answer.body) {
            Ok(status) => NodeServer::Agent(Box::new(status)),
            Err(error) => unclear(format!("the agent has another version: {error}")),
        },
        Ok(answer) => unclear(format!("the agent answers {}", answer.status)),
        Err(error @ ClientError::NoListener { .. }) => {
            let has_state = matches!(NodeState::open_existing(&directories.run_dir), Ok(Some(_)));
            match mode::of_node(directories, has_state, configs) {
                NodeMode::Agent if !mode::is_installed(directories, has_state, configs) => {
                    NodeServer::NotInstalled
                }
                NodeMode::Agent => NodeServer::Missing(error),
                NodeMode::Standalone => NodeServer::Standalone,
            }
        }
        Err(ClientError::Connect { source, socket }) if source.kind() == ErrorKind::PermissionDenied => {
            NodeServer::Denied(format!("cannot connect to the agent's socket {}: {source}", socket.display()))
        }
        Err(error) => NodeServer::Unclear(mode::agent_missing(directories, &error)),
    }
}
