//! podwire, the command-line tool. `cli` says what can be asked, `commands` does it, `print` shows it.

mod cli;
mod commands;
mod folders;
mod print;
mod when;

use std::process::ExitCode;

use clap::Parser;

use cli::{Attachment, Cli, Command, Node};

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(code) => code,
        Err(error) => {
            print::warn(format_args!("podwire: {}", print::causes(&error)));
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    let done = match cli.command {
        Command::Status(args) => return commands::status::run(&args),
        Command::Doctor(args) => return commands::doctor::run(&args),
        Command::Demo => commands::demo::run(),
        Command::Lab(args) => return commands::lab::run(&args),
        Command::Agent(args) => commands::agent::run(&args),
        Command::Pods(args) => commands::pods::run(&args),
        Command::Nodes(args) => return commands::nodes::run(&args),
        Command::Node(Node::Rm(args)) => commands::node::remove(&args),
        Command::Routes(args) => return commands::routes::run(&args),
        Command::Blocks(args) => return commands::blocks::run(&args),
        Command::Attachment(Attachment::Show(args)) => commands::attachment::show(&args),
        Command::Install(args) => commands::install::run(&args),
        Command::Cleanup(args) => commands::cleanup::run(&args),
    };
    done.map(|()| ExitCode::SUCCESS)
}
