//! ClusterNetworkPolicy (policy.networking.k8s.io/v1alpha2).

use serde::Deserialize;
use serde_json::Value;
use types::Protocol;

use super::network_policy::{block, port_name, port_number};
use super::{InvalidPolicy, RawMetadata, RawSelector, each, read_raw};
use crate::fields::{FieldError, quoted};
use crate::objects::{
    ClusterAction, ClusterNetworkPolicy, ClusterPeer, ClusterProtocol, ClusterRule, ClusterSubject,
    ClusterTier, PortMatch, PortRange,
};

/// The API's maximum of rules per direction, peers and protocols per rule, and blocks per peer.
const MAX_ITEMS: usize = 25;
const MAX_RULE_NAME: usize = 100;

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct RawClusterPolicy {
    pub metadata: RawMetadata,
    pub spec: RawClusterPolicySpec,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct RawClusterPolicySpec {
    pub tier: Option<String>,
    pub priority: Option<Value>,
    pub subject: RawClusterPeer,
    pub ingress: Option<Vec<RawClusterRule>>,
    pub egress: Option<Vec<RawClusterRule>>,
}

/// Ingress rules have `from`, egress rules have `to`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct RawClusterRule {
    pub name: Option<String>,
    pub action: Option<String>,
    pub from: Option<Vec<RawClusterPeer>>,
    pub to: Option<Vec<RawClusterPeer>>,
    pub protocols: Option<Vec<RawClusterProtocol>>,
}

