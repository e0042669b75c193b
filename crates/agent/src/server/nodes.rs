//! Answers queries about the cluster.

use std::sync::Arc;

use api::{BlocksView, NodesView, Removed};
use hyper::StatusCode;
use tokio::task::spawn_blocking;
use types::NodeName;

use super::reply::{self, HttpReply};
use super::{ApiService, view};
use crate::membership::{self, AskError, MembershipHandle};

pub(super) const NO_STORE: &str = "the store of this node cannot be used: see `podwire status`";

/// A query about the cluster.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ClusterQuery {
    Nodes,
    Routes,
    Blocks,
    Remove(String),
}

impl ClusterQuery {
    pub(super) fn find(path: &str) -> Option<Self> {
        match path {
            api::NODES => Some(Self::Nodes),
            api::ROUTES => Some(Self::Routes),
            api::BLOCKS => Some(Self::Blocks),
            _ => path.strip_prefix(api::NODES)?.strip_prefix('/').map(|name| Self::Remove(name.to_owned())),
        }
    }
}

/// `query` is the query string of the URL.
pub(super) async fn answer(
    service: &Arc<ApiService>,
    cluster_query: ClusterQuery,
    query: Option<&str>,
) -> HttpReply {
    let Some(cluster) = &service.cluster else {
        return reply::error(StatusCode::SERVICE_UNAVAILABLE, NO_STORE);
    };
    let answered = match cluster_query {
        ClusterQuery::Nodes => {
            let read = cluster.read_contents().await;
            read.map(|(contents, freshness)| {
                let nodes = membership::nodes(&contents, &cluster.networks().all(), &cluster.name);
                reply::json(StatusCode::OK, &NodesView { freshness, nodes })
            })
        }
        ClusterQuery::Routes => cluster.routes().await.map(|routes| reply::json(StatusCode::OK, &routes)),
        ClusterQuery::Blocks => {
            blocks(service, cluster).await.map(|blocks| reply::json(StatusCode::OK, &blocks))
        }
        ClusterQuery::Remove(name) => return remove(cluster, &name, query).await,
    };
    answered.unwrap_or_else(|error| refusal(&error))
}

pub(super) async fn blocks(
    service: &Arc<ApiService>,
    cluster: &MembershipHandle,
) -> Result<BlocksView, AskError> {
    let (contents, freshness) = cluster.read_contents().await?;
    let mut blocks = membership::blocks((&contents, freshness), &cluster.networks(), &cluster.name);
    // Reads files on a blocking thread, so that the server's thread never waits for a disk.
    let service = Arc::clone(service);
    let used = spawn_blocking(move || view::block_uses(&service)).await;
    let used = used.map_err(|error| AskError::Failed(error.to_string()))?;
    for view in &mut blocks.blocks {
        if let Some(usage) = used.iter().find(|used| used.block == view.block) {
            (view.used, view.free) = (usage.used, usage.free);
        }
    }
    Ok(blocks)
}

async fn remove(cluster: &MembershipHandle, name: &str, query: Option<&str>) -> HttpReply {
    let force = query.is_some_and(|query| query.split('&').any(|part| part == "force=true"));
    let name = match NodeName::try_from(name) {
        Ok(name) => name,
        Err(error) => return reply::error(StatusCode::BAD_REQUEST, &error.to_string()),
    };
    match cluster.remove(name.clone(), force).await {
        Ok(blocks) => reply::json(StatusCode::OK, &Removed { name: name.to_string(), blocks }),
        Err(error) => refusal(&error),
    }
}

pub(super) fn refusal(error: &AskError) -> HttpReply {
    reply::error(status_of(error), &error.to_string())
}

fn status_of(error: &AskError) -> StatusCode {
    match error {
        AskError::Unreachable(_) | AskError::Stopped => StatusCode::SERVICE_UNAVAILABLE,
        AskError::Refused(_) => StatusCode::BAD_GATEWAY,
        AskError::Busy => StatusCode::TOO_MANY_REQUESTS,
        AskError::TimedOut { .. } => StatusCode::GATEWAY_TIMEOUT,
        AskError::Failed(_) => StatusCode::INTERNAL_SERVER_ERROR,
        AskError::NotFound(_) | AskError::ObjectMissing(_) => StatusCode::NOT_FOUND,
        AskError::ObjectInvalid(_) => StatusCode::BAD_REQUEST,
        AskError::Alive(_)
        | AskError::Own(_)
        | AskError::Unreadable { .. }
        | AskError::Contended(_)
        | AskError::ObjectConflict(_)
        | AskError::ObjectsContended => StatusCode::CONFLICT,
    }
}
