//! What an attachment is to have. Pure: from the configuration, the addresses, and what is known of pod and node.

use cni::{AttachmentRequest, CniResult, PodRoute};
use ipnet::IpNet;
use netconf::{Addresses, default_route};
use types::AttachMode;

use super::{AttachContext, netns_path};
use crate::lease;
use crate::state::{Allocation, Attachment, PodAddress, PodName, Wiring};
use crate::sysctl::ForwardedFamilies;
use crate::wire::Neighbours;

/// Everything about the attachment, from the addresses it got, and what another IPAM plugin said besides.
pub(crate) fn decide(
    context: &AttachContext<'_>,
    subnets: &[PodAddress],
    given: Option<&CniResult>,
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
    let mut routes: Vec<PodRoute> = given.map(|r| r.routes.clone()).unwrap_or_default();
    // A default route that the other plugin gave is the one.
    let ours = conf.pod_routes(&ips).into_iter().filter(|r| !routes.iter().any(|given| given.dst == r.dst));
    routes.extend(ours.collect::<Vec<_>>());
    if routed {
        routes.extend(subnet_routes(context, subnets, &routes));
    }
    let gateways =
        if conf.is_gateway { subnets.iter().filter_map(gateway_net).collect() } else { Vec::new() };
    let mut cluster = conf.cluster.clone();
    // With single addresses every pod would have a cluster, and a chain, of its own; that pods of this node are not outside is
    // known anyway.
    cluster.extend(
        subnets.iter().map(|a| a.address.trunc()).filter(|net| is_subnet(net) && !conf.cluster.contains(net)),
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
            dns: given.map(|r| r.dns.clone()).unwrap_or_default(),
        },
        created: context.now,
    }
}

pub(crate) fn neighbours_of(mode: AttachMode, used_before: bool) -> Neighbours {
    match mode {
        AttachMode::Bridge if used_before => Neighbours::MayRemember,
        AttachMode::Bridge | AttachMode::Routed => Neighbours::KnowNothing,
    }
}

pub(super) fn own_address(given: &Allocation) -> PodAddress {
    let address = IpNet::new(given.address, given.prefix_len).unwrap_or_else(|_| given.address.into());
    PodAddress { address, gateway: Some(given.gateway) }
}

fn gateway_net(pod: &PodAddress) -> Option<IpNet> {
    pod.gateway.and_then(|gateway| IpNet::new(gateway, pod.address.prefix_len()).ok())
}

/// In mode `routed` a pod's own prefix is a single address: without a default route it still needs its subnet. Where another
/// interface has the default route, answers to pods of this network would leave by that one, which drops them. With the
/// reference's `bridge` the subnet is on the interface; here the pods of other nodes have routes, too.
fn subnet_routes(context: &AttachContext<'_>, subnets: &[PodAddress], routes: &[PodRoute]) -> Vec<PodRoute> {
    let has_default = |like: &IpNet| routes.iter().any(|r| r.dst == default_route(like.addr()).dst);
    let mut wanted: Vec<IpNet> = Vec::new();
    for net in subnets.iter().map(|a| a.address.trunc()) {
        let is_v4 = net.addr().is_ipv4();
        if if is_v4 { context.defaults.ipv4 } else { context.defaults.ipv6 } {
            let cluster = context.conf.cluster.iter().filter(|other| other.addr().is_ipv4() == is_v4);
            wanted.extend(cluster.chain([&net]).filter(|net| is_subnet(net)));
        } else if !has_default(&net) {
            wanted.push(net);
        }
    }
    wanted.sort();
    wanted.dedup();
    let is_covered = |net: &IpNet| wanted.iter().any(|other| other != net && other.contains(net));
    let is_given = |net: &IpNet| routes.iter().any(|r| r.dst == *net);
    let all = wanted.iter().filter(|net| !is_covered(net) && !is_given(net));
    all.map(|net| PodRoute { dst: *net, ..default_route(net.addr()) }).collect()
}

/// An IPAM plugin that gives single addresses says nothing of the subnet.
fn is_subnet(net: &IpNet) -> bool {
    net.prefix_len() < net.max_prefix_len()
}

fn pod_name(call: &AttachmentRequest) -> Option<PodName> {
    let (namespace, name) =
        (call.args.pod_namespace.clone().unwrap_or_default(), call.args.pod_name.clone()?);
    Some(PodName { namespace, name, uid: call.args.pod_uid.clone() })
}

/// The families of addresses; true stands for an IPv4 address.
pub(crate) fn families(v4: impl Iterator<Item = bool>) -> ForwardedFamilies {
    let v4: Vec<bool> = v4.collect();
    ForwardedFamilies { ipv4: v4.contains(&true), ipv6: v4.contains(&false) }
}
