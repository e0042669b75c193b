//! What the rest of the agent asks of the cluster's side.

use std::sync::mpsc::SyncSender;

use cluster::{Alive, BlockClaim, NodeRecord, Object as _};
use ipnet::IpNet;
use store::{Change, Compare, Outcome};
use tokio::sync::oneshot;
use types::NodeName;

use super::join::Registry;

/// How often something is read again that changed under our eyes.
const TRIES: u32 = 10;

#[derive(Debug)]
pub(crate) enum Command {
    /// One more block of this one's family: it is full.
    Grow { like: IpNet, done: SyncSender<Result<(), String>> },
    /// Everything that stands in the store.
    Look(oneshot::Sender<Result<Contents, String>>),
    /// Removes a node for good; the blocks that are free now.
    Remove { name: NodeName, force: bool, done: oneshot::Sender<Result<Vec<IpNet>, String>> },
}

/// What stands in the store.
#[derive(Debug, Default)]
pub(crate) struct Contents {
    pub(crate) nodes: Vec<NodeRecord>,
    pub(crate) claims: Vec<(IpNet, NodeName)>,
    pub(crate) alive: Vec<(NodeName, Alive)>,
}

impl Command {
    /// Answers that it cannot be done now. Whoever asked may have given up.
    pub(super) fn refuse(self, why: &str) {
        match self {
            Self::Grow { done, .. } => drop(done.send(Err(why.to_owned()))),
            Self::Look(done) => drop(done.send(Err(why.to_owned()))),
            Self::Remove { done, .. } => drop(done.send(Err(why.to_owned()))),
        }
    }

    pub(super) async fn answer(self, registry: &Registry, own: &NodeName) {
        match self {
            Self::Grow { .. } => self.refuse("a block is claimed by the member alone"),
            Self::Look(done) => drop(done.send(look(registry).await.map_err(|e| e.to_string()))),
            Self::Remove { name, force, done } => {
                let removed = if name == *own {
                    Err(format!("{name} is this node: stop its agent, then remove it from another node"))
                } else {
                    remove(registry, &name, force).await
                };
                drop(done.send(removed));
            }
        }
    }
}

pub(crate) async fn look(registry: &Registry) -> Result<Contents, store::Error> {
    let Registry { store, layout } = registry;
    let mut contents = Contents::default();
    for entry in store.list(&layout.nodes()).await?.entries {
        contents.nodes.extend(NodeRecord::decode(&entry.value));
    }
    for entry in store.list(&layout.blocks()).await?.entries {
        let claim = BlockClaim::decode(&entry.value).ok();
        contents.claims.extend(layout.block_of(&entry.key).zip(claim.map(|claim| claim.node)));
    }
    for entry in store.list(&layout.alives()).await?.entries {
        contents.alive.extend(layout.alive_of(&entry.key).zip(Alive::decode(&entry.value).ok()));
    }
    Ok(contents)
}

/// Takes a node and its claims out of the store. While its agent is alive only by force, and it will come back.
async fn remove(registry: &Registry, name: &NodeName, force: bool) -> Result<Vec<IpNet>, String> {
    let Registry { store, layout } = registry;
    let told = |error: store::Error| error.to_string();
    let (node, alive) = (layout.node(name), layout.alive(name));
    for _ in 0..TRIES {
        let Some(entry) = store.get(&node).await.map_err(told)? else {
            return Err(format!("there is no node {name} in the store: see `podwire nodes`"));
        };
        let record = NodeRecord::decode(&entry.value).map_err(|e| format!("{node} in the store: {e}"))?;
        let lives = store.get(&alive).await.map_err(told)?.is_some();
        if lives && !force {
            return Err(format!(
                "the agent of {name} is alive: stop it first (with --force its record goes all the same, and comes back)"
            ));
        }
        let mut compares = vec![Compare::Revision(node.clone(), entry.revision)];
        if !lives {
            compares.push(Compare::Absent(alive.clone()));
        }
        let mut changes = vec![Change::Delete(node.clone())];
        let mut freed = Vec::new();
        for block in &record.blocks {
            let key = layout.block(block);
            let claim = store.get(&key).await.map_err(told)?;
            if claim.is_some_and(|entry| BlockClaim::decode(&entry.value).is_ok_and(|c| c.node == *name)) {
                changes.push(Change::Delete(key));
                freed.push(*block);
            }
        }
        if let Outcome::Done { .. } = store.commit(&compares, &changes).await.map_err(told)? {
            return Ok(freed);
        }
    }
    Err(format!("the record of {name} changed {TRIES} times while it was removed: try again"))
}
