//! `podwire lab exec`: this process becomes the command, so its exit code, signals and terminal are its own.

use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result};
use testkit::Cluster;

use super::args::Exec;
use super::seen;

pub(super) fn run(name: &str, args: &Exec) -> Result<ExitCode> {
    let cluster = seen(name)?;
    let pod = cluster.find_pod(&args.place);
    let ns = pod
        .as_ref()
        .map(|wired| wired.pod.name())
        .or_else(|| cluster.host(&args.place).map(testkit::Ns::name));
    let ns = ns.with_context(|| {
        format!("there is no {} in lab {name}: see `podwire lab status`, or try n1, p1, etcd1", args.place)
    })?;
    // It also shows the namespace's own links in /sys.
    let mut command = Command::new("ip");
    command.args(["netns", "exec", ns]).args(&args.command);
    if pod.is_none() {
        environment(&mut command, &cluster, &args.place)?;
    }
    Err(command.exec()).context("cannot run `ip netns exec`")
}

/// `podwire` means the agent of the node, `etcdctl` the etcd of the lab.
fn environment(command: &mut Command, cluster: &Cluster, place: &str) -> Result<()> {
    let endpoints = cluster.etcd.endpoints().join(",");
    if !endpoints.is_empty() {
        command.env("ETCDCTL_API", "3").env("ETCDCTL_ENDPOINTS", &endpoints);
    }
    let Ok(agent) = cluster.agent(place) else { return Ok(()) };
    let folder = cluster.node(place)?.dir();
    command.env("PODWIRE_RUN_DIR", agent.run_dir()).env("PODWIRE_STATE_DIR", folder.join("lib"));
    command.env("PODWIRE_NODE", place).env("PODWIRE_CONFIG", folder.join("agent.toml"));
    let own = std::env::current_exe().context("cannot find my own program file")?;
    let paths = own.parent().map(std::path::Path::to_owned).into_iter();
    let path = std::env::var_os("PATH").unwrap_or_default();
    command.env("PATH", std::env::join_paths(paths.chain(std::env::split_paths(&path)))?);
    Ok(())
}
