//! Arguments of `create` for each kind, and of the commands for rules. Values are checked by the agent, as those of files.

use std::net::IpAddr;

use clap::{ArgGroup, Args, Subcommand, ValueEnum};
use serde_json::{Map, Value, json};

use super::examples;
use super::{ChangeArgs, ShowArgs, TenantArg};

/// What `create` needs of the arguments of a kind.
pub(crate) trait CreateArgs {
    fn name(&self) -> &str;
    /// None for a tenant.
    fn tenant(&self) -> Option<&str>;
    fn spec(&self) -> Value;
    fn change(&self) -> &ChangeArgs;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum NodeAccessArg {
    /// Nodes and pods of the tenant reach each other
    Allow,
    /// Only the node of a pod reaches it
    Deny,
}

#[derive(Debug, Args)]
pub(crate) struct CreateTenantArgs {
    /// Name of the tenant
    name: String,
    /// Flows between its pods and other nodes
    #[arg(long, value_enum, value_name = "ACCESS")]
    nodes: Option<NodeAccessArg>,
    #[command(flatten)]
    change: ChangeArgs,
}

impl CreateArgs for CreateTenantArgs {
    fn name(&self) -> &str {
        &self.name
    }

    fn tenant(&self) -> Option<&str> {
        None
    }

    fn spec(&self) -> Value {
        let access = self.nodes.map(|access| match access {
            NodeAccessArg::Allow => "allow",
            NodeAccessArg::Deny => "deny",
        });
        fields([("nodes", access.map(Value::from))])
    }

    fn change(&self) -> &ChangeArgs {
        &self.change
    }
}

#[derive(Debug, Args)]
pub(crate) struct CreateNetworkArgs {
    /// Name of the network
    name: String,
    #[command(flatten)]
    tenant: TenantArg,
    /// Subnet of the pods, once for each address family
    #[arg(long = "subnet", value_name = "CIDR", required = true)]
    subnets: Vec<String>,
    /// Bits by which the block of a node is longer than the subnet
    #[arg(long, value_name = "BITS")]
    block_margin: Option<u8>,
    /// MTU of the pods
    #[arg(long)]
    mtu: Option<u32>,
    /// Keep the pods' addresses in traffic that leaves the cluster
    #[arg(long)]
    no_masquerade: bool,
    /// Node that has the network; can be repeated [default: all nodes]
    #[arg(long = "node", value_name = "NODE")]
    nodes: Vec<String>,
    #[command(flatten)]
    change: ChangeArgs,
}

impl CreateArgs for CreateNetworkArgs {
    fn name(&self) -> &str {
        &self.name
    }

    fn tenant(&self) -> Option<&str> {
        Some(&self.tenant.tenant)
    }

    fn spec(&self) -> Value {
        fields([
            ("subnets", list(&self.subnets)),
            ("blockMargin", self.block_margin.map(Value::from)),
            ("mtu", self.mtu.map(Value::from)),
            ("masquerade", self.no_masquerade.then(|| false.into())),
            ("nodes", list(&self.nodes)),
        ])
    }

    fn change(&self) -> &ChangeArgs {
        &self.change
    }
}

#[derive(Debug, Args)]
pub(crate) struct CreateGroupArgs {
    /// Name of the group
    name: String,
    #[command(flatten)]
    tenant: TenantArg,
    /// Network of its pods, of the same tenant
    #[arg(long)]
    network: String,
    /// Policy for its pods; can be repeated
    #[arg(long = "policy", value_name = "POLICY")]
    policies: Vec<String>,
    /// Profile of its pods
    #[arg(long)]
    profile: Option<String>,
    /// Addresses of the network that only its pods get; can be repeated
    #[arg(long = "pool", value_name = "CIDR")]
    pools: Vec<String>,
    #[command(flatten)]
    change: ChangeArgs,
}

impl CreateArgs for CreateGroupArgs {
    fn name(&self) -> &str {
        &self.name
    }

    fn tenant(&self) -> Option<&str> {
        Some(&self.tenant.tenant)
    }

    fn spec(&self) -> Value {
        fields([
            ("network", Some(self.network.as_str().into())),
            ("policies", list(&self.policies)),
            ("profile", self.profile.as_deref().map(Value::from)),
            ("pools", list(&self.pools)),
        ])
    }

