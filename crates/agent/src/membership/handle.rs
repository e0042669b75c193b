//! How the rest of the agent talks to the cluster's side.

use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use api::{Freshness, RoutesView};
use ipnet::IpNet;
use model::NodeRecord;
use store::Store;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use types::{Digest, Mac, NetworkName, NodeName};

use super::ask_error::AskError;
use super::command::{Ask, Command, Contents};
use super::contact::{Age, Contact};
use super::grow::{Asker, GrowError, Growing};
use super::home::Home;
use super::shared::Shared;
use super::{ClusterError, Ending, Parts, Site, is_alone, store_config};
use crate::allocation::{BlockUsage, NodeAllocations};
use crate::clock::unix_time;
use crate::peers::kernel::Kernel;
use crate::peers::routes::Question;

/// Questions and commands that may wait.
const WAITING: usize = 256;
/// How long somebody who asks waits for the store.
const PATIENCE: Duration = Duration::from_secs(8);
/// Why there is nothing to answer with.
const NO_COPY: &str = "this node has no saved state of the cluster";
/// How long the end may take.
const GOODBYE: Duration = Duration::from_secs(1);
/// Its clones talk to the same one.
#[derive(Clone)]
pub(crate) struct Cluster {
    commands: mpsc::Sender<Command>,
    questions: mpsc::Sender<Question>,
    table_changed: Arc<Notify>,
    contact: Arc<Contact>,
    /// In messages: `etcd`, or `the store`.
    store_name: &'static str,
    shares: Arc<NodeAllocations>,
    growing: Arc<Growing>,
    is_alone: bool,
    /// Where addresses in use are recorded.
    place: (PathBuf, NetworkName),
    end: Arc<End>,
    pub(crate) name: NodeName,
}

/// How the thread ends.
struct End {
    stop: watch::Sender<bool>,
    ended: Mutex<std::sync::mpsc::Receiver<Infallible>>,
}

