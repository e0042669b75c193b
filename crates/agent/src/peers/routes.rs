//! The kernel's side: routes, neighbours and tunnel entries for all other nodes, always as the records say.
//!
//! ```text
//! updates from the store ─┐
//! news from the kernel ───┼─► Mesh (desired) ─► what changed ─► one batch
//! timer ──────────────────┘                └──► compared with all the kernel has: after losses, and on the timer
//! ```
//!
//! `peers`: the firewall's table of them. `publish`: where this node is. `tunnels`: its devices. `trials`: whether they work. `telling`: what people and the disk get
//! to know.
//!
//! What is there stays until the store has said otherwise: an agent that starts while the store is away sweeps nothing.

mod peers;
mod publish;
mod telling;
mod trials;
mod tunnels;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use model::{Changes, NodeRecord, Repaired, Tunnels};
use netlink::{PeerMonitor, PeerNews, Route};
use tokio::io::unix::AsyncFd;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until};
use tracing::{debug, info};
use types::IfName;

use super::kernel::{Kernel, Refused};
use super::known::Known;
use crate::membership::ask_error::AskError;
use crate::membership::command::Contents;
use crate::membership::member::{Claim, Update};
use crate::membership::shared::Shared;
pub(crate) use peers::Peers;
use telling::Part;
pub(crate) use telling::Telling;
pub(crate) use trials::Trials;

/// How long after news a look is taken: what belongs together comes together.
const PAUSE: Duration = Duration::from_millis(20);
/// After news were heard, none are for a while: a pod that comes or goes makes a dozen of them, and to be woken for each
/// takes more than to hear them.
const DEAF: Duration = Duration::from_millis(20);
/// How soon something that failed is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// How often the others are written down, at most, while they change.
const SAVE: Duration = Duration::from_millis(500);
/// At most so often for each of them: thousands are many megabytes.
const SAVE_EACH: Duration = Duration::from_millis(2);
/// Updates that are taken in one go.
const BATCH: usize = 4096;

/// What can be answered without the store.
pub(crate) enum Question {
    /// The routes there are.
    Routes(oneshot::Sender<Result<Vec<api::RouteView>, AskError>>),
    /// The cluster as this node knows it.
    Contents(oneshot::Sender<Contents>),
}

pub(crate) struct Routes {
    pub(crate) shared: Arc<Shared>,
    pub(crate) addresses: watch::Sender<Option<Vec<IpAddr>>>,
    pub(crate) updates: mpsc::Receiver<Update>,
    pub(crate) questions: mpsc::Receiver<Question>,
    /// The firewall's table of peers was changed.
    pub(crate) table_changed: Arc<Notify>,
    /// Our record's part that never changes.
    pub(crate) record: NodeRecord,
    pub(crate) kernel: Kernel,
    pub(crate) known: Known,
}

impl Routes {
    /// For ever, or until nobody is left who could tell anything.
    pub(crate) async fn run(mut self) {
        let mut ear = Ear::Broken(Instant::now());
        loop {
            let (save_at, tell_at) = (self.known.save_at, self.known.telling.at);
            tokio::select! {
                update = self.updates.recv() => match update {
                    Some(update) => self.updated(update),
                    None => return,
                },
                question = self.questions.recv() => match question {
                    Some(question) => self.answer(question),
                    None => return,
                },
                waited = ear.wait() => {
                    let waited = waited.map_err(|e| crate::peers::io_error("wait for the kernel's events", &e));
                    ear = waited.and_then(|()| self.listen(ear)).unwrap_or_else(|error| self.no_events(&error));
                }
                () = self.shared.share_changed() => self.soon(PAUSE),
                () = self.table_changed.notified() => self.peer_table_changed(),
                () = sleep_until(self.known.look_at) => self.look(),
                () = sleep_until(save_at.unwrap_or_else(far)), if save_at.is_some() => self.save(),
                saved = telling::written(&mut self.known.telling.saving) => self.saved(saved),
                told = trials::ended(&mut self.known.trials.running) => self.tried(told),
                () = sleep_until(tell_at.unwrap_or_else(far)), if tell_at.is_some() => {
                    self.count();
                    self.tell();
                }
            }
        }
    }

    /// What comes after a wait: events are read, then none for a while.
    fn listen(&mut self, ear: Ear) -> Result<Ear, netlink::Error> {
        match ear {
            Ear::Open(mut monitor, _) => {
                self.observed(&monitor.read()?);
                Ok(Ear::Closed(monitor, Instant::now() + DEAF))
            }
            Ear::Closed(monitor, _) => Ear::open(monitor),
            Ear::Broken(_) => {
                let mut monitor = PeerMonitor::open()?;
                self.observed(&monitor.read()?);
                if self.known.telling.monitor_failure.take().is_some() {
                    // Events were missed.
                    self.soon(PAUSE);
                    self.tell_soon();
                }
                Ear::open(monitor)
            }
        }
    }

