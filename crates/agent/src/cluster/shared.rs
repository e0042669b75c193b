//! What the parts of the cluster's side share: the node's blocks and MTU, which make its [`Share`]; and what is wrong.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use ipnet::IpNet;
use tokio::sync::Notify;
use tracing::{error, info, warn};
use types::{IfName, NodeName};

use super::home::Home;
use super::join::Joined;
use super::{Parts, cuts, is_alone};
use crate::board::{Board, Finder, unix_time};
use crate::config::Config;
use crate::install::{Installer, Rendered};
use crate::keeper::Bell;
use crate::metrics::Metrics;
use crate::share::{Share, Shares};
use crate::work::Work;

/// One for all of them.
pub(super) struct Shared {
    pub(super) config: Arc<Config>,
    pub(super) home: Home,
    shares: Arc<Shares>,
    pub(super) board: Arc<Board>,
    pub(super) metrics: Arc<Metrics>,
    work: Arc<Work>,
    bell: Bell,
    installer: Option<Arc<Installer>>,
    /// A node that nobody can join: it has all of the network, whatever its store says.
    pub(super) is_alone: bool,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    blocks: Vec<IpNet>,
    mtu: Option<u32>,
    trouble: Option<Trouble>,
    /// Records in the store that cannot be read.
    unread: Vec<String>,
    lost: Vec<(IpNet, NodeName)>,
    unsaved: Option<String>,
    /// Why there is no other block, where one is needed.
    cramped: Option<String>,
}

/// Why the store cannot be used.
struct Trouble {
    what: String,
    /// In seconds since 1970, for people.
    since: u64,
}

impl Shared {
    pub(super) fn new(parts: Parts, home: Home) -> Self {
        let Parts { config, shares, board, metrics, work, bell, installer } = parts;
        Self {
            is_alone: is_alone(&config),
            config,
            home,
            shares,
            board,
            metrics,
            work,
            bell,
            installer,
            state: Mutex::default(),
            changed: Notify::new(),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The blocks that were ours when this was last known: they are in force until the store says otherwise.
    pub(super) fn remember(&self, mut blocks: Vec<IpNet>) {
        if self.is_alone {
            blocks.clone_from(&self.config.network.subnets);
        } else {
            let cuts = cuts(&self.config);
            blocks.retain(|block| cuts.iter().any(|cut| cut.owns(block)));
        }
        self.lock().blocks = blocks;
        self.renew();
    }

    /// The store has our record.
    pub(super) fn accept(&self, joined: &Joined) {
        let saved = self.home.save_record(&joined.record).err().map(|error| error.to_string());
        {
            let mut state = self.lock();
            if !self.is_alone {
                state.blocks.clone_from(&joined.record.blocks);
            }
            state.lost.extend(joined.lost.iter().cloned());
            state.lost.dedup();
            if state.unsaved != saved {
                state.unsaved.clone_from(&saved);
                saved.iter().for_each(|what| error!("{what}"));
            }
        }
        self.renew();
        self.tell();
    }

    pub(super) fn set_mtu(&self, mtu: Option<u32>) {
        // Alone there is no tunnel to make room for.
        if !self.is_alone && self.lock().mtu != mtu {
            self.lock().mtu = mtu;
            self.renew();
        }
    }

    /// Puts the share in force, if it is another one than before.
    fn renew(&self) {
        let (blocks, mtu) = {
            let state = self.lock();
            (state.blocks.clone(), state.mtu)
        };
        let network = &self.config.network;
        let has_all = network.subnets.iter().all(|subnet| blocks.iter().any(|block| subnet.contains(block)));
        if !has_all {
            return;
        }
        let mtu = network.mtu.or(mtu);
        if self.shares.get().is_ok_and(|share| share.blocks == blocks && share.mtu == mtu) {
            return;
        }
        match Share::new(network, blocks, mtu) {
            Ok(share) => {
                self.work.change_defaults(share.values.clone());
                if let Some(installer) = &self.installer {
                    installer.know(Rendered::new(share.blocks.clone(), share.mtu));
                }
                self.shares.set(Arc::new(share));
                self.bell.ring();
                self.changed.notify_one();
            }
            Err(error) => self.shares.explain(format!("the agent's own network: {error}")),
        }
    }

    pub(super) async fn share_changed(&self) {
        self.changed.notified().await;
    }

    pub(super) fn blocks(&self) -> Vec<IpNet> {
        self.lock().blocks.clone()
    }

    pub(super) fn gateways(&self) -> Vec<IpAddr> {
        self.shares.get().map(|share| share.gateways()).unwrap_or_default()
    }

    pub(super) fn store_failed(&self, what: &str, is_transient: bool) {
        let before = self.lock().trouble.as_ref().map(|trouble| (trouble.what == what, trouble.since));
        if !before.is_some_and(|(is_same, _)| is_same) {
            if is_transient {
                warn!("{what}");
            } else {
                error!("{what}");
            }
            // What is wrong may be said in other words with every try.
            let since = before.map_or_else(unix_time, |(_, since)| since);
            self.lock().trouble = Some(Trouble { what: what.to_owned(), since });
            self.tell();
        }
        self.shares.explain(format!("this node has no block yet: {what}"));
        self.bell.ring();
    }

    pub(super) fn set_growth_trouble(&self, what: Option<String>) {
        self.lock().cramped = what;
        self.tell();
    }

    pub(super) fn store_works(&self) {
        if self.lock().trouble.take().is_some() {
            info!("the store works again");
        }
        self.tell();
    }

    pub(super) fn set_unread(&self, unread: Vec<String>) {
        if self.lock().unread != unread {
            self.lock().unread = unread;
            self.tell();
        }
    }

    pub(super) fn store_trouble(&self) -> String {
        self.lock()
            .trouble
            .as_ref()
            .map(|trouble| trouble.what.clone())
            .unwrap_or_else(|| "the store is being asked for the first time".to_owned())
    }

    /// What a person should look at.
    fn tell(&self) {
        let state = self.lock();
        let problem = |what: String| api::Problem { what, command: None };
        let mut problems: Vec<api::Problem> = Vec::new();
        problems.extend(state.trouble.as_ref().map(|Trouble { what, since }| {
            problem(format!("{what}; since {}: what this node knew before stays in force", api::utc(*since)))
        }));
        problems.extend(state.unread.iter().cloned().map(problem));
        problems.extend(state.unsaved.clone().map(problem));
        problems.extend(state.cramped.clone().map(problem));
        problems.extend(state.lost.iter().map(|(block, node)| {
            problem(format!(
                "block {block} was this node's and belongs to {node} now: pods with addresses of it cannot be reached \
                 from other nodes; delete and start them again"
            ))
        }));
        drop(state);
        self.board.set_problems(Finder::Cluster, problems);
    }

    /// The tunnels there are, for the firewall: what leaves by them must fit.
    pub(super) fn set_tunnels(&self, names: Vec<IfName>) {
        self.shares.set_tunnels(names);
        self.bell.ring();
    }
}