impl Cluster {
    /// Starts the thread. What it remembers is in force when this returns: blocks at once, routes in a moment.
    pub(crate) fn start(parts: Parts) -> Result<Self, ClusterError> {
        let config = Arc::clone(&parts.config);
        let home = Home::of(&config.state_dir, &config.network.name);
        let uid = home.uid()?;
        let name = NodeName::try_from(config.node.as_str())?;
        let record = NodeRecord {
            name: name.clone(),
            tunnel_mac: Mac::local(Digest::of(&["tunnel", uid.as_str()]).first5()),
            uid,
            addresses: Vec::new(),
            blocks: Vec::new(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            transport: Some(config.cluster.transport),
        };
        let remembered = home.record().filter(|saved| saved.uid == record.uid);
        let former = remembered.as_ref().map(|saved| saved.name.clone()).filter(|former| *former != name);
        let (commands, waiting) = mpsc::channel(WAITING);
        let (questions, asked) = mpsc::channel(WAITING);
        let (is_alone, shares) = (is_alone(&config), Arc::clone(&parts.shares));
        let shared = Arc::new(Shared::new(parts, home));
        shared.remember(remembered.map(|saved| saved.blocks).unwrap_or_default());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(2)
            .build()
            .map_err(ClusterError::Thread)?;
        let store = {
            let _inside = runtime.enter();
            Store::open(&store_config(&config, &shared.home))?
        };
        shared.explain_asking(&store.describe());
        let contact = Arc::clone(&shared.contact);
        let (stop, stopped) = watch::channel(false);
        let (ending, ended) = std::sync::mpsc::channel::<Infallible>();
        let kernel = Kernel::open()?;
        let table_changed = Arc::<Notify>::default();
        let last =
            Ending { board: Arc::clone(&shared.board), contact: Arc::clone(&contact), stop: stopped.clone() };
        let site = Site {
            shared,
            record,
            former,
            store,
            kernel,
            commands: waiting,
            questions: asked,
            table_changed: Arc::clone(&table_changed),
            stop: stopped,
        };
        std::thread::Builder::new()
            .name("podwire-cluster".to_owned())
            .stack_size(1 << 20)
            .spawn(move || {
                let (_ending, _last) = (ending, last);
                runtime.block_on(site.run());
            })
            .map_err(ClusterError::Thread)?;
        let end = Arc::new(End { stop, ended: Mutex::new(ended) });
        let place = (config.run_dir.clone(), config.network.name.clone());
        let growing = Arc::default();
        let store_name = match config.store {
            config::Store::Embedded => "the store",
            config::Store::Etcd(_) => "etcd",
        };
        Ok(Self {
            commands,
            questions,
            table_changed,
            contact,
            store_name,
            shares,
            growing,
            is_alone,
            place,
            end,
            name,
        })
    }

    /// The firewall's table of peers was changed, perhaps by another process: it is compared.
    pub(crate) fn peer_table_changed(&self) {
        self.table_changed.notify_one();
    }

    /// Says goodbye: another machine may have this node's name at once. Routes and record stay.
    pub(crate) fn end(&self) {
        self.end.stop.send_replace(true);
        // Nothing is ever sent: it is closed when the thread ends, or else the lease runs out by itself.
        let _ = self.end.ended.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(GOODBYE);
    }

    /// Everything that stands in the store. If the store cannot be asked: the last state that this node knows.
    pub(crate) async fn look(&self) -> Result<(Contents, Freshness), AskError> {
        let why = match self.contact.failure() {
            Some(why) if self.contact.is_reachable() => AskError::Refused(why),
            Some(why) => AskError::Unreachable(why),
            None => match self.ask(Ask::Look).await {
                Ok(contents) => return Ok((contents, freshness(Some(Duration::ZERO), None))),
                Err(why) => why,
            },
        };
        let reason = self.reason(&why.to_string());
        let age = match self.contact.age() {
            Age::NoCopy => {
                let reason = format!("{reason}; {NO_COPY}");
                return Err(match self.contact.is_reachable() {
                    true => AskError::Refused(reason),
                    false => AskError::Unreachable(reason),
                });
            }
            Age::Known(age) => Some(age),
            Age::Unknown => None,
        };
        let contents = self.question(Question::Contents).await?;
        Ok((contents, freshness(age, Some(reason))))
    }

    fn reason(&self, why: &str) -> String {
        match self.contact.is_reachable() {
            true => why.to_owned(),
            false => format!("{} is not reachable: {why}", self.store_name),
        }
    }

    /// Whether this node's copy of the store's contents, which its routes follow, is up to date.
    fn freshness_of_copy(&self) -> Freshness {
        let reason = self.contact.lag().map(|why| self.reason(&why));
        match self.contact.age() {
            Age::Known(age) => freshness(Some(age), reason),
            Age::Unknown => freshness(None, reason),
            Age::NoCopy => freshness(None, reason.map(|reason| format!("{reason}; {NO_COPY}"))),
        }
    }

    pub(crate) fn contact(&self) -> &Contact {
        &self.contact
    }

    /// Removes a node for good; the blocks that are free now.
    pub(crate) async fn remove(&self, name: NodeName, force: bool) -> Result<Vec<IpNet>, AskError> {
        self.ask(|done| Ask::Remove { name, force, done }).await
    }

    /// The routes to other nodes: wanted, there, and the difference.
    pub(crate) async fn routes(&self) -> Result<RoutesView, AskError> {
        let routes = self.question(Question::Routes).await??;
        Ok(RoutesView { freshness: self.freshness_of_copy(), routes })
    }

    async fn question<T>(&self, ask: impl FnOnce(oneshot::Sender<T>) -> Question) -> Result<T, AskError> {
        let (answer, answered) = oneshot::channel();
        send(&self.questions, ask(answer))?;
        tokio::time::timeout(PATIENCE, answered)
            .await
            .map_err(|_| AskError::TimedOut { seconds: PATIENCE.as_secs() })?
            .map_err(|_| AskError::Stopped)
    }

    async fn ask<T>(
        &self,
        ask: impl FnOnce(oneshot::Sender<Result<T, AskError>>) -> Ask,
    ) -> Result<T, AskError> {
        let (done, answer) = oneshot::channel();
        send(&self.commands, Command::Ask(ask(done)))?;
        match tokio::time::timeout(PATIENCE, answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(AskError::Stopped),
            Err(_) => {
                let why = format!("the store did not answer within {} s", PATIENCE.as_secs());
                self.contact.unanswered(why.clone());
                Err(AskError::Unreachable(why))
            }
        }
    }

    /// Asks for one more block beside this one, which is full or nearly so. Nobody waits for it, and while one is asked for
    /// nobody asks again.
    pub(crate) fn want_more(&self, like: IpNet) {
        let Ok(network) = self.shares.default_network() else { return };
        if !self.is_alone {
            self.growing.want(Asker { like, seen: network.blocks(), commands: &self.commands });
        }
    }

    /// The same for a pod that found no address in `seen`, and waits. Of many that wait one asks, and all get it.
    pub(crate) fn grow(&self, seen: &[IpNet]) -> Result<(), GrowError> {
        if self.is_alone {
            return Err(GrowError::Alone);
        }
        // An answer may be older than the question.
        for _ in 0..2 {
            let network = self.shares.default_network()?;
            if network.blocks() != seen {
                return Ok(());
            }
            let usage = BlockUsage { network: &network, name: &self.place.1, run_dir: &self.place.0 };
            let like = usage.fullest().ok_or(GrowError::NotFull)?;
            self.growing.wait(Asker { like, seen, commands: &self.commands })?;
        }
        let has_more = self.shares.default_network()?.blocks() != seen;
        if has_more { Ok(()) } else { Err(GrowError::NoOther) }
    }
}

/// A full channel is busy; one that is closed has lost its thread.
fn send<T>(channel: &mpsc::Sender<T>, message: T) -> Result<(), AskError> {
    channel.try_send(message).map_err(|error| match error {
        TrySendError::Full(_) => AskError::Busy,
        TrySendError::Closed(_) => AskError::Stopped,
    })
}

/// A reason means that the store could not be asked.
fn freshness(age: Option<Duration>, reason: Option<String>) -> Freshness {
    let age_seconds = age.map(|age| age.as_secs());
    let as_of = age_seconds.map(|age| api::Timestamp(unix_time().saturating_sub(age)));
    Freshness { as_of, age_seconds, stale: reason.is_some(), reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a5_a_thread_that_has_ended_is_not_busy() {
        let (sender, receiver) = mpsc::channel(1);
        assert_eq!(send(&sender, 1), Ok(()));
        assert_eq!(send(&sender, 2), Err(AskError::Busy));
        drop(receiver);
        assert_eq!(send(&sender, 3), Err(AskError::Stopped));
    }
}
