//! `podwire lab`: a cluster in network namespaces of this host. Links, firewall and containers of the host are not changed.
//! `lab::Cluster` does the work; this module has the command line and the output.

mod args;
mod change;
mod directory;
mod down;
mod exec;
mod fixes;
mod hint;
mod interrupt;
mod ls;
mod matrix_view;
mod problems;
mod progress;
mod show;
mod up;

use anyhow::Result;
use lab::{Cluster, LabState};

pub(crate) use args::LabArgs;
use args::LabCommand;
pub(crate) use fixes::{FixableCondition, adapt_fixes, adapt_message, is_lab_node};
pub(crate) use ls::{labs_up, status_command};

use crate::exit::ExitStatus;

pub(crate) fn run(lab: &LabArgs) -> Result<ExitStatus> {
    let name = lab.name.as_str();
    let done = match &lab.command {
        LabCommand::Up(args) => up::run(name, args),
        LabCommand::Ls(args) => ls::run(args),
        LabCommand::Status(args) => return show::status(name, args),
        LabCommand::Test(args) => return show::test(name, args),
        LabCommand::Exec(args) => return exec::run(name, args),
        LabCommand::Pod(command) => change::pod(name, command),
        LabCommand::Cut(args) => change::cut(name, args),
        LabCommand::Heal(args) => change::heal(name, args),
        LabCommand::Kill(target) => change::kill(name, target),
        LabCommand::Start(target) => change::start(name, target),
        LabCommand::Restart(target) => change::restart(name, target),
        LabCommand::Logs(args) => show::logs(name, args),
        LabCommand::Down(args) => down::run(name, args),
    };
    done.map(|()| ExitStatus::Success)
}

/// Changes a lab and saves its state, also after an error.
fn change_lab<T>(name: &str, change: impl FnOnce(&mut Cluster) -> Result<T>) -> Result<T> {
    let held = directory::lock_existing(name)?;
    let mut cluster = open(&held)?;
    let result = change(&mut cluster);
    cluster.save(LabState::Up)?;
    result
}

/// Opens a lab for reading. The lock is released, so another command may change the lab. A command that already changes it, for
/// example one that waits for an agent, is not awaited.
fn open_lab(name: &str) -> Result<Cluster> {
    let saved = directory::saved_lab(name)?;
    if directory::is_locked(&saved) && matches!(saved.condition(), Ok(LabState::Up)) {
        return unless_unusable(name, Cluster::read(&saved));
    }
    let held = directory::lock_existing(name)?;
    open(&held)
}

fn open(held: &directory::LockedLab) -> Result<Cluster> {
    unless_unusable(held.saved.name(), Cluster::open(&held.saved))
}

fn unless_unusable(name: &str, opened: Result<Cluster>) -> Result<Cluster> {
    opened.map_err(|error| {
        let down = hint::command(name, "down");
        error.context(format!("lab {name} cannot be used; remove it with '{down}'"))
    })
}
