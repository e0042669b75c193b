//! `podwire agent`: the daemon, or what it would run with.

use agent::Preflight;
use anyhow::Result;
use config::Config;
use install::runtimes::Runtimes;

use crate::cli::AgentArgs;
use crate::exit::ExitStatus;
use crate::print;

pub(crate) fn run(args: &AgentArgs) -> Result<ExitStatus> {
    if args.print_config_reference {
        return print::say_text(&config::reference()).map(|()| ExitStatus::Success);
    }
    if args.print_config_sample {
        return print::say_text(&config::sample()).map(|()| ExitStatus::Success);
    }
    if args.check_config {
        return check(args);
    }
    let config = Config::load_with(&args.flags, std::env::vars_os(), Runtimes::directories)?;
    if args.print_config {
        return print::say_text(&config.to_toml()).map(|()| ExitStatus::Success);
    }
    agent::run(config)?;
    Ok(ExitStatus::Success)
}

/// All problems, one after the other: those of the values first, because the other checks need them.
fn check(args: &AgentArgs) -> Result<ExitStatus> {
    let loaded = Config::load_with(&args.flags, std::env::vars_os(), Runtimes::directories);
    let is_valid = loaded.is_ok();
    let problems: Vec<(String, Option<String>)> = match loaded {
        Ok(config) => {
            let Preflight { refusals, notes } = agent::check(&config);
            notes.iter().try_for_each(|note| print::say(print::wrap(&note.to_string(), print::width())))?;
            refusals.iter().map(|one| (one.to_string(), one.fix().map(str::to_owned))).collect()
        }
        Err(error) => error.problems.iter().map(|one| (one.to_string(), None)).collect(),
    };
    if problems.is_empty() {
        print::say("the configuration is valid: the agent can start with it")?;
        return Ok(ExitStatus::Success);
    }
    for (problem, fix) in &problems {
        print::say(format_args!("- {}", print::hang(&print::wrap(problem, print::width() - 2), 2)))?;
        // A line of its own, and never broken: it is to be pasted.
        fix.iter().try_for_each(|fix| print::say(format_args!("    {}", print::value(fix))))?;
    }
    if !is_valid {
        print::say("files, locks, addresses and etcd were not checked: that needs valid values")?;
    }
    Ok(ExitStatus::ProblemFound)
}
