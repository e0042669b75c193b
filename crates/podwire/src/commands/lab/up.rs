//! `podwire lab up`.

use anyhow::{Context as _, Result, bail};
use testkit::{Cluster, Condition, Kept, Plan, remove_kept};

use super::args::{Store, Transport, Up};
use super::place::{self, Held, Made};
use super::progress::{Progress, say};
use crate::print;

const MAX_PODS: usize = 1000;

pub(super) fn run(name: &str, args: &Up) -> Result<()> {
    let plan = plan(args)?;
    plan.check()?;
    let held = make(&place::kept(name)?)?;
    let progress = Progress::new();
    say(format!("lab {name}: {}", title(&plan)));
    match raise(&held.kept, &plan, args.pods, &progress) {
        Ok(()) => {
            say(format!("Up in {:.1} s.\n", progress.seconds()));
            next_steps(name);
            Ok(())
        }
        Err(error) => {
            progress.failed();
            let removed = remove_kept(&held.kept);
            place::tidy();
            removed.with_context(|| format!("and what was made could not be removed, after: {error:#}"))?;
            Err(error.context(format!("lab {name} could not be made, and nothing of it is left")))
        }
    }
}

fn plan(args: &Up) -> Result<Plan> {
    let pods = args.pods.checked_mul(args.nodes).filter(|pods| *pods <= MAX_PODS);
    pods.with_context(|| format!("a lab has up to {MAX_PODS} pods in all, not {} on each node", args.pods))?;
    Ok(Plan {
        nodes: args.nodes,
        subnets: args.subnets,
        store: match args.store {
            Store::Etcd => testkit::Store::Etcd { members: args.etcd_members },
            Store::Embedded => testkit::Store::Embedded,
        },
        transport: match args.transport {
            Transport::Auto => testkit::Transport::Auto,
            Transport::Direct => testkit::Transport::Direct,
            Transport::Vxlan => testkit::Transport::Vxlan,
        },
        mtu: args.mtu,
        ..Plan::default()
    })
}

fn raise(kept: &Kept, plan: &Plan, pods: usize, progress: &Progress) -> Result<()> {
    let cluster = Cluster::up_kept(kept, plan, &|step| progress.step(step))?;
    if pods > 0 {
        progress.step(&format!("pods: {} on each node", print::count(pods as u64, "pod")));
        cluster.pods_everywhere(pods)?;
    }
    progress.done();
    cluster.save(Condition::Up)
}

/// The folder, and the lock in it. What an earlier attempt or an earlier boot left is no lab, and goes.
fn make(kept: &Kept) -> Result<Held> {
    // A lab's folder is made before its first namespace: without it they belong to nobody.
    let in_kernel = Kept::names_in_kernel()?.iter().any(|name| name == kept.name());
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
            Ok(Condition::Up) => bail!(
                "lab {name} is up already: see `podwire lab status`, remove it with `podwire lab down`, or make another \
                 with --name NAME"
            ),
            // With the lock held, whoever began it is gone; without a file, it hardly began.
            Ok(Condition::Unfinished | Condition::Stale) | Err(_) => {
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
        testkit::Store::Etcd { members } => format!("etcd with {}", print::count(members as u64, "member")),
        testkit::Store::Embedded => "embedded store".to_owned(),
        testkit::Store::Alone => "no store".to_owned(),
    };
    let nodes = print::count(plan.nodes as u64, "node");
    format!("{nodes} in {}, {store}", print::count(plan.subnets as u64, "subnet"))
}

fn next_steps(name: &str) {
    let more = if name == "default" { String::new() } else { format!(" --name {name}") };
    for (command, meaning) in [
        ("test", "every pod to every pod, both families"),
        ("status", "nodes, agents, etcd, pods"),
        ("exec n1 -- podwire status", "any command inside a node or a pod"),
        ("cut n1", "a partition; `heal n1` ends it"),
        ("down", "remove it all"),
    ] {
        say(format!("  podwire lab{more} {command:<28}{meaning}"));
    }
}
