//! Commands about tenants, networks, groups, policies, profiles and shares. Each one becomes documents for the agent, which checks
//! and writes them, or shows what the agent answers.

mod inspect;
mod list;

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use api::{ObjectAction, ObjectChange, ObjectDocument, ObjectName, ObjectStep, ObjectSteps, RuleChange};
use model::{Document, ObjectId, ObjectKind, described};
use serde_json::{Value, json};

use super::nodes::AgentClient;
use crate::cli::objects::create::{AddRuleArgs, CreateArgs, RemoveRulesArgs, RuleCommand};
use crate::cli::objects::{
    ApplyArgs, ChangeArgs, DeleteArgs, DocumentOutput, KindVerb, ObjectCommand, PolicyCommand,
};
use crate::exit::ExitStatus;
use crate::print;
pub(super) use inspect::rule_table;

/// Files of a directory with another extension are ignored.
const EXTENSIONS: [&str; 3] = ["yaml", "yml", "json"];

pub(crate) fn run(command: &ObjectCommand) -> Result<ExitStatus> {
    match command {
        ObjectCommand::Apply(args) => apply(args),
        ObjectCommand::Get(args) => list::get(args),
        ObjectCommand::Delete(args) => delete(args),
        ObjectCommand::Tenant(command) => run_verb(ObjectKind::Tenant, &command.verb()),
        ObjectCommand::Network(command) => run_verb(ObjectKind::Network, &command.verb()),
        ObjectCommand::Group(command) => run_verb(ObjectKind::Group, &command.verb()),
        ObjectCommand::Policy(PolicyCommand::Object(command)) => {
            run_verb(ObjectKind::Policy, &command.verb())
        }
        ObjectCommand::Policy(PolicyCommand::Rule(command)) => run_rule(command),
        ObjectCommand::Policy(PolicyCommand::Test(args)) => super::policy::test(args),
        ObjectCommand::Profile(command) => run_verb(ObjectKind::Profile, &command.verb()),
        ObjectCommand::Share(command) => run_verb(ObjectKind::Share, &command.verb()),
    }
}

fn run_verb(kind: ObjectKind, verb: &KindVerb<'_>) -> Result<ExitStatus> {
    let id = |tenant: Option<&str>, name: &str| ObjectId::parse(kind, tenant.unwrap_or(name), name);
    match verb {
        KindVerb::Create(args) => create(kind, *args),
        KindVerb::List { tenant, show } => list::list(Some(kind), *tenant, show),
        KindVerb::Inspect { tenant, name, show } => inspect::inspect(&id(*tenant, name)?, show),
        KindVerb::Remove { tenant, names, change } => {
            let ids = names.iter().map(|name| Ok(object_name(&id(*tenant, name)?)));
            let remove = ids.collect::<Result<_>>()?;
            submit(ObjectChange { remove, ..ObjectChange::default() }, change)
        }
    }
}

fn create(kind: ObjectKind, args: &dyn CreateArgs) -> Result<ExitStatus> {
    let mut metadata = json!({ "name": args.name() });
    if let Some(tenant) = args.tenant() {
        metadata["tenant"] = tenant.into();
    }
    let body = json!({
        "apiVersion": model::API_VERSION, "kind": kind.title(), "metadata": metadata, "spec": args.spec(),
    });
    let create = vec![ObjectDocument { origin: String::new(), body }];
    submit(ObjectChange { create, ..ObjectChange::default() }, args.change())
}

fn run_rule(command: &RuleCommand) -> Result<ExitStatus> {
    match command {
        RuleCommand::Add(args) => add_rule(args),
        RuleCommand::Rm(args) => remove_rules(args),
        RuleCommand::Ls(args) => inspect::rules(
            &ObjectId::parse(ObjectKind::Policy, &args.tenant.tenant, &args.policy)?,
            &args.show,
        ),
    }
}

fn add_rule(args: &AddRuleArgs) -> Result<ExitStatus> {
    let (tenant, policy) = (args.tenant.tenant.clone(), args.policy.clone());
    let rules = vec![RuleChange { tenant, policy, add: vec![args.rule()], remove: Vec::new() }];
    let done = post(ObjectChange { rules, ..ObjectChange::default() }, &args.change)?;
    let verb = if done.dry_run { "would be added" } else { "added" };
    let line = |step: &ObjectStep| {
        let ids: Vec<String> = step.new_rules.iter().map(u32::to_string).collect();
        format!("rule {} of policy {}{} {verb}", ids.join(", "), step.object.name, owner(&step.object))
    };
    show(&done, &args.change, &done.steps.iter().map(line).collect::<Vec<_>>())
}

