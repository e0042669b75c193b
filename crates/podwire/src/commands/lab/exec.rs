//! `podwire lab exec`: replaces this process by the command, so exit code, signals and terminal are those of the command.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use config::KEYS;
use lab::{Cluster, Ns};

use super::args::LabExecArgs;
use super::{hint, open_lab};
use crate::exit::ExitStatus;
use crate::print;

/// Exit codes of shells.
const NOT_FOUND: u8 = 127;
const NOT_EXECUTABLE: u8 = 126;

pub(super) fn run(name: &str, args: &LabExecArgs) -> Result<ExitStatus> {
    let cluster = open_lab(name)?;
    let pod = cluster.find_pod(&args.target);
    let ns =
        pod.as_ref().map(|attached| attached.pod.name()).or_else(|| cluster.host(&args.target).map(Ns::name));
    let ns = ns.with_context(|| {
        let status = hint::command(name, "status");
        format!("there is no {} in lab {name}; list nodes and pods with '{status}'", args.target)
    })?;
    // The namespace of a killed node does not exist.
    if cluster.has_power(&args.target).is_ok_and(|has_power| !has_power) {
        let start = hint::command(name, &format!("start node {}", args.target));
        bail!("{} is powered off; start it with: {start}", args.target);
    }
    let path = search_path(&cluster)?;
    let shell = [std::env::var("SHELL").unwrap_or_else(|_| "/bin/sh".to_owned())];
    let argv = if args.command.is_empty() { shell.as_slice() } else { &args.command };
    if let Some(code) = argv.first().and_then(|program| program_error(program, &path)) {
        return Ok(code);
    }
    // `ip netns exec` also mounts /sys for the namespace.
    let mut command = Command::new("ip");
    command.args(["netns", "exec", ns]).args(argv);
    environment(&mut command, (name, &cluster), pod.as_ref().map_or(&args.target, |attached| &attached.node));
    command.env("PATH", path);
    Err(command.exec()).context("cannot run 'ip netns exec'")
}

/// `podwire` uses the agent of the node, or of the pod's node, and `etcdctl` the etcd of the lab. Variables of the caller are
/// removed if they select another agent, another etcd or directories of the host.
fn environment(command: &mut Command, (lab, cluster): (&str, &Cluster), host: &str) {
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(is_overridden) {
            command.env_remove(name);
        }
    }
    let endpoints = cluster.etcd.endpoints().join(",");
    if !endpoints.is_empty() {
        command.env("ETCDCTL_API", "3").env("ETCDCTL_ENDPOINTS", &endpoints);
    }
    if let (Ok(node), Ok(agent)) = (cluster.node(host), cluster.agent(host)) {
        command.env("PODWIRE_CONFIG", node.dir().join("agent.toml")).env("PODWIRE_SOCKET", agent.socket());
        command.env(config::LAB_VARIABLE, format!("{lab}/{host}"));
        return;
    }
    // No agent runs on etcd members and on the underlay. Directories without an agent make `podwire` report that.
    let member = cluster.etcd.members.iter().find(|member| member.name() == host);
    let directory = member.map_or(cluster.underlay(), |member| member.node()).dir();
    for (variable, path) in [
        ("PODWIRE_RUN_DIR", "state"),
        ("PODWIRE_SOCKET", "state/agent.sock"),
        ("PODWIRE_STATE_DIR", "lib"),
        ("PODWIRE_INSTALL_PLUGIN_DIR", "cni/bin"),
        ("PODWIRE_INSTALL_CONFIG_DIR", "cni/net.d"),
    ] {
        command.env(variable, directory.join(path));
    }
}

fn is_overridden(variable: &str) -> bool {
    let has_prefix = ["PODWIRE_", "ETCDCTL_"].iter().any(|prefix| variable.starts_with(prefix));
    has_prefix || KEYS.iter().any(|key| key.aliases.contains(&variable))
}

/// `podwire` is this program, also if its file has another name, and `podwire-cni` the plugin beside it.
fn search_path(cluster: &Cluster) -> Result<OsString> {
    let program = std::env::current_exe().context("cannot determine the path of this program")?;
    let directory = cluster.lab().dir().join("bin");
    link_program(&directory, &program)
        .with_context(|| format!("cannot create {}/podwire", directory.display()))?;
    let first = [Some(directory), program.parent().map(Path::to_owned)].into_iter().flatten();
    let path = std::env::var_os("PATH").unwrap_or_default();
    Ok(std::env::join_paths(first.chain(std::env::split_paths(&path)))?)
}

fn link_program(directory: &Path, program: &Path) -> std::io::Result<()> {
    let link = directory.join("podwire");
    if fs::read_link(&link).is_ok_and(|target| target == program) {
        return Ok(());
    }
    fs::create_dir_all(directory)?;
    // Another command may do the same at the same time. A rename replaces the link atomically.
    let new = directory.join(format!("podwire.{}", std::process::id()));
    symlink(program, &new).and_then(|()| fs::rename(&new, &link))
}

/// `ip netns exec` has one exit code for all errors, so missing programs are detected before.
fn program_error(program: &str, path: &OsStr) -> Option<ExitStatus> {
    let candidates: Vec<PathBuf> = if program.contains('/') {
        vec![program.into()]
    } else {
        std::env::split_paths(path).map(|directory| directory.join(program)).collect()
    };
    let files = candidates.iter().filter_map(|path| path.metadata().ok().filter(fs::Metadata::is_file));
    let modes: Vec<u32> = files.map(|file| file.permissions().mode()).collect();
    if modes.is_empty() {
        print::warn(format_args!("podwire: program {program} not found"));
        return Some(ExitStatus::CannotStart(NOT_FOUND));
    }
    if modes.iter().all(|mode| mode & 0o111 == 0) {
        print::warn(format_args!("podwire: {program} is not executable"));
        return Some(ExitStatus::CannotStart(NOT_EXECUTABLE));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_that_select_another_agent_are_removed() {
        for variable in
            ["PODWIRE_SOCKET", "PODWIRE_CNI", "ETCD_HOST", "CNI_PLUGIN_LOCATION", "ETCDCTL_CACERT"]
        {
            assert!(is_overridden(variable), "{variable}");
        }
        for variable in ["PATH", "HOME", "ETCD", "podwire_socket"] {
            assert!(!is_overridden(variable), "{variable}");
        }
    }
}
