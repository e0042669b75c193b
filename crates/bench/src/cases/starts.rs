//! The cost of starting a process with the same harness. It is part of every figure.

use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::contender::{Plugins, version};
use crate::runner;
use crate::site::BenchSite;
use crate::stats::Sample;

/// The smallest program that every host has. It is linked dynamically; a plugin may be static.
const NOTHING: &str = "/bin/true";

#[derive(Default)]
pub(crate) struct Starts {
    pub(crate) podwire: Sample,
    pub(crate) reference: Sample,
    pub(crate) nothing: Sample,
}

pub(crate) fn run(plugins: &Plugins, site: &BenchSite, times: usize) -> Result<Starts> {
    site.podwire.node.enter(|| {
        let mut starts = Starts::default();
        for _ in 0..times {
            starts.podwire.note(version(&plugins.podwire));
            starts.reference.note(version(&plugins.reference));
            starts.nothing.note(nothing());
        }
        starts
    })
}

fn nothing() -> Result<Duration> {
    let finished = runner::run(Command::new(NOTHING).env_clear(), b"")?;
    ensure!(finished.status.success(), "{NOTHING} exited with {}", finished.status);
    Ok(finished.took)
}
