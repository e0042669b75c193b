//! What a lab looks like: status, who reaches whom, logs.

use std::fs;
use std::io::{IsTerminal as _, Write as _};
use std::net::IpAddr;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;
use testkit::{Cluster, Member};

use super::args::{Logs, Shown, Test};
use super::picture::{self, Paint};
use super::progress::say;
use super::{hint, seen, up};
use crate::cli::Output;
use crate::print;

/// Something of the lab does not run, or somebody is not reached.
const NOT_ALL: u8 = 1;

#[derive(Debug, Serialize)]
struct Page {
    name: String,
    nodes: Vec<NodeLine>,
    etcd: Vec<EtcdLine>,
    pods: Vec<PodLine>,
}

#[derive(Debug, Serialize)]
struct NodeLine {
    name: String,
    subnet: usize,
    addresses: Vec<IpAddr>,
    /// `up`, `cut` or `no power`.
    link: &'static str,
    /// `ready`, `not ready` or `not running`.
    agent: &'static str,
    pid: Option<u32>,
    blocks: Vec<String>,
    namespace: String,
}

#[derive(Debug, Serialize)]
struct EtcdLine {
    name: String,
    endpoint: String,
    /// `leader`, `healthy`, `not healthy` or `not running`.
    state: &'static str,
    pid: Option<u32>,
}

#[derive(Debug, Serialize)]
struct PodLine {
    name: String,
    node: String,
    addresses: Vec<IpAddr>,
    namespace: String,
}

pub(super) fn status(name: &str, args: &Shown) -> Result<ExitCode> {
    let cluster = seen(name)?;
    let page = Page::of(name, &cluster)?;
    match args.output {
        Output::Json => say(types::printable_json(&serde_json::to_string_pretty(&page)?)),
        Output::Table => say(format!("lab {name}: {}\n\n{}", up::title(cluster.plan()), page.text())),
    }
    Ok(if page.is_whole() { ExitCode::SUCCESS } else { ExitCode::from(NOT_ALL) })
}

pub(super) fn test(name: &str, args: &Test) -> Result<ExitCode> {
    let cluster = seen(name)?;
    let pods = cluster.pods().len();
    ensure!(pods > 0, "lab {name} has no pods: `{}`", hint::command(name, "pod add n1"));
    let matrix = cluster.reach(Duration::from_secs(args.timeout))?;
    match args.output {
        Output::Json => say(types::printable_json(&serde_json::to_string_pretty(&matrix)?)),
        Output::Table => {
            let colours = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
            let paint = if colours { Paint::Colours } else { Paint::Plain };
            let pods = print::count(pods as u64, "pod");
            say(format!("lab {name}: {}, {pods}\n", up::title(cluster.plan())));
            say(picture::draw(&matrix, paint));
        }
    }
    Ok(if matrix.all() { ExitCode::SUCCESS } else { ExitCode::from(NOT_ALL) })
}

pub(super) fn logs(name: &str, args: &Logs) -> Result<()> {
    let cluster = seen(name)?;
    let member = cluster.etcd.members.iter().find(|member| member.name() == args.place);
    let path = match member {
        Some(member) => member.log_file(),
        None => cluster.node(&args.place)?.dir().join("agent.log"),
    };
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let lines: Vec<&str> = text.lines().collect();
    let first = args.lines.map_or(0, |wanted| lines.len().saturating_sub(wanted));
    let mut out = std::io::stdout().lock();
    for line in &lines[first..] {
        // `| head` is a good reason to stop.
        if writeln!(out, "{}", types::one_line(line)).is_err() {
            break;
        }
    }
    Ok(())
}

impl Page {
    fn of(name: &str, cluster: &Cluster) -> Result<Self> {
        let names = cluster.node_names();
        let nodes = names.iter().map(|node| NodeLine::of(cluster, node)).collect::<Result<_>>()?;
        let leader = cluster.etcd.leader().ok();
        let etcd = cluster.etcd.members.iter().enumerate();
        let etcd = etcd.map(|(index, member)| EtcdLine::of(member, leader == Some(index))).collect();
        let pods = cluster.pods().into_iter().map(|wired| PodLine {
            name: wired.name.clone(),
            node: wired.node.clone(),
            addresses: wired.addresses.clone(),
            namespace: wired.pod.name().to_owned(),
        });
        Ok(Self { name: name.to_owned(), nodes, etcd, pods: pods.collect() })
    }

    fn is_whole(&self) -> bool {
        let nodes = self.nodes.iter().all(|node| node.link == "up" && node.agent == "ready");
        nodes && self.etcd.iter().all(|member| matches!(member.state, "leader" | "healthy"))
    }

    fn text(&self) -> String {
        let nodes = self.nodes.iter().map(|node| {
            let pid = node.pid.map_or_else(String::new, |pid| format!(" (pid {pid})"));
            let blocks = if node.blocks.is_empty() { "-".to_owned() } else { node.blocks.join(" ") };
            vec![
                node.name.clone(),
                node.subnet.to_string(),
                node.link.to_owned(),
                joined(&node.addresses),
                format!("{}{pid}", node.agent),
                blocks,
            ]
        });
        let mut parts =
            vec![print::table(&["NODE", "SUBNET", "LINK", "ADDRESSES", "AGENT", "BLOCKS"], nodes)];
        if !self.etcd.is_empty() {
            let rows = self.etcd.iter().map(|member| {
                let pid = member.pid.map_or_else(String::new, |pid| format!(" (pid {pid})"));
                vec![member.name.clone(), member.endpoint.clone(), format!("{}{pid}", member.state)]
            });
            parts.push(print::table(&["ETCD", "ENDPOINT", "STATE"], rows));
        }
        if !self.pods.is_empty() {
            let rows =
                self.pods.iter().map(|pod| vec![pod.name.clone(), pod.node.clone(), joined(&pod.addresses)]);
            parts.push(print::table(&["POD", "NODE", "ADDRESSES"], rows));
        }
        parts.join("\n\n")
    }
}

impl NodeLine {
    fn of(cluster: &Cluster, name: &str) -> Result<Self> {
        let agent = cluster.agent(name)?;
        let runs = !agent.has_ended()?;
        let status = runs.then(|| agent.get(api::STATUS).ok()).flatten();
        let status = status.and_then(|value| serde_json::from_value::<api::Status>(value).ok());
        let link = match (cluster.has_power(name)?, cluster.is_cut(name)?) {
            (false, _) => "no power",
            (true, true) => "cut",
            (true, false) => "up",
        };
        let state = match &status {
            _ if !runs => "not running",
            Some(status) if status.ready => "ready",
            Some(_) | None => "not ready",
        };
        let blocks = status.iter().flat_map(|status| &status.network.blocks);
        Ok(Self {
            name: name.to_owned(),
            subnet: cluster.subnet(name)?,
            addresses: cluster.addresses(name)?,
            link,
            agent: state,
            pid: agent.pid().filter(|_| runs),
            blocks: blocks.map(|block| block.cidr.to_string()).collect(),
            namespace: cluster.node(name)?.name().to_owned(),
        })
    }
}

impl EtcdLine {
    fn of(member: &Member, leads: bool) -> Self {
        let state = match (member.runs(), leads, member.is_healthy()) {
            (false, _, _) => "not running",
            (true, true, true) => "leader",
            (true, false, true) => "healthy",
            (true, _, false) => "not healthy",
        };
        let pid = member.pid().filter(|_| member.runs());
        Self { name: member.name().to_owned(), endpoint: member.endpoint().to_owned(), state, pid }
    }
}

fn joined(addresses: &[IpAddr]) -> String {
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}
