//! Output of `podwire denied`: flows that policies denied.

use serde::{Deserialize, Serialize};

use crate::explain::{FlowDirection, FlowEndView};
use crate::timestamp::Timestamp;

/// The output of `podwire denied -o json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct DeniedView {
    /// Why the node enforces no policies. Null if it enforces them.
    pub not_enforced: Option<String>,
    /// All packets that were denied since the agent started, by the counters of the firewall.
    pub packets: DeniedPacketsView,
    /// The denied packets that were logged and explained since the agent started. The firewall logs a limited number per second.
    pub sampled: u64,
    /// Logged packets that could not be explained, because the agent was busy or the packet was not readable.
    pub lost: u64,
    /// The latest flows, oldest first.
    pub flows: Vec<DeniedFlow>,
}

/// Exact numbers of packets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct DeniedPacketsView {
    /// First packets of flows to pods.
    pub ingress: u64,
    /// First packets of flows from pods.
    pub egress: u64,
    /// Packets of no flow. They are not logged.
    pub invalid: u64,
    /// Packets of flows that a later change forbids. They are not logged.
    pub forbidden: u64,
}

/// Logged packets with the same ends, port and rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct DeniedFlow {
    /// Of the last logged packet.
    pub time: Timestamp,
    /// Where it was denied: ingress of the receiver, or egress of the sender.
    pub direction: FlowDirection,
    pub from: FlowEndView,
    pub to: FlowEndView,
    /// `tcp`, `udp`, `sctp`, `icmp`, `icmpv6` or a number.
    pub protocol: String,
    /// The destination port. Null if the packet has none.
    pub port: Option<u16>,
    /// The type of an ICMP packet. Null for other protocols.
    pub icmp_type: Option<u8>,
    /// The tenant of the pod that is judged. Null if the pod is not known.
    pub tenant: Option<String>,
    /// The host end of the pod that is judged. Null if the link does not exist any more.
    pub link: Option<String>,
    /// The tier that decided: `admin`, `tenant`, `group`, `network policy` or `baseline`. Null if none did.
    pub tier: Option<String>,
    /// The rule that decided, or why none did.
    pub rule: String,
    /// The number of logged packets. More packets may have been denied.
    pub samples: u64,
}

/// A line of `podwire denied --follow -o json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct DeniedEvent {
    pub flow: DeniedFlow,
    /// Events before this one that the client did not get, because it did not read fast enough.
    pub missed: u64,
}

impl DeniedFlow {
    /// For example `tcp/80` or `icmp type 8`.
    pub fn traffic(&self) -> String {
        match (self.port, self.icmp_type) {
            (Some(port), _) => format!("{}/{port}", self.protocol),
            (None, Some(kind)) => format!("{} type {kind}", self.protocol),
            (None, None) => self.protocol.clone(),
        }
    }

    /// Whether both entries have the same ends, port and rule.
    pub fn is_same_flow(&self, other: &Self) -> bool {
        let undated = Self { time: other.time, samples: other.samples, ..self.clone() };
        undated == *other
    }
}