/// Exactly one field is set. Without any, it is of a kind that this version does not know.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RawClusterPeer {
    pub namespaces: Option<RawSelector>,
    pub pods: Option<RawNamespacedPod>,
    pub nodes: Option<RawSelector>,
    pub networks: Option<Vec<String>>,
    pub domain_names: Option<Vec<String>>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RawNamespacedPod {
    pub namespace_selector: Option<RawSelector>,
    pub pod_selector: Option<RawSelector>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RawClusterProtocol {
    pub tcp: Option<RawDestination>,
    pub udp: Option<RawDestination>,
    pub sctp: Option<RawDestination>,
    pub destination_named_port: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RawDestination {
    pub destination_port: Option<RawDestinationPort>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct RawDestinationPort {
    pub number: Option<Value>,
    pub range: Option<RawPortRange>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct RawPortRange {
    pub start: Value,
    pub end: Value,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RuleList {
    Ingress,
    Egress,
}

impl RuleList {
    fn peers(self, rule: &RawClusterRule) -> (&'static str, Option<&Vec<RawClusterPeer>>) {
        match self {
            Self::Ingress => ("from", rule.from.as_ref()),
            Self::Egress => ("to", rule.to.as_ref()),
        }
    }
}

impl ClusterNetworkPolicy {
    pub fn decode(object: Value) -> Result<Self, InvalidPolicy<Self>> {
        let raw: RawClusterPolicy =
            read_raw(object).map_err(|error| InvalidPolicy { error, closed: None })?;
        Self::try_from(raw)
    }
}

impl TryFrom<RawClusterPolicy> for ClusterNetworkPolicy {
    type Error = InvalidPolicy<Self>;

    fn try_from(raw: RawClusterPolicy) -> Result<Self, Self::Error> {
        // Without a valid header it is not known which pods it closes.
        let mut policy = header(&raw).map_err(|error| InvalidPolicy { error, closed: None })?;
        let ingress = rules("spec.ingress", raw.spec.ingress.as_ref(), RuleList::Ingress);
        let egress = rules("spec.egress", raw.spec.egress.as_ref(), RuleList::Egress);
        match (ingress, egress) {
            (Ok(ingress), Ok(egress)) => Ok(Self { ingress, egress, ..policy }),
            (Err(error), _) | (_, Err(error)) => {
                let deny_all = |rules: Option<&Vec<RawClusterRule>>| {
                    let has_rules = rules.is_some_and(|rules| !rules.is_empty());
                    has_rules.then(deny_rule).into_iter().collect()
                };
                policy.ingress = deny_all(raw.spec.ingress.as_ref());
                policy.egress = deny_all(raw.spec.egress.as_ref());
                Err(InvalidPolicy { error, closed: Some(Box::new(policy)) })
            }
        }
    }
}

/// Denies all flows of its direction.
fn deny_rule() -> ClusterRule {
    ClusterRule {
        name: None,
        action: ClusterAction::Deny,
        peers: vec![ClusterPeer::Unknown],
        protocols: Vec::new(),
    }
}

/// The policy without rules.
fn header(raw: &RawClusterPolicy) -> Result<ClusterNetworkPolicy, FieldError> {
    let tier = match raw.spec.tier.as_deref() {
        Some("Admin") => ClusterTier::Admin,
        Some("Baseline") => ClusterTier::Baseline,
        Some(other) => {
            return Err(FieldError::refused("spec.tier", quoted(&other.into()), "Admin or Baseline"));
        }
        None => return Err(FieldError::missing("spec.tier")),
    };
    let Some(priority) = &raw.spec.priority else { return Err(FieldError::missing("spec.priority")) };
    let number = priority.as_u64().and_then(|number| u16::try_from(number).ok());
    let priority = number
        .filter(|number| *number <= 1000)
        .ok_or_else(|| FieldError::refused("spec.priority", quoted(priority), "0 to 1000"))?;
    let subject = match raw.spec.subject.parse("spec.subject")? {
        ClusterPeer::Namespaces(selector) => ClusterSubject::Namespaces(selector),
        ClusterPeer::Pods { namespaces, pods } => ClusterSubject::Pods { namespaces, pods },
        ClusterPeer::Nodes(_)
        | ClusterPeer::Networks(_)
        | ClusterPeer::DomainNames
        | ClusterPeer::Unknown => {
            return Err(FieldError::new("spec.subject", "must have namespaces or pods"));
        }
    };
    Ok(ClusterNetworkPolicy {
        name: raw.metadata.name()?.to_owned(),
        tier,
        priority,
        subject,
        ingress: Vec::new(),
        egress: Vec::new(),
    })
}

fn check_count(path: &str, count: usize) -> Result<(), FieldError> {
    if count <= MAX_ITEMS {
        return Ok(());
    }
    Err(FieldError::new(path, format!("has {count} items; at most {MAX_ITEMS} are allowed")))
}

fn rules(
    path: &str,
    rules: Option<&Vec<RawClusterRule>>,
    list: RuleList,
) -> Result<Vec<ClusterRule>, FieldError> {
    check_count(path, rules.map_or(0, Vec::len))?;
    let mut parsed = Vec::new();
    for (path, raw) in each(path, rules) {
        parsed.extend(raw.parse(&path, list)?);
    }
    Ok(parsed)
}

impl RawClusterRule {
    /// None for a rule that can match nothing.
    fn parse(&self, path: &str, list: RuleList) -> Result<Option<ClusterRule>, FieldError> {
        if self.name.as_ref().is_some_and(|name| name.chars().count() > MAX_RULE_NAME) {
            let reason = format!("is longer than {MAX_RULE_NAME} characters");
            return Err(FieldError::new(format!("{path}.name"), reason));
        }
        let action = match self.action.as_deref() {
            Some("Accept") => ClusterAction::Accept,
            Some("Deny") => ClusterAction::Deny,
            Some("Pass") => ClusterAction::Pass,
            Some(other) => {
                let field = format!("{path}.action");
                return Err(FieldError::refused(&field, quoted(&other.into()), "Accept, Deny or Pass"));
            }
            None => return Err(FieldError::missing(&format!("{path}.action"))),
        };
        let peers = self.parse_peers(path, list, action)?;
        let rule = ClusterRule { name: self.name.clone(), action, peers, protocols: Vec::new() };
        self.with_protocols(path, rule)
    }

    fn parse_peers(
        &self,
        path: &str,
        list: RuleList,
        action: ClusterAction,
    ) -> Result<Vec<ClusterPeer>, FieldError> {
        let (field, peers) = list.peers(self);
        let path = format!("{path}.{field}");
        let Some(peers) = peers.filter(|peers| !peers.is_empty()) else {
            return Err(FieldError::new(path, "is missing: at least one peer"));
        };
        check_count(&path, peers.len())?;
        let parse = |(path, peer): (String, &RawClusterPeer)| match (peer.parse(&path)?, list) {
            // Fields of egress peers are unknown in ingress rules.
            (
                ClusterPeer::Nodes(_) | ClusterPeer::Networks(_) | ClusterPeer::DomainNames,
                RuleList::Ingress,
            ) => Ok(ClusterPeer::Unknown),
            (ClusterPeer::DomainNames, RuleList::Egress) if action != ClusterAction::Accept => {
                let reason = "only rules with action Accept can have domain names";
                Err(FieldError::new(format!("{path}.domainNames"), reason))
            }
            (peer, RuleList::Ingress | RuleList::Egress) => Ok(peer),
        };
        each(&path, Some(peers)).map(parse).collect()
    }

    /// A protocol of an unknown kind: an Accept rule matches nothing by it, a Deny or Pass rule denies all flows.
    fn with_protocols(&self, path: &str, mut rule: ClusterRule) -> Result<Option<ClusterRule>, FieldError> {
        let path = format!("{path}.protocols");
        let Some(raw) = &self.protocols else { return Ok(Some(rule)) };
        if raw.is_empty() {
            return Err(FieldError::new(path, "is empty: remove it to match all protocols"));
        }
        check_count(&path, raw.len())?;
        let parsed: Vec<Option<ClusterProtocol>> =
            each(&path, Some(raw)).map(|(path, protocol)| protocol.parse(&path)).collect::<Result<_, _>>()?;
        let is_unnamed = |peer: &ClusterPeer| match peer {
            ClusterPeer::Nodes(_) | ClusterPeer::Networks(_) | ClusterPeer::DomainNames => true,
            ClusterPeer::Namespaces(_) | ClusterPeer::Pods { .. } | ClusterPeer::Unknown => false,
        };
        let named = parsed.iter().position(|one| matches!(one, Some(ClusterProtocol::NamedPort(_))));
        if let Some(i) = named.filter(|_| rule.peers.iter().any(is_unnamed)) {
            let reason = "networks, nodes and domain names have no named ports";
            return Err(FieldError::new(format!("{path}[{i}].destinationNamedPort"), reason));
        }
        if rule.action != ClusterAction::Accept && parsed.contains(&None) {
            rule.peers = vec![ClusterPeer::Unknown];
            return Ok(Some(rule));
        }
        rule.protocols = parsed.into_iter().flatten().collect();
        Ok((!rule.protocols.is_empty()).then_some(rule))
    }
}

impl RawClusterPeer {
    fn parse(&self, path: &str) -> Result<ClusterPeer, FieldError> {
        let Self { namespaces, pods, nodes, networks, domain_names } = self;
        let fields = [
            namespaces.is_some(),
            pods.is_some(),
            nodes.is_some(),
            networks.is_some(),
            domain_names.is_some(),
        ];
        if fields.into_iter().filter(|is_set| *is_set).count() > 1 {
            return Err(FieldError::new(path, "must have exactly one field"));
        }
        if let Some(selector) = namespaces {
            return Ok(ClusterPeer::Namespaces(selector.parse(&format!("{path}.namespaces"))?));
        }
        if let Some(pods) = pods {
            let path = format!("{path}.pods");
            let namespaces = pods.namespace_selector.clone().unwrap_or_default();
            let selector = pods.pod_selector.clone().unwrap_or_default();
            return Ok(ClusterPeer::Pods {
                namespaces: namespaces.parse(&format!("{path}.namespaceSelector"))?,
                pods: selector.parse(&format!("{path}.podSelector"))?,
            });
        }
        if let Some(selector) = nodes {
            return Ok(ClusterPeer::Nodes(selector.parse(&format!("{path}.nodes"))?));
        }
        if let Some(networks) = networks {
            let path = format!("{path}.networks");
            if networks.is_empty() {
                return Err(FieldError::new(path, "is empty: at least one CIDR"));
            }
            check_count(&path, networks.len())?;
            let blocks = each(&path, Some(networks)).map(|(path, text)| block(&path, text));
            return Ok(ClusterPeer::Networks(blocks.collect::<Result<_, _>>()?));
        }
        Ok(if domain_names.is_some() { ClusterPeer::DomainNames } else { ClusterPeer::Unknown })
    }
}

impl RawClusterProtocol {
    /// None for an unknown kind of protocol.
    fn parse(&self, path: &str) -> Result<Option<ClusterProtocol>, FieldError> {
        let with_ports = [
            ("tcp", Protocol::Tcp, &self.tcp),
            ("udp", Protocol::Udp, &self.udp),
            ("sctp", Protocol::Sctp, &self.sctp),
        ];
        let mut set =
            with_ports.into_iter().filter_map(|(name, protocol, raw)| Some((name, protocol, raw.as_ref()?)));
        match (set.next(), set.next(), &self.destination_named_port) {
            (None, None, None) => Ok(None),
            (None, None, Some(name)) => {
                let name = port_name(&format!("{path}.destinationNamedPort"), name)?;
                Ok(Some(ClusterProtocol::NamedPort(name)))
            }
            (Some((name, protocol, raw)), None, None) => {
                let port = match &raw.destination_port {
                    None => PortMatch::All,
                    Some(port) => port.parse(&format!("{path}.{name}.destinationPort"))?,
                };
                Ok(Some(ClusterProtocol::Ports { protocol, port }))
            }
            (_, _, _) => Err(FieldError::new(path, "must have exactly one field")),
        }
    }
}

impl RawDestinationPort {
    fn parse(&self, path: &str) -> Result<PortMatch, FieldError> {
        let range = match (&self.number, &self.range) {
            (Some(number), None) => PortRange::single(port_number(&format!("{path}.number"), number)?),
            (None, Some(range)) => {
                let start = port_number(&format!("{path}.range.start"), &range.start)?;
                let end_path = format!("{path}.range.end");
                let end = port_number(&end_path, &range.end)?;
                PortRange::new(start, end).filter(|_| start < end).ok_or_else(|| {
                    FieldError::refused(&end_path, end, format!("more than the start, {start}"))
                })?
            }
            (None, None) | (Some(_), Some(_)) => {
                return Err(FieldError::new(path, "must have either number or range"));
            }
        };
        Ok(PortMatch::Range(range))
    }
}
