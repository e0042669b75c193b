//! `podwire lab down`.

use anyhow::Result;
use lab::{RemovedLab, SavedLab, remove_kept};

use super::args::Down;
use super::place;
use super::progress::say;
use crate::print;

pub(super) fn run(name: &str, args: &Down) -> Result<()> {
    let names = if args.all { place::all()? } else { vec![name.to_owned()] };
    if names.is_empty() {
        say("there is no lab");
    }
    let mut first_error = None;
    for name in names {
        match place::kept(&name).and_then(|kept| remove(&kept)) {
            Ok(Some(removed)) => say(print::wrap(&told(&name, removed), print::width())),
            Ok(None) => say(format!("there is no lab {name}")),
            Err(error) => first_error = Some(first_error.unwrap_or(error)),
        }
    }
    place::tidy();
    first_error.map_or(Ok(()), Err)
}

fn told(name: &str, removed: RemovedLab) -> String {
    let processes = |count: usize| format!("{count} process{}", if count == 1 { "" } else { "es" });
    // Agents and etcd do not end by themselves: whoever looks for a fault wants to know.
    let before = match removed.ended {
        0 => String::new(),
        ended => format!(" ({} had ended before)", processes(ended)),
    };
    let namespaces = print::count(removed.namespaces as u64, "namespace");
    format!("lab {name} is removed: {}{before}, {namespaces}", processes(removed.processes))
}

/// None: there is neither a directory nor a namespace of it.
fn remove(kept: &SavedLab) -> Result<Option<RemovedLab>> {
    // A directory that is gone has no lock; what is left in the kernel goes all the same.
    let held = place::hold(kept)?;
    let removed = remove_kept(kept)?;
    Ok((held.is_some() || !removed.nothing()).then_some(removed))
}
