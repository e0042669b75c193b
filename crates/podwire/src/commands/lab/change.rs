//! Pods that come and go, faults, and the ways back.

use anyhow::{Context as _, Result};
use lab::{Cluster, LabState};

use super::args::{OneNode, PodAction, Restartable, Victim};
use super::progress::say;
use super::{changed, hint};
use crate::print;

pub(super) fn pod(name: &str, action: &PodAction) -> Result<()> {
    changed(name, |cluster| match action {
        PodAction::Add { node, pod } => {
            let pod = pod.clone().unwrap_or_else(|| cluster.free_pod_name());
            let wired = cluster.pod(node, &pod)?;
            let addresses: Vec<String> = wired.addresses.iter().map(ToString::to_string).collect();
            let text = format!("pod {pod} on {node}: {}", addresses.join("  "));
            say(print::wrap(&text, print::width()));
            Ok(())
        }
        PodAction::Rm { pod } => {
            cluster.remove_pod(pod)?;
            say(print::wrap(&format!("pod {pod} is gone"), print::width()));
            Ok(())
        }
    })
}

pub(super) fn cut(name: &str, args: &OneNode) -> Result<()> {
    changed(name, |cluster| cluster.cut(&args.node))?;
    let back = hint::command(name, &format!("heal {}", args.node));
    say(hint::undo(&format!("{} is cut off; this undoes it:", args.node), &back));
    Ok(())
}

pub(super) fn heal(name: &str, args: &OneNode) -> Result<()> {
    changed(name, |cluster| cluster.heal(&args.node))?;
    say(format!("{} is connected", args.node));
    Ok(())
}

pub(super) fn kill(name: &str, victim: &Victim) -> Result<()> {
    changed(name, |cluster| match victim {
        Victim::Agent { node } => {
            cluster.kill_agent(node)?;
            let back = hint::command(name, &format!("start agent {node}"));
            say(hint::undo(&format!("the agent of {node} is killed; this starts it again:"), &back));
            Ok(())
        }
        Victim::Etcd { member } => {
            for index in members(cluster, member.as_deref())? {
                let member = &mut cluster.etcd.members[index];
                // All were asked for: those that do not run are where they should be.
                if member.runs() {
                    member.kill()?;
                }
                say(format!("{} is killed", member.name()));
            }
            say(hint::undo("this starts it again:", &hint::command(name, "start etcd")));
            Ok(())
        }
        Victim::Node { node } => {
            cluster.kill_node(node)?;
            let back = hint::command(name, &format!("start node {node}"));
            say(hint::undo(&format!("{node} is down with its pods; this boots it:"), &back));
            Ok(())
        }
    })
}

pub(super) fn start(name: &str, victim: &Victim) -> Result<()> {
    changed(name, |cluster| match victim {
        Victim::Agent { node } => {
            cluster.start_agent(node)?;
            say(format!("the agent of {node} is ready"));
            Ok(())
        }
        Victim::Etcd { member } => {
            let numbers = members(cluster, member.as_deref())?;
            for &index in &numbers {
                if !cluster.etcd.members[index].runs() {
                    cluster.etcd.members[index].start()?;
                    // We may be killed while it is awaited.
                    cluster.save(LabState::Up)?;
                }
            }
            for &index in &numbers {
                cluster.etcd.members[index].wait_healthy()?;
                say(format!("{} is healthy", cluster.etcd.members[index].name()));
            }
            Ok(())
        }
        Victim::Node { node } => {
            cluster.start_node(node)?;
            say(format!("{node} is up, its agent is ready"));
            Ok(())
        }
    })
}

pub(super) fn restart(name: &str, what: &Restartable) -> Result<()> {
    let Restartable::Agent { node } = what;
    changed(name, |cluster| cluster.restart_agent(node))?;
    say(format!("the agent of {node} is ready"));
    Ok(())
}

/// The numbers of the members that are meant; nobody named: all.
fn members(cluster: &Cluster, name: Option<&str>) -> Result<Vec<usize>> {
    let members = &cluster.etcd.members;
    anyhow::ensure!(!members.is_empty(), "this lab has no etcd");
    let Some(name) = name else { return Ok((0..members.len()).collect()) };
    let position = members.iter().position(|member| member.name() == name);
    let position = position.with_context(|| {
        let known = match members.len() {
            1 => "there is only etcd1".to_owned(),
            last => format!("they are etcd1 to etcd{last}"),
        };
        format!("there is no etcd member {name}: {known}")
    })?;
    Ok(vec![position])
}
