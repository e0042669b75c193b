//! What can be asked on the command line.

use std::path::PathBuf;

use agent::Capability;

use clap::{Args, Parser, Subcommand, ValueEnum};
use ipnet::IpNet;
use types::{AttachMode, IfName, NetworkName, NodeName};

#[derive(Debug, Parser)]
#[command(name = "podwire", version, about = "A pod network for Linux")]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: CliCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CliCommand {
    /// Show it all on a node of its own: two pods through the agent, faults and repairs, and nothing left behind
    Demo,
    /// Many nodes on this machine, each a network namespace with a real agent, to see and to try a whole cluster
    Lab(Box<crate::commands::lab::LabArgs>),
    /// Run the node agent: serve the plugin, keep pods' networks right
    Agent(Box<AgentArgs>),
    /// Show the status of this node; exits with 0 if it is ready, also if degraded, 1 if not, 3 if its agent is not reachable
    Status(StatusArgs),
    /// Look at everything that pods' networks need on this node; what is wrong comes with the command that helps, and ends with 1
    Doctor(Doctor),
    /// Show the pods on this node and their addresses; exits with 1 if a record cannot be read
    Pods(Pods),
    /// Show all nodes of the cluster; exits with 1 if a record is refused or in conflict, or if the data is stale
    Nodes(ClusterArgs),
    /// Change what the cluster knows of a node
    #[command(subcommand)]
    Node(NodeCommand),
    /// Show the routes to other nodes: what should be and what is; ends with 1 if that differs
    Routes(ClusterArgs),
    /// Show which node has which block of the network; exits with 1 if records contradict each other or the data is stale
    Blocks(ClusterArgs),
    /// Look at attachments one by one
    #[command(subcommand)]
    Attachment(AttachmentCommand),
    /// Put the plugin and a network config where the container runtime looks for them
    Install(Box<InstallArgs>),
    /// Remove everything of Podwire from this node: pods' links, bridge, firewall, sysctls, state, installed files
    Cleanup(Cleanup),
}

