//! Counts of all actions, the addresses of all pods, and the findings.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Maximum number of recorded examples per kind.
const EXAMPLES: usize = 6;

#[derive(Default)]
pub(crate) struct Ledger {
    counts: Mutex<BTreeMap<String, u64>>,
    findings: Mutex<BTreeMap<String, SoakFinding>>,
    given: Mutex<GivenAddresses>,
}

#[derive(Default)]
struct SoakFinding {
    count: u64,
    examples: Vec<String>,
}

#[derive(Default)]
struct GivenAddresses {
    /// Addresses of networks and the pods that use them.
    living: BTreeMap<(&'static str, IpAddr), String>,
    ever: BTreeSet<IpAddr>,
}

impl Ledger {
    pub(crate) fn count(&self, what: &str) {
        self.count_by(what, 1);
    }

    pub(crate) fn count_by(&self, what: &str, number: u64) {
        let mut counts = lock(&self.counts);
        match counts.get_mut(what) {
            Some(count) => *count += number,
            None => drop(counts.insert(what.to_owned(), number)),
        }
    }

    pub(crate) fn counted(&self, what: &str) -> u64 {
        lock(&self.counts).get(what).copied().unwrap_or(0)
    }

    pub(crate) fn find(&self, kind: &str, example: impl Into<String>) {
        let mut findings = lock(&self.findings);
        let finding = findings.entry(kind.to_owned()).or_default();
        finding.count += 1;
        let example = printable(&example.into());
        if finding.examples.len() < EXAMPLES && !finding.examples.contains(&example) {
            finding.examples.push(example);
        }
    }

    pub(crate) fn found(&self) -> u64 {
        lock(&self.findings).values().map(|finding| finding.count).sum()
    }

    pub(crate) fn is_clean(&self) -> bool {
        lock(&self.findings).is_empty()
    }

    /// Records the addresses of a pod. An address that another pod uses is a finding.
    pub(crate) fn enter(&self, network: &'static str, pod: &str, addresses: &[IpAddr]) {
        let mut twice = Vec::new();
        let mut given = lock(&self.given);
        for address in addresses {
            given.ever.insert(*address);
            if let Some(other) = given.living.insert((network, *address), pod.to_owned()) {
                twice.push(format!("{address} was assigned to {pod} while {other} uses it"));
            }
        }
        drop(given);
        twice.into_iter().for_each(|text| self.find("address given twice", text));
    }

    /// Called before the DEL is sent.
    pub(crate) fn leave(&self, network: &'static str, addresses: &[IpAddr]) {
        let mut given = lock(&self.given);
        for address in addresses {
            given.living.remove(&(network, *address));
        }
    }

    /// Whether a pod ever had this address.
    pub(crate) fn was_given(&self, address: IpAddr) -> bool {
        lock(&self.given).ever.contains(&address)
    }

    pub(crate) fn given(&self) -> usize {
        lock(&self.given).ever.len()
    }

    pub(crate) fn summary(&self) -> String {
        let mut text = "Done:\n".to_owned();
        for (what, count) in lock(&self.counts).iter() {
            text.push_str(&format!("  {count:>8}  {what}\n"));
        }
        let findings = lock(&self.findings);
        if findings.is_empty() {
            text.push_str("\nNo findings.");
            return text;
        }
        text.push_str("\nFINDINGS:");
        for (kind, finding) in findings.iter() {
            text.push_str(&format!("\n  {kind}: {}", finding.count));
            for example in &finding.examples {
                text.push_str(&format!("\n    {}", example.replace('\n', "\n    ")));
            }
        }
        text
    }
}

/// Examples contain attacker-controlled text.
fn printable(text: &str) -> String {
    let escaped = |c: char| match c {
        '\n' => c.to_string(),
        c if c.is_control() => c.escape_default().to_string(),
        c => c.to_string(),
    };
    text.chars().map(escaped).collect()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duplicate_address_is_a_finding_and_a_reused_one_is_not() {
        let ledger = Ledger::default();
        let address: IpAddr = "10.0.0.1".parse().unwrap();
        ledger.enter("a", "one", &[address]);
        ledger.enter("b", "other network", &[address]);
        ledger.leave("a", &[address]);
        ledger.enter("a", "two", &[address]);
        assert!(ledger.is_clean());
        ledger.enter("a", "three", &[address]);
        assert!(!ledger.is_clean() && ledger.summary().contains("three"));
        ledger.find("kind", "\u{1b}[2J");
        assert!(ledger.summary().contains("u{1b}[2J") && !ledger.summary().contains('\u{1b}'));
    }
}
