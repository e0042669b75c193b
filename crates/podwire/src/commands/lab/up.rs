//! `podwire lab up`.

use anyhow::{Context as _, Result, bail};
use lab::{Cluster, LabState, Plan, SavedLab, clear_saved, remove_saved};

use super::args::{LabUpArgs, StoreArg, TransportArg};
use super::directory::{self, CreateResult, LockedLab};
use super::hint;
use super::interrupt::{self, Completion};
use super::progress::{Progress, print_line};
use crate::exit::Usage;
use crate::print;

const MAX_PODS: usize = 1000;

pub(super) fn run(name: &str, args: &LabUpArgs) -> Result<()> {
    let plan = plan(args)?;
    plan.check_shape().map_err(|error| Usage(error.to_string()))?;
    plan.check()?;
    let pods = args.pods.checked_mul(args.nodes).filter(|pods| *pods <= MAX_PODS);
    pods.ok_or_else(|| {
        Usage(format!("a lab has up to {MAX_PODS} pods in all, not {} on each node", args.pods))
    })?;
    let held = create_directory(&directory::saved_lab(name)?)?;
    let progress = Progress::new();
    print_line(print::wrap(&format!("lab {name}: {}", title(&plan)), print::width()));
    let stop = || {
        print_line(format!("\ninterrupted; removing lab {name}"));
        // Without its namespaces the creation fails soon. An error is ignored here, because `remove_saved` below repeats it.
        let _ = clear_saved(&held.saved);
    };
    let created =
        interrupt::run_interruptible(|| create_cluster(&held.saved, &plan, args.pods, &progress), stop);
    let error = match created {
        Ok((Ok(()), Completion::Finished)) => {
            print_line(format!("Up in {:.1} s.\n", progress.seconds()));
            next_steps(name);
            return Ok(());
        }
        Ok((_, Completion::Interrupted)) => anyhow::anyhow!("interrupted"),
        Ok((Err(error), Completion::Finished)) | Err(error) => error,
    };
    progress.failed();
    let removed = remove_saved(&held.saved);
    directory::remove_if_empty();
    removed.with_context(|| {
        let down = hint::command(name, "down");
        format!(
            "cannot remove the incomplete lab, retry with '{down}'; the creation failed because: {error:#}"
        )
    })?;
    Err(error.context(format!("cannot create lab {name}; everything was removed")))
}

fn plan(args: &LabUpArgs) -> Result<Plan> {
    Ok(Plan {
        nodes: args.nodes,
        subnets: args.subnets,
        store: match (args.store, args.etcd_members) {
            (StoreArg::Etcd, members) => lab::LabStore::Etcd { members: members.unwrap_or(1) },
            (StoreArg::Embedded, None) => lab::LabStore::Embedded,
            (StoreArg::Embedded, Some(_)) => {
                bail!(Usage("--etcd-members needs --store etcd".to_owned()))
            }
        },
        transport: match args.transport {
            TransportArg::Auto => lab::TransportMode::Auto,
            TransportArg::Direct => lab::TransportMode::Direct,
            TransportArg::Vxlan => lab::TransportMode::Vxlan,
        },
        mtu: args.mtu,
        ..Plan::default()
    })
}

fn create_cluster(saved: &SavedLab, plan: &Plan, pods: usize, progress: &Progress) -> Result<()> {
    let cluster = Cluster::up_saved(saved, plan, &|step| progress.step(step))?;
    if pods > 0 {
        progress.step(&format!("pods: {} on each node", print::count(pods as u64, "pod")));
        cluster.pods_everywhere(pods)?;
    }
    progress.done();
    cluster.save(LabState::Up)
}

/// Creates and locks the directory. Remains of an interrupted creation or of an earlier boot are removed first.
fn create_directory(saved: &SavedLab) -> Result<LockedLab> {
    // The directory is created before the first namespace, so namespaces without a directory are orphaned.
    let in_kernel = SavedLab::names_in_kernel()?.iter().any(|name| name == saved.name());
    if in_kernel && !saved.dir().exists() {
        print_line(format!("lab {}: removing orphaned namespaces first", saved.name()));
        remove_saved(saved)?;
    }
    if let CreateResult::Created(held) = directory::create(saved)? {
        return Ok(held);
    }
    let name = saved.name().to_owned();
    if let Some(held) = directory::lock(saved)? {
        match held.saved.condition() {
            Ok(LabState::Up) => bail!(
                "lab {name} is already up; show it with '{}', remove it with '{}', or create another one with --name NAME",
                hint::command(&name, "status"),
                hint::command(&name, "down")
            ),
            // This process has the lock, so the command that created the lab has ended. Without a state file it had just started.
            Ok(LabState::Unfinished | LabState::Stale) | Err(_) => {
                print_line(format!("lab {name}: removing an incomplete lab first"));
                remove_saved(&held.saved)?;
            }
        }
    }
    match directory::create(saved)? {
        CreateResult::Created(held) => Ok(held),
        CreateResult::Exists => bail!("another command is creating lab {name}"),
    }
}

/// `3 nodes in 2 subnets, etcd with 1 member`.
pub(super) fn title(plan: &Plan) -> String {
    let store = match plan.store {
        lab::LabStore::Etcd { members } => format!("etcd with {}", print::count(members as u64, "member")),
        lab::LabStore::Embedded => "embedded store".to_owned(),
        lab::LabStore::Alone => "no store".to_owned(),
    };
    let nodes = print::count(plan.nodes as u64, "node");
    format!("{nodes} in {}, {store}", print::count(plan.subnets as u64, "subnet"))
}

fn next_steps(name: &str) {
    for (command, meaning) in [
        ("test", "all paths between pods, IPv4 and IPv6"),
        ("status", "nodes, agents, etcd, pods"),
        ("exec n1 podwire status", "any command in a node or a pod"),
        ("cut n1", "disconnect a node; 'heal n1' connects it"),
        ("down", "remove the lab"),
    ] {
        let command = hint::command(name, &format!("{command:<28}"));
        // The meaning is on the next line if both do not fit on one line.
        let line = format!("  {command}{meaning}");
        let fits = line.chars().count() <= print::width();
        print_line(if fits { line } else { format!("  {}\n      {meaning}", command.trim_end()) });
    }
}
