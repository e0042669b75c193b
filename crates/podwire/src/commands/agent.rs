//! `podwire agent`: runs the daemon, or checks and prints its configuration.

use agent::Preflight;
use anyhow::Result;
use config::Config;
use install::runtimes::Runtimes;

use crate::cli::AgentArgs;
use crate::exit::ExitStatus;
use crate::print;

pub(crate) fn run(args: &AgentArgs) -> Result<ExitStatus> {
    if args.print_config_reference {
        return print::text(&config::reference()).map(|()| ExitStatus::Success);
    }
    if args.print_config_sample {
        return print::text(&config::sample()).map(|()| ExitStatus::Success);
    }
    if args.check_config {
        return check(args);
    }
    let config = Config::load_with(&args.flags, std::env::vars_os(), Runtimes::directories)?;
    if args.print_config {
        return print::text(&config.to_toml()).map(|()| ExitStatus::Success);
    }
    agent::run(config)?;
    Ok(ExitStatus::Success)
}

/// Prints all problems. Other checks need valid values, so problems of values are reported first.
fn check(args: &AgentArgs) -> Result<ExitStatus> {
    let loaded = Config::load_with(&args.flags, std::env::vars_os(), Runtimes::directories);
    let is_valid = loaded.is_ok();
    let problems: Vec<(String, Option<String>)> = match loaded {
        Ok(config) => {
            let Preflight { refusals, notes } = agent::check(&config);
            notes.iter().try_for_each(|note| print::line(print::wrap(&note.to_string(), print::width())))?;
            refusals.iter().map(|refusal| (refusal.to_string(), refusal.fix().map(str::to_owned))).collect()
        }
        Err(error) => error.problems.iter().map(|problem| (problem.to_string(), None)).collect(),
    };
    if problems.is_empty() {
        print::line("the configuration is valid: the agent can start with it")?;
        return Ok(ExitStatus::Success);
    }
    for (problem, fix) in &problems {
        print::line(format_args!("- {}", print::hanging(&print::wrap(problem, print::width() - 2), 2)))?;
        // On its own line and not wrapped, because it is pasted.
        fix.iter().try_for_each(|fix| print::line(format_args!("    {}", print::one_line(fix))))?;
    }
    if !is_valid {
        print::line("files, locks, addresses and etcd were not checked, because values are invalid")?;
    }
    Ok(ExitStatus::ProblemFound)
}
