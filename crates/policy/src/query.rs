//! Flows as the user asks for them: names of pods, groups and nodes, addresses, or `world`.

mod ends;

use std::fmt;

use types::Protocol;

use crate::element::ProtocolNumber;
use crate::engine::PolicyEngine;
use crate::explain::{Explanation, PolicyFlow};
use crate::world::PodUid;
use ends::EndSet;

/// The pairs of ends that one query explains at most. Two groups may have millions of pairs.
const MAX_FLOWS: usize = 64;
const ICMP: ProtocolNumber = 1;
/// The user writes `icmp` for both families.
const ICMP_V6: ProtocolNumber = 58;

/// What FROM and TO can be, for help and messages.
const FORMS: &str = "a pod (NAMESPACE/NAME), an address, 'group:TENANT/NAME', 'node:NAME' or 'world'";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowQuery {
    pub from: QueryEnd,
    pub to: QueryEnd,
    pub traffic: FlowTraffic,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QueryEnd {
    /// As the user wrote it.
    Named(String),
    /// The caller knows the pods.
    Pods(Vec<PodUid>),
}

/// Protocol and destination port of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowTraffic {
    pub protocol: ProtocolNumber,
    /// None for protocols without ports.
    pub port: Option<u16>,
}

/// One explanation for each pair of ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowAnswers {
    pub explanations: Vec<Explanation>,
    /// The pairs beyond the limit.
    pub omitted: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FlowQueryError {
    #[error("from {end}: {error}")]
    From { end: String, error: EndError },
    #[error("to {end}: {error}")]
    To { end: String, error: EndError },
    #[error("from {from} to {to}: the ends have no common address family")]
    NoCommonFamily { from: String, to: String },
    #[error("from {from} to {to}: there is no flow between two different pods")]
    NoPair { from: String, to: String },
}

/// Why one end of a flow is not known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EndError {
    #[error("it is not {FORMS}{hint}")]
    Unknown { hint: String },
    #[error("node {name:?} is not known: {known}")]
    NoNode { name: String, known: String },
    #[error("node {0} has no known address")]
    NoAddress(String),
    #[error("group {name} does not exist: {known}")]
    NoGroup { name: String, known: String },
    #[error("group {0} has no pods")]
    EmptyGroup(String),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TrafficError {
    #[error("protocol {0} needs a port")]
    PortMissing(Protocol),
    #[error("protocol {0:?} has no ports: leave out the port, or use tcp, udp or sctp")]
    NoPorts(String),
    #[error("{0:?} is not a protocol: tcp, udp, sctp, icmp or a number up to 255")]
    Unknown(String),
}

impl fmt::Display for QueryEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(name) => f.write_str(name),
            Self::Pods(pods) => match pods.as_slice() {
                [pod] => write!(f, "pod {pod}"),
                pods => write!(f, "{} pods", pods.len()),
            },
        }
    }
}

impl FlowTraffic {
    /// `icmp` is ICMP between IPv4 addresses and ICMPv6 between IPv6 addresses.
    pub fn parse(protocol: &str, port: Option<u16>) -> Result<Self, TrafficError> {
        let with_ports: Option<Protocol> = protocol.parse().ok();
        match (with_ports, port) {
            (Some(protocol), Some(port)) => Ok(Self { protocol: protocol.number(), port: Some(port) }),
            (Some(protocol), None) => Err(TrafficError::PortMissing(protocol)),
            (None, Some(_)) => Err(TrafficError::NoPorts(protocol.to_owned())),
            (None, None) if protocol.eq_ignore_ascii_case("icmp") => Ok(Self { protocol: ICMP, port: None }),
            (None, None) => {
                let number = protocol.parse().map_err(|_| TrafficError::Unknown(protocol.to_owned()))?;
                Ok(Self { protocol: number, port: None })
            }
        }
    }

    fn is_icmp(self) -> bool {
        self.protocol == ICMP
    }
}

impl fmt::Display for FlowTraffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Protocol::ALL.into_iter().find(|protocol| protocol.number() == self.protocol);
        match (name, self.port) {
            (Some(protocol), Some(port)) => write!(f, "{protocol}/{port}"),
            (None, None) if self.is_icmp() => f.write_str("icmp"),
            (Some(_) | None, _) => write!(f, "protocol {}", self.protocol),
        }
    }
}

impl PolicyEngine {
    /// Explains each pair of ends, up to a limit.
    pub fn answer(&self, query: &FlowQuery) -> Result<FlowAnswers, FlowQueryError> {
        let FlowQuery { from, to, traffic } = query;
        let from_set = EndSet::parse(from, self)
            .map_err(|error| FlowQueryError::From { end: from.to_string(), error })?;
        let to_set =
            EndSet::parse(to, self).map_err(|error| FlowQueryError::To { end: to.to_string(), error })?;
        let pairs = ends::pairs((&from_set, &to_set), self, query)?;
        let omitted = pairs.total.saturating_sub(MAX_FLOWS);
        let explained = pairs.listed.into_iter().map(|(from, to)| {
            let port = traffic.port.unwrap_or_default();
            let flow = PolicyFlow { from, to, protocol: traffic.protocol, port };
            let explanation = self.explain(&flow);
            if traffic.is_icmp() && explanation.is_ipv6() {
                return self.explain(&PolicyFlow { protocol: ICMP_V6, ..flow });
            }
            explanation
        });
        Ok(FlowAnswers { explanations: explained.collect(), omitted })
    }
}
