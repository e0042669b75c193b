//! `podwire cleanup`: restores the node to its state before Podwire, and reports every removed object.

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

use crate::cli::CleanupArgs;
use crate::directories::AgentDirectories;
use crate::print;

/// A running agent answers a health request immediately.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Files of the operator. They are listed and not removed.
const OPERATOR_FILES: [&str; 3] =
    ["/etc/podwire", netconf::DEFAULT_LOG_FILE, "/etc/systemd/system/podwire.service"];

pub(crate) fn run(args: &CleanupArgs) -> Result<()> {
    let directories = AgentDirectories::find_strict(&args.agent, args.state_dir.clone())?;
    // Checked before anything is removed.
    files::check_dir(&directories.run_dir)?;
    directories.state_dir.as_deref().map_or(Ok(()), files::check_dir)?;
    // While this lock is held, no agent starts in the directory.
    let _lock = lock_out_agent(&directories)?;
    let mut report = CleanupReport::default();
    let mut names = Vec::new();
    if let Some(state_dir) = &directories.state_dir {
        // The config is removed first. Without it the runtime starts no pods.
        let removal = install::remove(state_dir)?;
        report.changes.extend(removal.done);
        report.remaining.extend(removal.left);
        let forgotten = agent::forget(state_dir);
        report.changes.extend(forgotten.done);
        report.remaining.extend(forgotten.left);
        remove_if_empty(state_dir, &mut report);
        names = forgotten.names;
    }
    let kernel = if args.all {
        CleanupReport::of_everything(&directories.run_dir)
    } else {
        let configured = configured_network(&directories);
        let network = configured.as_ref().map(|network| (&network.name, &network.bridge));
        engine::cleanup(&directories.run_dir, network)
    };
    if kernel.is_err() {
        // Report the objects that were already removed.
        report.changes.iter().try_for_each(print::sentence)?;
        report.remaining.iter().try_for_each(|line| print::sentence(format_args!("left: {line}")))?;
    }
    let kernel = kernel?;
    kernel.warnings.iter().for_each(|warning| print::warn(format_args!("podwire: {warning}")));
    report.changes.extend(kernel.changes);
    report.kept_settings.extend(kernel.kept_settings);
    report.remaining.extend(kernel.remaining);
    remove_socket(&directories.socket, &mut report);
    print_report(&report, &directories)?;
    for name in names {
        print::sentence(format_args!(
            "the cluster still has records of this node: run 'podwire node rm {name}' on another node to free its blocks"
        ))?;
    }
    ensure!(report.remaining.is_empty(), "some objects were not removed; see above");
    Ok(())
}

/// The network of the agent that uses this run directory. `find_strict` already reported an invalid configuration.
fn configured_network(directories: &AgentDirectories) -> Option<netconf::NetworkSettings> {
    let config = Config::load(&Flags::default(), std::env::vars_os()).ok()?;
    (config.run_dir == directories.run_dir).then_some(config.network)
}

fn print_report(report: &CleanupReport, directories: &AgentDirectories) -> Result<()> {
    for line in &report.changes {
        print::sentence(line)?;
    }
    for line in &report.kept_settings {
        print::sentence(format_args!("kept: {line}"))?;
    }
    for line in &report.remaining {
        print::sentence(format_args!("left: {line}"))?;
    }
    if report.changes.is_empty() && report.remaining.is_empty() {
        print::sentence("nothing to remove")?;
    }
    for path in unrecorded::files(&directories.run_dir) {
        print::sentence(format_args!("kept, remove it manually: {}", path.display()))?;
    }
    if directories.state_dir.is_none() {
        print::warn(
            "podwire: installed plugins and configs were not removed; give their directory with --state-dir",
        );
    } else if directories.run_dir == Path::new(netconf::DEFAULT_RUN_DIR) {
        for path in OPERATOR_FILES.iter().filter(|path| Path::new(path).exists()) {
            print::sentence(format_args!("kept, remove it manually: {path}"))?;
        }
    }
    Ok(())
}

/// Fails while an agent runs, because it would restore the removed objects. Returns the agent's lock, if the file exists.
fn lock_out_agent(directories: &AgentDirectories) -> Result<Option<File>> {
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
                running_agent_error(&format!(
                    "an agent (process {}) uses {}",
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
            bail!("{}", running_agent_error(&format!("an agent listens on {}", directories.socket.display())))
        }
    }
    // An agent with another run directory may use this namespace. Cleanup would remove its gateway device and tables, because
    // they do not name their run directory.
    if let Some(other) = agent::agents_here()?.first() {
        bail!("{}", running_agent_error(&format!("an agent ({other}) runs in this network namespace")));
    }
    Ok(lock)
}

fn running_agent_error(agent: &str) -> String {
    format!(
        "{agent} and would restore everything; stop it with 'systemctl disable --now podwire', then run this command again"
    )
}

/// The directory may have been created by the service manager.
fn remove_if_empty(dir: &Path, report: &mut CleanupReport) {
    match fs::remove_dir(dir) {
        Ok(()) => report.changes.push(format!("directory {} removed", dir.display())),
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        // A mount point, as in a container. Podwire did not create it.
        Err(error) if error.kind() == ErrorKind::ResourceBusy => {}
        Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => {
            report
                .remaining
                .push(format!("directory {} stays: it contains files of other programs", dir.display()));
        }
        Err(error) => report.remaining.push(format!("directory {} stays: {error}", dir.display())),
    }
}

/// The socket may be outside of the run directory. No process listens on it; this was checked before.
fn remove_socket(path: &Path, report: &mut CleanupReport) {
    if !fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket()) {
        return;
    }
    match fs::remove_file(path) {
        Ok(()) => report.changes.push(format!("socket {} removed", path.display())),
        Err(error) => report.remaining.push(format!("socket {} stays: {error}", path.display())),
    }
}
