//! `podwire lab ls`.

use anyhow::Result;
use api::{LabEntry, LabEntryState, LabList};
use lab::{LabState, SavedLab};

use super::args::LabOutputArgs;
use super::{directory, hint};
use crate::cli::Output;
use crate::print;

pub(super) fn run(args: &LabOutputArgs) -> Result<()> {
    let labs: Vec<LabEntry> = directory::lab_names()?.into_iter().map(entry).collect();
    match args.output {
        Output::Json => print::json(&LabList { labs }),
        Output::Table | Output::Wide if labs.is_empty() => print::line("no labs"),
        Output::Table => print::line(table(&labs, print::table)),
        Output::Wide => print::line(table(&labs, print::wide_table)),
    }
}

/// Names of the labs that are up. Empty if they cannot be listed.
pub(crate) fn labs_up() -> Vec<String> {
    let is_up = |entry: &LabEntry| match entry.state {
        LabEntryState::Up => true,
        LabEntryState::Unfinished
        | LabEntryState::Stale
        | LabEntryState::Orphaned
        | LabEntryState::Unreadable => false,
    };
    let entries = directory::lab_names().unwrap_or_default().into_iter().map(entry);
    entries.filter(is_up).map(|entry| entry.name).collect()
}

/// The command that shows the status of a node of this lab.
pub(crate) fn status_command(lab: &str) -> String {
    hint::command(lab, "exec n1 podwire status")
}

/// Read without the lock of the lab: another command may change the state at the same time.
fn entry(name: String) -> LabEntry {
    // A directory with an invalid name was not created by `podwire lab`.
    let Ok(saved) = directory::saved_lab(&name) else {
        return LabEntry { name, nodes: None, state: LabEntryState::Unreadable };
    };
    LabEntry { name, nodes: saved.node_count().ok(), state: state(&saved) }
}

fn state(saved: &SavedLab) -> LabEntryState {
    match saved.condition() {
        Ok(LabState::Up) => LabEntryState::Up,
        Ok(LabState::Unfinished) => LabEntryState::Unfinished,
        Ok(LabState::Stale) => LabEntryState::Stale,
        Err(_) if !saved.dir().exists() => LabEntryState::Orphaned,
        Err(_) => LabEntryState::Unreadable,
    }
}

fn table(labs: &[LabEntry], layout: print::TableLayout) -> String {
    let row = |lab: &LabEntry| {
        let nodes = lab.nodes.map_or_else(|| "-".to_owned(), |nodes| nodes.to_string());
        vec![print::one_line(&lab.name), nodes, word(lab.state)]
    };
    layout(&["LAB", "NODES", "STATE"], labs.iter().map(row).collect())
}

fn word(state: LabEntryState) -> String {
    match state {
        LabEntryState::Up => print::good("up"),
        LabEntryState::Unfinished => print::degraded("unfinished"),
        LabEntryState::Stale => print::degraded("stale"),
        LabEntryState::Orphaned => print::bad("orphaned"),
        LabEntryState::Unreadable => print::bad("unreadable"),
    }
}
