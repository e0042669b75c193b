//! `podwire lab status`, `podwire lab test` and `podwire lab logs`.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use api::{
    LabAgent, LabKilledNode, LabLink, LabMember, LabMemberState, LabNode, LabPath, LabPod, LabReach,
    LabStatus, LabTest, LabTransport,
};
use lab::{Cluster, EtcdMember, MatrixCell, PodPath, Reachability};

use super::args::{LabLogsArgs, LabOutputArgs, LabTestArgs};
use super::matrix_view;
use super::progress::print_line;
use super::{hint, open_lab, problems, up};
use crate::cli::Output;
use crate::exit::ExitStatus;
use crate::print;

fn killed_node_note(node: &LabKilledNode, lab: &str) -> String {
    let LabKilledNode { name, pods } = node;
    let pods = match pods.len() {
        0 => String::new(),
        1 => format!(", and its pod {} is not reachable", pods.join("")),
        _ => format!(", and its pods {} are not reachable", pods.join(" ")),
    };
    let start = hint::command(lab, &format!("start node {name}"));
    hint::undo(&format!("node {name} is down{pods}; start it with:"), &start)
}

pub(super) fn status(name: &str, args: &LabOutputArgs) -> Result<ExitStatus> {
    let cluster = open_lab(name)?;
    let status = observe(name, &cluster)?;
    match args.output {
        Output::Json => print_line(types::printable_json(&serde_json::to_string_pretty(&status)?)),
        Output::Table => print_line(page(&cluster, &status, tables(&status))),
        Output::Wide => print_line(page(&cluster, &status, wide_tables(&status))),
    }
    Ok(ExitStatus::problem_unless(is_healthy(&status)))
}

fn page(cluster: &Cluster, status: &LabStatus, tables: [String; 3]) -> String {
    let title = format!("lab {}: {}", status.name, up::title(cluster.plan()));
    let tables = tables.into_iter().filter(|table| !table.is_empty());
    let title = [print::wrap(&title, print::width())].into_iter();
    title.chain(tables).chain(problems::section(status)).collect::<Vec<_>>().join("\n\n")
}

pub(super) fn test(name: &str, args: &LabTestArgs) -> Result<ExitStatus> {
    let cluster = open_lab(name)?;
    let pods = cluster.pods().len();
    let killed = cluster.killed_nodes().into_iter();
    let killed: Vec<_> = killed.map(|(name, pods)| LabKilledNode { name, pods }).collect();
    ensure!(
        pods > 0 || !killed.is_empty(),
        "lab {name} has no pods; add one with '{}'",
        hint::command(name, "pod add n1")
    );
    let matrix = cluster.reach(Duration::from_secs(args.timeout))?;
    let ok = matrix.all() && killed.is_empty();
    match args.output {
        Output::Json => {
            let duration_ms = u64::try_from(matrix.took.as_millis()).unwrap_or(u64::MAX);
            let paths = matrix.cells.iter().map(path).collect();
            let report = LabTest { ok, paths, killed_nodes: killed, duration_ms };
            print_line(types::printable_json(&serde_json::to_string_pretty(&report)?));
        }
        Output::Table | Output::Wide => {
            let pods = print::count(pods as u64, "pod");
            let title = format!("lab {name}: {}, {pods}", up::title(cluster.plan()));
            print_line(format!("{}\n", print::wrap(&title, print::width())));
            print_line(matrix_view::draw(&matrix));
            for node in &killed {
                print_line(killed_node_note(node, name));
            }
        }
    }
    Ok(ExitStatus::problem_unless(ok))
}

