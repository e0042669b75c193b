//! The kernel's side: routes, neighbours and tunnel entries for all other nodes, always as the records say.
//!
//! ```text
//! updates from the store ─┐
//! news from the kernel ───┼─► Mesh (desired) ─► what changed ─► one batch
//! timer ──────────────────┘                └──► compared with all the kernel has: after losses, and on the timer
//! ```
//!
//! What is there stays until the store has said otherwise: an agent that starts while the store is away sweeps nothing.

use std::net::IpAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use cluster::{Facts, NodeRecord, Transport, Tunnels};
use netlink::{PeerMonitor, PeerNews};
use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until};
use tracing::{debug, info, warn};
use types::IfName;

use super::kernel::Kernel;
use super::known::Known;
use super::member::Update;
use super::shared::Shared;
use super::tunnel::{self, Tunnel, TunnelError};
use super::underlay::{self, Position};
use crate::board::Finder;

/// How long after news a look is taken: what belongs together comes together.
const PAUSE: Duration = Duration::from_millis(20);
/// How soon something that failed is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// How often the others are written down, at most, while they change.
const SAVE: Duration = Duration::from_millis(500);
/// At most so often for each of them: thousands are many megabytes.
const SAVE_EACH: Duration = Duration::from_millis(2);
/// How long an address may be away before others are told.
const GRACE: Duration = Duration::from_secs(10);
/// Updates that are taken in one go.
const BATCH: usize = 4096;

/// A question about the routes there are.
pub(super) type Question = oneshot::Sender<Result<Vec<api::RouteView>, String>>;

pub(super) struct Routes {
    pub(super) shared: Arc<Shared>,
    pub(super) addresses: watch::Sender<Option<Vec<IpAddr>>>,
    pub(super) updates: mpsc::Receiver<Update>,
    pub(super) questions: mpsc::Receiver<Question>,
    /// Our record's part that never changes.
    pub(super) record: NodeRecord,
    pub(super) kernel: Kernel,
    pub(super) known: Known,
}

impl Routes {
    /// For ever, or until nobody is left who could tell anything.
    pub(super) async fn run(mut self) {
        while let Err(error) = self.listen().await {
            warn!("the kernel's news cannot be heard, and are asked for again: {error}");
            self.soon(PAUSE);
            tokio::time::sleep(RETRY).await;
        }
    }

    async fn listen(&mut self) -> Result<(), netlink::Error> {
        let mut monitor = PeerMonitor::open()?;
        let wakes = wakes(&monitor).map_err(|e| super::io_error("wait for the kernel's news", &e))?;
        loop {
            let save_at = self.known.save_at;
            tokio::select! {
                update = self.updates.recv() => match update {
                    Some(update) => self.updated(update),
                    None => return Ok(()),
                },
                question = self.questions.recv() => match question {
                    Some(question) => drop(question.send(self.shown().map_err(|e| e.to_string()))),
                    None => return Ok(()),
                },
                ready = wakes.readable() => {
                    let mut ready = ready.map_err(|e| super::io_error("wait for the kernel's news", &e))?;
                    let news = monitor.read();
                    // As long as there is something there may be more.
                    if !news.as_ref().is_ok_and(|news| !news.is_empty()) {
                        ready.clear_ready();
                    }
                    self.heard(news);
                }
                () = self.shared.share_changed() => self.soon(PAUSE),
                () = sleep_until(self.known.look_at) => self.look(),
                () = sleep_until(save_at.unwrap_or_else(far)), if save_at.is_some() => self.save(),
            }
        }
    }

    /// Takes what the store told, and all else it has told meanwhile, and puts the difference into the kernel.
    fn updated(&mut self, first: Update) {
        let mut next = Some(first);
        let mut is_list = false;
        for _ in 0..BATCH {
            let Some(update) = next else { break };
            match update {
                Update::All(census) => {
                    is_list = true;
                    self.known.set_all(census);
                }
                Update::Node(record) => self.known.set_peer(record),
                Update::Gone(name) => {
                    self.known.awaited.remove(&name);
                    self.known.mesh.remove_peer(&name);
                }
            }
            next = self.updates.try_recv().ok();
        }
        self.known.save_at.get_or_insert_with(|| {
            // Soon, since power may go; the more there is to write, the less often.
            let count = u32::try_from(self.known.mesh.peers().count()).unwrap_or(u32::MAX);
            Instant::now() + SAVE.max(SAVE_EACH.saturating_mul(count))
        });
        if is_list {
            // What was missed may have left something behind.
            self.look();
        } else {
            self.change();
        }
    }