    fn change(&self) -> &ChangeArgs {
        &self.change
    }
}

#[derive(Debug, Args)]
pub(crate) struct CreatePolicyArgs {
    /// Name of the policy, which has no rules at first
    name: String,
    #[command(flatten)]
    tenant: TenantArg,
    #[command(flatten)]
    change: ChangeArgs,
}

impl CreateArgs for CreatePolicyArgs {
    fn name(&self) -> &str {
        &self.name
    }

    fn tenant(&self) -> Option<&str> {
        Some(&self.tenant.tenant)
    }

    fn spec(&self) -> Value {
        json!({})
    }

    fn change(&self) -> &ChangeArgs {
        &self.change
    }
}

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("rates").args(["ingress", "egress"]).multiple(true))]
pub(crate) struct CreateProfileArgs {
    /// Name of the profile
    name: String,
    #[command(flatten)]
    tenant: TenantArg,
    /// Maximum rate of traffic to a pod in bits per second
    #[arg(long, value_name = "RATE")]
    ingress: Option<String>,
    /// Maximum rate of traffic from a pod, such as 500k, 100M or 1G
    #[arg(long, value_name = "RATE")]
    egress: Option<String>,
    /// Size of bursts in bits [default: the traffic of 100 ms]
    #[arg(long, value_name = "BITS", requires = "rates")]
    burst: Option<String>,
    /// DSCP of packets from a pod, 0 to 63
    #[arg(long)]
    dscp: Option<u8>,
    #[command(flatten)]
    change: ChangeArgs,
}

impl CreateArgs for CreateProfileArgs {
    fn name(&self) -> &str {
        &self.name
    }

    fn tenant(&self) -> Option<&str> {
        Some(&self.tenant.tenant)
    }

    fn spec(&self) -> Value {
        let burst = self.burst.as_deref();
        let limit =
            |rate: &String| fields([("rate", Some(rate.as_str().into())), ("burst", burst.map(Value::from))]);
        fields([
            ("ingress", self.ingress.as_ref().map(limit)),
            ("egress", self.egress.as_ref().map(limit)),
            ("dscp", self.dscp.map(Value::from)),
        ])
    }

    fn change(&self) -> &ChangeArgs {
        &self.change
    }
}

#[derive(Debug, Args)]
pub(crate) struct CreateShareArgs {
    /// Name of the share
    name: String,
    #[command(flatten)]
    tenant: TenantArg,
    /// Tenant that may open flows; can be repeated
    #[arg(long = "with", value_name = "TENANT", required_unless_present = "with_all")]
    with: Vec<String>,
    /// All tenants may open flows
    #[arg(long, conflicts_with = "with")]
    with_all: bool,
    /// Share only the pods of this network
    #[arg(long, conflicts_with = "group")]
    network: Option<String>,
    /// Share only the pods of this group
    #[arg(long)]
    group: Option<String>,
    /// Protocol and port, such as udp/53; can be repeated [default: all]
    #[arg(long = "port", value_name = "PROTOCOL/PORT")]
    ports: Vec<String>,
    #[command(flatten)]
    change: ChangeArgs,
}

impl CreateArgs for CreateShareArgs {
    fn name(&self) -> &str {
        &self.name
    }

    fn tenant(&self) -> Option<&str> {
        Some(&self.tenant.tenant)
    }

    fn spec(&self) -> Value {
        fields([
            ("network", self.network.as_deref().map(Value::from)),
            ("group", self.group.as_deref().map(Value::from)),
            ("with", list(&self.with)),
            ("ports", list(&self.ports)),
        ])
    }

