//! What can be asked of a lab.

use clap::{Args, Subcommand, ValueEnum};

use crate::cli::Output;

/// The lab that is meant when none is named.
pub(super) const DEFAULT_NAME: &str = "default";
const LONGEST_POD_NAME: usize = 63;

#[derive(Debug, Args)]
pub(crate) struct LabArgs {
    /// Which lab; several may be up at once
    #[arg(long, global = true, default_value = DEFAULT_NAME)]
    pub(crate) name: String,
    #[command(subcommand)]
    pub(crate) action: LabCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum LabCommand {
    /// Make a lab: nodes as namespaces, a network between them, etcd, an agent on each, pods
    Up(Up),
    /// Show nodes, agents, etcd and pods; ends with 1 if not all of it runs
    Status(Shown),
    /// Bring pods and take them away, as a container runtime does
    #[command(subcommand)]
    Pod(PodAction),
    /// Run a command inside a node, a pod or an etcd member; its exit code is passed on
    ///
    /// `podwire` and `etcdctl` then mean the agent of the node and the lab's etcd. The variable PODWIRE_LAB_NODE is
    /// LAB/NODE: with it `podwire status` and `podwire doctor` show fixes that work in the lab.
    Exec(Exec),
    /// Every pod to every other pod, in both families; ends with 1 if one is not reached
    Test(LabTestArgs),
    /// Cut a node off from all others and from etcd
    Cut(OneNode),
    /// Undo a cut
    Heal(OneNode),
    /// Kill an agent, an etcd member, or a whole node
    #[command(subcommand)]
    Kill(Victim),
    /// Start again what was killed
    #[command(subcommand)]
    Start(Victim),
    /// Kill an agent, also one that hangs, and start it again
    #[command(subcommand)]
    Restart(Restartable),
    /// Print what an agent or an etcd member wrote
    Logs(Logs),
    /// Remove a lab, whatever is left of it
    Down(Down),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum StoreArg {
    Etcd,
    Embedded,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TransportArg {
    /// Direct to nodes on the same subnet, VXLAN to others
    Auto,
    /// Routes only; nodes of other subnets are not reached
    Direct,
    /// A tunnel to every node
    Vxlan,
}

#[derive(Debug, Args)]
pub(crate) struct Up {
    /// How many nodes: n1, n2, …
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub(crate) nodes: usize,
    /// Spread the nodes over so many subnets with a router between them: VXLAN is used across
    #[arg(long, value_name = "K", default_value_t = 1)]
    pub(crate) subnets: usize,
    /// Where the cluster's objects live
    #[arg(long, value_enum, default_value = "etcd")]
    pub(crate) store: StoreArg,
    /// 1 or 3, with --store etcd [default: 1]
    #[arg(long, value_name = "M")]
    pub(crate) etcd_members: Option<usize>,
    /// How pods' packets reach other nodes
    #[arg(long, value_enum, default_value = "auto")]
    pub(crate) transport: TransportArg,
    /// MTU of the network between the nodes
    #[arg(long, value_name = "BYTES", default_value_t = 1500, value_parser = clap::value_parser!(u32).range(1280..=65535))]
    pub(crate) mtu: u32,
    /// Pods on each node
    #[arg(long, value_name = "P", default_value_t = 1)]
    pub(crate) pods: usize,
}

#[derive(Debug, Args)]
pub(crate) struct Shown {
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct LabTestArgs {
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: Output,
    /// How long to ask those that do not answer
    #[arg(long, value_name = "SECONDS", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=600))]
    pub(crate) timeout: u64,
}

#[derive(Debug, Subcommand)]
pub(crate) enum PodAction {
    /// A new pod on a node
    Add {
        node: String,
        /// The pod's name [default: the first free of p1, p2, …]
        #[arg(value_parser = pod_name)]
        pod: Option<String>,
    },
    /// Take a pod away
    Rm { pod: String },
}

#[derive(Debug, Args)]
pub(crate) struct Exec {
    /// A node (n1), a pod (p1), an etcd member (etcd1) or `underlay`
    #[arg(value_name = "NODE|POD")]
    pub(crate) place: String,
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct OneNode {
    pub(crate) node: String,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Victim {
    /// The agent of a node; its pods keep their network
    Agent { node: String },
    /// A member of etcd, or all of them
    Etcd { member: Option<String> },
    /// A node with everything on it, as if it lost power
    Node { node: String },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Restartable {
    /// The agent of a node; its pods keep their network
    Agent { node: String },
}

#[derive(Debug, Args)]
pub(crate) struct Logs {
    /// A node (n1) or an etcd member (etcd1)
    #[arg(value_name = "NODE|MEMBER")]
    pub(crate) place: String,
    /// Only so many lines from the end
    #[arg(short = 'n', long, value_name = "LINES")]
    pub(crate) lines: Option<usize>,
}

#[derive(Debug, Args)]
pub(crate) struct Down {
    /// All labs of this machine
    #[arg(long, conflicts_with = "name")]
    pub(crate) all: bool,
}

/// As in Kubernetes: a part of a host's name.
fn pod_name(text: &str) -> Result<String, String> {
    let is_tame = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
    let is_good = (1..=LONGEST_POD_NAME).contains(&text.len())
        && text.bytes().all(is_tame)
        && !text.starts_with('-')
        && !text.ends_with('-');
    if is_good {
        return Ok(text.to_owned());
    }
    Err(format!("use up to {LONGEST_POD_NAME} of a-z, 0-9 and '-', with a letter or digit at both ends"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_pods_are_tame() {
        for good in ["p1", "web", "a-b", "7", &"x".repeat(LONGEST_POD_NAME)] {
            assert_eq!(pod_name(good).as_deref(), Ok(good));
        }
        for bad in ["", "a b", "A", "-a", "a-", "a/b", "..", "ä", &"x".repeat(LONGEST_POD_NAME + 1)] {
            assert!(pod_name(bad).is_err(), "{bad:?}");
        }
    }
}