    /// The difference to what was wanted before.
    fn change(&mut self) {
        // Tunnels that are there are looked after when everything is.
        if self.lacks_tunnel() {
            self.keep_tunnels();
        }
        let changes = self.known.mesh.take_changes();
        debug!("{changes}");
        self.apply(&changes);
    }

    fn apply(&mut self, changes: &cluster::Changes) {
        if changes.is_empty() {
            self.tell();
            return;
        }
        match self.kernel.apply(changes) {
            Ok(refused) if refused.is_empty() => {}
            Ok(refused) => {
                for what in refused.iter().take(5) {
                    warn!("{what}");
                }
                if refused.len() > 5 {
                    warn!("and {} more", refused.len() - 5);
                }
                self.soon(RETRY);
            }
            Err(error) => {
                warn!("routes to other nodes could not be changed: {error}");
                self.soon(RETRY);
            }
        }
        self.tell();
    }

    /// Looks at everything: where this node is, its tunnels, and what the kernel has of ours.
    fn look(&mut self) {
        self.known.look_at = Instant::now() + self.shared.config.reconcile;
        if let Err(error) = self.look_at_all() {
            warn!("could not look at the routes to other nodes, and tries again: {error}");
            self.soon(RETRY);
        }
    }

    fn look_at_all(&mut self) -> Result<(), netlink::Error> {
        self.known.give_up();
        self.find_position()?;
        self.keep_tunnels();
        let (mesh, tunnels) = (&mut self.known.mesh, &self.known.tunnels);
        let (seen, odd) = self.kernel.seen(&indexes(tunnels))?;
        let mut changes = mesh.compare(&seen);
        if !odd.is_empty() {
            info!("{} routes of ours are not as we make them: they go", odd.len());
            self.kernel.remove(&odd)?;
        }
        if !self.known.is_complete {
            // Somebody may stand behind it whom the store has not told us of yet.
            changes.del_routes.clear();
            changes.del_neighbours.clear();
            changes.del_fdb.clear();
        }
        if !changes.is_empty() {
            debug!("{changes}");
            let repaired = changes.set_routes.len() + changes.del_routes.len();
            self.shared.metrics.repaired("peer-routes", repaired as u64);
        }
        self.apply(&changes);
        Ok(())
    }

    /// Where we are: links, addresses, MTU. What changed is published.
    fn find_position(&mut self) -> Result<(), netlink::Error> {
        let config = Arc::clone(&self.shared.config);
        let around = self.kernel.surroundings(config.node_interface.as_ref())?;
        let is_ours = |link: &netlink::Link| {
            link.name == config.network.bridge.as_str()
                || link.alias.as_deref().is_some_and(|a| a.starts_with("podwire"))
        };
        let position = underlay::find(&config, &around, is_ours, &self.known.position.addresses());
        let sources = self.shared.gateways();
        let sources: Vec<IpAddr> =
            sources.into_iter().filter(|ip| around.addresses.iter().any(|a| a.addr.addr() == *ip)).collect();
        self.publish(position.addresses());
        self.shared.set_mtu(pod_mtu(&position, &config));
        self.known.position = position;
        self.set_facts(sources);
        Ok(())
    }

    /// Another address is told at once. One that is gone without another in its place may come back in a moment (a link that
    /// flaps, a lease that is renewed), and all others would drop their routes meanwhile.
    fn publish(&mut self, mut addresses: Vec<IpAddr>) {
        let before = self.addresses.borrow().clone();
        let published = before.clone().unwrap_or_default();
        let has_family = |list: &[IpAddr], of: &IpAddr| list.iter().any(|ip| ip.is_ipv4() == of.is_ipv4());
        let missing: Vec<IpAddr> =
            published.iter().filter(|ip| !has_family(&addresses, ip)).copied().collect();
        if missing.is_empty() {
            self.known.missing_since = None;
        } else {
            let since = *self.known.missing_since.get_or_insert_with(Instant::now);
            if since.elapsed() < GRACE {
                addresses.extend(missing);
                addresses.sort_by_key(IpAddr::is_ipv6);
                self.known.look_at = self.known.look_at.min(since + GRACE);
            }
        }
        if before.as_ref() != Some(&addresses) {
            self.addresses.send_replace(Some(addresses));
        }
    }

