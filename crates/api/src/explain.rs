//! Output of `podwire explain`: the verdict of flows, the rules that decide, and the path of the packets.

use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::cluster::RouteTransport;

/// The body of `POST /v1/explain`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ExplainRequest {
    /// A pod (`NAMESPACE/NAME`), the first characters of a container ID, an address, `group:TENANT/NAME`, `node:NAME` or `world`.
    pub from: String,
    pub to: String,
    /// `tcp`, `udp`, `sctp`, `icmp` or a number.
    pub protocol: String,
    /// The destination port. Null for protocols without ports.
    pub port: Option<u16>,
}

/// The output of `podwire explain -o json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ExplainAnswer {
    /// Why the node enforces no policies. All flows are accepted then, and no rule is listed. Null if it enforces them, and for
    /// policies in files.
    pub not_enforced: Option<String>,
    /// One for each pair of ends.
    pub flows: Vec<FlowView>,
    /// The number of pairs that are not listed, because there are too many.
    pub omitted: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FlowView {
    pub from: FlowEndView,
    pub to: FlowEndView,
    /// `tcp`, `udp`, `sctp`, `icmp`, `icmpv6` or a number.
    pub protocol: String,
    /// The destination port. Null for protocols without ports.
    pub port: Option<u16>,
    pub verdict: FlowVerdict,
    /// At the pod that sends, then at the pod that receives. Ends that are no pods are not judged.
    pub judgements: Vec<JudgementView>,
    /// Null for policies in files.
    pub path: Option<FlowPathView>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum FlowVerdict {
    Accept,
    Drop,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FlowEndView {
    pub kind: FlowEndKind,
    /// The pod as `NAMESPACE/NAME`, or the container ID of a pod without such a name, or the node. Null for addresses.
    pub name: Option<String>,
    /// The node of the pod, or the node itself. Null for addresses.
    pub node: Option<String>,
    /// Null if it has no address in the family of the flow.
    pub address: Option<IpAddr>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum FlowEndKind {
    Pod,
    /// A node, or a pod in the network namespace of its node.
    Node,
    /// Outside of the cluster.
    Outside,
    /// Inside a pod network, but of no known pod.
    Unknown,
    /// A pod that does not run.
    NoPod,
}

/// The judgement of one direction, on the node of the pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct JudgementView {
    pub direction: FlowDirection,
    pub node: String,
    pub verdict: FlowVerdict,
    /// The tiers up to the one that decides. Empty if the flow is not judged by tiers.
    pub tiers: Vec<TierView>,
    /// Why no tier decides. Null if one does.
    pub reason: Option<String>,
}

/// Ingress is judged at the pod that receives, egress at the pod that sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum FlowDirection {
    Ingress,
    Egress,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct TierView {
    /// `admin`, `tenant`, `group`, `network policy` or `baseline`.
    pub tier: String,
    /// Null if no rule matches: the next tier decides.
    pub outcome: Option<TierOutcome>,
    /// The rule that matches, or why none does.
    pub rule: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum TierOutcome {
    Accept,
    Drop,
    /// The next tier decides.
    Pass,
}

/// The path of the packets, as far as this node's agent knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FlowPathView {
    pub transport: FlowTransport,
    /// The node of the sender. Null if it is outside of the cluster or not known.
    pub from_node: Option<String>,
    /// The node of the receiver. Null if it is outside of the cluster or not known.
    pub to_node: Option<String>,
    /// The sender's link on this node. Null if the sender is not a pod of this node.
    pub from_link: Option<PodLinkView>,
    /// The receiver's link on this node. Null if the receiver is not a pod of this node.
    pub to_link: Option<PodLinkView>,
    /// The link through which packets leave this node. Null if they do not leave it, or it is not known.
    pub link: Option<String>,
    /// The next hop on that link. Null if there is none.
    pub gateway: Option<IpAddr>,
    /// Translations of addresses, one sentence each. Empty if there are none.
    pub nat: Vec<String>,
    /// The smallest MTU of the links above. Null if no link is known.
    pub mtu: Option<u32>,
    /// Parts of the path that this agent does not know, one sentence each.
    pub unknown: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum FlowTransport {
    /// The pod sends to itself.
    Pod,
    /// Both ends are on one node.
    Local,
    /// To another node on the same link.
    Direct,
    /// To another node through a tunnel.
    Vxlan,
    /// To or from an address outside of the pod network, by the routes of the node.
    Underlay,
    /// There is no path.
    None,
    /// This agent does not know it.
    #[serde(other)]
    Unknown,
}

impl From<RouteTransport> for FlowTransport {
    fn from(transport: RouteTransport) -> Self {
        match transport {
            RouteTransport::Direct => Self::Direct,
            RouteTransport::Vxlan => Self::Vxlan,
            RouteTransport::None => Self::None,
            RouteTransport::Unknown => Self::Unknown,
        }
    }
}

/// The host end of a pod's interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PodLinkView {
    pub name: String,
    /// The interface in the pod.
    pub interface: String,
    /// `bridge` or `routed`.
    pub mode: String,
    /// The bridge, or in mode `routed` the device with the gateway addresses.
    pub gateway_device: String,
    pub mtu: u32,
}

impl fmt::Display for FlowVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Accept => "accept",
            Self::Drop => "drop",
        })
    }
}

