//! `podwire attachment show`: one attachment, from its record and from the kernel.

mod kernel;

use std::net::SocketAddr;

use anyhow::Result;
use api::{AttachmentDetails, KernelCheck, KernelState};
use cni::{Bandwidth, PortMapping};
use engine::state::{Addressing, Attachment};

use super::pods::{self, RecordedAttachment};
use crate::cli::{Output, ShowAttachmentArgs};
use crate::directories::AgentDirectories;
use crate::exit::ExitStatus;
use crate::{print, when};

pub(crate) fn show(args: &ShowAttachmentArgs) -> Result<ExitStatus> {
    let run_dir = AgentDirectories::run_dir(args.run_dir.clone());
    let (container, ifname) = match args.what.split_once('/') {
        Some((container, ifname)) => (container, Some(ifname)),
        None => (args.what.as_str(), None),
    };
    let mut found = pods::list(&run_dir)?.found;
    found.retain(|found| ifname.is_none_or(|ifname| found.attachment.key.ifname.as_str() == ifname));
    let one = the_one(found, container).map_err(|others| match others.as_slice() {
        [] => anyhow::anyhow!(
            "no attachment in {} has a container id that begins with {:?}; `podwire pods` shows all",
            run_dir.display(),
            args.what
        ),
        others => anyhow::anyhow!(
            "{:?} may be any of {}: write more of the id, or ID/IFNAME",
            args.what,
            others.join(", ")
        ),
    })?;
    let findings = kernel::look(&one.attachment);
    match args.output {
        Output::Json => {
            print::say_json(&AttachmentDetails { attachment: one.view.clone(), kernel: findings.clone() })?;
        }
        Output::Table | Output::Wide => {
            print::say(format_args!("{}\n", print::key_values(rows(&one))))?;
            let row = |check: &KernelCheck| vec![kernel::word(check.state), check.object.clone()];
            print::say(print::table(&["KERNEL", ""], findings.iter().map(row).collect()))?;
        }
    }
    Ok(ExitStatus::problem_unless(findings.iter().all(|finding| finding.state != KernelState::Missing)))
}

/// The whole id wins over a beginning; else the names of all that are meant.
fn the_one(found: Vec<RecordedAttachment>, container: &str) -> Result<RecordedAttachment, Vec<String>> {
    let id = |found: &RecordedAttachment| found.attachment.key.container.as_str().to_owned();
    let (exact, begins): (Vec<RecordedAttachment>, Vec<RecordedAttachment>) = found
        .into_iter()
        .filter(|found| id(found).starts_with(container))
        .partition(|found| id(found) == container);
    let mut meant = if exact.is_empty() { begins } else { exact };
    match (meant.len(), meant.pop()) {
        (1, Some(one)) => Ok(one),
        (_, last) => {
            meant.extend(last);
            Err(meant.iter().map(|found| format!("{}/{}", id(found), found.attachment.key.ifname)).collect())
        }
    }
}

fn rows(found: &RecordedAttachment) -> Vec<(&'static str, String)> {
    let attachment = &found.attachment;
    let key = &attachment.key;
    let uid = attachment.pod.as_ref().and_then(|pod| pod.uid.as_ref());
    let mut rows = vec![
        ("container", key.container.to_string()),
        ("interface", print::value(key.ifname.as_str())),
        ("CNI network", key.network.to_string()),
        ("pod", found.pod()),
    ];
    rows.extend(uid.map(|uid| ("pod uid", print::value(uid))));
    if let Some(placement) = &attachment.placement {
        rows.push(("tenant", placement.tenant.to_string()));
        rows.push(("network", placement.network.to_string()));
        rows.push(("group", placement.group.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string)));
    } else {
        rows.push(("placement", format!("{} (recovered from its link)", pods::UNPLACED)));
    }
    let age = when::since(attachment.created, when::now());
    rows.push(("phase", format!("{}, made {age} ago at {}", found.phase(), when::utc(attachment.created))));
    rows.extend(wire(attachment));
    rows.extend(attachment.request.as_ref().map(|request| ("request", request.to_string())));
    rows
}

fn wire(attachment: &Attachment) -> Vec<(&'static str, String)> {
    let address = |a: &engine::state::PodAddress| match a.gateway {
        Some(gateway) => format!("{} through {gateway}", a.address),
        None => a.address.to_string(),
    };
    let mut addresses: Vec<String> = attachment.addresses.iter().map(address).collect();
    let guard = match (attachment.spoof_check, attachment.addressing) {
        (false, _) => "off",
        (true, Addressing::Assigned) => "on",
        (true, Addressing::Dhcp) => "on; may ask a DHCP server",
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
        ("namespace", format!("{}{cookie}", print::value(&attachment.netns))),
        ("spoof check", guard.to_owned()),
        ("masquerade", if attachment.masquerade_outside.is_some() { "on" } else { "off" }.to_owned()),
    ];
    if !attachment.ports.is_empty() {
        rows.push(("host ports", attachment.ports.iter().map(port).collect::<Vec<_>>().join("\n")));
    }
    rows.extend(attachment.bandwidth.as_ref().map(|limits| ("bandwidth", bandwidth(limits))));
    rows
}

/// `198.51.100.7:8080/tcp to 80`; without a host IP every address of the node is meant.
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
        0 => format!("{verb} without a limit"),
        rate => format!("{verb} up to {}/s, burst {}", print::bits(rate), print::bits(burst)),
    };
    let receives = direction("receives", limits.ingress_rate, limits.ingress_burst);
    format!("{receives}\n{}", direction("sends", limits.egress_rate, limits.egress_burst))
}
