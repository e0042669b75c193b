//! The agent's status as text. Only commands are longer than a line, because they are pasted.

use api::{Condition, Counts, InactivePort, InstalledFile, NetworkStatus, ReconcileStatus, Status};

use types::Code;

use crate::commands::{lab, plugins};
use crate::print;
use crate::time;

/// The number of repairs that are shown. `-o json` has more.
const LATEST: usize = 5;

pub(super) fn page(status: &Status, now: u64) -> String {
    let mut parts = vec![title(status), print::key_values(rows(status, now))];
    if !status.network.blocks.is_empty() {
        parts.push(blocks(&status.network));
    }
    parts.extend(repairs(&status.reconcile, now));
    parts.push(conditions(&status.conditions, now));
    parts.join("\n\n")
}

fn title(status: &Status) -> String {
    let name = print::one_line(&format!("podwire {} on {}", status.version, status.node));
    print::wrap(&format!("{name}: {}", readiness(status.ready)), print::width())
}

pub(super) fn readiness(is_ready: bool) -> String {
    if is_ready { print::good("ready") } else { print::bad("not ready") }
}

fn rows(status: &Status, now: u64) -> Vec<(&'static str, String)> {
    let up = time::age(status.started_at.0, now);
    let agent = format!("process {}, up {up} since {}", status.pid, time::utc(status.started_at.0));
    let mut rows = vec![
        ("agent", agent),
        ("memory", mebibytes(status.rss_bytes)),
        ("store", status.store.clone()),
        ("run directory", status.run_dir.display().to_string()),
        ("socket", status.socket.display().to_string()),
        ("network", network(&status.network)),
        ("attachments", status.attachments.map_or_else(unknown, attachments)),
        ("reconcile", reconcile(&status.reconcile, now)),
        ("installed", installed(status)),
    ];
    rows.extend(inactive_ports(&status.inactive_ports));
    rows
}

/// One line for each port. None if there is no inactive port.
pub(super) fn inactive_ports(ports: &[InactivePort]) -> Option<(&'static str, String)> {
    let lines: Vec<String> = ports.iter().map(|port| print::short_ids(&port.to_string())).collect();
    (!lines.is_empty()).then(|| ("inactive", lines.join("\n")))
}

/// For numbers that need unreadable records.
pub(super) fn unknown() -> String {
    "unknown".to_owned()
}

fn mebibytes(bytes: u64) -> String {
    let tenths = bytes * 10 / (1 << 20);
    format!("{}.{} MiB", tenths / 10, tenths % 10)
}

fn network(network: &NetworkStatus) -> String {
    let mtu = network.mtu.map_or_else(|| "MTU of the bridge".to_owned(), |mtu| format!("MTU {mtu}"));
    let masquerade = if network.masquerade { "masqueraded" } else { "not masqueraded" };
    format!("{}: {}, bridge {}, {mtu}, {masquerade}", network.name, network.mode, network.bridge)
}

pub(super) fn attachments(counts: Counts) -> String {
    let mut text = format!("{} ready, {} pending", counts.ready, counts.pending);
    if counts.unreadable > 0 {
        text.push_str(&format!(", {} unreadable (GC removes them)", counts.unreadable));
    }
    text
}

fn reconcile(status: &ReconcileStatus, now: u64) -> String {
    let last = match status.last_round_at {
        Some(last) => format!("{} ago in {} ms", time::age(last.0, now), status.duration_ms),
        None => "not yet".to_owned(),
    };
    format!("{last}; {}, {}", print::count(status.rounds, "round"), print::count(status.repairs, "repair"))
}

