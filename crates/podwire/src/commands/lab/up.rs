//! `podwire lab up`.

use anyhow::{Context as _, Result, bail};
use lab::{Cluster, LabState, Plan, SavedLab, clear_kept, remove_kept};

use super::args::{StoreArg, TransportArg, Up};
use super::hint;
use super::interrupt::{self, Course};
use super::place::{self, LockedLab, Made};
use super::progress::{Progress, say};
use crate::exit::Usage;
use crate::print;

const MAX_PODS: usize = 1000;

pub(super) fn run(name: &str, args: &Up) -> Result<()> {
    let plan = plan(args)?;
    plan.check_shape().map_err(|error| Usage(error.to_string()))?;
    plan.check()?;
    let pods = args.pods.checked_mul(args.nodes).filter(|pods| *pods <= MAX_PODS);
    pods.ok_or_else(|| {
        Usage(format!("a lab has up to {MAX_PODS} pods in all, not {} on each node", args.pods))
    })?;
    let held = make(&place::kept(name)?)?;
    let progress = Progress::new();
    say(print::wrap(&format!("lab {name}: {}", title(&plan)), print::width()));
    let stop = || {
        say(format!("\nlab {name} is being removed: that was an interrupt"));
        // Nothing that is being made can go on without it. What fails here is done, or told, by the removal of it all.
        let _ = clear_kept(&held.kept);
    };
    let raised = interrupt::guarded(|| raise(&held.kept, &plan, args.pods, &progress), stop);
    let error = match raised {
        Ok((Ok(()), Course::Undisturbed)) => {
            say(format!("Up in {:.1} s.\n", progress.seconds()));
            next_steps(name);
            return Ok(());
        }
        Ok((_, Course::Interrupted)) => anyhow::anyhow!("interrupted"),
        Ok((Err(error), Course::Undisturbed)) | Err(error) => error,
    };
    progress.failed();
    let removed = remove_kept(&held.kept);
    place::tidy();
    removed.with_context(|| {
        let down = hint::command(name, "down");
        format!("what was made could not be removed, `{down}` tries again, after: {error:#}")
    })?;
    Err(error.context(format!("lab {name} could not be made, and nothing of it is left")))
}

fn plan(args: &Up) -> Result<Plan> {
    Ok(Plan {
        nodes: args.nodes,
        subnets: args.subnets,
        store: match (args.store, args.etcd_members) {
            (StoreArg::Etcd, members) => lab::LabStore::Etcd { members: members.unwrap_or(1) },
            (StoreArg::Embedded, None) => lab::LabStore::Embedded,
            (StoreArg::Embedded, Some(_)) => {
                bail!(Usage("--etcd-members is for --store etcd: leave one of them out".to_owned()))
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

fn raise(kept: &SavedLab, plan: &Plan, pods: usize, progress: &Progress) -> Result<()> {
    let cluster = Cluster::up_kept(kept, plan, &|step| progress.step(step))?;
    if pods > 0 {
        progress.step(&format!("pods: {} on each node", print::count(pods as u64, "pod")));
        cluster.pods_everywhere(pods)?;
    }
    progress.done();
    cluster.save(LabState::Up)
}

/// The directory, and the lock in it. What an earlier attempt or an earlier boot left is no lab, and goes.
fn make(kept: &SavedLab) -> Result<LockedLab> {
    // A lab's directory is made before its first namespace: without it they belong to nobody.
    let in_kernel = SavedLab::names_in_kernel()?.iter().any(|name| name == kept.name());
    if in_kernel && !kept.dir().exists() {
        say(format!("lab {}: namespaces that an earlier one left are removed first", kept.name()));
        remove_kept(kept)?;
    }
    if let Made::New(held) = place::make(kept)? {
        return Ok(held);
    }
    let name = kept.name().to_owned();
    if let Some(held) = place::hold(kept)? {
        match held.kept.condition() {
            Ok(LabState::Up) => bail!(
                "lab {name} is up already: see `{}`, remove it with `{}`, or make another with --name NAME",
                hint::command(&name, "status"),
                hint::command(&name, "down")
            ),
            // With the lock held, whoever began it is gone; without a file, it hardly began.
            Ok(LabState::Unfinished | LabState::Stale) | Err(_) => {
                say(format!("lab {name}: what an earlier one left is removed first"));
                remove_kept(&held.kept)?;
            }
        }
    }
    match place::make(kept)? {
        Made::New(held) => Ok(held),
        Made::Exists => bail!("somebody else makes lab {name} right now"),
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
        ("test", "every pod to every pod, both families"),
        ("status", "nodes, agents, etcd, pods"),
        ("exec n1 podwire status", "any command in a node or a pod"),
        ("cut n1", "a partition; `heal n1` ends it"),
        ("down", "remove it all"),
    ] {
        let command = hint::command(name, &format!("{command:<28}"));
        // Below the command, if both do not fit on a line.
        let line = format!("  {command}{meaning}");
        let fits = line.chars().count() <= print::width();
        say(if fits { line } else { format!("  {}\n      {meaning}", command.trim_end()) });
    }
}
