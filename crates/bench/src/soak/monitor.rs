//! Prints a status line every few seconds and records the sizes of processes.

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::Result;
use ipnet::IpNet;
use testkit::{DEADLINE, inspect};

use crate::Soak;
use crate::frames::{INVENTED_V4, INVENTED_V6};
use crate::options::Attack;
use crate::site::{NEVER_KILLED, SoakNode, SoakSite};

const EVERY: Duration = Duration::from_secs(5);
/// Maximum number of plugin processes. More means that plugins start plugins.
const MOST_PLUGINS: usize = 150;
/// The audit is valid only if each of these was counted. On a slow host the run continues until they are.
const NEEDED: [(Option<Attack>, &str); 5] = [
    (None, "ADDs"),
    (None, "DELs"),
    (Some(Attack::AgentKills), "agents killed"),
    (Some(Attack::Spoof), "hostile frames: Spoof"),
    (Some(Attack::Configs), "hostile configs: Configs"),
];
/// Allowed entries of addresses that no pod had, from pods with a killed plugin.
const FEW: usize = 20;

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Size {
    pub(crate) rss_kib: u64,
    pub(crate) files: usize,
}

/// The largest sizes of each agent, in the first minute and in the last.
#[derive(Debug, Default)]
pub(crate) struct AgentSizes {
    pub(crate) first: BTreeMap<&'static str, Size>,
    pub(crate) last: BTreeMap<&'static str, Size>,
}

pub(crate) fn watch(soak: &Soak, site: &SoakSite, lasting: Duration, watched: &mut AgentSizes) -> Result<()> {
    let begun = Instant::now();
    // In a short run, the first and the last third.
    let minute = Duration::from_secs(60).min(lasting / 3);
    let mut round = 0;
    loop {
        let left = lasting.saturating_sub(begun.elapsed());
        let missing = missing(soak);
        if left.is_zero() && (missing.is_empty() || begun.elapsed() > lasting + DEADLINE) {
            missing.into_iter().for_each(|what| soak.ledger.find("a part of the load did nothing", what));
            return Ok(());
        }
        std::thread::sleep(if left.is_zero() { EVERY } else { EVERY.min(left) });
        let since = begun.elapsed();
        let mut sizes = Vec::new();
        for machine in &site.machines {
            let Some(size) = size_of(soak, site, machine.name)? else { continue };
            for (is_now, maxima) in
                [(since <= minute, &mut watched.first), (since + minute >= lasting, &mut watched.last)]
            {
                if is_now {
                    let largest = maxima.entry(machine.name).or_default();
                    largest.rss_kib = largest.rss_kib.max(size.rss_kib);
                    largest.files = largest.files.max(size.files);
                }
            }
            sizes.push(format!("{} {} MiB/{} files", machine.name, size.rss_kib / 1024, size.files));
        }
        let machine = &site.machines[round % site.machines.len()];
        let inspected = inspect_node(soak, site, machine);
        soak.step("a node cannot be inspected", inspected);
        let plugins = plugins();
        if plugins > MOST_PLUGINS {
            soak.ledger.find("plugins start plugins recursively", format!("{plugins} processes"));
        }
        let counted = |what: &str| soak.ledger.counted(what);
        println!(
            "{:>4} s: {} ADDs, {} DELs, {} GCs, {} agents killed, {} addresses used, {plugins} plugins run; {}; findings: {}",
            since.as_secs(),
            counted("ADDs"),
            counted("DELs"),
            counted("GC"),
            counted("agents killed"),
            soak.ledger.given(),
            sizes.join(", "),
            soak.ledger.found(),
        );
        round += 1;
    }
}

fn missing(soak: &Soak) -> Vec<&'static str> {
    let is_part = |part: &Option<Attack>| part.is_none_or(|attack| soak.has(attack));
    let needed = NEEDED.iter().filter(|(part, _)| is_part(part)).map(|(_, what)| *what);
    needed.filter(|what| soak.ledger.counted(what) == 0).collect()
}

/// `None` if the agent is not running.
fn size_of(soak: &Soak, site: &SoakSite, name: &str) -> Result<Option<Size>> {
    let cluster = site.cluster();
    let agent = cluster.agent(name)?;
    if name == NEVER_KILLED && agent.has_ended()? {
        soak.ledger.find("an agent exited unexpectedly", name);
    }
    Ok(agent.pid().and_then(size))
}

fn size(pid: u32) -> Option<Size> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let rss = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let rss_kib = rss.split_whitespace().next()?.parse().ok()?;
    let files = fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count();
    Some(Size { rss_kib, files })
}

fn inspect_node(soak: &Soak, site: &SoakSite, machine: &SoakNode) -> Result<()> {
    neighbours(soak, machine)?;
    if soak.has(Attack::ControlCharacters) {
        let (run_dir, agent) = {
            let cluster = site.cluster();
            let agent = cluster.agent(machine.name)?;
            (agent.run_dir().display().to_string(), agent.program().display().to_string())
        };
        let pods = machine.node.run(&[&agent, "pods", "--run-dir", &run_dir], b"")?;
        if let Some(bad) = pods.stdout.chars().find(|c| c.is_control() && *c != '\n') {
            soak.ledger
                .find("a control character reached the terminal", format!("podwire pods prints {bad:?}"));
        }
    }
    Ok(())
}

/// Neighbour entries of invented senders or of addresses that no pod had.
pub(crate) fn neighbours(soak: &Soak, machine: &SoakNode) -> Result<()> {
    let ranges: Vec<IpNet> = ["10.42.0.0/16", "fd42::/64", "10.77.0.0/24", "fd77::/120"]
        .iter()
        .filter_map(|net| net.parse().ok())
        .collect();
    let invented = [IpNet::new_assert(INVENTED_V4.into(), 16), IpNet::new_assert(INVENTED_V6.into(), 64)];
    let within = |nets: &[IpNet], ip: IpAddr| nets.iter().any(|net| net.contains(&ip));
    let all = inspect::neighbours(&machine.node)?;
    let learned = all.iter().filter(|n| !n.state.iter().any(|state| state == "PERMANENT"));
    let unexpected: Vec<IpAddr> = learned
        .map(|n| n.dst)
        .filter(|ip| within(&invented, *ip) || within(&ranges, *ip) && !soak.ledger.was_given(*ip))
        .collect();
    if unexpected.len() > FEW {
        let some: Vec<String> = unexpected.iter().take(3).map(ToString::to_string).collect();
        soak.ledger.find(
            "neighbour entries of invented addresses",
            format!("{}: {} such as {}", machine.name, unexpected.len(), some.join(", ")),
        );
    }
    Ok(())
}

/// Processes of the plugin. The pid namespace is the run's own.
pub(crate) fn plugins() -> usize {
    processes()
        .into_iter()
        .filter(|(_, name)| name == "podwire-cni" || name == "copy" || name == "link")
        .count()
}

/// All processes except zombies, with their names.
pub(crate) fn processes() -> Vec<(u32, String)> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter_map(|pid| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let state = stat.rsplit_once(") ")?.1.chars().next()?;
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
        (!matches!(state, 'Z' | 'X')).then(|| (pid, name.trim().to_owned()))
    })
    .collect()
}
