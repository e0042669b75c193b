//! Conditions: states of a node that an operator should know, each with a stable code.
//!
//! Pure code and the engine return a [`Finding`]. The agent adds the time when it began (`api::Condition`).

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Fix, cause};

/// The effect of a condition on new pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Severity {
    /// New pods cannot be started on this node.
    NotReady,
    /// New pods are started, but something needs the operator. Severities that a newer agent adds are read as this one.
    #[serde(other)]
    Degraded,
}

impl Severity {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotReady => "notReady",
            Self::Degraded => "degraded",
        }
    }
}

/// One table, so that name, severity, meaning and fix cannot diverge. `docs/reference/conditions.md` is generated from it.
macro_rules! codes {
    ($($name:ident $severity:ident $meaning:literal $fix:literal;)*) => {
        /// The kind of a condition. The names are stable: they are labels of metrics and reasons of events.
        /// Sorted by importance: if several conditions make a node not ready, the first one is reported.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum Code {
            $(#[doc = $meaning] $name,)*
        }

        impl Code {
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                }
            }

            pub fn severity(self) -> Severity {
                match self {
                    $(Self::$name => Severity::$severity,)*
                }
            }

            /// One sentence.
            pub fn meaning(self) -> &'static str {
                match self {
                    $(Self::$name => $meaning,)*
                }
            }

            /// The general fix. A [`Finding`] has the exact command where there is one.
            pub fn advice(self) -> &'static str {
                match self {
                    $(Self::$name => $fix,)*
                }
            }
        }
    };
}