    fn change(&self) -> &ChangeArgs {
        &self.change
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum RuleCommand {
    /// Add a rule to a policy
    ///
    /// Rules of the highest priority are evaluated first, rules of equal priority by id. Without --from or --to, the rule
    /// matches all peers. A peer is group:NAME or network:NAME of the same tenant, a CIDR, or any.
    #[command(after_long_help = examples::RULE_ADD)]
    Add(AddRuleArgs),
    /// Remove rules from a policy
    #[command(after_long_help = examples::RULE_RM)]
    Rm(RemoveRulesArgs),
    /// List the rules of a policy in the order of evaluation
    #[command(after_long_help = examples::RULE_LS)]
    Ls(ListRulesArgs),
}

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("direction").args(["inbound", "outbound"]).required(true))]
#[command(group = ArgGroup::new("action").args(["allow", "deny"]).required(true))]
pub(crate) struct AddRuleArgs {
    /// Name of the policy
    pub(crate) policy: String,
    #[command(flatten)]
    pub(crate) tenant: TenantArg,
    /// For flows that enter pods of the group
    #[arg(long = "in")]
    inbound: bool,
    /// For flows that pods of the group open
    #[arg(long = "out")]
    outbound: bool,
    /// Peers that open the flows [default: any]
    #[arg(long, value_name = "PEER", conflicts_with = "outbound", value_parser = peer)]
    from: Option<Value>,
    /// Peers that receive the flows [default: any]
    #[arg(long, value_name = "PEER", conflicts_with = "inbound", value_parser = peer)]
    to: Option<Value>,
    /// tcp, udp, sctp, icmp, or an IP protocol number [default: any]
    #[arg(long)]
    protocol: Option<String>,
    /// Destination port or range, such as 8000-8080 [default: all]
    #[arg(long, requires = "protocol")]
    port: Option<String>,
    /// Accept the flows: later tiers may still drop them
    #[arg(long)]
    allow: bool,
    /// Drop the flows
    #[arg(long)]
    deny: bool,
    /// 1 to 100; rules with a higher number are evaluated first [default: 1]
    #[arg(long)]
    priority: Option<u8>,
    #[command(flatten)]
    pub(crate) change: ChangeArgs,
}

impl AddRuleArgs {
    /// The rule as in a document.
    pub(crate) fn rule(&self) -> Value {
        fields([
            ("direction", Some(if self.inbound { "in" } else { "out" }.into())),
            ("priority", self.priority.map(Value::from)),
            ("peer", self.from.clone().or_else(|| self.to.clone())),
            ("protocol", self.protocol.as_deref().map(Value::from)),
            ("port", self.port.as_deref().map(Value::from)),
            ("action", Some(if self.allow { "allow" } else { "deny" }.into())),
        ])
    }
}

#[derive(Debug, Args)]
pub(crate) struct RemoveRulesArgs {
    /// Name of the policy
    pub(crate) policy: String,
    /// Ids of the rules, as listed by `podwire policy rule ls`
    #[arg(required = true, value_name = "ID")]
    pub(crate) rules: Vec<u32>,
    #[command(flatten)]
    pub(crate) tenant: TenantArg,
    #[command(flatten)]
    pub(crate) change: ChangeArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ListRulesArgs {
    /// Name of the policy
    pub(crate) policy: String,
    #[command(flatten)]
    pub(crate) tenant: TenantArg,
    #[command(flatten)]
    pub(crate) show: ShowArgs,
}

/// `group:db`, `network:front`, a CIDR or `any`.
fn peer(word: &str) -> Result<Value, String> {
    match word.split_once(':') {
        Some(("group", name)) => Ok(json!({ "group": name })),
        Some(("network", name)) => Ok(json!({ "network": name })),
        Some(("cidr", block)) => Ok(json!({ "cidr": block })),
        _ if word == "any" => Ok("any".into()),
        _ if word.contains('/') => Ok(json!({ "cidr": word })),
        _ if word.parse::<IpAddr>().is_ok() => Ok(json!({ "cidr": host_block(word) })),
        _ => {
            Err("a peer is group:NAME, network:NAME, an address, a CIDR such as 10.1.0.0/16, or any"
                .to_owned())
        }
    }
}

/// The block of one address.
fn host_block(address: &str) -> String {
    let length = if address.contains(':') { 128 } else { 32 };
    format!("{address}/{length}")
}

fn list(items: &[String]) -> Option<Value> {
    (!items.is_empty()).then(|| items.to_vec().into())
}

/// The fields that have a value.
fn fields<const N: usize>(all: [(&str, Option<Value>); N]) -> Value {
    let known = all.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    Value::Object(known.collect::<Map<_, _>>())
}
