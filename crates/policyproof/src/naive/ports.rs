use model::objects::{Direction, PortMatch};
use policy::PodEntry;
use types::Protocol;

use super::JudgedEnd;

impl JudgedEnd<'_> {
    /// "Named ports resolve per pod and protocol, on egress at the destination."
    fn destination_pod(&self) -> Option<&PodEntry> {
        match self.direction {
            Direction::Ingress => Some(self.pod),
            Direction::Egress => self.peer.pod(),
        }
    }

    /// "Rules with ports exclude ICMP; SCTP is never TCP."
    pub(super) fn matches_port(&self, protocol: Protocol, port: &PortMatch) -> bool {
        if self.flow.protocol != protocol.number() {
            return false;
        }
        match port {
            PortMatch::All => true,
            PortMatch::Range(range) => self.flow.port.is_some_and(|one| range.contains(one)),
            PortMatch::Named(name) => self.matches_named_port(Some(protocol), name),
        }
    }

    /// "An unresolvable name matches nothing."
    pub(super) fn matches_named_port(&self, protocol: Option<Protocol>, name: &str) -> bool {
        let Some(pod) = self.destination_pod() else { return false };
        pod.identity.ports.iter().any(|declared| {
            declared.name == name
                && protocol.is_none_or(|one| one == declared.protocol)
                && self.flow.protocol == declared.protocol.number()
                && self.flow.port == Some(declared.port)
        })
    }
}