codes! {
    AgentStopping NotReady "The agent is stopping; requests in flight are finished." "`systemctl start podwire`";
    PermissionDenied NotReady "The process lacks root or a capability." "run the command as root on the node itself, outside of a container";
    NftMissing NotReady "The `nft` program is not installed. Podwire cannot create its nftables tables without it." "`apt install nftables`";
    KernelFeatureMissing NotReady "The kernel lacks a feature that pods need." "load the module of the feature, or use a kernel that has it";
    RunDirFull NotReady "The file system of the run directory is full, and attachments cannot be recorded. Degraded while it is only nearly full." "free space: `df -h /run/podwire; df -i /run/podwire`";
    RunDirUnusable NotReady "The records in the run directory cannot be read or written." "`ls -la /run/podwire`";
    SubnetOverlap NotReady "A route or address that Podwire does not manage overlaps the pod network. Degraded if it appears while the agent is ready." "set `network.subnets`, without an agent `subnet` in the CNI config, to a subnet that no other program uses";
    BridgeNameTaken NotReady "The network's bridge name is used by a link of another type." "rename or delete the link, or set `network.bridge`, without an agent `bridge` in the CNI config";
    BridgeMissing NotReady "The network's bridge does not exist and cannot be created. Degraded if CNI STATUS finds it missing while pods run." "correct the cause in the message. The agent then creates the bridge; without an agent, restart the pods of the bridge";
    AddressesExhausted NotReady "All addresses of the network are in use." "delete pods, or use a larger subnet";
    IpamUnavailable NotReady "The IPAM plugin of the network cannot be run or is not ready. Degraded if an agent reports it for a network that is not its own." "install the plugin that `ipam.type` names";
    BlockMissing NotReady "The node has no block of the network, so pods get no addresses." "correct the cause in the message; after a change of the configuration restart the agent";
    SocketLost NotReady "The agent's socket was removed or replaced and cannot be created again." "`systemctl restart podwire`";
    ReconcileFailed NotReady "The node's links, firewall or records cannot be listed. Degraded once the agent was ready." "correct the cause in the message. The agent retries; without an agent, run the command again";
    InstallIncomplete NotReady "The plugin or its config is not installed, or the runtime does not find the plugin, so pods fail. Degraded if another runtime finds it, or if a runtime's configuration cannot be read." "correct the cause in the message. The agent retries if it installs the files; otherwise run `podwire install`";
    AgentStarting NotReady "The agent has not finished its first reconcile." "wait; the agent's log shows its progress: `journalctl -u podwire`";
    ConfigInvalid NotReady "The agent's configuration is invalid, and the agent does not start." "correct the key that the message names: `podwire agent --check-config`";
    AgentUnreachable NotReady "No agent answers on its socket." "`systemctl start podwire`";
    ReconcileStuck Degraded "Reconcile hangs: pods are served, but drift is not repaired." "`systemctl restart podwire`";
    RepairFailed Degraded "Reconcile found drift and could not repair it." "correct the cause in the message; the agent retries";
    MonitorFailed Degraded "The agent receives no kernel events, so only the timer detects drift." "correct the cause in the message; the agent retries";
    BridgeDown Degraded "The bridge of running pods is down." "`podwire doctor --repair`; an agent sets the bridge up itself";
    GatewayMissing Degraded "The bridge of running pods lacks a gateway address, so pods cannot reach other networks." "`podwire doctor --repair`; an agent restores the address itself";
    FirewallDrift Degraded "Podwire's nftables tables differ from the desired state." "`systemctl restart podwire`; without an agent `podwire doctor --repair`";
    FirewallOrphans Degraded "Podwire's nftables tables contain elements that belong to no pod." "the `nft` command of the condition";
    PodTrafficDropped Degraded "A firewall chain that Podwire does not manage drops pod traffic, or may drop it (see the message)." "the `nft` command of the condition; an agent with `network.accept_forward = true` keeps such rules itself";
    PodModeDiffers Degraded "Running pods of a network use another mode than new pods. Bridged and routed pods cannot reach each other." "restart the pods that the message names";
    PodLinkMoved Degraded "The interface of a pod was renamed, or moved out of the pod's network namespace." "restart the pod, unless the condition has an `ip` command";
    PodMacChanged Degraded "The MAC address of a pod's interface was changed inside the pod; the source check drops its packets." "the `ip` command of the condition, or restart the pod";
    PodNetworkIncomplete Degraded "A pod lacks its link, addresses, routes or neighbours. Without an agent they are not restored." "restart the pod";
    PodNotInspected Degraded "A pod cannot be inspected, so changes inside it are not detected. This often affects pods with a record that was recovered from the link." "restart the pod";
    DhcpLeaseExpired Degraded "The interface of a pod with a DHCP address is down, as the DHCP client leaves it when the lease expires. Podwire does not set it up, because the address may belong to another host." "check the DHCP server, then restart the pod";
    RecordUnreadable Degraded "The record of an attachment cannot be read; its addresses stay in use." "delete the pod, or remove the file and restart the pod";
    RecordNewer Degraded "A newer version of Podwire wrote the record of an attachment." "upgrade Podwire, or delete the pod";
    TombstoneFailed Degraded "A DEL that was received while no agent ran cannot be served yet." "correct the cause in the message; the agent retries";
    TombstoneRejected Degraded "A DEL that was received while no agent ran cannot be served and was moved aside." "`rm FILE`";
    MetricsUnavailable Degraded "Metrics cannot be served on the configured address." "`ss -ltnp 'sport = :PORT'`";
    EtcdKeyExposed Degraded "Other users can read the key of etcd's client certificate." "`chmod 600 FILE`";
    PolicyNotEnforced Degraded "Tenants or policies exist, and this node does not enforce them." "correct the cause in the message; the agent retries";
    PolicyInvalid Degraded "A tenant, group or policy names something that does not exist, cannot be read or is not supported. Without its group or a policy of it, a pod is closed; other such parts match nothing." "correct the object that the message names";
    PolicyTooLarge Degraded "The firewall has no space for a policy or tenant. It isolates its pods and allows nothing." "remove or simplify policies";
    DeniedLogFailed Degraded "Denied packets are counted, but the rules that deny them are not named." "stop the other process that listens to NFLOG group 113, or correct the cause in the message; the agent retries";
    PodIsolated Degraded "The policies of a pod are not known, so all its flows are dropped." "correct the cause in the agent's log, or restart the pod";
    StoreUnreachable Degraded "etcd does not answer. The node continues with the last known state." "start etcd, or correct `etcd.endpoints` and restart the agent";
    StoreFailed Degraded "The store refuses this node or cannot be used. The node continues with the last known state." "correct the cause in the message; the agent retries, unless the message asks for a restart";
    StoreValueUnreadable Degraded "A value in the store cannot be read and is ignored." "correct or delete the key";
    StoreSchemaFormer Degraded "The store has keys of schema 1, which was used before the first release. The node does not join and changes nothing." "use another `etcd.prefix`, or stop all agents and remove the old keys with the command in the message";
    NetworkMismatch Degraded "The network's settings differ from those in the store." "configure all nodes identically, or use another `etcd.prefix`; then restart the agent";
    NodeNameTaken Degraded "Another host with a live agent has this node's name." "set `node` to another name and restart the agent";
    BlocksExhausted Degraded "The node needs another block, and none could be claimed." "`podwire node rm NAME` for nodes that no longer exist, or a larger subnet";
    BlockLost Degraded "A block of this node now belongs to another node." "delete and restart the pods of the block";
    StateDirUnwritable Degraded "The node's state directory cannot be written." "`df -h /var/lib/podwire`";
    PeerNotRegistered Degraded "A node has not registered again since the store lost its data." "start its agent, or `podwire node rm NAME`";
    StoreWatchStopped Degraded "The agent no longer follows the store." "`systemctl restart podwire`";
    PeerAway Degraded "The agent of a node does not renew its lease." "check the power and the network of the node, then its agent";
    PeerRecordRefused Degraded "Parts of a node's record are not used." "correct the node, or `podwire node rm NAME`";
    PeerConflict Degraded "Several nodes publish the same address or tunnel MAC." "`podwire node rm NAME` for nodes that no longer exist";
    PeerUnrouted Degraded "A node or its blocks have no route." "correct the cause in the message";
    PeerUnreachable Degraded "A node does not answer, or its pod network does not." "`ping ADDRESS`";
    NodeAddressMissing Degraded "The node's own address is missing or ambiguous." "restore the link, address or route that the message names, or set `node_interface` or `node_addresses` and restart the agent";
    PeerRouteFailed Degraded "The kernel rejected a route or neighbour of another node." "correct the cause in the message; the agent retries";
    TunnelFailed Degraded "The tunnel device cannot be set up." "correct the cause in the message; the agent retries";
    ForwardingDisabled Degraded "The kernel does not forward packets of pods." "the `sysctl` command of the condition";
    ReversePathStrict Degraded "Strict `rp_filter` on a tunnel drops packets of pods." "`sysctl -w net.ipv4.conf.TUNNEL.rp_filter=2`";
    BridgeNetfilterPartial Degraded "br_netfilter is on for one address family only." "the `sysctl` command of the condition";
    MtuTooLarge Degraded "Pods or a tunnel send larger packets than the link carries." "set `network.mtu` and restart the agent, without an agent set `mtu` in the CNI config, then restart the pods";
    PathMtuTooSmall Degraded "The path to a node carries smaller packets than pods send, with the header of the tunnel." "set `network.mtu` on all nodes, and restart the agents and then the pods";
    StateDirFull Degraded "The file system of the state directory is nearly full or read-only." "`df -h /var/lib/podwire`";
    ProgramMissing Degraded "A program that `podwire doctor` needs is not installed." "`apt install iputils-ping`";
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Code {
    /// Whether an agent reports it. All other codes are found by `podwire doctor`, by `podwire status` without an agent or
    /// by a CNI STATUS.
    pub fn is_observed_by_agent(self) -> bool {
        !matches!(
            self,
            Self::ConfigInvalid
                | Self::AgentUnreachable
                | Self::BridgeDown
                | Self::GatewayMissing
                | Self::PodNetworkIncomplete
                | Self::FirewallDrift
                | Self::PeerUnreachable
                | Self::ForwardingDisabled
                | Self::ReversePathStrict
                | Self::BridgeNetfilterPartial
                | Self::MtuTooLarge
                | Self::PathMtuTooSmall
                | Self::StateDirFull
                | Self::ProgramMissing
        )
    }
}

/// A condition without a time.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    pub code: Code,
    pub severity: Severity,
    /// The affected object: `link pw0abc`, `node n2`, `file /opt/cni/bin/podwire-cni`. Code and object identify a condition.
    pub object: String,
    pub message: String,
    /// A shell command that repairs the object.
    pub fix: Option<Fix>,
}

