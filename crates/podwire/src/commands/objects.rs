//! `podwire apply`, `get` and `delete`: tenants, networks, groups, policies, profiles and shares.

use std::io::Read as _;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use api::{ObjectAction, ObjectChange, ObjectDocument, ObjectList, ObjectName, ObjectSteps};
use model::{Document, ObjectId, ObjectKind, described};
use serde_json::Value;

use super::nodes::AgentClient;
use crate::cli::objects::{ApplyArgs, ChangeArgs, DeleteArgs, DocumentOutput, GetArgs};
use crate::print;

pub(crate) fn apply(args: &ApplyArgs) -> Result<()> {
    let apply =
        documents(&args.files)?.into_iter().map(|Document { origin, body }| ObjectDocument { origin, body });
    let change = ObjectChange { apply: apply.collect(), ..ObjectChange::default() };
    run(change, &args.change)
}

pub(crate) fn delete(args: &DeleteArgs) -> Result<()> {
    let remove = match (args.kind, &args.name) {
        (Some(kind), Some(name)) => vec![object_name(&ObjectId::parse(kind, &args.tenant, name)?)],
        (_, _) => documents(&args.files)?.iter().map(named).collect::<Result<_>>()?,
    };
    run(ObjectChange { remove, ..ObjectChange::default() }, &args.change)
}

fn run(change: ObjectChange, args: &ChangeArgs) -> Result<()> {
    let change = ObjectChange { dry_run: args.dry_run, ..change };
    let done: ObjectSteps = AgentClient::find(&args.agent).post(api::OBJECTS, &change)?;
    match args.output {
        DocumentOutput::Json => print::json(&done),
        DocumentOutput::Yaml => yaml(&[serde_json::to_value(&done)?]),
        DocumentOutput::Table => print::line(steps(&done)),
    }
}

pub(crate) fn get(args: &GetArgs) -> Result<()> {
    let client = AgentClient::find(&args.agent);
    let items = match (args.kind, &args.name) {
        (Some(kind), Some(name)) => {
            let tenant = args.tenant.as_deref().unwrap_or(types::DEFAULT_TENANT);
            vec![client.get(&path(&ObjectId::parse(kind, tenant, name)?))?]
        }
        (kind, _) => {
            let list: ObjectList = client.get(api::OBJECTS)?;
            let of_kind = |id: &ObjectId| kind.is_none_or(|kind| kind == id.kind());
            let of_tenant =
                |id: &ObjectId| args.tenant.as_ref().is_none_or(|tenant| tenant == id.tenant_name().as_str());
            let is_wanted = |item: &Value| described(item).is_some_and(|id| of_kind(&id) && of_tenant(&id));
            list.items.into_iter().filter(is_wanted).collect()
        }
    };
    match (args.output, args.name.is_some()) {
        (DocumentOutput::Json, true) => print::json(&items.first()),
        (DocumentOutput::Json, false) => print::json(&ObjectList { items }),
        (DocumentOutput::Yaml, _) => yaml(&items),
        (DocumentOutput::Table, _) => print::line(table(&items)),
    }
}

fn path(id: &ObjectId) -> String {
    let (root, kind, name) = (api::OBJECTS, id.kind().plural(), id.name());
    match id.kind() {
        ObjectKind::Tenant => format!("{root}/{kind}/{name}"),
        ObjectKind::Network
        | ObjectKind::Profile
        | ObjectKind::Group
        | ObjectKind::Policy
        | ObjectKind::Share => {
            format!("{root}/{kind}/{}/{name}", id.tenant_name())
        }
    }
}

fn documents(files: &[PathBuf]) -> Result<Vec<Document>> {
    let mut all = Vec::new();
    for file in files {
        let name = file.display().to_string();
        let mut bytes = Vec::new();
        if name == "-" {
            std::io::stdin().read_to_end(&mut bytes).context("cannot read standard input")?;
        } else {
            bytes = std::fs::read(file).with_context(|| format!("cannot read {name}"))?;
        }
        all.extend(documents::parse(if name == "-" { "standard input" } else { &name }, &bytes)?);
    }
    Ok(all)
}

fn named(document: &Document) -> Result<ObjectName> {
    match described(&document.body) {
        Some(id) => Ok(object_name(&id)),
        None => bail!("{}: the document has no kind or no valid name", document.origin),
    }
}

fn object_name(id: &ObjectId) -> ObjectName {
    let tenant = if id.kind() == ObjectKind::Tenant { String::new() } else { id.tenant_name().to_string() };
    ObjectName { kind: id.kind().title().to_owned(), tenant, name: id.name().to_owned() }
}

fn yaml(documents: &[Value]) -> Result<()> {
    print::text(&documents::to_yaml(documents).map_err(anyhow::Error::msg)?)
}

/// One line per step: `group web of tenant blue created`.
fn steps(done: &ObjectSteps) -> String {
    let line = |step: &api::ObjectStep| {
        let ObjectName { kind, tenant, name } = &step.object;
        let owner = if tenant.is_empty() { String::new() } else { format!(" of tenant {tenant}") };
        let action = match (step.action, done.dry_run) {
            (ObjectAction::Create, false) => "created",
            (ObjectAction::Create, true) => "would be created",
            (ObjectAction::Update, false) => "updated",
            (ObjectAction::Update, true) => "would be updated",
            (ObjectAction::Remove, false) => "deleted",
            (ObjectAction::Remove, true) => "would be deleted",
            (ObjectAction::Keep, _) => "unchanged",
            (ObjectAction::Unknown, _) => "processed",
        };
        let text = print::one_line(&format!("{} {name}{owner} {action}", kind.to_lowercase()));
        print::hanging(&print::wrap(&text, print::width() - 2), 2)
    };
    done.steps.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn table(items: &[Value]) -> String {
    if items.is_empty() {
        return "no objects".to_owned();
    }
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
        Value::String(text) => text.clone(),
        Value::Array(list) if list.iter().all(Value::is_string) => {
            list.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(",")
        }
        Value::Array(list) => list.len().to_string(),
        other => other.to_string(),
    };
    spec.iter().map(|(name, field)| format!("{name}={}", value(field))).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn steps_and_settings_are_shown_in_one_line_each() {
        let step = |action, kind: &str, tenant: &str| api::ObjectStep {
            action,
            object: ObjectName { kind: kind.to_owned(), tenant: tenant.to_owned(), name: "web".to_owned() },
        };
        let done = |dry_run| {
            let all =
                vec![step(ObjectAction::Create, "Tenant", ""), step(ObjectAction::Keep, "Group", "blue")];
            steps(&ObjectSteps { steps: all, dry_run })
        };
        assert_eq!(done(false), "tenant web created\ngroup web of tenant blue unchanged");
        assert_eq!(done(true), "tenant web would be created\ngroup web of tenant blue unchanged");
        let spec = json!({ "network": "front", "policies": ["a", "b"], "rules": [{}, {}] });
        assert_eq!(summary(&json!({ "spec": spec })), "network=front policies=a,b rules=2");
    }
}