fn installed(status: &Status) -> String {
    if status.installed.is_empty() {
        return plugins::nothing_installed().to_owned();
    }
    // A file that the agent installs when it is ready is not a problem.
    let has_problem = status.conditions.iter().any(|condition| condition.code == Code::InstallIncomplete);
    let mark = if has_problem { print::bad("BAD") + " " } else { print::degraded("wait") };
    let line = |file: &InstalledFile| match &file.message {
        None => format!("{}   {}", print::good("ok"), print::one_line(&file.path.to_string_lossy())),
        Some(problem) => {
            let path = file.path.to_string_lossy();
            format!(
                "{mark} {}
     {}",
                print::one_line(&path),
                print::one_line(problem)
            )
        }
    };
    status.installed.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn blocks(network: &NetworkStatus) -> String {
    let rows = network.blocks.iter().map(|block| {
        let (Some(used), Some(free)) = (block.used, block.free) else {
            return vec![block.block.to_string(), unknown(), unknown(), String::new()];
        };
        let bar = print::bar(used, used.saturating_add(free));
        vec![block.block.to_string(), used.to_string(), free.to_string(), bar]
    });
    let table = print::table(&["BLOCK", "USED", "FREE", ""], rows.collect());
    match network_note(network) {
        Some(note) => format!("{table}\n{}", print::wrap(&note, print::width())),
        None => table,
    }
}

/// Names the network if this node owns only some of its blocks.
fn network_note(network: &NetworkStatus) -> Option<String> {
    let is_all = network.blocks.iter().map(|block| block.block).eq(network.subnets.iter().copied());
    if is_all || network.subnets.is_empty() {
        return None;
    }
    let subnets: Vec<String> = network.subnets.iter().map(ToString::to_string).collect();
    Some(format!("of the network {}; 'podwire blocks' lists the blocks of all nodes", subnets.join(" ")))
}

/// The latest repair is the last row. Earlier repairs are counted.
fn repairs(status: &ReconcileStatus, now: u64) -> Option<String> {
    let earlier = status.recent_repairs.len().saturating_sub(LATEST);
    let latest = &status.recent_repairs[earlier..];
    if latest.is_empty() {
        return None;
    }
    let rows: Vec<(String, String)> = latest
        .iter()
        .map(|repair| {
            let message = print::short_ids(&print::one_line(&repair.message));
            (format!("{} ago", time::age(repair.at.0, now)), message)
        })
        .collect();
    let title = "REPAIRED: the agent found and corrected these differences; no action is needed";
    let mut lines = vec![print::wrap(title, print::width())];
    lines.push(print::key_values(rows.iter().map(|(ago, message)| (ago.as_str(), message.clone()))));
    lines.extend((earlier > 0).then(|| {
        let log = lab::adapt_message("'journalctl -u podwire'".to_owned());
        format!("{} before; see {log}", print::count(earlier as u64, "repair"))
    }));
    Some(lines.join("\n"))
}

/// Conditions that prevent readiness come first.
pub(super) fn conditions(all: &[Condition], now: u64) -> String {
    let (blocking, degraded): (Vec<_>, Vec<_>) = all.iter().partition(|one| one.prevents_ready());
    let titled = [(print::bad("NOT READY"), blocking), (print::degraded("DEGRADED"), degraded)];
    let parts: Vec<String> = titled
        .into_iter()
        .filter(|(_, conditions)| !conditions.is_empty())
        .map(|(title, conditions)| {
            let lines: Vec<String> = conditions.into_iter().map(|one| condition(one, now)).collect();
            format!("{title}\n{}", lines.join("\n"))
        })
        .collect();
    match parts.is_empty() {
        true => format!("{}; podwire doctor also tests peers and MTU", print::good("no problems")),
        false => parts.join("\n\n"),
    }
}

fn condition(condition: &Condition, now: u64) -> String {
    let Condition { code, object, since, message, fix, .. } = condition;
    let object = print::short_ids(&print::one_line(object));
    let age = since.map(|since| format!(", for {}", time::age(since.0, now))).unwrap_or_default();
    let head = print::wrap(&format!("{code} {object}{age}"), print::width() - 2);
    let message = print::wrap(&print::short_ids(message), print::width() - 2);
    let mut text = format!("- {}\n  {}", print::hanging(&head, 2), print::hanging(&message, 2));
    // On its own line and not wrapped, because it is pasted.
    text.extend(fix.iter().map(|fix| format!("\n    {}", print::one_line(fix))));
    let advice =
        code.advice().filter(|_| fix.is_none()).and_then(|advice| print::advice(advice, &condition.message));
    if let Some(advice) = advice {
        let advice = print::wrap(&advice, print::width() - 2);
        text.push_str(&format!("\n  {}", print::hanging(&advice, 2)));
    }
    text
}

#[cfg(test)]
#[path = "page_tests.rs"]
mod tests;
