//! ADD, CHECK and DEL from many workers. Some plugins are killed during a call, some sandboxes are removed before the DEL, and
//! some DELs are omitted and left to GC.

use std::thread::Scope;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use testkit::{Call, CniError, Outcome, Plugin, Pod, Random, Verb, inspect, wait_until, with_prev_result};

use crate::Soak;
use crate::options::Attack;
use crate::site::{LONG, SoakNetwork, SoakSite, ips};

/// The plugin is killed within this time, the duration of a call on a busy host.
const KILL_WITHIN_US: u64 = 25_000;
const DEL_TRIES: usize = 20;
/// A pod name with a terminal control sequence.
const CONTROL_NAME: &str = "pod\u{1b}[31m\u{7}\u{9b}2J";

/// Allowed error codes of an ADD during faults: try again later, not available, kernel.
const EXPECTED: [u32; 4] = [11, 50, 51, 103];

struct Worker<'a> {
    soak: &'a Soak,
    site: &'a SoakSite,
    random: Random,
    number: usize,
    /// One per network, in their order.
    sandboxes: Vec<Pod>,
    made: usize,
}

pub(crate) fn start<'scope>(
    scope: &'scope Scope<'scope, '_>,
    soak: &'scope Soak,
    site: &'scope SoakSite,
) -> Result<()> {
    for number in 0..usize::from(soak.options.workers) {
        let mut worker = Worker {
            soak,
            site,
            random: soak.random(100 + number as u64),
            number,
            sandboxes: vec![],
            made: 0,
        };
        for network in &site.networks {
            let sandbox = worker.sandbox(network)?;
            worker.sandboxes.push(sandbox);
        }
        scope.spawn(move || worker.run());
    }
    for (number, network) in site.networks.iter().enumerate() {
        scope.spawn(move || collect(soak, site, network, soak.random(200 + number as u64)));
    }
    Ok(())
}

/// Runs GC from time to time. It is never killed, because a runtime repeats an interrupted GC before it adds pods.
fn collect(soak: &Soak, site: &SoakSite, network: &SoakNetwork, mut random: Random) {
    while !soak.is_over() {
        soak.pause(&mut random, 3000, 8000);
        match network.collect(&site.plugin) {
            Ok(outcome) if outcome.success() => soak.ledger.count("GC"),
            Ok(outcome) => judge(soak, "GC", &outcome),
            Err(error) => {
                soak.ledger.find("GC cannot be started or hangs", format!("{}: {error:#}", network.name));
            }
        }
    }
}

