//! `podwire get` and `podwire KIND ls`: objects as tables or documents, and those that are invalid.

use anyhow::Result;
use api::{ObjectList, ObjectProblem, VersionInForce};
use model::{ObjectId, ObjectKind, described};
use serde_json::Value;

use super::super::nodes::AgentClient;
use super::{owner, path, yaml};
use crate::cli::objects::{DocumentOutput, GetArgs, ShowArgs};
use crate::exit::ExitStatus;
use crate::print;

pub(super) fn get(args: &GetArgs) -> Result<ExitStatus> {
    match (args.kind, &args.name) {
        (Some(kind), Some(name)) => {
            let tenant = args.tenant.as_deref().unwrap_or(types::DEFAULT_TENANT);
            one(&ObjectId::parse(kind, tenant, name)?, &args.show)
        }
        (kind, _) => list(kind, args.tenant.as_deref(), &args.show),
    }
}

fn one(id: &ObjectId, show: &ShowArgs) -> Result<ExitStatus> {
    let client = AgentClient::find(&show.agent);
    let details: api::ObjectDetails = client.get(&path(api::OBJECT_DETAILS, id))?;
    let items: Vec<Value> = details.document.into_iter().collect();
    match show.output {
        DocumentOutput::Json => print::json(&items.first())?,
        DocumentOutput::Yaml => yaml(&items)?,
        DocumentOutput::Table => print::line(all_kinds(&items))?,
    }
    Ok(warn(&details.problems))
}

/// Without a kind: all kinds.
pub(super) fn list(kind: Option<ObjectKind>, tenant: Option<&str>, show: &ShowArgs) -> Result<ExitStatus> {
    let all: ObjectList = AgentClient::find(&show.agent).get(api::OBJECTS)?;
    let is_wanted = |id: &ObjectId| {
        kind.is_none_or(|kind| kind == id.kind())
            && tenant.is_none_or(|tenant| tenant == id.tenant_name().as_str())
    };
    let items: Vec<Value> =
        all.items.iter().filter(|item| described(item).is_some_and(|id| is_wanted(&id))).cloned().collect();
    let is_wanted = |problem: &&ObjectProblem| named(problem).is_some_and(|id| is_wanted(&id));
    let problems: Vec<ObjectProblem> = all.problems.iter().filter(is_wanted).cloned().collect();
    match (show.output, kind) {
        (DocumentOutput::Json, _) => print::json(&ObjectList { items, problems: problems.clone() })?,
        (DocumentOutput::Yaml, _) => yaml(&items)?,
        (DocumentOutput::Table, _) if items.is_empty() => print::line(nothing(kind, tenant))?,
        (DocumentOutput::Table, None) => print::line(all_kinds(&items))?,
        (DocumentOutput::Table, Some(kind)) => print::line(of_kind(kind, &items, &all.items))?,
    }
    Ok(warn(&problems))
}

fn named(problem: &ObjectProblem) -> Option<ObjectId> {
    let object = &problem.object;
    let kind = ObjectKind::ALL.into_iter().find(|kind| kind.title() == object.kind)?;
    ObjectId::parse(kind, &object.tenant, &object.name).ok()
}

fn nothing(kind: Option<ObjectKind>, tenant: Option<&str>) -> String {
    let kinds = kind.map_or("objects", ObjectKind::plural);
    match tenant {
        Some(tenant) => print::one_line(&format!("no {kinds} of tenant {tenant}")),
        None => format!("no {kinds}"),
    }
}

/// Problems go to stderr, so that documents on stdout can be applied again.
pub(super) fn warn(problems: &[ObjectProblem]) -> ExitStatus {
    for problem in problems {
        print::warn(format_args!("podwire: {}", sentence(problem)));
    }
    ExitStatus::problem_unless(problems.is_empty())
}

/// `policy p1 of tenant blue: spec.rules[0].priority: 200 is not allowed: 1 to 100; the last valid version is in force`
pub(super) fn sentence(problem: &ObjectProblem) -> String {
    let ObjectProblem { object, field, reason, in_force } = problem;
    let field = field.as_ref().map(|field| format!("{field}: ")).unwrap_or_default();
    let in_force = match in_force {
        VersionInForce::LastValid => "; the last valid version is in force",
        VersionInForce::None => "; no version of it is in force",
        VersionInForce::Stored | VersionInForce::Unknown => "",
    };
    let name = format!("{} {}{}", object.kind.to_lowercase(), object.name, owner(object));
    print::one_line(&format!("{name}: {field}{reason}{in_force}"))
}

