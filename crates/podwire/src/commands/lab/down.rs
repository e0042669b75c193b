//! `podwire lab down`.

use anyhow::Result;
use lab::{RemovedLab, SavedLab, remove_saved};

use super::args::LabDownArgs;
use super::directory;
use super::progress::print_line;
use crate::print;

pub(super) fn run(name: &str, args: &LabDownArgs) -> Result<()> {
    let names = if args.all { directory::lab_names()? } else { vec![name.to_owned()] };
    if names.is_empty() {
        print_line("there is no lab");
    }
    let mut first_error = None;
    for name in names {
        match directory::saved_lab(&name).and_then(|saved| remove(&saved)) {
            Ok(Some(removed)) => print_line(print::wrap(&summary(&name, removed), print::width())),
            Ok(None) => print_line(format!("there is no lab {name}")),
            Err(error) => first_error = Some(first_error.unwrap_or(error)),
        }
    }
    directory::remove_if_empty();
    first_error.map_or(Ok(()), Err)
}

fn summary(name: &str, removed: RemovedLab) -> String {
    let processes = |count: usize| format!("{count} process{}", if count == 1 { "" } else { "es" });
    // Agents and etcd do not end on their own, so an ended process is a sign of a fault.
    let ended = match removed.ended {
        0 => String::new(),
        count => format!(" ({} had already ended)", processes(count)),
    };
    let namespaces = print::count(removed.namespaces as u64, "namespace");
    format!("lab {name} removed: {}{ended}, {namespaces}", processes(removed.processes))
}

/// None if the lab has neither a directory nor a namespace.
fn remove(saved: &SavedLab) -> Result<Option<RemovedLab>> {
    // Without a directory there is no lock. Namespaces are removed in any case.
    let held = directory::lock(saved)?;
    let removed = remove_saved(saved)?;
    Ok((held.is_some() || !removed.is_nothing()).then_some(removed))
}
