//! podwire, the command-line tool. `cli` says what can be asked, `commands` does it, `print` shows it, `exit` has the codes.

mod cli;
mod commands;
mod exit;
mod folders;
mod print;
mod when;

use std::process::ExitCode;

use clap::Parser;

use cli::{Attachment, Cli, Command, Node};
use exit::ExitStatus;

fn main() -> ExitCode {
    let status = run(Cli::parse()).unwrap_or_else(|error| {
        print::warn(format_args!("podwire: {}", print::causes(&error)));
        let status = ExitStatus::of(&error);
        if !error.is::<exit::NeedsRoot>()
            && let Some(advice) = exit::advice(status)
        {
            print::warn(format_args!("podwire: {advice}"));
        }
        status
    });
    status.into()
}

fn run(cli: Cli) -> anyhow::Result<ExitStatus> {
    if cli.command.needs_root() {
        exit::ensure_root()?;
    }
    exit::ensure_capabilities(cli.command.needed_capabilities())?;
    let done = match cli.command {
        Command::Status(args) => return commands::status::run(&args),
        Command::Doctor(args) => return commands::doctor::run(&args),
        Command::Demo => commands::demo::run(),
        Command::Lab(args) => return commands::lab::run(&args),
        Command::Agent(args) => return commands::agent::run(&args),
        Command::Pods(args) => return commands::pods::run(&args),
        Command::Nodes(args) => return commands::nodes::run(&args),
        Command::Node(Node::Rm(args)) => commands::node::remove(&args),
        Command::Routes(args) => return commands::routes::run(&args),
        Command::Blocks(args) => return commands::blocks::run(&args),
        Command::Attachment(Attachment::Show(args)) => return commands::attachment::show(&args),
        Command::Install(args) => commands::install::run(&args),
        Command::Cleanup(args) => commands::cleanup::run(&args),
    };
    done.map(|()| ExitStatus::Success)
}