    fn set_facts(&mut self, sources: Vec<IpAddr>) {
        let network = &self.shared.config.network;
        self.known.mesh.set_facts(Facts {
            name: self.record.name.clone(),
            blocks: self.shared.blocks(),
            subnets: network.subnets.clone(),
            transport: self.shared.config.cluster.transport,
            underlays: self.known.position.underlays.clone(),
            tunnels: self.known.tunnels,
            sources,
        });
    }

    /// Which tunnel devices should be there, IPv4 and IPv6. Also where nobody needs one to be sent to: somebody whose subnet is
    /// cut otherwise may see us behind a router, and send through the tunnel what we send directly.
    fn tunnels_wanted(&self) -> (bool, bool) {
        let (v4, v6) = self.known.mesh.tunnels_wanted();
        let may_come = !self.shared.is_alone && self.shared.config.cluster.transport != Transport::Direct;
        let has_v4 = self.known.position.underlays.iter().any(|underlay| underlay.address.is_ipv4());
        (v4 || (may_come && has_v4), v6 || (may_come && !has_v4))
    }

    fn lacks_tunnel(&self) -> bool {
        let ((v4, v6), Tunnels { v4: has_v4, v6: has_v6 }) = (self.tunnels_wanted(), self.known.tunnels);
        (v4 && has_v4.is_none()) || (v6 && has_v6.is_none())
    }

    /// The tunnel devices that somebody needs, or that are there already. One that cannot be had is told, and keeps no peer
    /// from being reached by another way.
    fn keep_tunnels(&mut self) {
        let (v4, v6) = self.tunnels_wanted();
        let mut tunnels = self.known.tunnels;
        let (mut done, mut troubles) = (Vec::new(), Vec::new());
        for (is_wanted, is_v4) in [(v4, true), (v6, false)] {
            let index = if is_v4 { &mut tunnels.v4 } else { &mut tunnels.v6 };
            // One that is there and not wanted stays: the next peer may need it, and a packet may be on its way.
            if !is_wanted && index.is_none() {
                continue;
            }
            let Some(tunnel) = self.tunnel(is_v4) else { continue };
            match tunnel.keep(&mut self.kernel.socket, &mut done) {
                Ok(kept) => *index = Some(kept),
                Err(error) => {
                    if matches!(error, TunnelError::Foreign(_)) {
                        *index = None;
                    }
                    troubles.push(error.to_string());
                }
            }
        }
        if !troubles.is_empty() {
            self.soon(RETRY);
        }
        self.known.tunnel_troubles = troubles;
        for what in done {
            info!("{what}");
            self.shared.metrics.repaired("tunnel", 1);
        }
        if tunnels != self.known.tunnels {
            self.known.tunnels = tunnels;
            self.shared.set_tunnels(self.tunnel_names());
            let sources = self.known.mesh.facts().sources.clone();
            self.set_facts(sources);
        }
    }

    fn tunnel(&self, v4: bool) -> Option<Tunnel> {
        let (network, mesh) = (&self.shared.config.network, &self.shared.config.cluster);
        let underlay = self.known.position.underlays.iter().find(|u| u.address.is_ipv4() == v4)?;
        let mtu = self.known.position.mtu?.checked_sub(tunnel::overhead(underlay.address))?;
        let block = self.shared.blocks().into_iter().map(|block| block.network()).find(IpAddr::is_ipv4);
        Some(Tunnel {
            name: self.tunnel_name(v4)?,
            network: network.name.clone(),
            mac: self.record.tunnel_mac,
            mtu,
            vni: mesh.vni,
            port: mesh.vxlan_port,
            local: underlay.address,
            address: block.map(ipnet::IpNet::from),
            checksum: mesh.tunnel_checksum,
        })
    }

    fn tunnel_name(&self, v4: bool) -> Option<IfName> {
        let mesh = &self.shared.config.cluster;
        if v4 { mesh.tunnel4().ok() } else { mesh.tunnel6().ok() }
    }

    fn tunnel_names(&self) -> Vec<IfName> {
        let Tunnels { v4, v6 } = self.known.tunnels;
        let mut names = Vec::new();
        names.extend(v4.and_then(|_| self.tunnel_name(true)));
        names.extend(v6.and_then(|_| self.tunnel_name(false)));
        names
    }

    /// Which news mean that something of ours is not as it should be?
    fn heard(&mut self, news: Result<Vec<PeerNews>, netlink::Error>) {
        match news {
            Ok(news) => {
                if let Some(one) = news.iter().find(|one| self.matters(one)) {
                    debug!("heard {one:?}");
                    self.soon(PAUSE);
                }
            }
            Err(error) => {
                warn!("cannot read the kernel's news: {error}");
                self.soon(RETRY);
            }
        }
    }