    /// Everything is compared at each attempt, and on the timer.
    fn no_events(&mut self, error: &netlink::Error) -> Ear {
        self.known.telling.monitor_failure = Some(error.to_string());
        self.tell();
        self.soon(RETRY);
        Ear::Broken(Instant::now() + RETRY)
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
                Update::Node(node) => self.known.set_peer(node),
                Update::Claim(Claim { block, owner }) => self.known.set_claim(block, owner),
                Update::Gone(name) => {
                    self.known.awaited.remove(&name);
                    self.known.remove_peer(&name);
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
            self.known.peers.make_due();
            self.look();
        } else {
            self.change();
        }
    }

    /// The difference to what was wanted before.
    fn change(&mut self) {
        // Tunnels that are there are looked after when everything is.
        if self.lacks_tunnel() || self.lacks_peer_table() {
            self.keep_tunnels();
        }
        let changes = self.known.mesh.take_changes();
        debug!("{changes}");
        let sources = self.known.mesh.take_source_changes();
        self.add_peers(sources.add);
        let refused = self.apply(&changes);
        self.known.telling.owed.extend(&refused.changes);
        self.refused(refused.reasons, Part::News);
        self.remove_peers(sources.remove);
        self.try_tunnels();
    }

    /// The changes that were not applied.
    fn apply(&mut self, changes: &Changes) -> Refused {
        self.tell_soon();
        // Alone there is nobody to lead to; what is there is another network's.
        if changes.is_empty() || self.shared.is_alone {
            return Refused::default();
        }
        self.kernel.apply(changes).unwrap_or_else(|error| {
            self.failed(format!("routes to other nodes cannot be changed: {error}"));
            Refused { changes: changes.clone(), reasons: BTreeMap::new() }
        })
    }

    /// Looks at everything: where this node is, its tunnels, and what the kernel has of ours.
    fn look(&mut self) {
        self.known.look_at = Instant::now() + self.shared.config.reconcile;
        self.known.telling.failure = None;
        if let Err(error) = self.look_at_all() {
            self.failed(format!("routes to other nodes cannot be compared: {error}"));
        }
    }

    fn look_at_all(&mut self) -> Result<(), netlink::Error> {
        self.known.give_up();
        self.find_position()?;
        if self.shared.is_alone {
            self.tell_soon();
            return Ok(());
        }
        self.keep_tunnels();
        let (mesh, tunnels) = (&mut self.known.mesh, &self.known.tunnels);
        let (seen, odd) = self.kernel.seen(&indexes(tunnels), &mesh.facts().subnets)?;
        let mut due = mesh.take_changes();
        due.extend(&self.known.telling.owed);
        let mut changes = mesh.compare(&seen);
        if !self.known.is_complete {
            // Somebody may stand behind it whom the store has not told us of yet.
            changes.clear_removals();
        }
        if !changes.is_empty() {
            debug!("{changes}");
        }
        self.remove_odd(&odd);
        let refused = self.apply(&changes);
        // Changes that follow from the records are no repairs, also if they were refused before.
        let drift = changes.beyond(&due);
        let mut repairs = drift.beyond(&refused.changes);
        self.known.telling.owed = refused.changes.beyond(&drift);
        self.refused(refused.reasons, Part::All);
        self.try_tunnels();
        if !self.known.was_swept {
            repairs.clear_removals();
        }
        for Repaired { kind, count, sentences } in repairs.repairs() {
            self.repaired(kind, count, &sentences);
        }
        self.known.was_swept |= self.known.is_complete;
        if !self.has_refusals() && self.known.tunnel_troubles.is_empty() {
            self.is_well();
        }
        Ok(())
    }

    /// Removes routes with unexpected attributes, once the store has listed all nodes. A failure holds up no other repair.
    fn remove_odd(&mut self, odd: &[Route]) {
        if !self.known.is_complete || odd.is_empty() {
            return;
        }
        if let Err(error) = self.kernel.remove(odd) {
            return self.failed(format!("a route with unexpected attributes cannot be removed: {error}"));
        }
        let what = match odd.len() {
            1 => "1 route with unexpected attributes removed".to_owned(),
            count => format!("{count} routes with unexpected attributes removed"),
        };
        match self.known.was_swept {
            true => self.repaired("peer_route", odd.len(), &[what]),
            false => info!("{what}"),
        }
    }