pub(super) fn logs(name: &str, args: &LabLogsArgs) -> Result<()> {
    let cluster = open_lab(name)?;
    let member = cluster.etcd.members.iter().find(|member| member.name() == args.target);
    let path = match member {
        Some(member) => member.log_file(),
        None => cluster.node(&args.target)?.dir().join("agent.log"),
    };
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let lines: Vec<&str> = text.lines().collect();
    let first = args.lines.map_or(0, |wanted| lines.len().saturating_sub(wanted));
    let mut out = std::io::stdout().lock();
    for line in &lines[first..] {
        // The reader closed the pipe, as in `| head`.
        if writeln!(out, "{}", types::one_line(line)).is_err() {
            break;
        }
    }
    Ok(())
}

fn path(cell: &MatrixCell) -> LabPath {
    let transport = match cell.path {
        PodPath::Local => LabTransport::Local,
        PodPath::Direct => LabTransport::Direct,
        PodPath::Vxlan => LabTransport::Vxlan,
        PodPath::None => LabTransport::None,
    };
    let [ipv4, ipv6] = [&cell.v4, &cell.v6].map(|reach| match reach {
        Some(Reachability::Yes { micros }) => LabReach::Reached { duration_us: *micros },
        Some(Reachability::Rewritten { source }) => LabReach::Rewritten { source: *source },
        Some(Reachability::No { why }) => LabReach::Unreached { reason: why.clone() },
        None => LabReach::NotUsed,
    });
    LabPath { from: cell.from.clone(), to: cell.to.clone(), transport, ipv4, ipv6 }
}

fn observe(name: &str, cluster: &Cluster) -> Result<LabStatus> {
    let names = cluster.node_names();
    let nodes = names.iter().map(|name| node(cluster, name)).collect::<Result<_>>()?;
    let leader = cluster.etcd.leader().ok();
    let etcd = cluster.etcd.members.iter().enumerate();
    let etcd = etcd.map(|(index, one)| member(one, leader == Some(index))).collect();
    let pods = cluster.pods().into_iter().map(|attached| LabPod {
        name: attached.name.clone(),
        node: attached.node.clone(),
        addresses: attached.addresses.clone(),
        namespace: attached.pod.name().to_owned(),
    });
    Ok(LabStatus { name: name.to_owned(), nodes, etcd, pods: pods.collect() })
}

fn node(cluster: &Cluster, name: &str) -> Result<LabNode> {
    let agent = cluster.agent(name)?;
    let runs = !agent.has_ended()?;
    let status = runs.then(|| agent.status().ok()).flatten();
    let link = match (cluster.has_power(name)?, cluster.is_cut(name)?) {
        (false, _) => LabLink::NoPower,
        (true, true) => LabLink::Cut,
        (true, false) => LabLink::Up,
    };
    let state = match &status {
        _ if !runs => LabAgent::NotRunning,
        Some(status) if status.ready => LabAgent::Ready,
        Some(_) => LabAgent::NotReady,
        None => LabAgent::NotAnswering,
    };
    let blocks = status.iter().flat_map(|status| &status.network.blocks);
    let conditions = status.iter().flat_map(|status| &status.conditions);
    let conditions: BTreeSet<String> = conditions.map(|condition| condition.code.to_string()).collect();
    Ok(LabNode {
        name: name.to_owned(),
        subnet: cluster.subnet(name)?,
        addresses: cluster.addresses(name)?,
        link,
        agent: state,
        pid: agent.pid().filter(|_| runs),
        blocks: blocks.map(|block| block.block).collect(),
        conditions: conditions.into_iter().collect(),
        namespace: cluster.node(name)?.name().to_owned(),
    })
}

fn member(member: &EtcdMember, is_leader: bool) -> LabMember {
    let state = match (member.runs(), is_leader, member.is_healthy()) {
        (false, _, _) => LabMemberState::NotRunning,
        (true, true, true) => LabMemberState::Leader,
        (true, false, true) => LabMemberState::Healthy,
        (true, _, false) => LabMemberState::NotHealthy,
    };
    let pid = member.pid().filter(|_| member.runs());
    LabMember { name: member.name().to_owned(), endpoint: member.endpoint().to_owned(), state, pid }
}

