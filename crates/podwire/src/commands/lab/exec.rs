//! `podwire lab exec`: this process becomes the command, so its exit code, signals and terminal are its own.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use config::KEYS;
use lab::{Cluster, Ns};

use super::args::Exec;
use super::{hint, seen};
use crate::exit::ExitStatus;
use crate::print;

/// As shells end.
const NOT_FOUND: u8 = 127;
const NOT_EXECUTABLE: u8 = 126;

pub(super) fn run(name: &str, args: &Exec) -> Result<ExitStatus> {
    let cluster = seen(name)?;
    let pod = cluster.find_pod(&args.place);
    let ns = pod.as_ref().map(|wired| wired.pod.name()).or_else(|| cluster.host(&args.place).map(Ns::name));
    let ns = ns.with_context(|| {
        let status = hint::command(name, "status");
        format!("there is no {} in lab {name}: see `{status}`, or try n1, p1, etcd1", args.place)
    })?;
    let path = search_path(&cluster)?;
    if let Some(code) = args.command.first().and_then(|program| problem(program, &path)) {
        return Ok(code);
    }
    // It also shows the namespace's own links in /sys.
    let mut command = Command::new("ip");
    command.args(["netns", "exec", ns]).args(&args.command);
    environment(&mut command, (name, &cluster), pod.as_ref().map_or(&args.place, |wired| &wired.node));
    command.env("PATH", path);
    Err(command.exec()).context("cannot run `ip netns exec`")
}

/// `podwire` means the agent of the node, or of the pod's node; `etcdctl` the etcd of the lab. Nothing that the caller has
/// set leads to others, or into the machine's own directories.
fn environment(command: &mut Command, (lab, cluster): (&str, &Cluster), host: &str) {
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(leads_elsewhere) {
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
    // No agent runs on these; whoever asks for one is told so.
    let member = cluster.etcd.members.iter().find(|member| member.name() == host);
    let directory = member.map_or(cluster.underlay(), |member| member.node()).dir();
    for (variable, place) in [
        ("PODWIRE_RUN_DIR", "state"),
        ("PODWIRE_SOCKET", "state/agent.sock"),
        ("PODWIRE_STATE_DIR", "lib"),
        ("PODWIRE_INSTALL_PLUGIN_DIR", "cni/bin"),
        ("PODWIRE_INSTALL_CONFIG_DIR", "cni/net.d"),
    ] {
        command.env(variable, directory.join(place));
    }
}

fn leads_elsewhere(variable: &str) -> bool {
    let ours = ["PODWIRE_", "ETCDCTL_"].iter().any(|start| variable.starts_with(start));
    ours || KEYS.iter().any(|key| key.aliases.contains(&variable))
}

/// `podwire` is this very program, whatever its file is called, and `podwire-cni` the one beside it.
fn search_path(cluster: &Cluster) -> Result<OsString> {
    let own = std::env::current_exe().context("cannot find my own program file")?;
    let directory = cluster.lab().dir().join("bin");
    point(&directory, &own).with_context(|| format!("cannot make {}/podwire", directory.display()))?;
    let first = [Some(directory), own.parent().map(Path::to_owned)].into_iter().flatten();
    let path = std::env::var_os("PATH").unwrap_or_default();
    Ok(std::env::join_paths(first.chain(std::env::split_paths(&path)))?)
}

fn point(directory: &Path, program: &Path) -> std::io::Result<()> {
    let link = directory.join("podwire");
    if fs::read_link(&link).is_ok_and(|there| there == program) {
        return Ok(());
    }
    fs::create_dir_all(directory)?;
    // Others may do the same meanwhile: each puts a whole link in place.
    let new = directory.join(format!("podwire.{}", std::process::id()));
    symlink(program, &new).and_then(|()| fs::rename(&new, &link))
}

/// `ip netns exec` says the same of everything that it cannot run.
fn problem(program: &str, path: &OsStr) -> Option<ExitStatus> {
    let places: Vec<PathBuf> = if program.contains('/') {
        vec![program.into()]
    } else {
        std::env::split_paths(path).map(|directory| directory.join(program)).collect()
    };
    let files = places.iter().filter_map(|place| place.metadata().ok().filter(fs::Metadata::is_file));
    let modes: Vec<u32> = files.map(|file| file.permissions().mode()).collect();
    if modes.is_empty() {
        print::warn(format_args!("podwire: there is no program {program} here"));
        return Some(ExitStatus::Program(NOT_FOUND));
    }
    if modes.iter().all(|mode| mode & 0o111 == 0) {
        print::warn(format_args!("podwire: {program} is not executable"));
        return Some(ExitStatus::Program(NOT_EXECUTABLE));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_that_lead_elsewhere_are_known() {
        for variable in
            ["PODWIRE_SOCKET", "PODWIRE_CNI", "ETCD_HOST", "CNI_PLUGIN_LOCATION", "ETCDCTL_CACERT"]
        {
            assert!(leads_elsewhere(variable), "{variable}");
        }
        for variable in ["PATH", "HOME", "ETCD", "podwire_socket"] {
            assert!(!leads_elsewhere(variable), "{variable}");
        }
    }
}