impl Worker<'_> {
    fn run(mut self) {
        while !self.soak.is_over() {
            let index = self.random.below(self.site.networks.len() as u64) as usize;
            let done = self.cycle(index);
            self.soak.step("a worker failed", done);
        }
        for sandbox in &self.sandboxes {
            let removed = sandbox.destroy();
            self.soak.step("a sandbox cannot be removed", removed);
        }
    }

    fn sandbox(&mut self, network: &SoakNetwork) -> Result<Pod> {
        self.made += 1;
        network.node.pod(&format!("w{}-{}-{}", self.number, network.scope, self.made))
    }

    /// Life of one container from ADD to DEL.
    fn cycle(&mut self, index: usize) -> Result<()> {
        let (soak, site) = (self.soak, self.site);
        let network = &site.networks[index];
        self.made += 1;
        let container = format!("soak-{}-{}", self.number, self.made);
        let name = if soak.has(Attack::ControlCharacters) && self.random.below(10) == 0 {
            CONTROL_NAME
        } else {
            "pod"
        };
        let args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=soak;K8S_POD_NAME={name}{}", self.made);
        network.register(&container);
        let call = |verb| network.call(verb, (&self.sandboxes[index], &container), &args);
        let (add, del) = (call(Verb::Add), call(Verb::Del));
        let result = self.add(network, &add)?;
        if let Some(result) = &result {
            soak.ledger.enter(network.scope, &container, &ips(result));
            self.use_pod(network, index, (&add, result))?;
            soak.ledger.leave(network.scope, &ips(result));
        }
        match self.random.below(20) {
            // No DEL for this container; GC must remove it.
            0 => {
                self.renew(index)?;
                network.unregister(&container);
                soak.ledger.count("DELs forgotten");
                return Ok(());
            }
            1 | 2 => {
                self.renew(index)?;
                soak.ledger.count("sandboxes removed before the DEL");
            }
            _ => {}
        }
        self.del(network, &del)?;
        network.unregister(&container);
        self.wait_for_removal(index)
    }

    fn renew(&mut self, index: usize) -> Result<()> {
        self.sandboxes[index].destroy()?;
        self.sandboxes[index] = self.sandbox(&self.site.networks[index])?;
        Ok(())
    }

    /// The result of a successful ADD.
    fn add(&mut self, network: &SoakNetwork, add: &Call) -> Result<Option<Value>> {
        let soak = self.soak;
        let outcome = match self.called(network, add, 6) {
            Ok(outcome) => outcome,
            Err(error) => {
                soak.ledger.find("ADD cannot be started or hangs", format!("{}: {error:#}", network.name));
                return Ok(None);
            }
        };
        if outcome.killed() {
            soak.ledger.count("ADDs killed");
            return Ok(None);
        }
        if !outcome.success() {
            judge(soak, "ADD", &outcome);
            return Ok(None);
        }
        let result = outcome.ok()?;
        soak.ledger.count("ADDs");
        if ips(&result).len() != 2 {
            soak.ledger.find("ADD without both families", result.to_string());
        }
        Ok(Some(result))
    }

    fn use_pod(&mut self, network: &SoakNetwork, index: usize, (add, result): (&Call, &Value)) -> Result<()> {
        let soak = self.soak;
        if self.random.below(3) == 0 {
            let config: Value = serde_json::from_slice(&add.stdin)?;
            let stdin = with_prev_result(&config, result)?.to_string().into_bytes();
            let check = Call { verb: Verb::Check, stdin, ..add.clone() };
            match self.site.plugin.call(&network.node, &check) {
                Ok(outcome) if outcome.success() => soak.ledger.count("CHECKs"),
                // An object of the pod was just deleted.
                Ok(outcome) if outcome.error().is_ok_and(|error| error.code == 105) => {
                    soak.ledger.count("CHECKs that reported missing objects");
                }
                Ok(outcome) => judge(soak, "CHECK", &outcome),
                Err(error) => soak
                    .ledger
                    .find("CHECK cannot be started or hangs", format!("{}: {error:#}", network.name)),
            }
        }
        if self.random.below(4) == 0 {
            let gateway = result["ips"][self.random.below(2) as usize]["gateway"].as_str();
            let gateway =
                gateway.and_then(|gateway| gateway.parse().ok()).context("the result has no gateway")?;
            // The reply may be lost, because the link may be deleted. The ping creates connection tracking entries that the next pod
            // with this address must not inherit.
            let _ = testkit::ping(&self.sandboxes[index], gateway, 1);
            soak.ledger.count("pings from pods");
        }
        soak.pause(&mut self.random, 0, 30);
        Ok(())
    }

    /// Repeats DEL until it succeeds, as runtimes do.
    fn del(&mut self, network: &SoakNetwork, del: &Call) -> Result<()> {
        let soak = self.soak;
        for _ in 0..DEL_TRIES {
            match self.called(network, del, 8) {
                Ok(outcome) if outcome.killed() => soak.ledger.count("DELs killed"),
                Ok(outcome) if outcome.success() => {
                    soak.ledger.count("DELs");
                    return Ok(());
                }
                Ok(outcome) => {
                    judge(soak, "DEL", &outcome);
                    std::thread::sleep(Duration::from_millis(500));
                }
                Err(error) => {
                    soak.ledger
                        .find("DEL cannot be started or hangs", format!("{}: {error:#}", network.name));
                }
            }
        }
        let container = del.container.as_deref().unwrap_or_default();
        soak.ledger.find("DEL fails repeatedly", format!("{}: {container}", network.name));
        Ok(())
    }

    /// Kills the plugin at a random time in a fraction of the calls.
    fn called(&mut self, network: &SoakNetwork, call: &Call, one_in: u64) -> Result<Outcome> {
        let plugin: &Plugin = &self.site.plugin;
        if self.soak.has(Attack::PluginKills) && self.random.below(one_in) == 0 {
            let after = Duration::from_micros(self.random.below(KILL_WITHIN_US));
            return testkit::call_killed_after(plugin, &network.node, call, after);
        }
        plugin.call(&network.node, call)
    }

    /// A DEL without an agent is completed when the agent starts. The sandbox is reused afterwards.
    fn wait_for_removal(&mut self, index: usize) -> Result<()> {
        let sandbox = &self.sandboxes[index];
        let is_removed = || Ok(!inspect::links(sandbox)?.iter().any(|link| link.name == "eth0"));
        if is_removed()? {
            return Ok(());
        }
        self.soak.ledger.count("DELs completed later");
        if wait_until("removal of the link", LONG, is_removed).is_err() {
            let name = self.site.networks[index].name;
            self.soak.ledger.find("link remains after DEL", format!("{name}: {}", sandbox.id()));
            self.renew(index)?;
        }
        Ok(())
    }
}

/// Counts an expected error; any other error is a finding.
fn judge(soak: &Soak, verb: &str, outcome: &Outcome) {
    match error_object(outcome) {
        Ok(CniError { code, .. }) if EXPECTED.contains(&code) => {
            soak.ledger.count(&format!("{verb}s refused with code {code}"));
        }
        Ok(error) => {
            soak.ledger.find(&format!("{verb} fails with code {}", error.code), format!("{error:?}"));
        }
        Err(error) => {
            soak.ledger.find(&format!("{verb} fails without an error object"), format!("{error:#}"));
        }
    }
}

/// Checks that an error is an error object and not a panic.
pub(crate) fn error_object(outcome: &Outcome) -> Result<CniError> {
    ensure!(!outcome.stderr.contains("panicked"), "panic: {}", outcome.stderr);
    let error = outcome.error()?;
    ensure!(error.code != 199, "a bug was reported: {error:?}");
    Ok(error)
}
