//! How the rest of the agent talks to the cluster's side.

use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use api::Freshness;
use cluster::NodeRecord;
use ipnet::IpNet;
use store::Store;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use types::{Digest, Mac, NetworkName, NodeName};

use super::command::{Ask, Command, Contents};
use super::contact::{Age, Contact};
use super::grow::{Asker, GrowError, Growing};
use super::home::Home;
use super::kernel::Kernel;
use super::routes::Question;
use super::shared::Shared;
use super::{ClusterError, Ending, Parts, Site, is_alone, store_config};
use crate::clock::unix_time;
use crate::config;
use crate::share::Shares;

/// Questions and commands that may wait.
const WAITING: usize = 256;
/// How long somebody who asks waits for the store.
const PATIENCE: Duration = Duration::from_secs(8);
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
    shares: Arc<Shares>,
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
        let last = Ending { board: Arc::clone(&shared.board), stop: stopped.clone() };
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
    pub(crate) async fn look(&self) -> Result<(Contents, Freshness), String> {
        let why = match self.contact.failure() {
            Some(why) => why,
            None => match self.ask(Ask::Look).await {
                Ok(contents) => return Ok((contents, freshness(Some(Duration::ZERO), None))),
                Err(why) => why,
            },
        };
        let reason = match self.contact.is_reachable() {
            true => why,
            false => format!("{} is not reachable: {why}", self.store_name),
        };
        let age = match self.contact.age() {
            Age::NoCopy => return Err(format!("{reason}; this node has no saved state of the cluster")),
            Age::Known(age) => Some(age),
            Age::Unknown => None,
        };
        let contents = self.question(Question::Contents).await?;
        Ok((contents, freshness(age, Some(reason))))
    }

    pub(crate) fn contact(&self) -> &Contact {
        &self.contact
    }

    /// Removes a node for good; the blocks that are free now.
    pub(crate) async fn remove(&self, name: NodeName, force: bool) -> Result<Vec<IpNet>, String> {
        self.ask(|done| Ask::Remove { name, force, done }).await
    }

    /// The routes to other nodes: wanted, there, and the difference.
    pub(crate) async fn routes(&self) -> Result<Vec<api::RouteView>, String> {
        self.question(Question::Routes).await?
    }

    async fn question<T>(&self, ask: impl FnOnce(oneshot::Sender<T>) -> Question) -> Result<T, String> {
        let (answer, answered) = oneshot::channel();
        self.questions.try_send(ask(answer)).map_err(|_| "too many questions wait already".to_owned())?;
        tokio::time::timeout(PATIENCE, answered)
            .await
            .map_err(|_| "no answer in time".to_owned())?
            .map_err(|_| "the agent is stopping".to_owned())
    }

    async fn ask<T>(&self, ask: impl FnOnce(oneshot::Sender<Result<T, String>>) -> Ask) -> Result<T, String> {
        let (done, answer) = oneshot::channel();
        self.commands
            .try_send(Command::Ask(ask(done)))
            .map_err(|_| "too many questions wait already".to_owned())?;
        match tokio::time::timeout(PATIENCE, answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err("the agent is stopping".to_owned()),
            Err(_) => {
                let why = format!("the store did not answer within {} s", PATIENCE.as_secs());
                self.contact.unanswered(why.clone());
                Err(why)
            }
        }
    }

    /// Asks for one more block beside this one, which is full or nearly so. Nobody waits for it, and while one is asked for
    /// nobody asks again.
    pub(crate) fn want_more(&self, like: IpNet) {
        let Ok(share) = self.shares.get() else { return };
        if !self.is_alone {
            self.growing.want(Asker { like, seen: &share.blocks, commands: &self.commands });
        }
    }

    /// The same for a pod that found no address in `seen`, and waits. Of many that wait one asks, and all get it.
    pub(crate) fn grow(&self, seen: &[IpNet]) -> Result<(), GrowError> {
        if self.is_alone {
            return Err(GrowError::Alone);
        }
        // An answer may be older than the question.
        for _ in 0..2 {
            let share = self.shares.get()?;
            if share.blocks != seen {
                return Ok(());
            }
            let like = share.fullest(&self.place.0, &self.place.1).ok_or(GrowError::NotFull)?;
            self.growing.wait(Asker { like, seen, commands: &self.commands })?;
        }
        let has_more = self.shares.get()?.blocks != seen;
        if has_more { Ok(()) } else { Err(GrowError::NoOther) }
    }
}

/// A reason means that the store could not be asked.
fn freshness(age: Option<Duration>, reason: Option<String>) -> Freshness {
    let age_seconds = age.map(|age| age.as_secs());
    let as_of = age_seconds.map(|age| api::Timestamp(unix_time().saturating_sub(age)));
    Freshness { as_of, age_seconds, stale: reason.is_some(), reason }
}
