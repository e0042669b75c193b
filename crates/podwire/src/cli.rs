//! Arguments of all commands.

pub(crate) mod examples;
pub(crate) mod objects;

use std::path::PathBuf;

use agent::Capability;

use clap::{Args, Parser, Subcommand, ValueEnum};
use ipnet::IpNet;
use types::{AttachMode, IfName, NetworkName, NodeName};

use crate::print;

#[derive(Debug, Parser)]
#[command(
    name = "podwire",
    version,
    about = "A pod network for Linux",
    term_width = print::width(),
    after_long_help = examples::PODWIRE
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: CliCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CliCommand {
    /// Run a demo: pods, a killed agent, repairs, tenants, cleanup
    ///
    /// The demo runs in network namespaces of its own. It removes everything that it created.
    #[command(after_long_help = examples::DEMO)]
    Demo,
    /// Run a cluster of network namespaces on this host
    ///
    /// Every node is a network namespace with a real agent. The interfaces, routes and firewall of the host are not
    /// changed.
    #[command(after_long_help = examples::LAB)]
    Lab(Box<crate::commands::lab::LabArgs>),
    /// Run the node agent
    ///
    /// The agent serves the CNI plugin, joins the cluster, and repairs pod networks that were changed. It runs in the
    /// foreground until SIGTERM or SIGINT.
    #[command(after_long_help = examples::AGENT)]
    Agent(Box<AgentArgs>),
    /// Show the status of this node
    ///
    /// If no agent answers, the status is read from files and from the kernel.
    ///
    /// Exit codes: 0 if the node is ready (also if it is degraded), 1 if it is not ready, 3 if the node needs an agent and
    /// none is reachable.
    #[command(after_long_help = examples::STATUS)]
    Status(StatusArgs),
    /// Check everything that pod networks need on this node
    ///
    /// A problem is listed with the command that fixes it. Without --repair nothing is changed: kernel features are probed
    /// in temporary network namespaces.
    ///
    /// Exit codes: 0 if no problem was found, 1 if there is a problem.
    #[command(after_long_help = examples::DOCTOR)]
    Doctor(DoctorArgs),
    /// List the pods on this node and their addresses
    ///
    /// Exit codes: 0, or 1 if a record cannot be read.
    #[command(after_long_help = examples::PODS)]
    Pods(PodsArgs),
    /// List the nodes of the cluster
    ///
    /// Exit codes: 0, or 1 if a record is refused or in conflict, or if the data is stale.
    #[command(after_long_help = examples::NODES)]
    Nodes(ClusterArgs),
    /// Manage nodes of the cluster
    #[command(subcommand, after_long_help = examples::NODE)]
    Node(NodeCommand),
    /// List routes to other nodes, compared with the kernel
    ///
    /// Exit codes: 0, or 1 if a route is missing, different or stale, or if the data is stale.
    #[command(after_long_help = examples::ROUTES)]
    Routes(ClusterArgs),
    /// List address blocks and the nodes that own them
    ///
    /// Exit codes: 0, or 1 if the records are inconsistent, or if the data is stale.
    #[command(after_long_help = examples::BLOCKS)]
    Blocks(ClusterArgs),
    #[command(flatten)]
    Object(objects::ObjectCommand),
    /// Inspect attachments of pods
    #[command(subcommand, after_long_help = examples::ATTACHMENT)]
    Attachment(AttachmentCommand),
    /// Explain whether a flow is allowed, and which rule decides
    ///
    /// Reads objects, pods and policies from files: Podwire's own kinds, and those of Kubernetes as 'kubectl get -o yaml'
    /// prints them. No cluster is needed.
    ///
    /// FROM and TO are pods (NAMESPACE/NAME), addresses, group:TENANT/NAME, node:NAME or world, which is an address outside
    /// of the cluster. With groups, every pair of pods is explained.
    ///
    /// Exit codes: 0 if the flow is allowed, 1 if it is denied.
    #[command(after_long_help = examples::EXPLAIN)]
    Explain(ExplainArgs),
    /// Install plugin and network config for the runtime
    ///
    /// The command waits until the agent is ready, because a network config makes the runtime start pods. An agent with
    /// install.enabled does this itself.
    #[command(after_long_help = examples::INSTALL)]
    Install(Box<InstallArgs>),
    /// Remove Podwire from this node
    ///
    /// Removes pod links, bridges, firewall tables, state and installed files, and restores sysctls. It refuses to run
    /// while an agent is running. The agent's config file, logs and systemd unit are listed and kept.
    ///
    /// Exit codes: 0, or 1 if an object could not be removed.
    #[command(after_long_help = examples::CLEANUP)]
    Cleanup(CleanupArgs),
    /// Show the versions of podwire, its API and CNI
    #[command(after_long_help = examples::VERSION)]
    Version(VersionArgs),
}