impl CliCommand {
    /// Everything but text that is the same for every user.
    pub(crate) fn needs_root(&self) -> bool {
        match self {
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

    /// Those of commands that change the kernel's network or enter namespaces.
    pub(crate) fn needed_capabilities(&self) -> &'static [Capability] {
        match self {
            Self::Agent(args) if args.check_config || !self.needs_root() => &[],
            Self::Agent(_) | Self::Demo | Self::Lab(_) => &[Capability::NetAdmin, Capability::SysAdmin],
            Self::Install(args) if args.network.standalone => &[Capability::NetAdmin],
            Self::Cleanup(_) => &[Capability::NetAdmin],
            Self::Install(_)
            | Self::Status(_)
            | Self::Doctor(_)
            | Self::Pods(_)
            | Self::Nodes(_)
            | Self::Node(_)
            | Self::Routes(_)
            | Self::Blocks(_)
            | Self::Attachment(_) => &[],
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// In 80 columns
    Table,
    /// All columns, in lines of any length
    Wide,
    /// For programs; docs/reference/schemas has the schemas
    Json,
}

#[derive(Debug, Args)]
pub(crate) struct AgentArgs {
    #[command(flatten)]
    pub(crate) flags: config::Flags,
    /// Report everything that a start would refuse, without a start, and end; exits with 1 if there is anything
    #[arg(long, conflicts_with_all = ["print_config", "print_config_reference", "print_config_sample"])]
    pub(crate) check_config: bool,
    /// Print the configuration that is in effect, as TOML, and end
    #[arg(long, conflicts_with_all = ["print_config_reference", "print_config_sample"])]
    pub(crate) print_config: bool,
    /// Print all keys with their defaults, as a table in Markdown, and end
    #[arg(long, conflicts_with = "print_config_sample")]
    pub(crate) print_config_reference: bool,
    /// Print a config file with all keys and their defaults, and end
    #[arg(long)]
    pub(crate) print_config_sample: bool,
}

/// Which agent is meant. Nothing given: the one that the agent's configuration describes.
#[derive(Debug, Args)]
pub(crate) struct Which {
    /// The agent's run directory: node-local state, socket and lock
    #[arg(long, value_name = "DIR")]
    pub(crate) run_dir: Option<PathBuf>,
    /// The agent's socket [default: agent.sock in the run directory]
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: Output,
    #[command(flatten)]
    pub(crate) which: Which,
}

/// A question about the cluster, which this node's agent answers.
#[derive(Debug, Args)]
pub(crate) struct ClusterArgs {
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: Output,
    #[command(flatten)]
    pub(crate) which: Which,
}

#[derive(Debug, Subcommand)]
pub(crate) enum NodeCommand {
    /// Remove a node that will not come back: others forget their routes to it, and its blocks are free again
    Rm(RemoveNode),
}

#[derive(Debug, Args)]
pub(crate) struct RemoveNode {
    /// The node's name, as `podwire nodes` shows it
    #[arg(value_parser = name::<NodeName>)]
    pub(crate) name: NodeName,
    /// Also while its agent is alive, which brings it back
    #[arg(long)]
    pub(crate) force: bool,
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: Output,
    #[command(flatten)]
    pub(crate) which: Which,
}

#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// Repair the bridges of pods and Podwire's firewall tables first, without interrupting pods; an agent does this by itself
    #[arg(long)]
    pub(crate) repair: bool,
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: Output,
    #[command(flatten)]
    pub(crate) which: Which,
    /// Where the agent keeps what is to outlive a boot
    #[arg(long, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Pods {
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: Output,
    /// The directory of node-local state
    #[arg(long, value_name = "DIR")]
    pub(crate) run_dir: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum AttachmentCommand {
    /// Everything about one attachment: what is recorded, and what the kernel has of it right now
    Show(ShowAttachmentArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ShowAttachmentArgs {
    /// The container's id, or its first characters, and the interface where there are several
    #[arg(value_name = "CONTAINER[/IFNAME]")]
    pub(crate) what: String,
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: Output,
    /// The directory of node-local state
    #[arg(long, value_name = "DIR")]
    pub(crate) run_dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct InstallArgs {
    /// How long to wait until the agent is ready; nothing is written before
    #[arg(long, value_name = "SECONDS", default_value_t = 30, conflicts_with = "standalone")]
    pub(crate) timeout: u64,
    /// The agent's config file
    #[arg(long, value_name = "FILE", conflicts_with = "standalone")]
    pub(crate) config: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) which: Which,
    #[command(flatten)]
    pub(crate) places: Places,
    #[command(flatten)]
    pub(crate) network: Standalone,
}

/// Where things go; in agent mode what is not given comes from the agent's configuration.
#[derive(Debug, Args)]
pub(crate) struct Places {
    /// The plugin's program file [default: podwire-cni beside podwire]
    #[arg(long, value_name = "FILE")]
    pub(crate) plugin: Option<PathBuf>,
    /// Where the runtime looks for plugins [default: as containerd or CRI-O is configured, else /opt/cni/bin]
    #[arg(long, value_name = "DIR")]
    pub(crate) plugin_dir: Option<PathBuf>,
    /// Where the runtime looks for network configs [default: as containerd or CRI-O is configured, else /etc/cni/net.d]
    #[arg(long, value_name = "DIR")]
    pub(crate) config_dir: Option<PathBuf>,
    /// The network config's file name [default: 10-NAME.conflist]
    #[arg(long, value_name = "NAME")]
    pub(crate) config_name: Option<String>,
    /// A template for the network config instead of the one that is built in
    #[arg(long, value_name = "FILE")]
    pub(crate) template: Option<PathBuf>,
    /// What is installed is recorded here, for `podwire cleanup` [default: /var/lib/podwire]
    #[arg(long, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,
}

/// A network without an agent, which must be described here.
#[derive(Debug, Args)]
pub(crate) struct Standalone {
    /// A network without an agent: the plugin does all by itself
    #[arg(long)]
    pub(crate) standalone: bool,
    /// The network's name
    #[arg(long, default_value = "podwire", requires = "standalone", value_parser = name::<NetworkName>)]
    pub(crate) name: NetworkName,
    /// How a pod meets its host: `bridge` or `routed`
    #[arg(long, default_value = "bridge", requires = "standalone")]
    pub(crate) mode: ModeArg,
    /// The bridge's name
    #[arg(long, default_value = "podwire0", requires = "standalone", value_parser = name::<IfName>)]
    pub(crate) bridge: IfName,
    /// Subnets of the pods, one for each family
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
    Bridge,
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
pub(crate) struct Cleanup {
    #[command(flatten)]
    pub(crate) which: Which,
    /// Where installed files are recorded; with another --run-dir than the configured one they stay unless this is given
    #[arg(long, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,
    /// Also remove the pods of other run directories, and what they need
    #[arg(long)]
    pub(crate) all: bool,
}

fn name<T>(text: &str) -> Result<T, types::NameError>
where
    T: for<'a> TryFrom<&'a str, Error = types::NameError>,
{
    T::try_from(text)
}
