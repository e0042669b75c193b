//! `podwire agent`: the daemon, or what it would run with.

use agent::config::{self, Config};
use anyhow::Result;

use crate::cli::Agent;

pub(crate) fn run(args: &Agent) -> Result<()> {
    if args.print_config_reference {
        print!("{}", config::reference());
        return Ok(());
    }
    if args.print_config_sample {
        print!("{}", config::sample());
        return Ok(());
    }
    let config = Config::load(&args.flags, std::env::vars_os())?;
    if args.print_config {
        print!("{}", config.to_toml());
        return Ok(());
    }
    Ok(agent::run(config)?)
}
