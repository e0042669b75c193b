//! Commands that change a lab: add and remove pods, inject faults and undo them.

use anyhow::{Context as _, Result, anyhow, bail};
use lab::{Cluster, LabState, PodPlacement};

use super::args::{LabNodeArgs, LabPodAddArgs, LabPodCommand, LabRestartTarget, LabTarget};
use super::progress::print_line;
use super::{change_lab, fixes, hint};
use crate::print;

pub(super) fn pod(name: &str, command: &LabPodCommand) -> Result<()> {
    change_lab(name, |cluster| match command {
        LabPodCommand::Add(LabPodAddArgs { node, pod, tenant, network, group }) => {
            let pod = pod.clone().unwrap_or_else(|| cluster.free_pod_name());
            let placement =
                PodPlacement { tenant: tenant.clone(), network: network.clone(), group: group.clone() };
            let attached = if placement == PodPlacement::default() {
                cluster.pod(node, &pod)
            } else {
                cluster.placed_pod(node, &pod, placement)
            };
            let attached = with_status(name, node, attached)?;
            let addresses: Vec<String> = attached.addresses.iter().map(ToString::to_string).collect();
            let text = format!("pod {pod} on {node}: {}", addresses.join("  "));
            print_line(print::wrap(&text, print::width()));
            Ok(())
        }
        LabPodCommand::Rm { pod } => {
            cluster.remove_pod(pod)?;
            print_line(print::wrap(&format!("pod {pod} removed"), print::width()));
            Ok(())
        }
    })
}

pub(super) fn cut(name: &str, args: &LabNodeArgs) -> Result<()> {
    change_lab(name, |cluster| cluster.cut(&args.node))?;
    let undo = hint::command(name, &format!("heal {}", args.node));
    print_line(hint::undo(&format!("{} is disconnected; connect it with:", args.node), &undo));
    Ok(())
}

pub(super) fn heal(name: &str, args: &LabNodeArgs) -> Result<()> {
    change_lab(name, |cluster| cluster.heal(&args.node))?;
    print_line(format!("{} is connected", args.node));
    Ok(())
}

pub(super) fn kill(name: &str, target: &LabTarget) -> Result<()> {
    change_lab(name, |cluster| match target {
        LabTarget::Agent { node } => {
            cluster.kill_agent(node)?;
            let undo = hint::command(name, &format!("start agent {node}"));
            print_line(hint::undo(&format!("the agent of {node} was killed; start it with:"), &undo));
            Ok(())
        }
        LabTarget::Etcd { member } => {
            for index in members(cluster, member.as_deref())? {
                let member = &mut cluster.etcd.members[index];
                // Without a name all members are killed. Some may not be running.
                if member.runs() {
                    member.kill()?;
                }
                print_line(format!("{} was killed", member.name()));
            }
            print_line(hint::undo("start it with:", &hint::command(name, "start etcd")));
            Ok(())
        }
        LabTarget::Node { node } => {
            cluster.kill_node(node)?;
            let undo = hint::command(name, &format!("start node {node}"));
            print_line(hint::undo(&format!("{node} is down with its pods; start it with:"), &undo));
            Ok(())
        }
    })
}

pub(super) fn start(name: &str, target: &LabTarget) -> Result<()> {
    change_lab(name, |cluster| match target {
        LabTarget::Agent { node } => {
            if !cluster.agent(node)?.has_ended()? {
                let restart = hint::command(name, &format!("restart agent {node}"));
                bail!("the agent of {node} is already running; restart it with: {restart}");
            }
            with_status(name, node, cluster.start_agent(node))?;
            print_line(format!("the agent of {node} is ready"));
            Ok(())
        }
        LabTarget::Etcd { member } => {
            let indices = members(cluster, member.as_deref())?;
            for &index in &indices {
                let member = &cluster.etcd.members[index];
                if member.runs() && !member.answers() {
                    let [kill, start] = ["kill etcd", "start etcd"].map(|verb| {
                        let target = format!("{verb} {}", member.name());
                        hint::command(name, if cluster.etcd.members.len() == 1 { verb } else { &target })
                    });
                    bail!("{} runs but does not answer; restart it with: {kill} && {start}", member.name());
                }
                if !member.runs() {
                    cluster.etcd.members[index].start()?;
                    // Saved before the wait, because this process may be killed during it.
                    cluster.save(LabState::Up)?;
                }
            }
            for &index in &indices {
                cluster.etcd.members[index].wait_healthy()?;
                print_line(format!("{} is healthy", cluster.etcd.members[index].name()));
            }
            Ok(())
        }
        LabTarget::Node { node } => {
            cluster.start_node(node)?;
            print_line(format!("{node} is up and its agent is ready"));
            Ok(())
        }
    })
}

pub(super) fn restart(name: &str, target: &LabRestartTarget) -> Result<()> {
    let LabRestartTarget::Agent { node } = target;
    change_lab(name, |cluster| with_status(name, node, cluster.restart_agent(node)))?;
    print_line(format!("the agent of {node} is ready"));
    Ok(())
}

/// Adds the command that shows why an agent does not become ready or refuses a pod. Commands for the agent are those of the lab.
fn with_status<T>(name: &str, node: &str, result: Result<T>) -> Result<T> {
    result.map_err(|error| {
        let status = hint::command(name, &format!("exec {node} podwire status"));
        let error = fixes::adapt_for_node(name, node, &format!("{error:#}"));
        anyhow!("{error}\nstatus and fix: {status}")
    })
}

/// The index of a member by name, or of all members.
fn members(cluster: &Cluster, name: Option<&str>) -> Result<Vec<usize>> {
    let members = &cluster.etcd.members;
    anyhow::ensure!(!members.is_empty(), "this lab has no etcd");
    let Some(name) = name else { return Ok((0..members.len()).collect()) };
    let position = members.iter().position(|member| member.name() == name);
    let position = position.with_context(|| {
        let known = match members.len() {
            1 => "the only member is etcd1".to_owned(),
            last => format!("the members are etcd1 to etcd{last}"),
        };
        format!("there is no etcd member {name}; {known}")
    })?;
    Ok(vec![position])
}
