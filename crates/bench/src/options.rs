use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::Parser;
use serde::Serialize;

/// podwire-cni beside the reference plugins, in one run on one machine
#[derive(Debug, Parser)]
#[command(name = "podwire-bench", version)]
pub(crate) struct Options {
    /// A smoke test: few pods, one round; its figures mean little
    #[arg(long, conflicts_with = "full")]
    quick: bool,
    /// Nine rounds of pods in parallel instead of five
    #[arg(long)]
    full: bool,
    /// End with status 1 if a target is missed, a call fails or something is left behind
    #[arg(long)]
    pub(crate) strict: bool,
    /// So many pods of each plugin, instead of 128
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pods: Option<u16>,
    /// Folder for the JSON, instead of target/bench
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// How much is measured.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Scale {
    /// Pods of each plugin, all attached at the same time.
    pub(crate) pods: usize,
    /// Those of the case that is only for information.
    pub(crate) masquerade_pods: usize,
    pub(crate) parallel: usize,
    pub(crate) rounds: usize,
    /// Addresses in use before the pods come.
    pub(crate) few: usize,
    pub(crate) many: usize,
    /// Pods of the agent whose size is looked at.
    pub(crate) resident: usize,
    /// For so many seconds nothing happens to them.
    pub(crate) idle_seconds: u64,
    /// So often the agent is killed and started.
    pub(crate) restarts: usize,
}

impl Options {
    pub(crate) fn scale(&self) -> Scale {
        let usual = if self.quick { 12 } else { 128 };
        let pods = self.pods.map_or(usual, usize::from);
        Scale {
            pods,
            masquerade_pods: pods.div_ceil(4),
            parallel: 16,
            rounds: match (self.quick, self.full) {
                (true, _) => 1,
                (false, true) => 9,
                (false, false) => 5,
            },
            few: 10,
            many: if self.quick { 400 } else { 4000 },
            resident: if self.quick { 6 } else { 250 },
            idle_seconds: if self.quick { 1 } else { 5 },
            restarts: if self.quick { 1 } else { 5 },
        }
    }

    /// Where the JSON goes: beside the profile's folder that this program lies in, so `target/bench`.
    pub(crate) fn folder(&self) -> Result<PathBuf> {
        if let Some(out) = &self.out {
            return Ok(out.clone());
        }
        let exe = std::env::current_exe().context("cannot find out where this program lies")?;
        let target = exe.parent().and_then(|profile| profile.parent());
        Ok(target
            .with_context(|| format!("{} lies in no target folder; use --out", exe.display()))?
            .join("bench"))
    }
}
