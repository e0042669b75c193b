//! podwire, the command-line tool. `cli` defines the arguments, `commands` implements the commands, `print` writes the output,
//! and `exit` has the exit codes.

mod cli;
mod commands;
mod directories;
#[cfg(test)]
mod docs_tests;
mod exit;
mod print;
#[cfg(test)]
mod reference;
mod time;

use std::process::ExitCode;

use clap::Parser;

use cli::{AttachmentCommand, Cli, CliCommand, NodeCommand};
use exit::ExitStatus;

fn main() -> ExitCode {
    print::detect_terminal();
    let status = run(Cli::parse()).unwrap_or_else(|error| {
        let message = commands::lab::adapt_message(print::causes(&error));
        print::warn(format_args!("podwire: {message}"));
        let status = ExitStatus::from_error(&error);
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
        CliCommand::Status(args) => return commands::status::run(&args),
        CliCommand::Doctor(args) => return commands::doctor::run(&args),
        CliCommand::Demo => commands::demo::run(),
        CliCommand::Lab(args) => return commands::lab::run(&args),
        CliCommand::Agent(args) => return commands::agent::run(&args),
        CliCommand::Pods(args) => return commands::pods::run(&args),
        CliCommand::Nodes(args) => return commands::nodes::run(&args),
        CliCommand::Node(NodeCommand::Rm(args)) => commands::node::remove(&args),
        CliCommand::Routes(args) => return commands::routes::run(&args),
        CliCommand::Blocks(args) => return commands::blocks::run(&args),
        CliCommand::Object(command) => return commands::objects::run(&command),
        CliCommand::Attachment(AttachmentCommand::Show(args)) => return commands::attachment::show(&args),
        CliCommand::Explain(args) => return commands::policy::explain(&args),
        CliCommand::Install(args) => commands::install::run(&args),
        CliCommand::Cleanup(args) => commands::cleanup::run(&args),
        CliCommand::Version(args) => commands::version::run(&args),
    };
    done.map(|()| ExitStatus::Success)
}
