//! Arguments of the commands for tenants, networks, groups, policies, profiles and shares.

pub(crate) mod create;
mod examples;

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use model::ObjectKind;

use super::{AgentSelector, PolicyTestArgs};
use create::{
    CreateArgs, CreateGroupArgs, CreateNetworkArgs, CreatePolicyArgs, CreateProfileArgs, CreateShareArgs,
    CreateTenantArgs, RuleCommand,
};

/// Commands about objects of the store.
#[derive(Debug, Subcommand)]
pub(crate) enum ObjectCommand {
    /// Create or update tenants, networks, groups and policies
    ///
    /// The kinds are tenant, network, group, policy, profile and share. Of a directory, all files that end with .yaml, .yml or
    /// .json are read.
    ///
    /// All documents are checked together before the first change.
    #[command(after_long_help = examples::APPLY)]
    Apply(ApplyArgs),
    /// Show tenants, networks, groups, policies and shares
    ///
    /// Exit codes: 0, or 1 if a shown object is invalid.
    #[command(after_long_help = examples::GET)]
    Get(GetArgs),
    /// Delete tenants, networks, groups and policies
    ///
    /// An object that a pod or another object needs is not deleted.
    #[command(after_long_help = examples::DELETE)]
    Delete(DeleteArgs),
    /// Manage tenants, which own networks, groups and pods
    #[command(subcommand, after_long_help = examples::TENANT.all)]
    Tenant(TenantCommand),
    /// Manage networks, which have the addresses of pods
    #[command(subcommand, after_long_help = examples::NETWORK.all)]
    Network(NetworkCommand),
    /// Manage groups, which bind pods to policies
    #[command(subcommand, after_long_help = examples::GROUP.all)]
    Group(GroupCommand),
    /// Manage policies and their rules, and test policies
    #[command(subcommand, after_long_help = examples::POLICY.all)]
    Policy(PolicyCommand),
    /// Manage profiles: bandwidth and DSCP of groups
    #[command(subcommand, after_long_help = examples::PROFILE.all)]
    Profile(ProfileCommand),
    /// Manage shares, which open pods to other tenants
    #[command(subcommand, after_long_help = examples::SHARE.all)]
    Share(ShareCommand),
}

impl ObjectCommand {
    pub(crate) fn needs_root(&self) -> bool {
        !matches!(self, Self::Policy(PolicyCommand::Test(_)))
    }
}

/// A command of one kind.
pub(crate) enum KindVerb<'a> {
    Create(&'a dyn CreateArgs),
    List { tenant: Option<&'a str>, show: &'a ShowArgs },
    Inspect { tenant: Option<&'a str>, name: &'a str, show: &'a ShowArgs },
    Remove { tenant: Option<&'a str>, names: &'a [String], change: &'a ChangeArgs },
}

/// The commands that all kinds have. `$owner` and `$filter` are the arguments that select a tenant.
macro_rules! kind_commands {
    ($command:ident, $one:literal, $many:literal, $create:ty, ($owner:ty, $filter:ty), $examples:expr) => {
        #[derive(Debug, Subcommand)]
        pub(crate) enum $command {
            #[command(
                about = concat!("Create a ", $one),
                long_about = concat!("Create a ", $one, "\n\nThe command fails if it exists: 'podwire apply' changes it."),
                after_long_help = $examples.create
            )]
            Create($create),
            #[command(
                about = concat!("List ", $many),
                long_about = concat!("List ", $many, "\n\nExit codes: 0, or 1 if one of them is invalid."),
                after_long_help = $examples.ls
            )]
            Ls(ListArgs<$filter>),
            #[command(
                about = concat!("Show a ", $one, ", its users and its pods"),
                long_about = concat!(
                    "Show a ", $one, ", its users and its pods\n\nExit codes: 0, or 1 if it is invalid."
                ),
                after_long_help = $examples.inspect
            )]
            Inspect(NameArgs<$owner>),
            #[command(
                about = concat!("Remove ", $many),
                long_about = concat!("Remove ", $many, "\n\nAn object that a pod or another object needs is not removed."),
                after_long_help = $examples.rm
            )]
            Rm(NamesArgs<$owner>),
        }

        impl $command {
            pub(crate) fn verb(&self) -> KindVerb<'_> {
                match self {
                    Self::Create(args) => KindVerb::Create(args),
                    Self::Ls(args) => KindVerb::List { tenant: args.tenant.tenant(), show: &args.show },
                    Self::Inspect(args) => {
                        KindVerb::Inspect { tenant: args.tenant.tenant(), name: &args.name, show: &args.show }
                    }
                    Self::Rm(args) => {
                        KindVerb::Remove { tenant: args.tenant.tenant(), names: &args.names, change: &args.change }
                    }
                }
            }
        }
    };
}