impl CliCommand {
    /// Every command, except for text that does not depend on the node.
    pub(crate) fn needs_root(&self) -> bool {
        match self {
            Self::Version(_) | Self::Explain(_) => false,
            Self::Object(command) => command.needs_root(),
            Self::Agent(args) => {
                !(args.print_config || args.print_config_reference || args.print_config_sample)
            }
            Self::Demo
            | Self::Lab(_)
            | Self::Status(_)
            | Self::Doctor(_)
            | Self::Pods(_)
            | Self::Nodes(_)
            | Self::Node(_)
            | Self::Routes(_)
            | Self::Blocks(_)
            | Self::Attachment(_)
            | Self::Install(_)
            | Self::Cleanup(_) => true,
        }
    }

    /// Commands that change the kernel's network or enter namespaces need capabilities.
    pub(crate) fn needed_capabilities(&self) -> &'static [Capability] {
        match self {
            Self::Agent(args) if args.check_config || !self.needs_root() => &[],
            Self::Agent(_) | Self::Demo | Self::Lab(_) => &[Capability::NetAdmin, Capability::SysAdmin],
            Self::Install(args) if args.network.standalone => &[Capability::NetAdmin],
            Self::Cleanup(_) => &[Capability::NetAdmin],
            Self::Install(_)
            | Self::Version(_)
            | Self::Explain(_)
            | Self::Status(_)
            | Self::Doctor(_)
            | Self::Pods(_)
            | Self::Nodes(_)
            | Self::Node(_)
            | Self::Routes(_)
            | Self::Blocks(_)
            | Self::Object(_)
            | Self::Attachment(_) => &[],
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// A table in at most 80 columns
    Table,
    /// A table with all columns, in lines of any length
    Wide,
    /// JSON; the schemas are part of the documentation
    Json,
}

#[derive(Debug, Args)]
pub(crate) struct AgentArgs {
    #[command(flatten)]
    pub(crate) flags: config::Flags,
    /// Report all problems that prevent a start, and exit
    ///
    /// Exit codes: 0 if the agent can start, 1 if it cannot.
    #[arg(long, conflicts_with_all = ["print_config", "print_config_reference", "print_config_sample"])]
    pub(crate) check_config: bool,
    /// Print the effective configuration as TOML, and exit
    #[arg(long, conflicts_with_all = ["print_config_reference", "print_config_sample"])]
    pub(crate) print_config: bool,
    /// Print a Markdown table of all keys, and exit
    #[arg(long, conflicts_with = "print_config_sample")]
    pub(crate) print_config_reference: bool,
    /// Print a config file with all keys and defaults, and exit
    #[arg(long)]
    pub(crate) print_config_sample: bool,
}

/// Selects an agent. Without arguments, the agent's configuration decides.
#[derive(Debug, Args)]
pub(crate) struct AgentSelector {
    /// Run directory of the agent: node state, socket and lock
    #[arg(long, value_name = "DIR")]
    pub(crate) run_dir: Option<PathBuf>,
    /// Socket of the agent [default: agent.sock in the run directory]
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// Output format
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: Output,
    #[command(flatten)]
    pub(crate) agent: AgentSelector,
}

/// A query about the cluster. The agent of this node answers it.
#[derive(Debug, Args)]
pub(crate) struct ClusterArgs {
    /// Output format
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: Output,
    #[command(flatten)]
    pub(crate) agent: AgentSelector,
}

#[derive(Debug, Subcommand)]
pub(crate) enum NodeCommand {
    /// Remove a dead node and free its blocks
    ///
    /// Other nodes remove their routes to it.
    #[command(after_long_help = examples::NODE_RM)]
    Rm(RemoveNodeArgs),
}

#[derive(Debug, Args)]
pub(crate) struct RemoveNodeArgs {
    /// Name of the node, as listed by `podwire nodes`
    #[arg(value_parser = name::<NodeName>)]
    pub(crate) name: NodeName,
    /// Remove it also if its agent is alive
    ///
    /// An agent that is running adds the node again.
    #[arg(long)]
    pub(crate) force: bool,
    /// Output format
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: Output,
    #[command(flatten)]
    pub(crate) agent: AgentSelector,
}

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Repair bridges and firewall tables first
    ///
    /// Pods are not interrupted. Only for nodes without an agent: an agent repairs its node itself.
    #[arg(long)]
    pub(crate) repair: bool,
    /// Output format
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: Output,
    #[command(flatten)]
    pub(crate) agent: AgentSelector,
    /// State directory of the agent
    #[arg(long, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct PodsArgs {
    /// Output format
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: Output,
    /// Run directory with the node state
    #[arg(long, value_name = "DIR")]
    pub(crate) run_dir: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum AttachmentCommand {
    /// Show an attachment with its policies and kernel state
    ///
    /// Exit codes: 0, or 1 if a kernel object is missing.
    #[command(after_long_help = examples::ATTACHMENT_SHOW)]
    Show(ShowAttachmentArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ShowAttachmentArgs {
    /// Pod, container ID or its first characters, and an interface
    #[arg(value_name = "POD|CONTAINER[/IFNAME]")]
    pub(crate) attachment: String,
    /// Output format
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: Output,
    /// Run directory with the node state
    #[arg(long, value_name = "DIR")]
    pub(crate) run_dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct InstallArgs {
    /// Time to wait until the agent is ready
    #[arg(long, value_name = "SECONDS", default_value_t = 30, conflicts_with = "standalone")]
    pub(crate) timeout: u64,
    /// Config file of the agent
    #[arg(long, value_name = "FILE", conflicts_with = "standalone")]
    pub(crate) config: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) agent: AgentSelector,
    #[command(flatten)]
    pub(crate) paths: InstallPaths,
    #[command(flatten)]
    pub(crate) network: StandaloneNetwork,
}

/// Paths of installed files. With an agent, the agent's configuration has the defaults.
#[derive(Debug, Args)]
pub(crate) struct InstallPaths {
    /// Program file of the plugin [default: podwire-cni beside podwire]
    #[arg(long, value_name = "FILE")]
    pub(crate) plugin: Option<PathBuf>,
    /// Plugin directory of the runtime [default: as configured for containerd or CRI-O, or /opt/cni/bin]
    #[arg(long, value_name = "DIR")]
    pub(crate) plugin_dir: Option<PathBuf>,
    /// Config directory of the runtime [default: as configured for containerd or CRI-O, or /etc/cni/net.d]
    #[arg(long, value_name = "DIR")]
    pub(crate) config_dir: Option<PathBuf>,
    /// File name of the network config [default: 10-NAME.conflist]
    #[arg(long, value_name = "NAME")]
    pub(crate) config_name: Option<String>,
    /// Template of the network config [default: built in]
    #[arg(long, value_name = "FILE")]
    pub(crate) template: Option<PathBuf>,
    /// Directory with the list of installed files, for `podwire cleanup` [default: /var/lib/podwire]
    #[arg(long, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,
}

/// Settings of a network without an agent.
#[derive(Debug, Args)]
pub(crate) struct StandaloneNetwork {
    /// Install a network without an agent
    #[arg(long)]
    pub(crate) standalone: bool,
    /// Name of the network
    #[arg(long, default_value = "podwire", requires = "standalone", value_parser = name::<NetworkName>)]
    pub(crate) name: NetworkName,
    /// How pods are attached to the node
    #[arg(long, default_value = "bridge", requires = "standalone")]
    pub(crate) mode: ModeArg,
    /// Name of the bridge
    #[arg(long, default_value = "podwire0", requires = "standalone", value_parser = name::<IfName>)]
    pub(crate) bridge: IfName,
    /// Pod subnet, once for each address family
    #[arg(
        long = "subnet",
        value_name = "CIDR",
        requires = "standalone",
        default_values = [types::DEFAULT_SUBNET_V4, types::DEFAULT_SUBNET_V6]
    )]
    pub(crate) subnets: Vec<IpNet>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ModeArg {
    /// Pods are ports of a bridge
    Bridge,
    /// Every pod has a host route on the node
    Routed,
}

impl From<ModeArg> for AttachMode {
    fn from(mode: ModeArg) -> Self {
        match mode {
            ModeArg::Bridge => Self::Bridge,
            ModeArg::Routed => Self::Routed,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct CleanupArgs {
    #[command(flatten)]
    pub(crate) agent: AgentSelector,
    /// Directory with the list of installed files
    ///
    /// Needed to remove installed files if --run-dir is not the configured run directory.
    #[arg(long, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,
    /// Also remove the pods and networks of other run directories
    #[arg(long)]
    pub(crate) all: bool,
}

#[derive(Debug, Args)]
pub(crate) struct VersionArgs {
    /// Output format
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// The sender
    pub(crate) from: String,
    /// The receiver
    pub(crate) to: String,
    /// tcp, udp, sctp, icmp, or an IP protocol number
    #[arg(long, default_value = "tcp")]
    pub(crate) proto: String,
    /// Destination port, for tcp, udp and sctp
    #[arg(long)]
    pub(crate) port: Option<u16>,
    /// YAML or JSON file with objects, pods and policies. Can be repeated
    #[arg(short, long = "file", value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct PolicyTestArgs {
    /// YAML or JSON file with objects, pods, policies and cases. Can be repeated
    #[arg(short, long = "file", value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// Output format
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: Output,
}

fn name<T>(text: &str) -> Result<T, types::NameError>
where
    T: for<'a> TryFrom<&'a str, Error = types::NameError>,
{
    T::try_from(text)
}

#[cfg(test)]
#[path = "cli/tests.rs"]
mod tests;
