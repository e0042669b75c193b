//! Routes to peers, and the times of their addition and removal according to netlink events.

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

/// Maximum duration of one wait for events.
const WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

/// A node's routes to peers, updated by netlink events.
pub(super) struct RouteObserver {
    monitor: PeerMonitor,
    socket: RtSocket,
    gateways: BTreeMap<IpNet, Option<IpAddr>>,
}

impl RouteObserver {
    pub(super) fn open(ns: &Ns) -> Result<Self> {
        let opened = ns.enter(|| Ok::<_, netlink::Error>((PeerMonitor::open()?, RtSocket::open()?)))?;
        let (monitor, socket) = opened?;
        let mut observer = Self { monitor, socket, gateways: BTreeMap::new() };
        observer.list_routes()?;
        Ok(observer)
    }

    /// Waits until the condition is true and returns the time.
    pub(super) fn wait(&mut self, within: Duration, awaited: AwaitedRoutes) -> Result<Instant> {
        let end = Instant::now() + within;
        loop {
            if self.holds(&awaited) {
                return Ok(Instant::now());
            }
            if Instant::now() > end {
                let observed = self.gateways.len();
                self.list_routes()?;
                let there = self.gateways.len();
                bail!(
                    "{awaited:?} is not true after {within:?}: {observed} routes by events, {there} listed"
                );
            }
            self.listen()?;
        }
    }

    fn holds(&self, awaited: &AwaitedRoutes) -> bool {
        match awaited {
            AwaitedRoutes::Count(count) => self.gateways.len() == *count,
            AwaitedRoutes::Via(dst, gateway) => self.gateways.get(dst) == Some(&Some(*gateway)),
            AwaitedRoutes::Swapped { there, gone } => {
                self.gateways.contains_key(there) && !self.gateways.contains_key(gone)
            }
        }
    }

    /// The kernel sends the event of a removal before it removes the route. A listener that starts in between lists the route and
    /// gets no event. Therefore the routes are listed again when there are no events.
    fn listen(&mut self) -> Result<()> {
        if wait(&self.monitor)? == RouteEvents::Nothing {
            return self.list_routes();
        }
        for events in self.monitor.read()? {
            match events {
                PeerEvent::RouteSet(route) => self.note(&route),
                PeerEvent::RouteRemoved(route) if self.gateways.get(&route.dst) == Some(&route.gateway) => {
                    self.gateways.remove(&route.dst);
                }
                PeerEvent::Lost => self.list_routes()?,
                _ => {}
            }
        }
        Ok(())
    }

    fn list_routes(&mut self) -> Result<()> {
        self.gateways.clear();
        let filter = RouteFilter { protocol: Some(PEER_PROTOCOL), ..RouteFilter::default() };
        for route in self.socket.routes(filter)? {
            self.note(&route);
        }
        Ok(())
    }

    fn note(&mut self, route: &Route) {
        self.gateways.insert(route.dst, route.gateway);
    }
}

/// The condition to wait for.
#[derive(Debug, Clone, Copy)]
pub(super) enum AwaitedRoutes {
    /// Number of routes of both families.
    Count(usize),
    /// This route with this gateway.
    Via(IpNet, IpAddr),
    /// One route exists and another does not.
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
        Err(errno) => Err(errno).context("cannot wait for netlink events"),
    }
}

/// An added or removed route.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum RouteTransition {
    Added(IpNet),
    Removed(IpNet),
}

/// Records the times of all route changes of a node in a separate thread.
pub(super) struct RouteRecorder {
    over: Arc<AtomicBool>,
    thread: JoinHandle<Result<Vec<(RouteTransition, Instant)>>>,
}

impl RouteRecorder {
    pub(super) fn begin(ns: &Ns) -> Result<Self> {
        let monitor = ns.enter(PeerMonitor::open)??;
        let over = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&over);
        let thread = std::thread::spawn(move || record_routes(monitor, &stop));
        Ok(Self { over, thread })
    }

    pub(super) fn end(self) -> Result<Vec<(RouteTransition, Instant)>> {
        self.over.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow!("the netlink listener thread panicked"))?
    }
}

fn record_routes(mut monitor: PeerMonitor, over: &AtomicBool) -> Result<Vec<(RouteTransition, Instant)>> {
    let mut transitions = Vec::new();
    while !over.load(Ordering::Relaxed) {
        wait(&monitor)?;
        let now = Instant::now();
        for events in monitor.read()? {
            match events {
                PeerEvent::RouteSet(route) => transitions.push((RouteTransition::Added(route.dst), now)),
                PeerEvent::RouteRemoved(route) => {
                    transitions.push((RouteTransition::Removed(route.dst), now));
                }
                PeerEvent::Lost => bail!("netlink events were lost (ENOBUFS): times are unknown"),
                _ => {}
            }
        }
    }
    Ok(transitions)
}
