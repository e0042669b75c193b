//! podwire-soak: load, faults and attacks at the same time on one lab, and an audit at the end.
//!
//! ```text
//! jail (own pids, mounts, network) ─► site: nodes n1 to n3 with agents and etcd, a node for hostile configs,
//!                                      an external host on the underlay
//!   load     ADD, CHECK, DEL, GC from many workers; plugins are killed, sandboxes are removed, DELs are omitted
//!   faults   kill -9 of agents, etcd stops, flushed firewalls, deleted links and routes
//!   frames   hostile frames from pods and from the underlay; victims count delivered ones
//!   configs  hostile configs and requests       records  hostile records in the store
//!   monitor  a line every few seconds; memory, files, processes
//! ─► quiesce ─► audit: leftovers, delivered hostile packets, duplicate addresses ─► exit code
//! ```
//!
//! The program works only in namespaces that it creates. The number of processes is limited by the jail.

mod audit;
mod configs;
mod faults;
mod frames;
mod jail;
mod ledger;
mod load;
mod monitor;
mod options;
mod packets;
mod records;
mod site;
mod victims;

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Parser as _;
use testkit::Random;

use ledger::Ledger;
use options::{Attack, SoakOptions};
use site::SoakSite;

/// State that all parts share.
pub(crate) struct Soak {
    pub(crate) options: SoakOptions,
    pub(crate) ledger: Ledger,
    over: AtomicBool,
    seed: u64,
    /// Locked for reading while hostile frames are sent, and for writing from the flush of a firewall until it is restored. A
    /// frame delivered in between is not a finding.
    firewall: RwLock<()>,
}

impl Soak {
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    pub(crate) fn has(&self, attack: Attack) -> bool {
        self.options.has(attack)
    }

    /// A random generator for each part, from one seed.
    pub(crate) fn random(&self, part: u64) -> Random {
        Random::with_seed(self.seed.wrapping_add(part.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }

    /// While the guard lives, no firewall is flushed. Hostile frames are sent only then.
    pub(crate) fn while_firewall_is_intact(&self) -> RwLockReadGuard<'_, ()> {
        self.firewall.read().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// While the guard lives, no hostile frames are sent.
    pub(crate) fn while_firewall_is_changed(&self) -> RwLockWriteGuard<'_, ()> {
        self.firewall.write().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Sleeps at most until the end of the run.
    pub(crate) fn pause(&self, random: &mut Random, least: u64, most: u64) {
        let end = Instant::now() + Duration::from_millis(least + random.below(most - least + 1));
        while !self.is_over() && Instant::now() < end {
            let left = end.saturating_duration_since(Instant::now());
            std::thread::sleep(left.min(Duration::from_millis(50)));
        }
    }

    /// Records an error of a step as a finding.
    pub(crate) fn step(&self, what: &str, done: Result<()>) {
        if let Err(error) = done {
            self.ledger.find(what, format!("{error:#}"));
        }
    }
}

fn main() -> ExitCode {
    let options = SoakOptions::parse();
    if !options.inside {
        return jail::enter();
    }
    match run(options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("the soak test failed: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// True if there are no findings.
fn run(options: SoakOptions) -> Result<bool> {
    let seed = Random::seed("soak");
    println!("{}", options.summary());
    let lasting = options.lasting();
    let soak = Soak {
        options,
        ledger: Ledger::default(),
        over: AtomicBool::new(false),
        seed,
        firewall: RwLock::new(()),
    };
    let site = SoakSite::make(&soak)?;
    println!("{}", site.summary());
    let mut watched = monitor::AgentSizes::default();
    std::thread::scope(|scope| -> Result<()> {
        let (soak, site) = (&soak, &site);
        // Also after an error, because the other threads stop only then.
        let over = Over(&soak.over);
        load::start(scope, soak, site)?;
        faults::start(scope, soak, site);
        frames::start(scope, soak, site)?;
        configs::start(scope, soak, site)?;
        records::start(scope, soak, site)?;
        monitor::watch(soak, site, lasting, &mut watched)?;
        drop(over);
        Ok(())
    })?;
    println!("load finished; removing all pods");
    audit::run(&soak, &site, &watched)?;
    println!("\n{}", soak.ledger.summary());
    Ok(soak.ledger.is_clean())
}

struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}