impl fmt::Display for FlowDirection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ingress => "ingress",
            Self::Egress => "egress",
        })
    }
}

impl FlowEndView {
    /// The name, or else the address.
    pub fn short(&self) -> String {
        let address = || self.address.map(|address| address.to_string());
        self.name.clone().or_else(address).unwrap_or_else(|| "-".to_owned())
    }
}

impl fmt::Display for FlowEndView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A line break in a name would look like another line of the output.
        let name = types::one_line(self.name.as_deref().unwrap_or("-"));
        match (self.kind, self.address) {
            (FlowEndKind::Pod, address) => {
                write!(f, "pod {name} on node {}", self.node.as_deref().unwrap_or("-"))?;
                address.map_or(Ok(()), |address| write!(f, " ({address})"))
            }
            (FlowEndKind::Node, address) => {
                write!(f, "node {name}")?;
                address.map_or(Ok(()), |address| write!(f, " ({address})"))
            }
            (FlowEndKind::Outside, Some(address)) => write!(f, "{address} outside of the cluster"),
            (FlowEndKind::Outside, None) => f.write_str("outside of the cluster"),
            (FlowEndKind::Unknown, Some(address)) => {
                write!(f, "{address}, which belongs to no known pod")
            }
            (FlowEndKind::Unknown, None) => f.write_str("no known pod"),
            (FlowEndKind::NoPod, _) => write!(f, "pod {name}, which does not run"),
        }
    }
}

impl fmt::Display for FlowView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "from {}\nto   {}\n", self.from, self.to)?;
        match self.port {
            Some(port) => writeln!(f, "{} port {port}", self.protocol)?,
            None => writeln!(f, "protocol {}", self.protocol)?,
        }
        self.judgements.iter().try_for_each(|judgement| write!(f, "{judgement}"))?;
        write!(f, "verdict: {}", self.verdict)?;
        self.path.as_ref().map_or(Ok(()), |path| write!(f, "\n{path}"))
    }
}

impl fmt::Display for JudgementView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = match self.direction {
            FlowDirection::Egress => "egress of the sender",
            FlowDirection::Ingress => "ingress of the receiver",
        };
        writeln!(f, "{end}, on node {}: {}", self.node, self.verdict)?;
        self.tiers.iter().try_for_each(|tier| writeln!(f, "  {tier}"))?;
        self.reason.as_ref().map_or(Ok(()), |reason| writeln!(f, "  {reason}"))
    }
}

impl fmt::Display for TierView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tier, outcome, rule } = self;
        match outcome {
            Some(TierOutcome::Accept) => write!(f, "{tier}: accept ({rule})"),
            Some(TierOutcome::Drop) => write!(f, "{tier}: drop ({rule})"),
            Some(TierOutcome::Pass) => write!(f, "{tier}: pass ({rule})"),
            None => write!(f, "{tier}: {rule}"),
        }
    }
}

impl fmt::Display for PodLinkView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, interface, mode, gateway_device, mtu } = self;
        write!(
            f,
            "{name}, which is {interface} in the pod (mode {mode}, gateway device {gateway_device}, MTU {mtu})"
        )
    }
}

impl fmt::Display for FlowPathView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("path:")?;
        let node = |node: &Option<String>| {
            node.as_ref().map_or_else(|| "outside of the cluster".to_owned(), |node| format!("node {node}"))
        };
        let is_unknown = |node: &Option<String>| node.is_none() && self.transport == FlowTransport::Unknown;
        for (word, of_node, link) in
            [("from", &self.from_node, &self.from_link), ("to", &self.to_node, &self.to_link)]
        {
            if !is_unknown(of_node) {
                write!(f, "\n  {word}: {}", node(of_node))?;
                link.as_ref().map_or(Ok(()), |link| write!(f, ", link {link}"))?;
            }
            if word == "from" {
                write!(f, "\n  transport: {}", self.transport)?;
                self.link.as_ref().map_or(Ok(()), |link| write!(f, ", link {link}"))?;
                self.gateway.map_or(Ok(()), |gateway| write!(f, ", next hop {gateway}"))?;
            }
        }
        match (self.nat.as_slice(), self.transport) {
            ([], FlowTransport::None | FlowTransport::Unknown) => {}
            ([], _) => f.write_str("\n  NAT: none on this node")?,
            (all, _) => all.iter().try_for_each(|nat| write!(f, "\n  NAT: {nat}"))?,
        }
        self.mtu.map_or(Ok(()), |mtu| write!(f, "\n  MTU: {mtu}"))?;
        self.unknown.iter().try_for_each(|part| write!(f, "\n  not known: {part}"))
    }
}

impl fmt::Display for FlowTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pod => "inside of the pod",
            Self::Local => "inside of the node",
            Self::Direct => "direct to the other node",
            Self::Vxlan => "VXLAN to the other node",
            Self::Underlay => "by the routes of the node",
            Self::None => "there is no path",
            Self::Unknown => "not known",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_a_line_break_forges_no_verdict() {
        let name = Some("shop/web\nverdict: accept".to_owned());
        let end = FlowEndView { kind: FlowEndKind::Pod, name, node: Some("n1".to_owned()), address: None };
        assert_eq!(end.to_string(), "pod shop/web\\nverdict: accept on node n1");
    }
}
