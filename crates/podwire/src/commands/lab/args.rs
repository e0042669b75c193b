//! Arguments of `podwire lab`.

use clap::{Args, Subcommand, ValueEnum};

use crate::cli::{Output, examples};

/// Used if no name is given.
pub(super) const DEFAULT_NAME: &str = "default";
const LONGEST_POD_NAME: usize = 63;

#[derive(Debug, Args)]
pub(crate) struct LabArgs {
    /// Name of the lab; several labs can be up at the same time
    #[arg(long, global = true, default_value = DEFAULT_NAME)]
    pub(crate) name: String,
    #[command(subcommand)]
    pub(crate) command: LabCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum LabCommand {
    /// Create a lab with nodes, agents, etcd and pods
    ///
    /// Every node is a network namespace with its own agent, connected to the other nodes by a virtual network.
    #[command(after_long_help = examples::LAB_UP)]
    Up(LabUpArgs),
    /// List the labs of this host
    ///
    /// States: up, unfinished (`lab up` is running or was killed), stale (from before the last boot), orphaned (namespaces
    /// without a directory), unreadable (damaged state file).
    #[command(after_long_help = examples::LAB_LS)]
    Ls(LabOutputArgs),
    /// Show the nodes, agents, etcd members and pods of a lab
    ///
    /// Exit codes: 0 if everything runs, otherwise 1.
    #[command(after_long_help = examples::LAB_STATUS)]
    Status(LabOutputArgs),
    /// Add and remove pods, as a container runtime does
    #[command(subcommand, after_long_help = examples::LAB_POD)]
    Pod(LabPodCommand),
    /// Run a command in a node, a pod or an etcd member
    ///
    /// The arguments after NODE are the command, with its own flags; without a command a shell starts. `podwire` uses the agent of the node, and `etcdctl`
    /// uses the etcd of the lab. PODWIRE_LAB_NODE is set to LAB/NODE, and `podwire status` and `podwire doctor` then show
    /// fixes that work in the lab.
    ///
    /// Exit codes: those of the command, 126 if it is not executable, 127 if it does not exist.
    #[command(after_long_help = examples::LAB_EXEC)]
    Exec(LabExecArgs),
    /// Test all paths between pods, with IPv4 and IPv6
    ///
    /// Exit codes: 0 if all pods reach each other, otherwise 1.
    #[command(after_long_help = examples::LAB_TEST)]
    Test(LabTestArgs),
    /// Disconnect a node from all other nodes and from etcd
    #[command(after_long_help = examples::LAB_CUT)]
    Cut(LabNodeArgs),
    /// Connect a node again
    #[command(after_long_help = examples::LAB_HEAL)]
    Heal(LabNodeArgs),
    /// Kill an agent, an etcd member or a node
    #[command(
        subcommand,
        after_long_help = examples::LAB_KILL,
        mut_subcommand("agent", |agent| agent.about("Kill the agent of a node; its pods keep their network")),
        mut_subcommand("etcd", |etcd| etcd.about("Kill one etcd member, or all members; their data stays")),
        mut_subcommand("node", |node| node.about("Switch a node off with its pods, as in a power failure"))
    )]
    Kill(LabTarget),
    /// Start a killed agent, etcd member or node
    #[command(
        subcommand,
        after_long_help = examples::LAB_START,
        mut_subcommand("agent", |agent| agent.about("Start a killed agent, and wait until it is ready")),
        mut_subcommand("etcd", |etcd| etcd.about("Start a killed etcd member, or all of them")),
        mut_subcommand("node", |node| node.about("Boot a node that is off; its agent and pods start again"))
    )]
    Start(LabTarget),
    /// Restart an agent, also one that hangs
    #[command(subcommand, after_long_help = examples::LAB_RESTART)]
    Restart(LabRestartTarget),
    /// Print the log of an agent or of an etcd member
    #[command(after_long_help = examples::LAB_LOGS)]
    Logs(LabLogsArgs),
    /// Remove a lab
    ///
    /// Also removes a lab that is incomplete or damaged.
    #[command(after_long_help = examples::LAB_DOWN)]
    Down(LabDownArgs),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum StoreArg {
    /// An etcd cluster
    Etcd,
    /// A store in the agent, for one node
    Embedded,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TransportArg {
    /// Direct routes within a subnet, VXLAN between subnets
    Auto,
    /// Direct routes only; nodes of other subnets are not reachable
    Direct,
    /// VXLAN to every node
    Vxlan,
}

#[derive(Debug, Args)]
pub(crate) struct LabUpArgs {
    /// Number of nodes: n1, n2, …
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub(crate) nodes: usize,
    /// Number of subnets of the nodes, with a router between them
    #[arg(long, value_name = "K", default_value_t = 1)]
    pub(crate) subnets: usize,
    /// Store of the cluster
    #[arg(long, value_enum, default_value = "etcd")]
    pub(crate) store: StoreArg,
    /// Number of etcd members, 1 or 3 [default: 1]
    #[arg(long, value_name = "M")]
    pub(crate) etcd_members: Option<usize>,
    /// Transport of pod traffic between nodes
    #[arg(long, value_enum, default_value = "auto")]
    pub(crate) transport: TransportArg,
    /// MTU of the network between the nodes
    #[arg(long, value_name = "BYTES", default_value_t = 1500, value_parser = clap::value_parser!(u32).range(1280..=65535))]
    pub(crate) mtu: u32,
    /// Number of pods on each node
    #[arg(long, value_name = "P", default_value_t = 1)]
    pub(crate) pods: usize,
}

#[derive(Debug, Args)]
pub(crate) struct LabOutputArgs {
    /// Output format
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct LabTestArgs {
    /// Output format
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: Output,
    /// Time to wait for answers of unreachable pods
    #[arg(long, value_name = "SECONDS", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=600))]
    pub(crate) timeout: u64,
}

#[derive(Debug, Subcommand)]
pub(crate) enum LabPodCommand {
    /// Add a pod to a node
    #[command(after_long_help = examples::LAB_POD_ADD)]
    Add(LabPodAddArgs),
    /// Remove a pod
    #[command(after_long_help = examples::LAB_POD_RM)]
    Rm {
        /// Name of the pod
        pod: String,
    },
}

#[derive(Debug, Args)]
pub(crate) struct LabPodAddArgs {
    /// Name of the node
    pub(super) node: String,
    /// Name of the pod [default: the first free name of p1, p2, …]
    #[arg(value_parser = pod_name)]
    pub(super) pod: Option<String>,
    /// Tenant of the pod [default: default]
    #[arg(short, long)]
    pub(super) tenant: Option<String>,
    /// Network of the pod [default: that of its group or tenant]
    #[arg(long)]
    pub(super) network: Option<String>,
    /// Group of the pod [default: none]
    #[arg(long)]
    pub(super) group: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct LabExecArgs {
    /// Node (n1), pod (p1), etcd member (etcd1) or `underlay`
    #[arg(value_name = "NODE|POD")]
    pub(crate) target: String,
    /// Command with its arguments [default: a shell]
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct LabNodeArgs {
    /// Name of the node
    pub(crate) node: String,
}

/// `kill` and `start` replace the descriptions.
#[derive(Debug, Subcommand)]
pub(crate) enum LabTarget {
    /// The agent of a node
    #[command(after_long_help = examples::LAB_AGENT)]
    Agent {
        /// Name of the node
        node: String,
    },
    /// One etcd member, or all members
    #[command(after_long_help = examples::LAB_ETCD)]
    Etcd {
        /// Name of the member [default: all members]
        member: Option<String>,
    },
    /// A node with its agent and pods
    #[command(after_long_help = examples::LAB_NODE)]
    Node {
        /// Name of the node
        node: String,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum LabRestartTarget {
    /// Kill the agent of a node, also one that hangs, and start it
    #[command(after_long_help = examples::LAB_RESTART)]
    Agent {
        /// Name of the node
        node: String,
    },
}

#[derive(Debug, Args)]
pub(crate) struct LabLogsArgs {
    /// Node (n1) or etcd member (etcd1)
    #[arg(value_name = "NODE|MEMBER")]
    pub(crate) target: String,
    /// Print only the last lines
    #[arg(short = 'n', long, value_name = "LINES")]
    pub(crate) lines: Option<usize>,
}

#[derive(Debug, Args)]
pub(crate) struct LabDownArgs {
    /// Remove all labs of this host
    #[arg(long, conflicts_with = "name")]
    pub(crate) all: bool,
}

/// A DNS label, as Kubernetes requires for pod names.
fn pod_name(text: &str) -> Result<String, String> {
    let is_allowed = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
    let is_valid = (1..=LONGEST_POD_NAME).contains(&text.len())
        && text.bytes().all(is_allowed)
        && !text.starts_with('-')
        && !text.ends_with('-');
    if is_valid {
        return Ok(text.to_owned());
    }
    Err(format!(
        "use up to {LONGEST_POD_NAME} characters of a-z, 0-9 and '-'; the first and last must be a letter or digit"
    ))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, CliCommand};

    fn exec(words: &str) -> (String, String, Vec<String>) {
        let words = ["podwire", "lab"].into_iter().chain(words.split(' '));
        let cli = Cli::try_parse_from(words).unwrap();
        let CliCommand::Lab(lab) = cli.command else { panic!("{cli:?}") };
        let LabCommand::Exec(LabExecArgs { target, command }) = lab.command else { panic!("{lab:?}") };
        (lab.name, target, command)
    }

    #[test]
    fn exec_passes_all_flags_after_the_node_to_the_command() {
        for (words, name, command) in [
            ("exec n1 true", DEFAULT_NAME, "true"),
            ("exec n1 -- true", DEFAULT_NAME, "true"),
            ("exec n1 ip -6 route show --name x", DEFAULT_NAME, "ip -6 route show --name x"),
            ("exec n1 -- ip --help -h", DEFAULT_NAME, "ip --help -h"),
            ("exec n1 sh -c x -- y", DEFAULT_NAME, "sh -c x -- y"),
            ("--name two exec n1 podwire status -o json", "two", "podwire status -o json"),
            ("exec --name two n1 podwire --version", "two", "podwire --version"),
        ] {
            let (lab, target, parsed) = exec(words);
            assert_eq!((lab.as_str(), target.as_str()), (name, "n1"), "{words}");
            assert_eq!(parsed.join(" "), command, "{words}");
        }
        assert_eq!(Cli::try_parse_from(["podwire", "lab", "exec"]).unwrap_err().exit_code(), 2);
        for words in ["exec n1", "exec n1 --"] {
            let (_, target, command) = exec(words);
            assert_eq!((target.as_str(), command), ("n1", vec![]), "{words}");
        }
    }

    #[test]
    fn pod_names_are_dns_labels() {
        for valid in ["p1", "web", "a-b", "7", &"x".repeat(LONGEST_POD_NAME)] {
            assert_eq!(pod_name(valid).as_deref(), Ok(valid));
        }
        for invalid in ["", "a b", "A", "-a", "a-", "a/b", "..", "ä", &"x".repeat(LONGEST_POD_NAME + 1)] {
            assert!(pod_name(invalid).is_err(), "{invalid:?}");
        }
    }
}
