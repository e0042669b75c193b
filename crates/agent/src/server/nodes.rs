//! What is asked about the other nodes.

use std::sync::Arc;

use api::{BlocksView, NodesView, Removed};
use hyper::StatusCode;
use tokio::task::spawn_blocking;
use types::NodeName;

use super::reply::{self, Reply};
use super::{Service, view};
use crate::cluster::{self, Cluster};

/// A question about the cluster.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Question {
    Nodes,
    Routes,
    Blocks,
    Remove(String),
}

impl Question {
    pub(super) fn find(path: &str) -> Option<Self> {
        match path {
            api::NODES => Some(Self::Nodes),
            api::ROUTES => Some(Self::Routes),
            api::BLOCKS => Some(Self::Blocks),
            _ => path.strip_prefix(api::NODES)?.strip_prefix('/').map(|name| Self::Remove(name.to_owned())),
        }
    }
}

/// `query` is what stands behind the question mark.
pub(super) async fn answer(service: &Arc<Service>, question: Question, query: Option<&str>) -> Reply {
    let Some(cluster) = &service.cluster else {
        let what = "this node's store cannot be used: see `podwire status`";
        return reply::error(StatusCode::SERVICE_UNAVAILABLE, what);
    };
    let answered = match question {
        Question::Nodes => {
            let cuts = &service.facts.cuts;
            let looked = cluster.look().await;
            looked.map(|(contents, freshness)| {
                let nodes = cluster::nodes(&contents, cuts, &cluster.name);
                reply::json(StatusCode::OK, &NodesView { freshness, nodes })
            })
        }
        Question::Routes => cluster.routes().await.map(|routes| reply::json(StatusCode::OK, &routes)),
        Question::Blocks => blocks(service, cluster).await.map(|blocks| reply::json(StatusCode::OK, &blocks)),
        Question::Remove(name) => return remove(cluster, &name, query).await,
    };
    answered.unwrap_or_else(|what| reply::error(StatusCode::SERVICE_UNAVAILABLE, &what))
}

async fn blocks(service: &Arc<Service>, cluster: &Cluster) -> Result<BlocksView, String> {
    let (contents, freshness) = cluster.look().await?;
    let mut blocks = cluster::blocks((&contents, freshness), &service.facts.cuts, &cluster.name);
    // It reads files, and the server's thread never waits for a disk.
    let service = Arc::clone(service);
    let used = spawn_blocking(move || view::block_uses(&service)).await.map_err(|error| error.to_string())?;
    for view in &mut blocks.blocks {
        if let Some(found) = used.iter().find(|used| used.block == view.block) {
            (view.used, view.free) = (Some(found.used), Some(found.free));
        }
    }
    Ok(blocks)
}

async fn remove(cluster: &Cluster, name: &str, query: Option<&str>) -> Reply {
    let force = query.is_some_and(|query| query.split('&').any(|part| part == "force=true"));
    let name = match NodeName::try_from(name) {
        Ok(name) => name,
        Err(error) => return reply::error(StatusCode::BAD_REQUEST, &error.to_string()),
    };
    match cluster.remove(name.clone(), force).await {
        Ok(blocks) => reply::json(StatusCode::OK, &Removed { name: name.to_string(), blocks }),
        Err(what) => reply::error(StatusCode::CONFLICT, &what),
    }
}