fn is_healthy(status: &LabStatus) -> bool {
    let nodes = status.nodes.iter().all(|node| node.link == LabLink::Up && node.agent == LabAgent::Ready);
    let is_healthy = |one: &LabMember| matches!(one.state, LabMemberState::Leader | LabMemberState::Healthy);
    nodes && status.etcd.iter().all(is_healthy)
}

/// Tables of nodes, etcd members and pods.
fn tables(status: &LabStatus) -> [String; 3] {
    let node = |node: &LabNode| {
        vec![
            node.name.clone(),
            link(node.link),
            agent(node.agent),
            print::list(&node.addresses),
            print::list(&node.blocks),
        ]
    };
    let member = |one: &LabMember| vec![one.name.clone(), one.endpoint.clone(), state(one.state)];
    let pod = |pod: &LabPod| vec![pod.name.clone(), pod.node.clone(), print::list(&pod.addresses)];
    [
        print::table(
            &["NODE", "LINK", "AGENT", "ADDRESSES", "BLOCKS"],
            status.nodes.iter().map(node).collect(),
        ),
        non_empty_table(
            print::table,
            &["ETCD", "ENDPOINT", "STATE"],
            status.etcd.iter().map(member).collect(),
        ),
        non_empty_table(print::table, &["POD", "NODE", "ADDRESSES"], status.pods.iter().map(pod).collect()),
    ]
}

/// Like [`tables`], with subnets, process IDs and namespaces.
fn wide_tables(status: &LabStatus) -> [String; 3] {
    let pid_text = |pid: Option<u32>| pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string());
    let node = |node: &LabNode| {
        vec![
            node.name.clone(),
            node.subnet.to_string(),
            link(node.link),
            print::list(&node.addresses).replace('\n', " "),
            agent(node.agent),
            pid_text(node.pid),
            print::list(&node.blocks).replace('\n', " "),
            node.namespace.clone(),
        ]
    };
    let member =
        |one: &LabMember| vec![one.name.clone(), one.endpoint.clone(), state(one.state), pid_text(one.pid)];
    let pod = |pod: &LabPod| {
        let addresses = print::list(&pod.addresses).replace('\n', " ");
        vec![pod.name.clone(), pod.node.clone(), addresses, pod.namespace.clone()]
    };
    let header = ["NODE", "SUBNET", "LINK", "ADDRESSES", "AGENT", "PID", "BLOCKS", "NAMESPACE"];
    let layout: print::TableLayout = print::wide_table;
    [
        layout(&header, status.nodes.iter().map(node).collect()),
        non_empty_table(
            layout,
            &["ETCD", "ENDPOINT", "STATE", "PID"],
            status.etcd.iter().map(member).collect(),
        ),
        non_empty_table(
            layout,
            &["POD", "NODE", "ADDRESSES", "NAMESPACE"],
            status.pods.iter().map(pod).collect(),
        ),
    ]
}

/// Empty if there are no rows.
fn non_empty_table(layout: print::TableLayout, header: &[&str], rows: Vec<Vec<String>>) -> String {
    if rows.is_empty() { String::new() } else { layout(header, rows) }
}

fn link(link: LabLink) -> String {
    match link {
        LabLink::Up => print::good("up"),
        LabLink::Cut => print::bad("cut"),
        LabLink::NoPower => print::bad("no power"),
    }
}

fn agent(agent: LabAgent) -> String {
    match agent {
        LabAgent::Ready => print::good("ready"),
        LabAgent::NotReady => print::bad("not ready"),
        LabAgent::NotAnswering => print::bad("hangs"),
        LabAgent::NotRunning => print::bad("not running"),
    }
}

fn state(state: LabMemberState) -> String {
    match state {
        LabMemberState::Leader => print::good("leader"),
        LabMemberState::Healthy => print::good("healthy"),
        LabMemberState::NotHealthy => print::bad("not healthy"),
        LabMemberState::NotRunning => print::bad("not running"),
    }
}
