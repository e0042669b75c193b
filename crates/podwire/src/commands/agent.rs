//! `podwire agent`: the daemon, or what it would run with.

use agent::config::{self, Config};
use anyhow::Result;

use crate::cli::Agent;
use crate::print;

pub(crate) fn run(args: &Agent) -> Result<()> {
    if args.print_config_reference {
        return print::say_text(&config::reference());
    }
    if args.print_config_sample {
        return print::say_text(&config::sample());
    }
    let config = Config::load(&args.flags, std::env::vars_os())?;
    if args.print_config {
        return print::say_text(&config.to_toml());
    }
    Ok(agent::run(config)?)
}
