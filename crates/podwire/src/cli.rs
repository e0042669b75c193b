//! What can be asked on the command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use ipnet::IpNet;
use types::{IfName, NetworkName};

#[derive(Debug, Parser)]
#[command(name = "podwire", version, about = "A pod network for Linux")]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Attach two pods through the plugin, ping between them, and leave nothing behind
    Demo,
    /// Run the node agent: serve the plugin, keep pods' networks right
    Agent(Box<Agent>),
    /// Show the pods on this node and their addresses
    Pods(Pods),
    /// Put the plugin and a network config where the container runtime looks for them
    Install(Install),
    /// Remove everything of Podwire from this node: pods' links, bridge, firewall tables, sysctls, state
    Cleanup(Cleanup),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    Table,
    Json,
}

#[derive(Debug, Args)]
pub(crate) struct Agent {
    #[command(flatten)]
    pub(crate) flags: agent::config::Flags,
}

#[derive(Debug, Args)]
pub(crate) struct Pods {
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: Output,
    /// The folder of node-local state
    #[arg(long, value_name = "DIR", default_value = netconf::DEFAULT_RUN_DIR)]
    pub(crate) run_dir: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct Install {
    /// The network's name
    #[arg(long, default_value = "podwire", value_parser = name::<NetworkName>)]
    pub(crate) name: NetworkName,
    /// The bridge's name
    #[arg(long, default_value = "podwire0", value_parser = name::<IfName>)]
    pub(crate) bridge: IfName,
    /// Subnets of the pods, one for each family
    #[arg(long = "subnet", value_name = "CIDR", default_values = ["10.88.0.0/16", "fd00:88::/64"])]
    pub(crate) subnets: Vec<IpNet>,
    /// Where the runtime looks for plugins
    #[arg(long, value_name = "DIR", default_value = "/opt/cni/bin")]
    pub(crate) plugin_dir: PathBuf,
    /// Where the runtime looks for network configs
    #[arg(long, value_name = "DIR", default_value = "/etc/cni/net.d")]
    pub(crate) config_dir: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct Cleanup {
    /// The folder of node-local state
    #[arg(long, value_name = "DIR", default_value = netconf::DEFAULT_RUN_DIR)]
    pub(crate) run_dir: PathBuf,
}

fn name<T>(text: &str) -> Result<T, types::NameError>
where
    T: for<'a> TryFrom<&'a str, Error = types::NameError>,
{
    T::try_from(text)
}
