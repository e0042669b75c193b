//! podwire, the command-line tool. `cli` says what can be asked, `commands` does it, `print` shows it.

mod cli;
mod commands;
mod print;

use std::process::ExitCode;

use clap::Parser;

use cli::{Cli, Command};

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("podwire: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> anyhow::Result<()> {
    match cli.command {
        Command::Demo => commands::demo::run(),
        Command::Agent(args) => commands::agent::run(&args),
        Command::Pods(args) => commands::pods::run(&args),
        Command::Install(args) => commands::install::run(&args),
        Command::Cleanup(args) => commands::cleanup::run(&args),
    }
}