fn all_kinds(items: &[Value]) -> String {
    let row = |item: &Value| {
        let id = described(item)?;
        let tenant =
            if id.kind() == ObjectKind::Tenant { "-".to_owned() } else { id.tenant_name().to_string() };
        Some(vec![id.kind().to_string(), tenant, id.name().to_owned(), summary(item)])
    };
    print::table(&["KIND", "TENANT", "NAME", "SETTINGS"], items.iter().filter_map(row).collect())
}

/// The fields of the spec in one line. Lists of objects are counted.
fn summary(item: &Value) -> String {
    let Some(spec) = item["spec"].as_object() else { return String::new() };
    let value = |value: &Value| match value {
        Value::Array(list) if !list.iter().all(Value::is_string) => list.len().to_string(),
        other => word(other),
    };
    spec.iter().map(|(name, field)| format!("{name}={}", value(field))).collect::<Vec<_>>().join(" ")
}

/// A table with the columns of one kind. `all` has the objects that may refer to these.
fn of_kind(kind: ObjectKind, items: &[Value], all: &[Value]) -> String {
    let header: &[&str] = match kind {
        ObjectKind::Tenant => &["NAME", "NODES", "DEFAULT NETWORK", "NETWORKS", "GROUPS", "POLICIES"],
        ObjectKind::Network => &["TENANT", "NAME", "SUBNETS", "MTU", "MASQUERADE", "GROUPS"],
        ObjectKind::Group => &["TENANT", "NAME", "NETWORK", "POOLS", "POLICIES", "PROFILE"],
        ObjectKind::Policy => &["TENANT", "NAME", "RULES", "GROUPS"],
        ObjectKind::Profile => &["TENANT", "NAME", "INGRESS", "EGRESS", "DSCP", "GROUPS"],
        ObjectKind::Share => &["TENANT", "NAME", "PODS", "WITH", "PORTS"],
    };
    let row = |item: &Value| Some(cells(&described(item)?, &item["spec"], all));
    print::table(header, items.iter().filter_map(row).collect())
}

fn cells(id: &ObjectId, spec: &Value, all: &[Value]) -> Vec<String> {
    let of_tenant = |kind: ObjectKind| {
        let is_of_tenant = |item: &&Value| {
            described(item).is_some_and(|it| it.kind() == kind && it.tenant_name() == id.tenant_name())
        };
        all.iter().filter(is_of_tenant).collect::<Vec<_>>()
    };
    let groups = |uses: &dyn Fn(&Value) -> bool| {
        let users = of_tenant(ObjectKind::Group).into_iter().filter(|group| uses(&group["spec"]));
        dash(&users.map(|group| word(&group["metadata"]["name"])).collect::<Vec<_>>().join("\n"))
    };
    let name = id.name();
    let cells = match id.kind() {
        ObjectKind::Tenant => {
            let count = |kind| of_tenant(kind).len().to_string();
            let default = match spec["defaultNetwork"].as_str() {
                Some(network) => network.to_owned(),
                None if id.is_default() => types::DEFAULT_NETWORK.to_owned(),
                None => "-".to_owned(),
            };
            let counts = [ObjectKind::Network, ObjectKind::Group, ObjectKind::Policy].map(count);
            return [vec![name.to_owned(), word(&spec["nodes"]), default], counts.to_vec()].concat();
        }
        ObjectKind::Network => {
            let masquerade = if spec["masquerade"] == false { "no" } else { "yes" };
            let groups = groups(&|group| group["network"] == name);
            vec![lines(&spec["subnets"]), word(&spec["mtu"]), masquerade.to_owned(), groups]
        }
        ObjectKind::Group => vec![
            word(&spec["network"]),
            lines(&spec["pools"]),
            lines(&spec["policies"]),
            word(&spec["profile"]),
        ],
        ObjectKind::Policy => {
            let rules = spec["rules"].as_array().map_or(0, Vec::len);
            let is_bound = |group: &Value| {
                group["policies"].as_array().is_some_and(|all| all.iter().any(|it| it == name))
            };
            vec![rules.to_string(), groups(&is_bound)]
        }
        ObjectKind::Profile => vec![
            limit(&spec["ingress"]),
            limit(&spec["egress"]),
            word(&spec["dscp"]),
            groups(&|group| group["profile"] == name),
        ],
        ObjectKind::Share => {
            let part = match (spec["network"].as_str(), spec["group"].as_str()) {
                (Some(network), _) => format!("network {network}"),
                (None, Some(group)) => format!("group {group}"),
                (None, None) => "all".to_owned(),
            };
            let or_all = |field: &Value| if field.is_null() { "all".to_owned() } else { lines(field) };
            vec![part, or_all(&spec["with"]), or_all(&spec["ports"])]
        }
    };
    [vec![id.tenant_name().to_string(), name.to_owned()], cells].concat()
}

