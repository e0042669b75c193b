//! podwire-soak: load, faults and attacks at the same time on one lab, and an audit at the end.
//!
//! ```text
//! jail (own pids, mounts, network) ─► site: nodes n1 to n3 with agents and etcd, a node for hostile configs, a machine
//!                                      on the underlay that is no node
//!   load     ADD, CHECK, DEL, GC from many workers; plugins are killed, sandboxes vanish, DELs are forgotten
//!   faults   kill -9 of agents, etcd stops, flushed firewalls, deleted links and routes
//!   frames   hostile frames from pods and from the underlay; victims count what reaches them
//!   configs  hostile configs and requests       records  hostile records in the store
//!   monitor  a line every few seconds; memory, files, processes
//! ─► quiesce ─► audit: anything left, anything delivered, anything given twice ─► exit code
//! ```
//!
//! Everything happens in namespaces that the program makes. The number of processes is limited by the jail.

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

/// What all parts share.
pub(crate) struct Soak {
    pub(crate) options: SoakOptions,
    pub(crate) ledger: Ledger,
    over: AtomicBool,
    seed: u64,
    /// Read while hostile frames are sent; written while a firewall is flushed and until it is back. In between a frame that
    /// arrives says nothing.
    firewall: RwLock<()>,
}

impl Soak {
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    pub(crate) fn has(&self, attack: Attack) -> bool {
        self.options.has(attack)
    }

    /// A generator of its own for each part, from the one seed.
    pub(crate) fn random(&self, part: u64) -> Random {
        Random::with_seed(self.seed.wrapping_add(part.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }

    pub(crate) fn while_guarded(&self) -> RwLockReadGuard<'_, ()> {
        self.firewall.read().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    pub(crate) fn while_unguarded(&self) -> RwLockWriteGuard<'_, ()> {
        self.firewall.write().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Sleeps, but not beyond the end of the run.
    pub(crate) fn pause(&self, random: &mut Random, least: u64, most: u64) {
        let end = Instant::now() + Duration::from_millis(least + random.below(most - least + 1));
        while !self.is_over() && Instant::now() < end {
            let left = end.saturating_duration_since(Instant::now());
            std::thread::sleep(left.min(Duration::from_millis(50)));
        }
    }

    /// Runs one step of a part; an error is a finding: the part could not do what it is there for.
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
            eprintln!("the soak could not be done: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Whether nothing was found.
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
        // Also if this thread fails: the others end only then.
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
    println!("the load is over; everything is taken down");
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
