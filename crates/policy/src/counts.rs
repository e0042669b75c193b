//! Counts for metrics.

use std::collections::BTreeMap;
use std::fmt;

use model::objects::Direction;

use crate::element::{PolicyElement, VerdictKey};
use crate::engine::PolicyEngine;

/// Numbers of objects that the engine has compiled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyCounts {
    pub classes: usize,
    pub profiles: usize,
    /// Maps without elements are absent.
    pub elements: BTreeMap<ElementKind, usize>,
}

/// The kinds of elements, one per variant of [`PolicyElement`] and [`VerdictKey`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ElementKind {
    Address,
    Addresses,
    OwnAddress,
    Verdict(Direction, &'static str),
}

impl PolicyCounts {
    pub(crate) fn of(engine: &PolicyEngine) -> Self {
        let mut elements = BTreeMap::new();
        for element in engine.elements() {
            *elements.entry(ElementKind::of(&element)).or_default() += 1;
        }
        Self { classes: engine.classes.iter().count(), profiles: engine.profiles.iter().count(), elements }
    }

    /// The number of all elements.
    pub fn total(&self) -> usize {
        self.elements.values().sum()
    }
}

impl ElementKind {
    pub fn of(element: &PolicyElement) -> Self {
        match element {
            PolicyElement::Address { .. } => Self::Address,
            PolicyElement::Addresses { .. } => Self::Addresses,
            PolicyElement::OwnAddress { .. } => Self::OwnAddress,
            PolicyElement::Verdict { direction, key, verdict: _ } => Self::Verdict(*direction, key_kind(key)),
        }
    }
}

fn key_kind(key: &VerdictKey) -> &'static str {
    match key {
        VerdictKey::PeerPort { .. } => "peer_port",
        VerdictKey::PeerRange { .. } => "peer_range",
        VerdictKey::PeerProtocol { .. } => "peer_protocol",
        VerdictKey::Peer { .. } => "peer",
        VerdictKey::AnyPodPort { .. } => "any_pod_port",
        VerdictKey::AnyPodRange { .. } => "any_pod_range",
        VerdictKey::AnyPodProtocol { .. } => "any_pod_protocol",
        VerdictKey::AnyPod { .. } => "any_pod",
        VerdictKey::PeerClasses { .. } => "peer_classes",
        VerdictKey::AnyPeerPort { .. } => "any_peer_port",
        VerdictKey::AnyPeerRange { .. } => "any_peer_range",
        VerdictKey::AnyPeerProtocol { .. } => "any_peer_protocol",
        VerdictKey::Default { .. } => "default",
    }
}

impl fmt::Display for ElementKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address => f.write_str("address"),
            Self::Addresses => f.write_str("addresses"),
            Self::OwnAddress => f.write_str("own_address"),
            Self::Verdict(Direction::Ingress, kind) => write!(f, "in_{kind}"),
            Self::Verdict(Direction::Egress, kind) => write!(f, "out_{kind}"),
        }
    }
}
