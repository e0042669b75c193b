//! Computes the desired attachment from the config, the addresses and the observed pod and node. Pure.

use cni::{AttachmentRequest, CniResult, PodRoute};
use ipnet::IpNet;
use netconf::{Addresses, default_route};
use types::AttachMode;

use super::{AttachContext, netns_path};
use crate::lease;
use crate::state::{Allocation, Attachment, PodAddress, PodName, Wiring};
use crate::sysctl::ForwardedFamilies;
use crate::veth::NeighbourCaches;

/// Computes the attachment from its addresses, and from the result of a delegated IPAM plugin.
pub(crate) fn decide(
    context: &AttachContext<'_>,
    subnets: &[PodAddress],
    delegated: Option<&CniResult>,
) -> Attachment {
    let (conf, call) = (context.conf, context.call);
    let routed = conf.mode == AttachMode::Routed;
    let addresses: Vec<PodAddress> = subnets
        .iter()
        .map(|a| PodAddress {
            address: if routed { a.address.addr().into() } else { a.address },
            gateway: a.gateway,
        })
        .collect();
    let ips: Vec<_> = addresses.iter().map(|a| a.address.addr()).collect();
    let mut routes: Vec<PodRoute> = delegated.map(|r| r.routes.clone()).unwrap_or_default();
    // Routes of the delegated plugin have precedence.
    let is_delegated = |dst: &IpNet| routes.iter().any(|route| route.dst == *dst);
    let configured = conf.pod_routes(&ips).into_iter().filter(|r| !is_delegated(&r.dst));
    routes.extend(configured.collect::<Vec<_>>());
    if routed {
        routes.extend(subnet_routes(context, subnets, &routes));
    }
    let gateways =
        if conf.is_gateway { subnets.iter().filter_map(gateway_net).collect() } else { Vec::new() };
    let mut cluster = conf.cluster.clone();
    // Single addresses are not added: every pod would get its own chain. Traffic between pods of this node is not masqueraded
    // anyway.
    cluster.extend(
        subnets
            .iter()
            .map(|a| a.address.trunc())
            .filter(|net| is_subnet(net) && !conf.cluster.iter().any(|known| known.contains(net))),
    );
    Attachment {
        schema: lease::addressing(conf).schema(),
        key: context.key.clone(),
        netns: netns_path(call).to_owned(),
        netns_cookie: Some(context.cookie),
        mode: conf.mode,
        bridge: conf.bridge.clone(),
        host_link: context.host_end.name.clone(),
        host_mac: context.key.host_mac(),
        pod_mac: conf.mac.unwrap_or_else(|| context.key.pod_mac()),
        mtu: context.mtu,
        addresses,
        delegated: matches!(conf.addresses, Addresses::Delegated(_)),
        ipam_plugin: lease::plugin(conf),
        addressing: lease::addressing(conf),
        masquerade_outside: (conf.ip_masq && !subnets.is_empty()).then_some(cluster),
        spoof_check: conf.spoof_check,
        ports: conf.ports.clone(),
        bandwidth: conf.bandwidth,
        pod: pod_name(call),
        placement: Some(conf.placement.clone()),
        request: context.caller.request.cloned(),
        wiring: Wiring {
            routes,
            gateways,
            hairpin: conf.hairpin,
            dns: delegated.map(|r| r.dns.clone()).unwrap_or_default(),
        },
        created: context.now,
    }
}

pub(crate) fn neighbours_of(mode: AttachMode, used_before: bool) -> NeighbourCaches {
    match mode {
        AttachMode::Bridge if used_before => NeighbourCaches::MayBeStale,
        AttachMode::Bridge | AttachMode::Routed => NeighbourCaches::Clean,
    }
}

pub(super) fn own_address(allocation: &Allocation) -> PodAddress {
    let address =
        IpNet::new(allocation.address, allocation.prefix_len).unwrap_or_else(|_| allocation.address.into());
    PodAddress { address, gateway: Some(allocation.gateway) }
}

fn gateway_net(pod: &PodAddress) -> Option<IpNet> {
    pod.gateway.and_then(|gateway| IpNet::new(gateway, pod.address.prefix_len()).ok())
}

/// In mode `routed` a pod's prefix is a single address, so without a default route it needs a route to its subnet. If another
/// interface has the default route, replies to pods of this network would leave through that interface, which drops them. In
/// mode `bridge` the subnet is on the interface. Pods of other nodes need routes too.
fn subnet_routes(context: &AttachContext<'_>, subnets: &[PodAddress], routes: &[PodRoute]) -> Vec<PodRoute> {
    let has_default = |like: &IpNet| routes.iter().any(|r| r.dst == default_route(like.addr()).dst);
    let mut destinations: Vec<IpNet> = Vec::new();
    for net in subnets.iter().map(|a| a.address.trunc()) {
        let is_v4 = net.addr().is_ipv4();
        if if is_v4 { context.defaults.ipv4 } else { context.defaults.ipv6 } {
            let cluster = context.conf.cluster.iter().filter(|other| other.addr().is_ipv4() == is_v4);
            destinations.extend(cluster.chain([&net]).filter(|net| is_subnet(net)));
        } else if !has_default(&net) {
            destinations.push(net);
        }
    }
    destinations.sort();
    destinations.dedup();
    let is_covered = |net: &IpNet| destinations.iter().any(|other| other != net && other.contains(net));
    let has_route = |net: &IpNet| routes.iter().any(|r| r.dst == *net);
    let missing = destinations.iter().filter(|net| !is_covered(net) && !has_route(net));
    missing.map(|net| PodRoute { dst: *net, ..default_route(net.addr()) }).collect()
}

/// An IPAM plugin that assigns single addresses does not return the subnet.
fn is_subnet(net: &IpNet) -> bool {
    net.prefix_len() < net.max_prefix_len()
}

fn pod_name(call: &AttachmentRequest) -> Option<PodName> {
    let (namespace, name) =
        (call.args.pod_namespace.clone().unwrap_or_default(), call.args.pod_name.clone()?);
    Some(PodName { namespace, name, uid: call.args.pod_uid.clone() })
}

/// The address families. Each item is true for an IPv4 address.
pub(crate) fn families(v4: impl Iterator<Item = bool>) -> ForwardedFamilies {
    let v4: Vec<bool> = v4.collect();
    ForwardedFamilies { ipv4: v4.contains(&true), ipv6: v4.contains(&false) }
}
