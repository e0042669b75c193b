//! `podwire lab`: many nodes on this machine, to see and to try. All of it is inside network namespaces of its own; the
//! machine's links, firewall and containers are not touched. The work is done by `lab::Cluster`; here is what a person
//! sees of it.

mod args;
mod change;
mod down;
mod exec;
mod fixes;
mod hint;
mod interrupt;
mod ls;
mod picture;
mod place;
mod progress;
mod show;
mod up;

use anyhow::Result;
use lab::{Cluster, LabState};

pub(crate) use args::LabArgs;
use args::LabCommand;
pub(crate) use fixes::adapt_fixes;

use crate::exit::ExitStatus;

pub(crate) fn run(lab: &LabArgs) -> Result<ExitStatus> {
    let name = lab.name.as_str();
    let done = match &lab.action {
        LabCommand::Up(args) => up::run(name, args),
        LabCommand::Ls(args) => ls::run(args),
        LabCommand::Status(args) => return show::status(name, args),
        LabCommand::Test(args) => return show::test(name, args),
        LabCommand::Exec(args) => return exec::run(name, args),
        LabCommand::Pod(action) => change::pod(name, action),
        LabCommand::Cut(args) => change::cut(name, args),
        LabCommand::Heal(args) => change::heal(name, args),
        LabCommand::Kill(victim) => change::kill(name, victim),
        LabCommand::Start(victim) => change::start(name, victim),
        LabCommand::Restart(what) => change::restart(name, what),
        LabCommand::Logs(args) => show::logs(name, args),
        LabCommand::Down(args) => down::run(name, args),
    };
    done.map(|()| ExitStatus::Success)
}

/// Does something to a lab that is up, and remembers it, also when it failed halfway.
fn changed<T>(name: &str, change: impl FnOnce(&mut Cluster) -> Result<T>) -> Result<T> {
    let held = place::existing(name)?;
    let mut cluster = open(&held)?;
    let result = change(&mut cluster);
    cluster.save(LabState::Up)?;
    result
}

/// A look at a lab as it is now; others may change it meanwhile.
fn seen(name: &str) -> Result<Cluster> {
    let held = place::existing(name)?;
    open(&held)
}

fn open(held: &place::LockedLab) -> Result<Cluster> {
    let name = held.kept.name();
    Cluster::open(&held.kept).map_err(|error| {
        let down = hint::command(name, "down");
        error.context(format!("lab {name} cannot be used; `{down}` removes what is left of it"))
    })
}
