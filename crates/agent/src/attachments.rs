//! Converts attachment records to their API types.

use api::{
    AddressView, AttachmentPhase, AttachmentRecord, AttachmentView, BandwidthView, DnsView, IpamView,
    MasqueradeView, PlacementView, PodRouteView, PodView, PortView, Timestamp, TombstoneError, Tombstones,
};
use engine::state::{Addressing, Attachment, ListedRecord, RecordPhase};

/// An attachment of a network. An unreadable record is shown by its name. A record with a tombstone is being deleted.
pub fn attachment_view(
    network: &str,
    listed: &ListedRecord,
    tombstones: &Tombstones,
) -> Result<AttachmentView, TombstoneError> {
    let is_deleted = match &listed.attachment {
        Some(attachment) => tombstones.exists(&attachment.key)?,
        None => false,
    };
    Ok(AttachmentView {
        network: network.to_owned(),
        record_name: listed.stem.clone(),
        phase: match (&listed.attachment, listed.phase) {
            (None, _) => AttachmentPhase::Unreadable,
            (Some(_), _) if is_deleted => AttachmentPhase::Deleting,
            (Some(_), RecordPhase::Pending) => AttachmentPhase::Pending,
            (Some(_), RecordPhase::Ready) => AttachmentPhase::Ready,
        },
        record: listed.attachment.as_ref().map(record),
    })
}

fn record(record: &Attachment) -> AttachmentRecord {
    let Attachment { key, wiring, .. } = record;
    AttachmentRecord {
        container_id: key.container.to_string(),
        interface: key.ifname.to_string(),
        netns: record.netns.clone(),
        netns_cookie: record.netns_cookie,
        mode: record.mode.to_string(),
        bridge: record.bridge.to_string(),
        host_link: record.host_link.to_string(),
        host_mac: record.host_mac.to_string(),
        pod_mac: record.pod_mac.to_string(),
        mtu: record.mtu,
        addresses: record
            .addresses
            .iter()
            .map(|ip| AddressView { address: ip.address, gateway: ip.gateway })
            .collect(),
        ipam: ipam(record),
        masquerade: MasqueradeView {
            enabled: record.masquerade_outside.is_some(),
            except: record.masquerade_outside.clone().unwrap_or_default(),
        },
        spoof_check: record.spoof_check,
        ports: record.ports.iter().map(port).collect(),
        bandwidth: record.bandwidth.as_ref().map(bandwidth),
        pod: record.pod.as_ref().map(|pod| PodView {
            namespace: Some(pod.namespace.clone()).filter(|namespace| !namespace.is_empty()),
            name: pod.name.clone(),
            uid: pod.uid.clone(),
        }),
        placement: record.placement.as_ref().map(|placement| PlacementView {
            tenant: placement.tenant.to_string(),
            network: placement.network.to_string(),
            group: placement.group.as_ref().map(ToString::to_string),
        }),
        request_id: record.request.as_ref().map(ToString::to_string),
        routes: wiring.routes.iter().map(route).collect(),
        gateways: wiring.gateways.clone(),
        hairpin: wiring.hairpin,
        dns: dns(&wiring.dns),
        created_at: record.created_at().map(Timestamp),
    }
}

fn ipam(record: &Attachment) -> IpamView {
    match (record.addressing, record.delegated) {
        (Addressing::None, _) => IpamView::None,
        (Addressing::Dhcp, _) => IpamView::Dhcp,
        (Addressing::Assigned, true) => IpamView::Plugin,
        (Addressing::Assigned, false) => IpamView::Podwire,
    }
}

/// An inactive published port as the API shows it.
pub fn inactive_port(inactive: &engine::InactivePortMapping) -> api::InactivePort {
    api::InactivePort {
        network: inactive.key.network.to_string(),
        container_id: inactive.key.container.to_string(),
        interface: inactive.key.ifname.to_string(),
        port: port(&inactive.port),
    }
}

fn port(mapping: &cni::PortMapping) -> PortView {
    PortView {
        host_port: mapping.host_port,
        container_port: mapping.container_port,
        protocol: mapping.protocol.as_str().to_owned(),
        host_ip: mapping.host_ip,
    }
}

fn bandwidth(limits: &cni::Bandwidth) -> BandwidthView {
    BandwidthView {
        ingress_rate: limits.ingress_rate,
        ingress_burst: limits.ingress_burst,
        egress_rate: limits.egress_rate,
        egress_burst: limits.egress_burst,
    }
}

fn route(route: &cni::PodRoute) -> PodRouteView {
    PodRouteView {
        destination: route.dst,
        gateway: route.gw,
        mtu: route.mtu,
        advertised_mss: route.advmss,
        priority: route.priority,
        table: route.table,
        scope: route.scope,
    }
}

fn dns(dns: &cni::Dns) -> DnsView {
    DnsView {
        nameservers: dns.nameservers.clone(),
        domain: dns.domain.clone(),
        search: dns.search.clone(),
        options: dns.options.clone(),
    }
}
