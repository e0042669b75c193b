//! `podwire attachment show`: the record and the kernel state of one attachment.

mod kernel;
mod policies;

use std::net::SocketAddr;

use anyhow::Result;
use api::{AttachmentDetails, KernelCheck, KernelState, PodGroupView};
use cni::{Bandwidth, PortMapping};
use engine::state::{Addressing, Attachment};
use model::ObjectKind;

use super::objects;
use super::pods::{self, RecordedAttachment};
use crate::cli::{AgentSelector, Output, ShowAttachmentArgs};
use crate::directories::AgentDirectories;
use crate::exit::ExitStatus;
use crate::{print, time};

pub(crate) fn show(args: &ShowAttachmentArgs) -> Result<ExitStatus> {
    let run_dir = AgentDirectories::run_dir(args.run_dir.clone());
    let record = select(pods::list(&run_dir)?.readable, &args.attachment).map_err(|candidates| match candidates.as_slice() {
        [] => anyhow::anyhow!(
            "no attachment in {} is that of pod {1:?} or has a container ID that starts with {1:?}; list pods and container \
             IDs with 'podwire pods -o wide'",
            run_dir.display(),
            args.attachment
        ),
        candidates => anyhow::anyhow!(
            "{:?} is ambiguous: it matches {}; give more of the ID, or ID/IFNAME",
            args.attachment,
            candidates.join(", ")
        ),
    })?;
    let checks = kernel::inspect(&record.attachment);
    let agent = AgentSelector { run_dir: args.run_dir.clone(), socket: None };
    let policies = policies::of_pod(&record.attachment, &agent);
    match args.output {
        Output::Json => {
            let (attachment, kernel) = (record.view.clone(), checks.clone());
            print::json(&AttachmentDetails { attachment, kernel, policies })?;
        }
        Output::Table | Output::Wide => {
            print::line(format_args!("{}\n", print::key_values(rows(&record, policies.as_ref()))))?;
            if let Some(policies) = policies.filter(|policies| !policies.rules.is_empty()) {
                let table = objects::rule_table(ObjectKind::Group, &policies.rules);
                print::line(format_args!("{table}\n"))?;
            }
            let row = |check: &KernelCheck| vec![kernel::word(check.state), check.object.clone()];
            print::line(print::table(&["KERNEL", ""], checks.iter().map(row).collect()))?;
        }
    }
    Ok(ExitStatus::problem_unless(checks.iter().all(|check| check.state != KernelState::Missing)))
}

/// An exact ID or pod has precedence over a prefix of an ID. The error lists all matches.
fn select(records: Vec<RecordedAttachment>, wanted: &str) -> Result<RecordedAttachment, Vec<String>> {
    let name = |record: &RecordedAttachment| {
        format!("{}/{}", record.attachment.key.container, record.attachment.key.ifname)
    };
    let mut ranked: Vec<(MatchRank, RecordedAttachment)> =
        records.into_iter().filter_map(|record| Some((rank(&record, wanted)?, record))).collect();
    let best = ranked.iter().map(|(rank, _)| *rank).min();
    ranked.retain(|(rank, _)| Some(*rank) == best);
    match (ranked.len(), ranked.pop()) {
        (1, Some((_, record))) => Ok(record),
        (_, last) => Err(ranked.iter().chain(&last).map(|(_, record)| name(record)).collect()),
    }
}

/// How an argument names an attachment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum MatchRank {
    Exact,
    Prefix,
}

/// `ID`, `POD` or `NAMESPACE/POD`, each also with `/IFNAME`. The first characters of an ID are enough.
fn rank(record: &RecordedAttachment, wanted: &str) -> Option<MatchRank> {
    let key = &record.attachment.key;
    let without_interface = wanted.strip_suffix(key.ifname.as_str()).and_then(|rest| rest.strip_suffix('/'));
    let names = [Some(wanted), without_interface];
    let pod = record.attachment.pod.as_ref();
    let is_exact = |name: &str| {
        let is_pod =
            pod.is_some_and(|pod| name == pod.name || name == format!("{}/{}", pod.namespace, pod.name));
        is_pod || name == key.container.as_str()
    };
    let has_prefix = |name: &str| key.container.as_str().starts_with(name);
    let names = || names.iter().copied().flatten();
    match (names().any(is_exact), names().any(has_prefix)) {
        (true, _) => Some(MatchRank::Exact),
        (false, true) => Some(MatchRank::Prefix),
        (false, false) => None,
    }
}