kind_commands!(
    TenantCommand,
    "tenant",
    "tenants",
    CreateTenantArgs,
    (NoTenantArg, NoTenantArg),
    examples::TENANT
);
kind_commands!(
    NetworkCommand,
    "network",
    "networks",
    CreateNetworkArgs,
    (TenantArg, TenantFilter),
    examples::NETWORK
);
kind_commands!(GroupCommand, "group", "groups", CreateGroupArgs, (TenantArg, TenantFilter), examples::GROUP);
kind_commands!(
    PolicyObjectCommand,
    "policy",
    "policies",
    CreatePolicyArgs,
    (TenantArg, TenantFilter),
    examples::POLICY
);
kind_commands!(
    ProfileCommand,
    "profile",
    "profiles",
    CreateProfileArgs,
    (TenantArg, TenantFilter),
    examples::PROFILE
);
kind_commands!(ShareCommand, "share", "shares", CreateShareArgs, (TenantArg, TenantFilter), examples::SHARE);

#[derive(Debug, Subcommand)]
pub(crate) enum PolicyCommand {
    #[command(flatten)]
    Object(PolicyObjectCommand),
    /// Add, remove and list the rules of a policy
    #[command(subcommand, after_long_help = examples::RULE)]
    Rule(RuleCommand),
    /// Compare policies in files with expected verdicts
    ///
    /// Documents of kind PolicyTest have the expected verdicts. The other documents are read as by 'podwire explain'.
    ///
    /// Exit codes: 0 if all verdicts are as expected, 1 if one is not.
    #[command(after_long_help = examples::POLICY_TEST)]
    Test(PolicyTestArgs),
}

/// Arguments that select a tenant.
pub(crate) trait TenantChoice {
    /// None: the kind has no tenant, or all tenants.
    fn tenant(&self) -> Option<&str>;
}

#[derive(Debug, Args)]
pub(crate) struct NoTenantArg {}

impl TenantChoice for NoTenantArg {
    fn tenant(&self) -> Option<&str> {
        None
    }
}

#[derive(Debug, Args)]
pub(crate) struct TenantArg {
    /// Tenant of the object
    #[arg(short, long, default_value = types::DEFAULT_TENANT)]
    pub(crate) tenant: String,
}

impl TenantChoice for TenantArg {
    fn tenant(&self) -> Option<&str> {
        Some(&self.tenant)
    }
}

#[derive(Debug, Args)]
pub(crate) struct TenantFilter {
    /// Tenant of the objects [default: all tenants]
    #[arg(short, long)]
    tenant: Option<String>,
}

impl TenantChoice for TenantFilter {
    fn tenant(&self) -> Option<&str> {
        self.tenant.as_deref()
    }
}

#[derive(Debug, Args)]
pub(crate) struct NameArgs<T: Args> {
    /// Name of the object
    name: String,
    #[command(flatten)]
    tenant: T,
    #[command(flatten)]
    show: ShowArgs,
}

#[derive(Debug, Args)]
pub(crate) struct NamesArgs<T: Args> {
    /// Names of objects
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    #[command(flatten)]
    tenant: T,
    #[command(flatten)]
    change: ChangeArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ListArgs<T: Args> {
    #[command(flatten)]
    tenant: T,
    #[command(flatten)]
    show: ShowArgs,
}

/// Common to all queries.
#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// Output format
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: DocumentOutput,
    #[command(flatten)]
    pub(crate) agent: AgentSelector,
}

#[derive(Debug, Args)]
pub(crate) struct ApplyArgs {
    /// File or directory with YAML or JSON, or `-` for standard input; can be repeated
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
    #[command(flatten)]
    pub(crate) show: ShowArgs,
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
    /// File or directory with the objects to delete, or `-` for standard input; can be repeated
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
