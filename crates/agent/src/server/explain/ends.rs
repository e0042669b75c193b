//! Ends of flows that only this node can resolve: container IDs, and published ports of the node. Pure.

use std::collections::BTreeSet;
use std::net::IpAddr;

use api::InactivePort;
use cni::PortMapping;
use engine::state::Attachment;
use policy::{FlowTraffic, QueryEnd};
use types::{Family, NodeName};

use crate::policies::pod_uid;

/// The end of a flow `node:NAME`.
const NODE: &str = "node:";

pub(super) struct LocalEnds<'a> {
    pub(super) node: &'a NodeName,
    pub(super) pods: &'a [Attachment],
    /// The addresses of this node.
    pub(super) addresses: &'a [IpAddr],
    /// Published ports that do not work.
    pub(super) inactive: &'a [InactivePort],
}

/// The receiver, after the translation of published ports.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PublishedTarget {
    pub(super) to: QueryEnd,
    pub(super) traffic: FlowTraffic,
    /// The translation in words.
    pub(super) nat: Option<String>,
}

impl LocalEnds<'_> {
    /// An end as the user wrote it. Names have priority over container IDs.
    pub(super) fn end(&self, text: &str) -> Result<QueryEnd, String> {
        let named = || QueryEnd::Named(text.to_owned());
        let (namespace, name) = text.split_once('/').unwrap_or(("default", text));
        let is_name = self.pods.iter().filter_map(|pod| pod.pod.as_ref()).any(|pod| {
            pod.name == name && (pod.namespace == namespace || pod.namespace.is_empty() && name == text)
        });
        if text.is_empty() || is_name || text == "world" || text.parse::<IpAddr>().is_ok() {
            return Ok(named());
        }
        let found: Vec<&Attachment> =
            self.pods.iter().filter(|pod| pod.key.container.as_str().starts_with(text)).collect();
        let containers: BTreeSet<&str> = found.iter().map(|pod| pod.key.container.as_str()).collect();
        match containers.len() {
            0 => Ok(named()),
            1 => Ok(QueryEnd::Pods(found.into_iter().map(|pod| pod_uid(&pod.key)).collect())),
            number => Err(format!("{number} container IDs begin with {text:?}: give more characters")),
        }
    }

    pub(super) fn target(&self, text: &str, traffic: FlowTraffic) -> Result<PublishedTarget, String> {
        for address in self.node_addresses(text) {
            let Some(published) = self.published(address, traffic) else { continue };
            return Ok(published);
        }
        Ok(PublishedTarget { to: self.end(text)?, traffic, nat: None })
    }

    /// The addresses of this node that the end names.
    fn node_addresses(&self, text: &str) -> Vec<IpAddr> {
        if text.strip_prefix(NODE).is_some_and(|name| name == self.node.as_str()) {
            return self.addresses.iter().copied().filter(|address| !address.is_loopback()).collect();
        }
        let address = text.parse().ok().filter(|address: &IpAddr| self.addresses.contains(address));
        address.into_iter().collect()
    }

    fn published(&self, address: IpAddr, traffic: FlowTraffic) -> Option<PublishedTarget> {
        let port = traffic.port?;
        self.pods.iter().find_map(|pod| {
            let is_match = |mapping: &&PortMapping| {
                mapping.host_port == port
                    && mapping.protocol.number() == traffic.protocol
                    && mapping.host_ip.is_none_or(|ip| ip == address || is_any_of_family(ip, address))
                    && !self.is_inactive(pod, mapping)
            };
            let mapping = pod.ports.iter().find(is_match)?;
            let target = pod.ips().find(|ip| Family::of(*ip) == Family::of(address))?;
            let to_port = mapping.container_port;
            Some(PublishedTarget {
                to: QueryEnd::Named(target.to_string()),
                traffic: FlowTraffic { port: Some(to_port), ..traffic },
                nat: Some(format!("hostPort: {target} port {to_port} replaces {address} port {port}")),
            })
        })
    }

    fn is_inactive(&self, pod: &Attachment, mapping: &PortMapping) -> bool {
        self.inactive.iter().any(|inactive| {
            inactive.container_id == pod.key.container.as_str()
                && inactive.interface == pod.key.ifname.as_str()
                && inactive.port.host_port == mapping.host_port
                && inactive.port.protocol == mapping.protocol.as_str()
        })
    }
}

