//! The path of a flow, from the records of this node's pods, the routes to peers and the kernel's routes. What these do not say is
//! reported as not known. Pure.

use std::collections::BTreeMap;
use std::net::IpAddr;

use api::{FlowPathView, FlowTransport, PodLinkView, RouteState, RouteView};
use engine::state::Attachment;
use ipnet::IpNet;
use policy::{Explanation, FlowParty, PodUid};
use types::NodeName;

use crate::policies::pod_uid;

/// Everything that this node knows about paths.
pub(crate) struct PathFacts {
    pub(crate) node: NodeName,
    pub(crate) pods: BTreeMap<PodUid, Attachment>,
    /// To the blocks of other nodes, or why they are not known.
    pub(crate) routes: Result<Vec<RouteView>, String>,
    pub(crate) egress: KernelRoutes,
}

/// The kernel's routes to addresses. None: there is no route. An error: it is not known.
pub(crate) type KernelRoutes = BTreeMap<IpAddr, Result<Option<EgressRoute>, String>>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EgressRoute {
    pub(crate) link: String,
    pub(crate) mtu: u32,
    pub(crate) gateway: Option<IpAddr>,
}

/// Where an end of a flow is.
enum EndPlace<'a> {
    /// A pod of this node.
    Pod(&'a Attachment),
    /// This node itself.
    OwnNode,
    OtherNode(&'a NodeName),
    /// Outside of the cluster.
    Outside,
    /// An address of a pod network.
    Unknown,
    Missing,
}

impl PathFacts {
    pub(crate) fn new(
        node: NodeName,
        pods: Vec<Attachment>,
        routes: Result<Vec<RouteView>, String>,
        egress: KernelRoutes,
    ) -> Self {
        let pods = pods.into_iter().map(|pod| (pod_uid(&pod.key), pod)).collect();
        Self { node, pods, routes, egress }
    }

    pub(crate) fn path(&self, flow: &Explanation) -> FlowPathView {
        let (from, to) = (self.place(&flow.from), self.place(&flow.to));
        let mut path = FlowPathView {
            transport: FlowTransport::Unknown,
            from_node: self.node_of(&from),
            to_node: self.node_of(&to),
            from_link: pod_link(&from),
            to_link: pod_link(&to),
            link: None,
            gateway: None,
            nat: Vec::new(),
            mtu: None,
            unknown: Vec::new(),
        };
        match (&from, &to) {
            (EndPlace::Missing, _) | (_, EndPlace::Missing) => {
                path.unknown.push("the path of a pod that does not run".to_owned());
            }
            (EndPlace::Pod(pod), EndPlace::Pod(other)) if pod.key == other.key => {
                path.transport = FlowTransport::Pod;
            }
            (EndPlace::Pod(_) | EndPlace::OwnNode, EndPlace::Pod(_) | EndPlace::OwnNode) => {
                path.transport = FlowTransport::Local;
            }
            (
                EndPlace::Pod(_) | EndPlace::OwnNode,
                EndPlace::OtherNode(_) | EndPlace::Outside | EndPlace::Unknown,
            ) => self.leave(&mut path, flow, &from),
            (EndPlace::OtherNode(name), EndPlace::Pod(_) | EndPlace::OwnNode) => {
                path.unknown.push(format!("how node {name} sends to this node: ask the agent of {name}"));
            }
            (EndPlace::Outside, EndPlace::Pod(_) | EndPlace::OwnNode) => {
                path.transport = FlowTransport::Underlay;
                path.unknown.push("the link on which packets from outside arrive".to_owned());
            }
            (EndPlace::Unknown, EndPlace::Pod(_) | EndPlace::OwnNode) => {
                path.unknown.push("the node of the sender".to_owned());
            }
            (
                EndPlace::OtherNode(_) | EndPlace::Outside | EndPlace::Unknown,
                EndPlace::OtherNode(_) | EndPlace::Outside | EndPlace::Unknown,
            ) => {
                let paths = "paths between other nodes: ask the agent of the sender's node";
                path.unknown.push(paths.to_owned());
            }
        }
        let ends = [&path.from_link, &path.to_link];
        let ends = ends.into_iter().flatten().map(|link| link.mtu);
        path.mtu = ends.chain(path.mtu).min();
        path
    }

    fn place<'a>(&'a self, party: &'a FlowParty) -> EndPlace<'a> {
        match party {
            FlowParty::Pod { uid, node, .. } => match self.pods.get(uid) {
                Some(pod) => EndPlace::Pod(pod),
                None if *node == self.node => EndPlace::Missing,
                None => EndPlace::OtherNode(node),
            },
            FlowParty::Node { name, .. } if *name == self.node => EndPlace::OwnNode,
            FlowParty::Node { name, .. } => EndPlace::OtherNode(name),
            FlowParty::Outside(_) => EndPlace::Outside,
            FlowParty::Unknown(_) => EndPlace::Unknown,
            FlowParty::NoPod(_) => EndPlace::Missing,
        }
    }

    fn node_of(&self, place: &EndPlace<'_>) -> Option<String> {
        match place {
            EndPlace::Pod(_) | EndPlace::OwnNode => Some(self.node.to_string()),
            EndPlace::OtherNode(name) => Some(name.to_string()),
            EndPlace::Outside | EndPlace::Unknown | EndPlace::Missing => None,
        }
    }

    /// From this node to an address that is not on it.
    fn leave(&self, path: &mut FlowPathView, flow: &Explanation, from: &EndPlace<'_>) {
        let Some(target) = flow.to.address() else {
            return path.unknown.push("the receiver's address in the family of the sender".to_owned());
        };
        let egress = match self.egress.get(&target) {
            Some(Ok(Some(egress))) => Some(egress),
            Some(Ok(None)) => {
                path.transport = FlowTransport::None;
                return path.unknown.push(format!("a route to {target}: this node has none"));
            }
            Some(Err(error)) => {
                path.unknown.push(format!("the kernel's route to {target}: {error}"));
                None
            }
            None => None,
        };
        path.link = egress.map(|egress| egress.link.clone());
        path.gateway = egress.and_then(|egress| egress.gateway);
        path.mtu = egress.map(|egress| egress.mtu);
        match self.peer_route(target) {
            Ok(Some(route)) => {
                path.transport = route.transport.into();
                path.to_node = route.node.clone();
                if route.state != RouteState::Ok || route.message.is_some() {
                    let state = route.message.as_deref().unwrap_or("it is not as expected");
                    path.unknown.push(format!("whether the route to {} works: {state}", route.block));
                }
            }
            Ok(None) => path.transport = FlowTransport::Underlay,
            Err(error) => path.unknown.push(format!("the transport to {target}: {error}")),
        }
        if let EndPlace::Pod(pod) = from {
            path.nat.extend(masquerade(pod, flow.from.address(), target, path.link.as_deref()));
        }
        match (&flow.to, path.transport) {
            (FlowParty::Outside(_), _) => {
                path.unknown.push("translations, filters and MTU behind the first hop".to_owned());
            }
            (FlowParty::Unknown(_), _) => path.unknown.push(format!("the pod with address {target}")),
            (_, FlowTransport::Direct | FlowTransport::Vxlan) => {
                let node = path.to_node.as_deref().unwrap_or("the other node");
                path.unknown.push(format!("the links of node {node}: ask its agent"));
            }
            (_, _) => {}
        }
    }

    fn peer_route(&self, target: IpAddr) -> Result<Option<&RouteView>, &str> {
        let routes = self.routes.as_ref().map_err(String::as_str)?;
        let is_match = |route: &&RouteView| route.node.is_some() && route.block.contains(&target);
        Ok(routes.iter().find(is_match))
    }
}

fn pod_link(place: &EndPlace<'_>) -> Option<PodLinkView> {
    match place {
        EndPlace::Pod(pod) => Some(PodLinkView {
            name: pod.host_link.to_string(),
            interface: pod.key.ifname.to_string(),
            mode: pod.mode.to_string(),
            gateway_device: pod.bridge.to_string(),
            mtu: pod.mtu,
        }),
        EndPlace::OwnNode
        | EndPlace::OtherNode(_)
        | EndPlace::Outside
        | EndPlace::Unknown
        | EndPlace::Missing => None,
    }
}

/// The same decision as the chain of a masqueraded network (`nft::desired::pods`), for a target that is not on this node.
fn masquerade(pod: &Attachment, from: Option<IpAddr>, target: IpAddr, link: Option<&str>) -> Option<String> {
    let except = pod.masquerade_outside.as_ref()?;
    let is_never = match target {
        IpAddr::V4(ip) => ip.is_multicast() || ip.is_broadcast(),
        IpAddr::V6(ip) => ip.is_multicast() || ip.is_unicast_link_local(),
    };
    if is_never || except.iter().any(|net: &IpNet| net.contains(&target)) {
        return None;
    }
    let from = from.map_or_else(|| "the pod's address".to_owned(), |from| from.to_string());
    let of_link = link.map(|link| format!(" on link {link}")).unwrap_or_default();
    Some(format!("masquerade: this node's address{of_link} replaces {from}"))
}

#[cfg(test)]
mod tests {
    use api::RouteTransport;
    use model::objects::NamespacedName;
    use policy::PolicyVerdict;
    use serde_json::json;

    use super::*;

    fn record(container: &str, mtu: u32) -> Attachment {
        let mac = "02:00:00:00:00:01";
        serde_json::from_value(json!({
            "schema": 1, "network": "pods", "container": container, "ifname": "eth0", "netns": "", "mode": "routed",
            "bridge": "podwire0", "host_link": format!("pw{container}"), "host_mac": mac, "pod_mac": mac, "mtu": mtu,
            "addresses": [], "spoof_check": true, "masquerade_outside": ["10.83.0.0/16"], "hairpin": false, "created": 0,
        }))
        .unwrap()
    }

    fn pod(record: &Attachment, node: &str, address: &str) -> FlowParty {
        FlowParty::Pod {
            uid: pod_uid(&record.key),
            name: NamespacedName { namespace: None, name: record.key.container.to_string() },
            node: node.try_into().unwrap(),
            address: Some(address.parse().unwrap()),
        }
    }

    fn facts(pods: &[&Attachment]) -> PathFacts {
        let route = RouteView {
            block: "10.83.2.0/24".parse().unwrap(),
            node: Some("n2".to_owned()),
            transport: RouteTransport::Vxlan,
            gateway: Some("10.83.2.0".parse().unwrap()),
            link: Some("pwvx4".to_owned()),
            state: RouteState::Ok,
            message: None,
        };
        let egress = |link: &str, mtu, gateway: &str| {
            Ok(Some(EgressRoute { link: link.to_owned(), mtu, gateway: Some(gateway.parse().unwrap()) }))
        };
        let egress = BTreeMap::from([
            ("10.83.2.9".parse().unwrap(), egress("pwvx4", 1450, "10.83.2.0")),
            ("192.0.2.1".parse().unwrap(), egress("up0", 1500, "198.51.100.1")),
        ]);
        let pods = pods.iter().map(|pod| (*pod).clone()).collect();
        PathFacts::new("n1".try_into().unwrap(), pods, Ok(vec![route]), egress)
    }

    fn path(facts: &PathFacts, from: FlowParty, to: FlowParty) -> FlowPathView {
        let verdict = PolicyVerdict::Accept;
        facts.path(&Explanation { from, to, protocol: 6, port: 80, egress: None, ingress: None, verdict })
    }

    #[test]
    fn d_a_path_inside_of_the_node_has_both_links_and_the_smaller_mtu() {
        let (a, b) = (record("a", 1500), record("b", 1400));
        let (facts, one, other) = (facts(&[&a, &b]), pod(&a, "n1", "10.83.1.2"), pod(&b, "n1", "10.83.1.3"));
        let local = path(&facts, one.clone(), other);
        assert_eq!((local.transport, local.mtu, &local.nat[..]), (FlowTransport::Local, Some(1400), &[][..]));
        assert_eq!(local.from_link.unwrap().name, "pwa");
        assert_eq!(local.to_link.unwrap().gateway_device, "podwire0");
        assert_eq!(path(&facts, one.clone(), one.clone()).transport, FlowTransport::Pod);
        let own = FlowParty::Node { name: "n1".try_into().unwrap(), address: None };
        assert_eq!(path(&facts, own, one).transport, FlowTransport::Local);
    }

    #[test]
    fn d_a_path_to_another_node_has_transport_link_and_mtu_of_the_tunnel() {
        let (a, far) = (record("a", 1500), record("far", 1500));
        let facts = facts(&[&a]);
        let tunnelled = path(&facts, pod(&a, "n1", "10.83.1.2"), pod(&far, "n2", "10.83.2.9"));
        assert_eq!(tunnelled.transport, FlowTransport::Vxlan);
        assert_eq!((tunnelled.to_node.as_deref(), tunnelled.link.as_deref()), (Some("n2"), Some("pwvx4")));
        assert_eq!((tunnelled.mtu, &tunnelled.nat[..]), (Some(1450), &[][..]));
        assert_eq!(tunnelled.unknown, ["the links of node n2: ask its agent"]);
        let back = path(&facts, pod(&far, "n2", "10.83.2.9"), pod(&a, "n1", "10.83.1.2"));
        assert_eq!(back.transport, FlowTransport::Unknown);
        assert!(back.unknown[0].contains("ask the agent of n2"), "{back}");
    }

    #[test]
    fn d_a_path_out_of_the_cluster_is_masqueraded_unless_the_pod_is_not() {
        let a = record("a", 1500);
        let world = || FlowParty::Outside("192.0.2.1".parse().unwrap());
        let from = || pod(&a, "n1", "10.83.1.2");
        let out = path(&facts(&[&a]), from(), world());
        assert_eq!((out.transport, out.link.as_deref()), (FlowTransport::Underlay, Some("up0")));
        assert_eq!(out.nat, ["masquerade: this node's address on link up0 replaces 10.83.1.2"]);
        let plain = Attachment { masquerade_outside: None, ..a.clone() };
        assert_eq!(path(&facts(&[&plain]), from(), world()).nat, [] as [String; 0]);
        // Pods of this node that have ended.
        let gone = path(&facts(&[]), from(), world());
        assert_eq!(gone.transport, FlowTransport::Unknown);
    }

    #[test]
    fn d_missing_facts_are_named() {
        let a = record("a", 1500);
        let mut facts = facts(&[&a]);
        facts.routes = Err("the peers thread did not answer".to_owned());
        facts.egress = BTreeMap::from([("192.0.2.1".parse().unwrap(), Err("EIO".to_owned()))]);
        let out = path(&facts, pod(&a, "n1", "10.83.1.2"), FlowParty::Outside("192.0.2.1".parse().unwrap()));
        assert_eq!((out.transport, out.link), (FlowTransport::Unknown, None));
        assert_eq!(out.unknown[0], "the kernel's route to 192.0.2.1: EIO");
        assert!(out.unknown[1].contains("the peers thread did not answer"), "{:?}", out.unknown);
        facts.egress = BTreeMap::from([("192.0.2.1".parse().unwrap(), Ok(None))]);
        let none = path(&facts, pod(&a, "n1", "10.83.1.2"), FlowParty::Outside("192.0.2.1".parse().unwrap()));
        assert_eq!((none.transport, &none.nat[..]), (FlowTransport::None, &[][..]));
    }
}
