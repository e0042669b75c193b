//! `podwire agent`: the daemon.

use anyhow::Result;

use crate::cli::Agent;

pub(crate) fn run(args: &Agent) -> Result<()> {
    let config = agent::config::Config::load(&args.flags, std::env::vars_os())?;
    Ok(agent::run(config)?)
}