    /// Events that may mean drift are a reason to compare everything.
    fn observed(&mut self, events: &[PeerNews]) {
        if let Some(event) = events.iter().find(|event| self.matters(event)) {
            debug!("observed {event:?}");
            self.soon(PAUSE);
        }
    }

    fn matters(&self, news: &PeerNews) -> bool {
        let mesh = &self.known.mesh;
        match news {
            PeerNews::RouteSet(route) => {
                let is_ours = super::kernel::is_of(&mesh.facts().subnets, &route.dst);
                is_ours && !mesh.wants_route(&super::kernel::read(route))
            }
            PeerNews::RouteGone(route) => mesh.wants_route(&super::kernel::read(route)),
            PeerNews::RouteTaken(dst) => mesh.wants_route_to(dst),
            PeerNews::NeighbourGone { link, addr } => mesh.wants_neighbour(*link, *addr),
            PeerNews::NeighbourSet { .. } | PeerNews::FdbSet(_) => false,
            PeerNews::FdbGone(fdb) => mesh.wants_fdb(fdb.link, fdb.mac),
            PeerNews::DefaultRoute | PeerNews::Missed => true,
            PeerNews::Link(link) => self.concerns_us(link.index) || self.is_name_of_ours(&link.name),
            PeerNews::LinkGone { index, name } => self.concerns_us(*index) || self.is_name_of_ours(name),
            // A pod's addresses are in its own namespace: what is heard here is the node's.
            PeerNews::AddressSet(_) | PeerNews::AddressGone(_) => true,
        }
    }

    /// Also one that is in the way of ours: it may go, or get another name.
    fn concerns_us(&self, index: u32) -> bool {
        let underlays = self.known.position.underlays.iter().map(|underlay| underlay.link);
        let in_the_way = self.known.in_the_way.iter().copied();
        underlays.chain(indexes(&self.known.tunnels)).chain(in_the_way).any(|link| link == index)
    }

    fn is_name_of_ours(&self, name: &str) -> bool {
        let config = &self.shared.config;
        let named = |wanted: &IfName| wanted.as_str() == name;
        config.node_interface.as_ref().is_some_and(named) || named(&config.network.bridge)
    }

    fn soon(&mut self, pause: Duration) {
        self.known.look_at = self.known.look_at.min(Instant::now() + pause);
    }

    /// The client may have given up.
    fn answer(&mut self, question: Question) {
        match question {
            Question::Routes(done) => {
                drop(done.send(self.shown().map_err(|e| AskError::Failed(e.to_string()))));
            }
            Question::Contents(done) => drop(done.send(self.contents())),
        }
    }

    /// What should be, what the kernel has, and the difference.
    fn shown(&mut self) -> Result<Vec<api::RouteView>, netlink::Error> {
        let subnets = &self.known.mesh.facts().subnets;
        let (seen, _) = self.kernel.seen(&indexes(&self.known.tunnels), subnets)?;
        Ok(crate::membership::view::routes(&self.known.mesh, &seen, &mut self.kernel.socket))
    }
}

/// Who is registered with the kernel is woken for everything, whether anybody waits or not: a closed ear is not.
enum Ear {
    Open(PeerMonitor, AsyncFd<OwnedFd>),
    Closed(PeerMonitor, Instant),
    /// The monitor failed. Another one is opened then.
    Broken(Instant),
}

impl Ear {
    fn open(monitor: PeerMonitor) -> Result<Self, netlink::Error> {
        let wakes = wakes(&monitor)?;
        Ok(Self::Open(monitor, wakes))
    }

    /// For events, or for the end of the time without.
    async fn wait(&self) -> std::io::Result<()> {
        match self {
            Self::Open(_, wakes) => wakes.readable().await.map(drop),
            Self::Closed(_, until) | Self::Broken(until) => {
                sleep_until(*until).await;
                Ok(())
            }
        }
    }
}

/// A second handle of the monitor's socket, to wait with. What came before it was made wakes it, too.
fn wakes(monitor: &PeerMonitor) -> Result<AsyncFd<OwnedFd>, netlink::Error> {
    let error = |e| crate::peers::io_error("wait for the kernel's events", &e);
    let fd = monitor.as_fd().try_clone_to_owned().map_err(error)?;
    #[expect(deprecated, reason = "an OwnedFd keeps its number; what takes its place needs unsafe code")]
    AsyncFd::new(fd).map_err(error)
}

fn indexes(tunnels: &Tunnels) -> Vec<u32> {
    [tunnels.v4, tunnels.v6].into_iter().flatten().collect()
}

/// Far enough away to be never.
fn far() -> Instant {
    Instant::now() + Duration::from_secs(86_400)
}