fn rows(record: &RecordedAttachment, policies: Option<&PodGroupView>) -> Vec<(&'static str, String)> {
    let attachment = &record.attachment;
    let key = &attachment.key;
    let uid = attachment.pod.as_ref().and_then(|pod| pod.uid.as_ref());
    let mut rows = vec![
        ("container", key.container.to_string()),
        ("interface", print::one_line(key.ifname.as_str())),
        ("CNI network", key.network.to_string()),
        ("pod", record.pod()),
    ];
    rows.extend(uid.map(|uid| ("pod uid", print::one_line(uid))));
    if let Some(placement) = &attachment.placement {
        rows.push(("tenant", placement.tenant.to_string()));
        rows.push(("network", placement.network.to_string()));
        rows.push(("group", placement.group.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string)));
        if let Some(policies) = policies {
            rows.push(("profile", policies.profile.clone().unwrap_or_else(|| "-".to_owned())));
            rows.push(("policies", print::list(&policies.policies)));
        } else if placement.group.is_some() {
            rows.push(("policies", "unknown: no agent answers".to_owned()));
        }
    } else {
        rows.push(("placement", format!("{} (recovered from its link)", pods::UNPLACED)));
    }
    let created = match attachment.created_at() {
        Some(created) => {
            format!("created {} ago at {}", time::age(created, time::now()), time::utc(created))
        }
        None => "recovered from its link".to_owned(),
    };
    rows.push(("phase", format!("{}, {created}", record.phase())));
    rows.extend(network_rows(attachment));
    rows.extend(attachment.request.as_ref().map(|request| ("request", request.to_string())));
    rows
}

fn network_rows(attachment: &Attachment) -> Vec<(&'static str, String)> {
    let address = |a: &engine::state::PodAddress| match a.gateway {
        Some(gateway) => format!("{} via {gateway}", a.address),
        None => a.address.to_string(),
    };
    let mut addresses: Vec<String> = attachment.addresses.iter().map(address).collect();
    let spoof_check = match (attachment.spoof_check, attachment.addressing) {
        (false, _) => "off",
        (true, Addressing::Assigned) => "on",
        (true, Addressing::Dhcp) => "on; DHCP requests allowed",
        (true, Addressing::None) => "MAC only",
    };
    match attachment.addressing {
        Addressing::None => addresses.push(pods::LAYER_2.to_owned()),
        Addressing::Assigned | Addressing::Dhcp => {}
    }
    let routes: Vec<String> = attachment.wiring.routes.iter().map(|route| route.dst.to_string()).collect();
    let cookie = attachment.netns_cookie.map_or_else(String::new, |cookie| format!(" (cookie {cookie})"));
    let mut rows = vec![
        ("mode", format!("{}, bridge {}, MTU {}", attachment.mode, attachment.bridge, attachment.mtu)),
        ("addresses", addresses.join("\n")),
        ("routes", if routes.is_empty() { "-".to_owned() } else { routes.join("\n") }),
        ("pod MAC", attachment.pod_mac.to_string()),
        ("node link", format!("{}, MAC {}", attachment.host_link, attachment.host_mac)),
        ("namespace", format!("{}{cookie}", print::one_line(&attachment.netns))),
        ("spoof check", spoof_check.to_owned()),
        ("masquerade", if attachment.masquerade_outside.is_some() { "on" } else { "off" }.to_owned()),
    ];
    if !attachment.ports.is_empty() {
        rows.push(("host ports", attachment.ports.iter().map(port).collect::<Vec<_>>().join("\n")));
    }
    rows.extend(attachment.bandwidth.as_ref().map(|limits| ("bandwidth", bandwidth(limits))));
    rows
}

/// `198.51.100.7:8080/tcp to 80`. `*` stands for all addresses of the node.
fn port(mapping: &PortMapping) -> String {
    let PortMapping { host_port, container_port, protocol, host_ip } = mapping;
    let address = match host_ip {
        Some(ip) => SocketAddr::new(*ip, *host_port).to_string(),
        None => format!("*:{host_port}"),
    };
    format!("{address}/{} to {container_port}", protocol.as_str())
}

fn bandwidth(limits: &Bandwidth) -> String {
    let direction = |verb: &str, rate: u64, burst: u64| match rate {
        0 => format!("{verb} without limit"),
        rate => format!("{verb} up to {}/s, burst {}", print::bits(rate), print::bits(burst)),
    };
    let receives = direction("receives", limits.ingress_rate, limits.ingress_burst);
    format!("{receives}\n{}", direction("sends", limits.egress_rate, limits.egress_burst))
}