impl Finding {
    pub fn new(code: Code, object: impl fmt::Display, message: impl fmt::Display) -> Self {
        let (object, message) = (object.to_string(), cause(message));
        Self { code, severity: code.severity(), object, message, fix: None }
    }

    pub fn fix(self, command: impl Into<Fix>) -> Self {
        Self { fix: Some(command.into()), ..self }
    }

    /// For a condition that does not prevent new pods, although its code usually does.
    pub fn degraded(self) -> Self {
        Self { severity: Severity::Degraded, ..self }
    }

    /// Code and fix in one line, for the details of a CNI error.
    pub fn summary(&self) -> String {
        summary(self.code, self.fix.as_deref())
    }
}

/// `NftMissing: apt install nftables`
pub fn summary(code: impl fmt::Display, fix: Option<&str>) -> String {
    match fix {
        Some(fix) => format!("{code}: {fix}"),
        None => code.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_camel_case_and_survive_serialization() {
        for &code in Code::ALL {
            let name = code.as_str();
            assert!(
                name.starts_with(char::is_uppercase) && name.chars().all(char::is_alphanumeric),
                "{name}"
            );
            assert_eq!(serde_json::to_string(&code).unwrap(), format!("\"{name}\""));
            assert_eq!(serde_json::from_str::<Code>(&format!("\"{name}\"")).unwrap(), code);
            assert!(code.meaning().ends_with('.') && !code.advice().is_empty(), "{name}");
        }
        assert!(Code::ALL.is_sorted(), "codes are not declared in the order of importance");
        assert_eq!(serde_json::from_str::<Severity>("\"critical\"").unwrap(), Severity::Degraded);
    }

    /// `podwire status`, `podwire doctor` and CNI STATUS report these codes also without an agent.
    #[test]
    fn advice_for_standalone_nodes_does_not_rely_on_an_agent() {
        use Code::{
            BridgeMissing, BridgeNameTaken, FirewallDrift, InstallIncomplete, MtuTooLarge, ReconcileFailed,
            SubnetOverlap,
        };
        for code in
            [BridgeMissing, ReconcileFailed, SubnetOverlap, BridgeNameTaken, FirewallDrift, MtuTooLarge]
        {
            assert!(code.advice().contains("without an agent"), "{code}: {}", code.advice());
        }
        assert!(InstallIncomplete.advice().contains("`podwire install`"));
        assert!(!ReconcileFailed.meaning().starts_with("The agent"));
    }
}