    fn matters(&self, news: &PeerNews) -> bool {
        let mesh = &self.known.mesh;
        match news {
            PeerNews::RouteSet(route) => !mesh.wants_route(&super::kernel::read(route)),
            PeerNews::RouteGone(route) => mesh.wants_route(&super::kernel::read(route)),
            PeerNews::RouteTaken(dst) => mesh.wants_route_to(dst),
            PeerNews::NeighbourGone { link, addr } => mesh.wants_neighbour(*link, *addr),
            PeerNews::NeighbourSet { .. } | PeerNews::FdbSet(_) => false,
            PeerNews::FdbGone(fdb) => mesh.wants_fdb(fdb.link, fdb.mac),
            PeerNews::DefaultRoute | PeerNews::Missed => true,
            PeerNews::Link(link) => self.is_link_of_ours(link.index) || self.is_name_of_ours(&link.name),
            PeerNews::LinkGone { index, name } => self.is_link_of_ours(*index) || self.is_name_of_ours(name),
            // A pod's addresses are in its own namespace: what is heard here is the node's.
            PeerNews::AddressSet(_) | PeerNews::AddressGone(_) => true,
        }
    }

    fn is_link_of_ours(&self, index: u32) -> bool {
        let underlays = self.known.position.underlays.iter().map(|underlay| underlay.link);
        underlays.chain(indexes(&self.known.tunnels)).any(|link| link == index)
    }

    fn is_name_of_ours(&self, name: &str) -> bool {
        let config = &self.shared.config;
        let named = |wanted: &IfName| wanted.as_str() == name;
        config.node_interface.as_ref().is_some_and(named) || named(&config.network.bridge)
    }

    fn soon(&mut self, pause: Duration) {
        self.known.look_at = self.known.look_at.min(Instant::now() + pause);
    }

    fn save(&mut self) {
        self.known.save_at = None;
        if let Err(error) = self.shared.home.save_peers(self.known.mesh.peers()) {
            warn!("the other nodes cannot be remembered: {error}");
        }
    }

    /// Problems as they are now; each is logged once.
    fn tell(&mut self) {
        let mut problems = self.known.mesh.problems();
        if !self.shared.is_alone {
            problems.extend(self.known.position.problems.iter().cloned());
            problems.extend(self.known.tunnel_troubles.iter().cloned());
        }
        if problems == self.known.told {
            return;
        }
        for new in problems.iter().filter(|problem| !self.known.told.contains(problem)) {
            warn!("{new}");
        }
        let shown = problems.iter().map(|what| api::Problem { what: what.clone(), command: None }).collect();
        self.shared.board.set_problems(Finder::Routes, shown);
        self.known.told = problems;
    }

    /// What should be, what the kernel has, and the difference.
    fn shown(&mut self) -> Result<Vec<api::RouteView>, netlink::Error> {
        let (seen, _) = self.kernel.seen(&indexes(&self.known.tunnels))?;
        Ok(super::view::routes(&self.known.mesh, &seen, &mut self.kernel.socket))
    }
}

/// A second handle of the monitor's socket, to wait with.
fn wakes(monitor: &PeerMonitor) -> std::io::Result<AsyncFd<OwnedFd>> {
    let fd = monitor.as_fd().try_clone_to_owned()?;
    #[expect(deprecated, reason = "an OwnedFd keeps its number; what takes its place needs unsafe code")]
    AsyncFd::new(fd)
}

fn indexes(tunnels: &Tunnels) -> Vec<u32> {
    [tunnels.v4, tunnels.v6].into_iter().flatten().collect()
}

/// Far enough away to be never.
fn far() -> Instant {
    Instant::now() + Duration::from_secs(86_400)
}

/// What fits through whichever way a packet may take: the tunnel's headers take their part, unless there is none.
fn pod_mtu(position: &Position, config: &crate::config::Config) -> Option<u32> {
    let underlay = position.mtu?;
    let outer = position.underlays.iter().map(|underlay| underlay.address).find(IpAddr::is_ipv4);
    let outer = outer.or_else(|| position.underlays.first().map(|underlay| underlay.address))?;
    let part = match config.cluster.transport {
        Transport::Direct => 0,
        Transport::Auto | Transport::Vxlan => tunnel::overhead(outer),
    };
    underlay.checked_sub(part)
}
