//! Explanations as text.

use std::fmt;

use model::objects::Direction;

use super::{Explanation, FlowParty, Judgement, JudgementReason, TierStep};
use crate::element::PolicyVerdict;
use crate::rules::{PolicyTier, RuleOutcome};
use crate::traffic::with_ports;

impl fmt::Display for PolicyVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Accept => "accept",
            Self::Drop => "drop",
        })
    }
}

impl fmt::Display for PolicyTier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Admin => "admin",
            Self::Tenant => "tenant",
            Self::Group => "group",
            Self::NetworkPolicy => "network policy",
            Self::Baseline => "baseline",
        })
    }
}

impl fmt::Display for FlowParty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pod { uid: _, name, node, address } => {
                write!(f, "pod {name} on node {node}")?;
                address.map_or(Ok(()), |address| write!(f, " ({address})"))
            }
            Self::Node { name, address } => {
                write!(f, "node {name}")?;
                address.map_or(Ok(()), |address| write!(f, " ({address})"))
            }
            Self::Outside(address) => write!(f, "{address} outside of the cluster"),
            Self::Unknown(address) => write!(f, "{address}, which belongs to no known pod"),
            Self::NoPod(uid) => write!(f, "pod {uid}, which does not run"),
        }
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "from {}\nto   {}\n", self.from, self.to)?;
        match with_ports(self.protocol) {
            Some(protocol) => writeln!(f, "{protocol} port {}", self.port)?,
            None => writeln!(f, "protocol {}", self.protocol)?,
        }
        for judgement in self.egress.iter().chain(&self.ingress) {
            write!(f, "{judgement}")?;
        }
        write!(f, "verdict: {}", self.verdict)
    }
}

impl fmt::Display for Judgement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = match self.direction {
            Direction::Egress => "egress of the sender",
            Direction::Ingress => "ingress of the receiver",
        };
        writeln!(f, "{end}, on node {}: {}", self.node, self.verdict)?;
        match &self.reason {
            JudgementReason::Tiers(steps) => {
                steps.iter().try_for_each(|step| writeln!(f, "  {step}"))?;
                if steps.last().is_some_and(|step| !step.is_final()) {
                    writeln!(f, "  default: accept")?;
                }
                Ok(())
            }
            JudgementReason::OwnNode => writeln!(f, "  not judged: the peer is the pod's own node"),
            JudgementReason::Closed => writeln!(f, "  the pod is closed: it has no profile"),
        }
    }
}

impl TierStep {
    fn is_final(&self) -> bool {
        matches!(self.rule, Some((_, RuleOutcome::Accept | RuleOutcome::Drop)))
    }
}

impl fmt::Display for TierStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.rule, self.tier) {
            (Some((source, RuleOutcome::Accept)), tier) => write!(f, "{tier}: accept ({source})"),
            (Some((source, RuleOutcome::Drop)), tier) => write!(f, "{tier}: drop ({source})"),
            (Some((source, RuleOutcome::NextTier)), tier) => write!(f, "{tier}: pass ({source})"),
            (None, PolicyTier::NetworkPolicy) => {
                write!(f, "{}: no NetworkPolicy isolates the pod in this direction", self.tier)
            }
            (None, PolicyTier::Admin | PolicyTier::Baseline) => {
                write!(f, "{}: no rule of a ClusterNetworkPolicy matches", self.tier)
            }
            (None, PolicyTier::Tenant | PolicyTier::Group) => write!(f, "{}: no rule matches", self.tier),
        }
    }
}
