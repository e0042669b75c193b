//! `podwire cleanup`: leave the machine as it was, and say what was done.

mod unrecorded;

use std::fs::{self, File, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use api::{Client, ClientError};
use config::{Config, Flags};
use engine::CleanupReport;

use crate::cli::Cleanup;
use crate::directories::AgentDirectories;
use crate::print;

/// An agent that is there answers this at once.
const TIMEOUT: Duration = Duration::from_secs(2);
/// What belongs to the operator: it is named, not removed.
const KEPT: [&str; 3] = ["/etc/podwire", netconf::DEFAULT_LOG_FILE, "/etc/systemd/system/podwire.service"];

pub(crate) fn run(args: &Cleanup) -> Result<()> {
    let directories = AgentDirectories::find_exact(&args.which, args.state_dir.clone())?;
    // Before anything is removed.
    files::check_dir(&directories.run_dir)?;
    directories.state_dir.as_deref().map_or(Ok(()), files::check_dir)?;
    // No agent starts in this directory as long as the directory is there.
    let _lock = without_agent(&directories)?;
    let mut report = CleanupReport::default();
    let mut names = Vec::new();
    if let Some(state_dir) = &directories.state_dir {
        // The config first: from then on no runtime sends pods.
        let removal = install::remove(state_dir)?;
        report.done.extend(removal.done);
        report.left.extend(removal.left);
        let forgotten = agent::forget(state_dir);
        report.done.extend(forgotten.done);
        report.left.extend(forgotten.left);
        remove_if_empty(state_dir, &mut report);
        names = forgotten.names;
    }
    let kernel = if args.all {
        CleanupReport::of_everything(&directories.run_dir)
    } else {
        let configured = configured(&directories);
        let network = configured.as_ref().map(|network| (&network.name, &network.bridge));
        engine::cleanup(&directories.run_dir, network)
    };
    if kernel.is_err() {
        // What was done so far is told all the same.
        report.done.iter().try_for_each(print::say_wrapped)?;
        report.left.iter().try_for_each(|line| print::say_wrapped(format_args!("left: {line}")))?;
    }
    let kernel = kernel?;
    kernel.warnings.iter().for_each(|warning| print::warn(format_args!("podwire: {warning}")));
    report.done.extend(kernel.done);
    report.kept.extend(kernel.kept);
    report.left.extend(kernel.left);
    remove_socket(&directories.socket, &mut report);
    tell(&report, &directories)?;
    for name in names {
        print::say_wrapped(format_args!(
            "other nodes still know this one: run `podwire node rm {name}` on one of them to free its blocks"
        ))?;
    }
    ensure!(report.left.is_empty(), "some things were left; see above");
    Ok(())
}

/// The network of the agent that works in this directory. An invalid configuration was refused or reported when the
/// directories were found.
fn configured(directories: &AgentDirectories) -> Option<netconf::NetworkSettings> {
    let config = Config::load(&Flags::default(), std::env::vars_os()).ok()?;
    (config.run_dir == directories.run_dir).then_some(config.network)
}

fn tell(report: &CleanupReport, directories: &AgentDirectories) -> Result<()> {
    for line in &report.done {
        print::say_wrapped(line)?;
    }
    for line in &report.kept {
        print::say_wrapped(format_args!("kept: {line}"))?;
    }
    for line in &report.left {
        print::say_wrapped(format_args!("left: {line}"))?;
    }
    if report.done.is_empty() && report.left.is_empty() {
        print::say_wrapped("nothing of Podwire is here")?;
    }
    for path in unrecorded::files(&directories.run_dir) {
        print::say_wrapped(format_args!("kept, for you to remove: {}", path.display()))?;
    }
    if directories.state_dir.is_none() {
        print::warn(
            "podwire: installed plugins and configs were not looked for: name their record with --state-dir",
        );
    } else if directories.run_dir == Path::new(netconf::DEFAULT_RUN_DIR) {
        for path in KEPT.iter().filter(|path| Path::new(path).exists()) {
            print::say_wrapped(format_args!("kept, for you to remove: {path}"))?;
        }
    }
    Ok(())
}

/// An agent would put everything back. Gives the agent's lock, where there is one.
fn without_agent(directories: &AgentDirectories) -> Result<Option<File>> {
    let path = directories.run_dir.join("agent.lock");
    let lock = match files::open(&path, File::options().read(true).write(true)) {
        Ok(file) => Some(file),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(error).with_context(|| format!("cannot open {}", path.display())),
    };
    match lock.as_ref().map(File::try_lock) {
        None | Some(Ok(())) => {}
        Some(Err(TryLockError::WouldBlock)) => {
            let pid = files::read_text(&path).unwrap_or_default();
            bail!(
                "{}",
                in_the_way(&format!(
                    "an agent (process {}) works in {}",
                    pid.trim(),
                    directories.run_dir.display()
                ))
            );
        }
        Some(Err(TryLockError::Error(error))) => {
            return Err(error).with_context(|| format!("cannot lock {}", path.display()));
        }
    }
    match Client::new(&directories.socket).get(api::HEALTH, TIMEOUT) {
        Err(ClientError::NoListener { .. }) => {}
        Ok(_) | Err(_) => {
            bail!("{}", in_the_way(&format!("an agent listens on {}", directories.socket.display())))
        }
    }
    // With another run directory: its gateway device and tables carry no mark of that directory.
    if let Some(other) = agent::agents_here()?.first() {
        bail!("{}", in_the_way(&format!("an agent ({other}) works in this network namespace")));
    }
    Ok(lock)
}

fn in_the_way(who: &str) -> String {
    format!(
        "{who}, and would put everything back: stop it first (`systemctl disable --now podwire`), then run this again"
    )
}

/// A service manager may have made it.
fn remove_if_empty(dir: &Path, report: &mut CleanupReport) {
    match fs::remove_dir(dir) {
        Ok(()) => report.done.push(format!("directory {} removed", dir.display())),
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        // Mounted there, as in a container: it is whoever's that mounted it.
        Err(error) if error.kind() == ErrorKind::ResourceBusy => {}
        Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => {
            report.left.push(format!("directory {} stays: files of other programs are in it", dir.display()));
        }
        Err(error) => report.left.push(format!("directory {} stays: {error}", dir.display())),
    }
}

/// The socket may lie outside the run directory. No process listens on it: this was checked before.
fn remove_socket(path: &Path, report: &mut CleanupReport) {
    if !fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket()) {
        return;
    }
    match fs::remove_file(path) {
        Ok(()) => report.done.push(format!("socket {} removed", path.display())),
        Err(error) => report.left.push(format!("socket {} stays: {error}", path.display())),
    }
}
