//! `podwire KIND inspect` and `podwire policy rule ls`: one object in detail.

use anyhow::Result;
use api::{BlockView, ObjectDetails, ObjectName, ObjectPod, PolicyRules, RuleView};
use model::{ObjectId, ObjectKind};
use serde_json::Value;

use super::super::nodes::AgentClient;
use super::list::{limit, lines, warn, word};
use super::{path, yaml};
use crate::cli::objects::{DocumentOutput, ShowArgs};
use crate::exit::ExitStatus;
use crate::print;

pub(super) fn inspect(id: &ObjectId, show: &ShowArgs) -> Result<ExitStatus> {
    let details: ObjectDetails = AgentClient::find(&show.agent).get(&path(api::OBJECT_DETAILS, id))?;
    match show.output {
        DocumentOutput::Json => print::json(&details)?,
        DocumentOutput::Yaml => yaml(&[serde_json::to_value(&details)?])?,
        DocumentOutput::Table => print::line(page(id, &details))?,
    }
    Ok(warn(&details.problems))
}

pub(super) fn rules(id: &ObjectId, show: &ShowArgs) -> Result<ExitStatus> {
    let details: ObjectDetails = AgentClient::find(&show.agent).get(&path(api::OBJECT_DETAILS, id))?;
    let ObjectDetails { rules, problems, .. } = details;
    match show.output {
        DocumentOutput::Table if rules.is_empty() => print::line("no rules")?,
        DocumentOutput::Table => print::line(rule_table(ObjectKind::Policy, &rules))?,
        DocumentOutput::Json => print::json(&PolicyRules { rules })?,
        DocumentOutput::Yaml => yaml(&[serde_json::to_value(&PolicyRules { rules })?])?,
    }
    Ok(warn(&problems))
}

/// Settings, then tables of rules, blocks and pods.
fn page(id: &ObjectId, details: &ObjectDetails) -> String {
    let mut rows = vec![("name", id.name().to_owned())];
    if id.kind() != ObjectKind::Tenant {
        rows.push(("tenant", id.tenant_name().to_string()));
    }
    match &details.document {
        Some(document) => rows.extend(settings(id.kind(), &document["spec"])),
        None => rows.push(("settings", "unknown: its value in the store cannot be read".to_owned())),
    }
    rows.push((if id.kind() == ObjectKind::Tenant { "objects" } else { "used by" }, users(&details.users)));
    let mut parts = vec![print::key_values(rows)];
    if matches!(id.kind(), ObjectKind::Policy | ObjectKind::Group) && !details.rules.is_empty() {
        parts.push(rule_table(id.kind(), &details.rules));
    }
    parts.extend(details.blocks.as_ref().map(|blocks| block_table(blocks)));
    parts.push(pod_table(&details.pods));
    let missing =
        details.pods_missing.as_ref().map(|reason| format!("pods of other nodes are not known: {reason}"));
    parts.extend(
        missing.map(|text| print::hanging(&print::wrap(&print::one_line(&text), print::width() - 2), 2)),
    );
    parts.join("\n\n")
}

fn settings(kind: ObjectKind, spec: &Value) -> Vec<(&'static str, String)> {
    let or_all = |field: &Value| if field.is_null() { "all".to_owned() } else { lines(field) };
    let switch = |is_on: bool| if is_on { "yes" } else { "no" }.to_owned();
    match kind {
        ObjectKind::Tenant => {
            vec![("nodes", word(&spec["nodes"])), ("default network", word(&spec["defaultNetwork"]))]
        }
        ObjectKind::Network => vec![
            ("subnets", lines(&spec["subnets"])),
            ("block margin", word(&spec["blockMargin"])),
            ("MTU", word(&spec["mtu"])),
            ("masquerade", switch(spec["masquerade"] != false)),
            ("nodes", or_all(&spec["nodes"])),
        ],
        ObjectKind::Profile => vec![
            ("ingress", limit(&spec["ingress"])),
            ("egress", limit(&spec["egress"])),
            ("DSCP", word(&spec["dscp"])),
        ],
        ObjectKind::Group => vec![
            ("network", word(&spec["network"])),
            ("pools", lines(&spec["pools"])),
            ("policies", lines(&spec["policies"])),
            ("profile", word(&spec["profile"])),
        ],
        ObjectKind::Policy => vec![("rules", spec["rules"].as_array().map_or(0, Vec::len).to_string())],
        ObjectKind::Share => vec![
            ("network", word(&spec["network"])),
            ("group", word(&spec["group"])),
            ("with", or_all(&spec["with"])),
            ("ports", or_all(&spec["ports"])),
        ],
    }
}

/// The tenant is left out: only shares refer to objects of other tenants, and they are named with theirs.
fn users(users: &[ObjectName]) -> String {
    let name = |user: &ObjectName| match user.tenant.as_str() {
        "" => format!("{} {}", user.kind.to_lowercase(), user.name),
        tenant => format!("{} {tenant}/{}", user.kind.to_lowercase(), user.name),
    };
    print::list(&users.iter().map(name).collect::<Vec<_>>())
}

/// Rules of a group are of several policies.
pub(in crate::commands) fn rule_table(kind: ObjectKind, rules: &[RuleView]) -> String {
    let has_policies = kind == ObjectKind::Group;
    let row = |rule: &RuleView| {
        let RuleView { policy, id, direction, priority, peer, traffic, action } = rule;
        let mut cells = vec![
            priority.to_string(),
            id.to_string(),
            direction.clone(),
            peer.clone(),
            traffic.clone(),
            action.clone(),
        ];
        if has_policies {
            cells.insert(1, policy.clone());
        }
        cells
    };
    let header: &[&str] = match has_policies {
        true => &["PRIORITY", "POLICY", "RULE", "DIRECTION", "PEER", "TRAFFIC", "ACTION"],
        false => &["PRIORITY", "RULE", "DIRECTION", "PEER", "TRAFFIC", "ACTION"],
    };
    print::table(header, rules.iter().map(row).collect())
}

fn block_table(blocks: &[BlockView]) -> String {
    if blocks.is_empty() {
        return "no blocks".to_owned();
    }
    let number = |value: Option<u64>| value.map_or_else(|| "-".to_owned(), |value| value.to_string());
    let row = |view: &BlockView| {
        vec![view.block.to_string(), print::one_line(&view.node), number(view.used), number(view.free)]
    };
    print::table(&["BLOCK", "NODE", "USED", "FREE"], blocks.iter().map(row).collect())
}

fn pod_table(pods: &[ObjectPod]) -> String {
    if pods.is_empty() {
        return "no pods".to_owned();
    }
    let row = |pod: &ObjectPod| {
        let group = pod.placement.group.as_deref().unwrap_or("-");
        let container = || pod.container_id.as_deref().map_or_else(|| "-".to_owned(), print::short_ids);
        vec![
            print::one_line(&pod.node),
            pod.pod.as_deref().map_or_else(container, print::one_line),
            print::list(&pod.addresses),
            format!("{}/{group}", pod.placement.network),
        ]
    };
    print::table(&["NODE", "POD", "ADDRESSES", "NETWORK/GROUP"], pods.iter().map(row).collect())
}
