//! Arguments of the commands for tenants, networks, groups, policies, profiles and shares.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use model::ObjectKind;

use super::AgentSelector;

#[derive(Debug, Args)]
pub(crate) struct ApplyArgs {
    /// File with documents in YAML or JSON, or `-` for standard input; can be repeated
    #[arg(short, long = "file", value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) change: ChangeArgs,
}

#[derive(Debug, Args)]
pub(crate) struct GetArgs {
    /// Kind of the objects [default: all kinds]
    #[arg(value_name = "KIND", value_parser = kind)]
    pub(crate) kind: Option<ObjectKind>,
    /// Name of one object
    pub(crate) name: Option<String>,
    /// Tenant of the objects [default: all tenants; for one object: default]
    #[arg(short, long)]
    pub(crate) tenant: Option<String>,
    /// Output format
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: DocumentOutput,
    #[command(flatten)]
    pub(crate) agent: AgentSelector,
}

#[derive(Debug, Args)]
pub(crate) struct DeleteArgs {
    /// Kind of the object
    #[arg(value_name = "KIND", value_parser = kind, requires = "name", required_unless_present = "files")]
    pub(crate) kind: Option<ObjectKind>,
    /// Name of the object
    pub(crate) name: Option<String>,
    /// Tenant of the object
    #[arg(short, long, default_value = types::DEFAULT_TENANT)]
    pub(crate) tenant: String,
    /// File with documents of the objects to delete, or `-` for standard input; can be repeated
    #[arg(short, long = "file", value_name = "FILE", conflicts_with = "kind")]
    pub(crate) files: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) change: ChangeArgs,
}

/// Common to all changes.
#[derive(Debug, Args)]
pub(crate) struct ChangeArgs {
    /// Check the change and show its steps, but change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Output format
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: DocumentOutput,
    #[command(flatten)]
    pub(crate) agent: AgentSelector,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DocumentOutput {
    /// One line per object
    Table,
    /// Documents that `podwire apply` reads
    Yaml,
    /// JSON
    Json,
}

/// `tenant` or `tenants`, in any case.
fn kind(word: &str) -> Result<ObjectKind, String> {
    let lower = word.to_ascii_lowercase();
    ObjectKind::ALL
        .into_iter()
        .find(|kind| [kind.as_str(), kind.plural()].contains(&lower.as_str()))
        .ok_or_else(|| format!("the kinds are {}", ObjectKind::ALL.map(ObjectKind::plural).join(", ")))
}