/// `0.0.0.0` and `::` mean all addresses of their family.
fn is_any_of_family(ip: IpAddr, address: IpAddr) -> bool {
    ip.is_unspecified() && Family::of(ip) == Family::of(address)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn record(container: &str, name: &str, ports: &[PortMapping]) -> Attachment {
        let mac = "02:00:00:00:00:01";
        let record = json!({
            "schema": 1, "network": "pods", "container": container, "ifname": "eth0", "netns": "", "mode": "routed",
            "bridge": "podwire0", "host_link": "pw1", "host_mac": mac, "pod_mac": mac, "mtu": 1500,
            "addresses": [{ "address": "10.83.0.2/32" }], "spoof_check": true, "hairpin": false, "created": 0,
            "ports": ports, "pod": { "namespace": "shop", "name": name, "uid": null },
        });
        serde_json::from_value(record).unwrap()
    }

    fn ends<'a>(node: &'a NodeName, pods: &'a [Attachment], addresses: &'a [IpAddr]) -> LocalEnds<'a> {
        LocalEnds { node, pods, addresses, inactive: &[] }
    }

    #[test]
    fn d_container_ids_can_be_shortened_and_names_have_priority() {
        let node = NodeName::try_from("n1").unwrap();
        let pods = [record("abc1", "web", &[]), record("abd2", "abc1", &[])];
        let ends = ends(&node, &pods, &[]);
        let named = |text: &str| Ok(QueryEnd::Named(text.to_owned()));
        for text in ["shop/web", "world", "10.83.0.2", "node:n1", "group:web", "other", ""] {
            assert_eq!(ends.end(text), named(text));
        }
        assert_eq!(ends.end("abc"), Ok(QueryEnd::Pods(vec![pod_uid(&pods[0].key)])));
        assert!(ends.end("ab").unwrap_err().contains("2 container IDs begin with \"ab\""));
        assert_eq!(ends.end("shop/abc1"), named("shop/abc1"));
    }

    #[test]
    fn d_a_published_port_of_this_node_is_translated() {
        let node = NodeName::try_from("n1").unwrap();
        let own: IpAddr = "198.51.100.7".parse().unwrap();
        let mapping = |host_ip: Option<&str>| PortMapping {
            host_port: 8080,
            container_port: 80,
            protocol: types::Protocol::Tcp,
            host_ip: host_ip.map(|ip| ip.parse().unwrap()),
        };
        let traffic = |port| FlowTraffic { protocol: 6, port: Some(port) };
        let translated = |host_ip, to: &str, port| {
            let pods = [record("c1", "web", &[mapping(host_ip)])];
            let target = ends(&node, &pods, &[own]).target(to, traffic(port)).unwrap();
            target.nat.map(|nat| (target.to.to_string(), target.traffic.port, nat))
        };
        let expected = (
            "10.83.0.2".to_owned(),
            Some(80),
            "hostPort: 10.83.0.2 port 80 replaces 198.51.100.7 port 8080".to_owned(),
        );
        for to in ["198.51.100.7", "node:n1"] {
            for host_ip in [None, Some("198.51.100.7"), Some("0.0.0.0")] {
                assert_eq!(translated(host_ip, to, 8080), Some(expected.clone()), "{host_ip:?} {to}");
            }
            assert_eq!(translated(Some("198.51.100.8"), to, 8080), None);
            assert_eq!(translated(Some("::"), to, 8080), None);
            assert_eq!(translated(None, to, 8081), None);
        }
        assert_eq!(translated(None, "198.51.100.9", 8080), None, "not an address of this node");
    }
}