fn remove_rules(args: &RemoveRulesArgs) -> Result<ExitStatus> {
    let (tenant, policy) = (&args.tenant.tenant, &args.policy);
    let remove = args.rules.clone();
    let rules = vec![RuleChange { tenant: tenant.clone(), policy: policy.clone(), add: Vec::new(), remove }];
    let done = post(ObjectChange { rules, ..ObjectChange::default() }, &args.change)?;
    let verb = if done.dry_run { "would be deleted" } else { "deleted" };
    let line = |id: &u32| format!("rule {id} of policy {policy} of tenant {tenant} {verb}");
    show(&done, &args.change, &args.rules.iter().map(line).collect::<Vec<_>>())
}

fn apply(args: &ApplyArgs) -> Result<ExitStatus> {
    let apply =
        documents(&args.files)?.into_iter().map(|Document { origin, body }| ObjectDocument { origin, body });
    submit(ObjectChange { apply: apply.collect(), ..ObjectChange::default() }, &args.change)
}

fn delete(args: &DeleteArgs) -> Result<ExitStatus> {
    let remove = match (args.kind, &args.name) {
        (Some(kind), Some(name)) => vec![object_name(&ObjectId::parse(kind, &args.tenant, name)?)],
        (_, _) => documents(&args.files)?.iter().map(named).collect::<Result<_>>()?,
    };
    submit(ObjectChange { remove, ..ObjectChange::default() }, &args.change)
}

/// Sends a change and shows its steps.
fn submit(change: ObjectChange, args: &ChangeArgs) -> Result<ExitStatus> {
    let done = post(change, args)?;
    show(&done, args, &steps(&done))
}

fn post(change: ObjectChange, args: &ChangeArgs) -> Result<ObjectSteps> {
    let change = ObjectChange { dry_run: args.dry_run, ..change };
    AgentClient::find(&args.agent).post(api::OBJECTS, &change)
}

/// `lines` are those of the table output.
fn show(done: &ObjectSteps, args: &ChangeArgs, lines: &[String]) -> Result<ExitStatus> {
    match args.output {
        DocumentOutput::Json => print::json(done)?,
        DocumentOutput::Yaml => yaml(&[serde_json::to_value(done)?])?,
        DocumentOutput::Table => {
            let fitted =
                |line: &String| print::hanging(&print::wrap(&print::one_line(line), print::width() - 2), 2);
            print::line(lines.iter().map(fitted).collect::<Vec<_>>().join("\n"))?;
        }
    }
    Ok(ExitStatus::Success)
}

pub(super) fn path(root: &str, id: &ObjectId) -> String {
    let (kind, name) = (id.kind().plural(), id.name());
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

/// The documents of files, of all files in directories, and of standard input.
fn documents(paths: &[PathBuf]) -> Result<Vec<Document>> {
    let mut all = Vec::new();
    for path in paths {
        if path.as_os_str() == "-" {
            let mut bytes = Vec::new();
            std::io::stdin().read_to_end(&mut bytes).context("cannot read standard input")?;
            all.extend(documents::parse("standard input", &bytes)?);
            continue;
        }
        for file in if path.is_dir() { files_of(path)? } else { vec![path.clone()] } {
            let name = file.display().to_string();
            let bytes = fs::read(&file).with_context(|| format!("cannot read {name}"))?;
            all.extend(documents::parse(&name, &bytes)?);
        }
    }
    Ok(all)
}

/// The files of a directory that may have documents, by name. Its directories are left out.
fn files_of(dir: &Path) -> Result<Vec<PathBuf>> {
    let context = || format!("cannot read {}", dir.display());
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).with_context(context)? {
        let path = entry.with_context(context)?.path();
        let has_documents =
            path.extension().is_some_and(|end| EXTENSIONS.iter().any(|extension| end == *extension));
        if has_documents && path.is_file() {
            files.push(path);
        }
    }
    if files.is_empty() {
        bail!("{} has no file that ends with .yaml, .yml or .json", dir.display());
    }
    files.sort();
    Ok(files)
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
fn steps(done: &ObjectSteps) -> Vec<String> {
    let line = |step: &ObjectStep| {
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
        let ObjectName { kind, name, .. } = &step.object;
        format!("{} {name}{} {action}", kind.to_lowercase(), owner(&step.object))
    };
    done.steps.iter().map(line).collect()
}

/// ` of tenant blue`. Empty for a tenant.
fn owner(object: &ObjectName) -> String {
    if object.tenant.is_empty() { String::new() } else { format!(" of tenant {}", object.tenant) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_shown_in_one_line_each() {
        let step = |action, kind: &str, tenant: &str| ObjectStep {
            action,
            new_rules: Vec::new(),
            object: ObjectName { kind: kind.to_owned(), tenant: tenant.to_owned(), name: "web".to_owned() },
        };
        let done = |dry_run| {
            let all =
                vec![step(ObjectAction::Create, "Tenant", ""), step(ObjectAction::Keep, "Group", "blue")];
            steps(&ObjectSteps { steps: all, dry_run })
        };
        assert_eq!(done(false), ["tenant web created", "group web of tenant blue unchanged"]);
        assert_eq!(done(true), ["tenant web would be created", "group web of tenant blue unchanged"]);
    }
}