/// Rate and burst in the largest units without a fraction.
pub(super) fn limit(limit: &Value) -> String {
    match (limit["rate"].as_u64(), limit["burst"].as_u64()) {
        (Some(rate), Some(burst)) => format!("{}/s, burst {}", print::bits(rate), print::bits(burst)),
        (Some(rate), None) => format!("{}/s", print::bits(rate)),
        (None, _) => "-".to_owned(),
    }
}

/// One value in a cell: a dash if there is none.
pub(super) fn word(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => print::one_line(text),
        Value::Array(list) => list.iter().map(word).collect::<Vec<_>>().join(","),
        other => other.to_string(),
    }
}

/// One element on each line.
pub(super) fn lines(list: &Value) -> String {
    dash(&list.as_array().into_iter().flatten().map(word).collect::<Vec<_>>().join("\n"))
}

fn dash(text: &str) -> String {
    if text.is_empty() { "-".to_owned() } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn settings_are_shown_in_one_line() {
        let spec = json!({ "network": "front", "policies": ["a", "b"], "rules": [{}, {}] });
        assert_eq!(summary(&json!({ "spec": spec })), "network=front policies=a,b rules=2");
    }

    #[test]
    fn d_each_kind_has_its_columns() {
        let item = |kind: &str, name: &str, spec: Value| {
            let metadata = match kind {
                "Tenant" => json!({ "name": name }),
                _ => json!({ "name": name, "tenant": "blue" }),
            };
            json!({ "kind": kind, "metadata": metadata, "spec": spec })
        };
        let all = [
            item("Tenant", "blue", json!({ "nodes": "allow" })),
            item(
                "Network",
                "front",
                json!({ "subnets": ["10.3.0.0/16", "fd00:3::/64"], "masquerade": false }),
            ),
            item("Profile", "gold", json!({ "ingress": { "rate": 100_000_000, "burst": 1_000_000 } })),
            item("Group", "web", json!({ "network": "front", "policies": ["p1"], "profile": "gold" })),
            item("Policy", "p1", json!({ "rules": [{}, {}] })),
            item("Share", "dns", json!({ "group": "web", "with": ["red"], "ports": ["udp/53"] })),
        ];
        for (index, kind, expected) in [
            (0, ObjectKind::Tenant, "blue allow - 1 1 1"),
            (1, ObjectKind::Network, "blue front 10.3.0.0/16 - no web fd00:3::/64"),
            (2, ObjectKind::Profile, "blue gold 100 Mbit/s, burst 1 Mbit - - web"),
            (3, ObjectKind::Group, "blue web front - p1 gold"),
            (4, ObjectKind::Policy, "blue p1 2 web"),
            (5, ObjectKind::Share, "blue dns group web red udp/53"),
        ] {
            let shown = of_kind(kind, &all[index..=index], &all);
            let rows: Vec<&str> = shown.lines().skip(1).flat_map(str::split_whitespace).collect();
            assert_eq!(rows.join(" "), expected, "{shown}");
        }
    }

    #[test]
    fn d_a_problem_names_field_reason_and_the_version_in_force() {
        let object =
            api::ObjectName { kind: "Group".to_owned(), tenant: "blue".to_owned(), name: "web".to_owned() };
        let problem = ObjectProblem {
            object,
            field: Some("spec.pools[0]".to_owned()),
            reason: "is\nmissing".to_owned(),
            in_force: VersionInForce::LastValid,
        };
        assert_eq!(
            sentence(&problem),
            "group web of tenant blue: spec.pools[0]: is\\nmissing; the last valid version is in force"
        );
    }
}
