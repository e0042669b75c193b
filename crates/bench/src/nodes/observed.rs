//! Which routes to other nodes the kernel has, and when they came and went: it tells us itself.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use ipnet::IpNet;
use netlink::{PeerEvent, PeerMonitor, Route, RouteFilter, RtSocket};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use testkit::Ns;
use types::PEER_PROTOCOL;

/// How long one wait for news lasts at most.
const WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

/// The routes of a node that lead to other nodes, kept up to date by what the kernel tells.
pub(super) struct Eye {
    monitor: PeerMonitor,
    socket: RtSocket,
    gateways: BTreeMap<IpNet, Option<IpAddr>>,
}

impl Eye {
    pub(super) fn open(ns: &Ns) -> Result<Self> {
        let opened = ns.enter(|| Ok::<_, netlink::Error>((PeerMonitor::open()?, RtSocket::open()?)))?;
        let (monitor, socket) = opened?;
        let mut eye = Self { monitor, socket, gateways: BTreeMap::new() };
        eye.look()?;
        Ok(eye)
    }

    /// Waits until it is as wished; when that was.
    pub(super) fn wait(&mut self, within: Duration, wish: AwaitedRoutes) -> Result<Instant> {
        let end = Instant::now() + within;
        loop {
            if self.holds(&wish) {
                return Ok(Instant::now());
            }
            if Instant::now() > end {
                let observed = self.gateways.len();
                self.look()?;
                let there = self.gateways.len();
                bail!(
                    "{wish:?} is not true after {within:?}: {observed} routes by the kernel's news, {there} by its list"
                );
            }
            self.listen()?;
        }
    }

    fn holds(&self, wish: &AwaitedRoutes) -> bool {
        match wish {
            AwaitedRoutes::Count(count) => self.gateways.len() == *count,
            AwaitedRoutes::Via(dst, gateway) => self.gateways.get(dst) == Some(&Some(*gateway)),
            AwaitedRoutes::Swapped { there, gone } => {
                self.gateways.contains_key(there) && !self.gateways.contains_key(gone)
            }
        }
    }

    /// The kernel tells of a removal before it removes: who begins to listen in between still lists the route and never
    /// hears of its end. So when it is quiet, everything is listed again.
    fn listen(&mut self) -> Result<()> {
        if wait(&self.monitor)? == RouteEvents::Nothing {
            return self.look();
        }
        for events in self.monitor.read()? {
            match events {
                PeerEvent::RouteSet(route) => self.note(&route),
                PeerEvent::RouteRemoved(route) if self.gateways.get(&route.dst) == Some(&route.gateway) => {
                    self.gateways.remove(&route.dst);
                }
                PeerEvent::Lost => self.look()?,
                _ => {}
            }
        }
        Ok(())
    }

    fn look(&mut self) -> Result<()> {
        self.gateways.clear();
        let ours = RouteFilter { protocol: Some(PEER_PROTOCOL), ..RouteFilter::default() };
        for route in self.socket.routes(ours)? {
            self.note(&route);
        }
        Ok(())
    }

    fn note(&mut self, route: &Route) {
        self.gateways.insert(route.dst, route.gateway);
    }
}

/// What is waited for.
#[derive(Debug, Clone, Copy)]
pub(super) enum AwaitedRoutes {
    /// So many routes, of both families.
    Count(usize),
    /// This one through that gateway.
    Via(IpNet, IpAddr),
    /// One is there, and another is not.
    Swapped { there: IpNet, gone: IpNet },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RouteEvents {
    Something,
    Nothing,
}

fn wait(monitor: &PeerMonitor) -> Result<RouteEvents> {
    match poll(&mut [PollFd::new(monitor, PollFlags::IN)], Some(&WAIT)) {
        Ok(0) => Ok(RouteEvents::Nothing),
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(RouteEvents::Something),
        Err(errno) => Err(errno).context("cannot wait for the kernel's news"),
    }
}

/// A route that came or went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum RouteTransition {
    Came(IpNet),
    Went(IpNet),
}

/// Notes when every route of a node comes and goes, in a thread of its own.
pub(super) struct Diary {
    over: Arc<AtomicBool>,
    thread: JoinHandle<Result<Vec<(RouteTransition, Instant)>>>,
}

impl Diary {
    pub(super) fn begin(ns: &Ns) -> Result<Self> {
        let monitor = ns.enter(PeerMonitor::open)??;
        let over = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&over);
        let thread = std::thread::spawn(move || keep(monitor, &told));
        Ok(Self { over, thread })
    }

    pub(super) fn end(self) -> Result<Vec<(RouteTransition, Instant)>> {
        self.over.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow!("the thread that listens to the kernel panicked"))?
    }
}

fn keep(mut monitor: PeerMonitor, over: &AtomicBool) -> Result<Vec<(RouteTransition, Instant)>> {
    let mut turns = Vec::new();
    while !over.load(Ordering::Relaxed) {
        wait(&monitor)?;
        let now = Instant::now();
        for events in monitor.read()? {
            match events {
                PeerEvent::RouteSet(route) => turns.push((RouteTransition::Came(route.dst), now)),
                PeerEvent::RouteRemoved(route) => turns.push((RouteTransition::Went(route.dst), now)),
                PeerEvent::Lost => bail!("the kernel had more news than we could read: times are unknown"),
                _ => {}
            }
        }
    }
    Ok(turns)
}
