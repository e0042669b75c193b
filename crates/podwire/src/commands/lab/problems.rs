//! The problems of a lab below the tables of `podwire lab status`, each with the command that helps.

use api::{LabAgent, LabLink, LabMember, LabMemberState, LabNode, LabStatus};

use super::hint;
use crate::print;

/// A sentence, and the arguments of the `podwire lab` command that helps.
type LabProblem = (String, String);

/// None if there is no problem.
pub(super) fn section(status: &LabStatus) -> Option<String> {
    let nodes = status.nodes.iter().filter_map(node);
    let problems: Vec<LabProblem> = nodes.chain(status.etcd.iter().filter_map(member)).collect();
    if problems.is_empty() {
        return None;
    }
    let entries = problems.iter().map(|(sentence, command)| {
        let sentence = print::wrap(sentence, print::width() - 2);
        format!("- {}\n    {}", print::hanging(&sentence, 2), hint::command(&status.name, command))
    });
    Some(format!("{}\n{}", print::degraded("PROBLEMS"), entries.collect::<Vec<_>>().join("\n")))
}

/// The cause that has to be removed first.
fn node(node: &LabNode) -> Option<LabProblem> {
    let LabNode { name, link, agent, conditions, .. } = node;
    let status = format!("exec {name} podwire status");
    let (problem, command) = match (link, agent) {
        (LabLink::NoPower, _) => ("is switched off with its pods".to_owned(), format!("start node {name}")),
        (LabLink::Cut, _) => ("is disconnected".to_owned(), format!("heal {name}")),
        (LabLink::Up, LabAgent::NotRunning) => {
            ("has no running agent".to_owned(), format!("start agent {name}"))
        }
        (LabLink::Up, LabAgent::NotAnswering) => {
            ("has an agent that does not answer".to_owned(), format!("restart agent {name}"))
        }
        (LabLink::Up, LabAgent::Ready | LabAgent::NotReady) if !conditions.is_empty() => {
            let text = format!("has {}; the fixes are in its status", conditions.join(", "));
            (text, status)
        }
        (LabLink::Up, LabAgent::NotReady) => ("is not ready yet".to_owned(), status),
        (LabLink::Up, LabAgent::Ready) => return None,
    };
    Some((format!("node {name} {problem}:"), command))
}

fn member(member: &LabMember) -> Option<LabProblem> {
    let name = &member.name;
    match member.state {
        LabMemberState::Leader | LabMemberState::Healthy => None,
        LabMemberState::NotRunning => Some((format!("{name} does not run:"), format!("start etcd {name}"))),
        LabMemberState::NotHealthy => {
            Some((format!("{name} runs and is not healthy; its log has the reason:"), format!("logs {name}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, link: LabLink, agent: LabAgent, conditions: &[&str]) -> LabNode {
        LabNode {
            name: name.to_owned(),
            subnet: 1,
            addresses: Vec::new(),
            link,
            agent,
            pid: None,
            blocks: Vec::new(),
            conditions: conditions.iter().map(|code| (*code).to_owned()).collect(),
            namespace: format!("pwlab-two-{name}"),
        }
    }

    fn member(name: &str, state: LabMemberState) -> LabMember {
        LabMember { name: name.to_owned(), endpoint: "http://10.199.0.1:2379".to_owned(), state, pid: None }
    }

    fn status(nodes: Vec<LabNode>, etcd: Vec<LabMember>) -> LabStatus {
        LabStatus { name: "two".to_owned(), nodes, etcd, pods: Vec::new() }
    }

    #[test]
    fn f13_a_healthy_lab_has_no_section_of_problems() {
        let nodes = vec![node("n1", LabLink::Up, LabAgent::Ready, &[])];
        let etcd = vec![member("etcd1", LabMemberState::Leader), member("etcd2", LabMemberState::Healthy)];
        assert_eq!(section(&status(nodes, etcd)), None);
    }

    #[test]
    fn f13_each_problem_of_a_lab_has_the_command_that_helps() {
        let nodes = vec![
            node("n1", LabLink::Up, LabAgent::NotRunning, &[]),
            node("n2", LabLink::Up, LabAgent::NotAnswering, &[]),
            node("n3", LabLink::Cut, LabAgent::NotReady, &["StoreUnreachable"]),
            node("n4", LabLink::NoPower, LabAgent::NotRunning, &[]),
            node("n5", LabLink::Up, LabAgent::Ready, &["PeerAway", "StoreUnreachable"]),
            node("n6", LabLink::Up, LabAgent::NotReady, &[]),
        ];
        let etcd =
            vec![member("etcd1", LabMemberState::NotRunning), member("etcd2", LabMemberState::NotHealthy)];
        let wanted = "\
PROBLEMS
- node n1 has no running agent:
    podwire lab --name two start agent n1
- node n2 has an agent that does not answer:
    podwire lab --name two restart agent n2
- node n3 is disconnected:
    podwire lab --name two heal n3
- node n4 is switched off with its pods:
    podwire lab --name two start node n4
- node n5 has PeerAway, StoreUnreachable; the fixes are in its status:
    podwire lab --name two exec n5 podwire status
- node n6 is not ready yet:
    podwire lab --name two exec n6 podwire status
- etcd1 does not run:
    podwire lab --name two start etcd etcd1
- etcd2 runs and is not healthy; its log has the reason:
    podwire lab --name two logs etcd2";
        assert_eq!(section(&status(nodes, etcd)).unwrap(), wanted);
    }
}
