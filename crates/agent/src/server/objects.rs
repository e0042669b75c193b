//! Tenants, groups, policies and other objects: reads the agent's copy, and changes the store.

use std::sync::Arc;
use std::time::Duration;

use api::{ObjectChange, ObjectList};
use engine::state::NodeState;
use hyper::body::Incoming;
use hyper::{Method, Request, StatusCode};
use model::{Document, ObjectId, ObjectKind};
use serde_json::Value;
use tokio::task::spawn_blocking;
use types::Placement;

use super::ApiService;
use super::nodes::refusal;
use super::reply::{self, HttpReply};
use crate::membership::{AskError, ObjectChanges};

/// The part of the path after [`api::OBJECTS`].
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ObjectPath {
    /// All objects, those of a kind, or those of a kind and tenant.
    List {
        kind: Option<ObjectKind>,
        tenant: Option<String>,
    },
    One(ObjectId),
}

impl ObjectPath {
    pub(super) fn find(path: &str) -> Option<Self> {
        let rest = path.strip_prefix(api::OBJECTS)?;
        let words: Vec<&str> = match rest.strip_prefix('/') {
            Some(words) => words.split('/').collect(),
            None if rest.is_empty() => Vec::new(),
            None => return None,
        };
        let kind = |word: &str| ObjectKind::ALL.into_iter().find(|kind| kind.plural() == word);
        match words.as_slice() {
            [] => Some(Self::List { kind: None, tenant: None }),
            [one] => Some(Self::List { kind: Some(kind(one)?), tenant: None }),
            [first, second] => match kind(first)? {
                ObjectKind::Tenant => {
                    Some(Self::One(ObjectId::parse(ObjectKind::Tenant, second, second).ok()?))
                }
                kind => Some(Self::List { kind: Some(kind), tenant: Some((*second).to_owned()) }),
            },
            [first, tenant, name] => Some(Self::One(ObjectId::parse(kind(first)?, tenant, name).ok()?)),
            _ => None,
        }
    }

    fn includes(&self, id: &ObjectId) -> bool {
        match self {
            Self::List { kind, tenant } => {
                kind.is_none_or(|kind| kind == id.kind())
                    && tenant.as_ref().is_none_or(|tenant| tenant == id.tenant_name().as_str())
            }
            Self::One(one) => one == id,
        }
    }
}

pub(super) async fn answer(
    service: &Arc<ApiService>,
    path: ObjectPath,
    request: Request<Incoming>,
    body_timeout: Duration,
) -> HttpReply {
    let is_dry_run =
        request.uri().query().is_some_and(|query| query.split('&').any(|it| it == "dryRun=true"));
    match (request.method().clone(), path) {
        (Method::GET, path) => list(service, &path),
        (Method::POST, ObjectPath::List { kind: None, tenant: None }) => {
            let body = match reply::read(request, body_timeout).await {
                Ok(body) => body,
                Err(reply) => return reply,
            };
            match serde_json::from_slice(&body) {
                Ok(change) => change_several(service, change).await,
                Err(cause) => bad(&format!("the body is not a change of objects: {cause}")),
            }
        }
        (Method::PUT, ObjectPath::One(id)) => {
            let body = match reply::read(request, body_timeout).await {
                Ok(body) => body,
                Err(reply) => return reply,
            };
            put(service, &id, &body, is_dry_run).await
        }
        (Method::DELETE, ObjectPath::One(id)) => change(service, Vec::new(), vec![id], is_dry_run).await,
        (_, ObjectPath::List { kind: None, tenant: None }) => reply::not_allowed(&Method::POST),
        (_, ObjectPath::List { .. } | ObjectPath::One(_)) => reply::not_allowed(&Method::GET),
    }
}

fn list(service: &ApiService, path: &ObjectPath) -> HttpReply {
    let Some(objects) = service.work.policies().objects() else {
        return reply::error(StatusCode::SERVICE_UNAVAILABLE, "the agent has not read the store yet");
    };
    let found = objects.records().filter(|(id, _)| path.includes(id));
    let items: Vec<Value> = found.map(|(_, record)| record.object.to_document()).collect();
    match path {
        ObjectPath::List { .. } => reply::json(StatusCode::OK, &ObjectList { items }),
        ObjectPath::One(id) => match items.first() {
            Some(item) => reply::json(StatusCode::OK, item),
            None => reply::error(StatusCode::NOT_FOUND, &format!("{id} does not exist")),
        },
    }
}

async fn put(service: &Arc<ApiService>, id: &ObjectId, body: &[u8], dry_run: bool) -> HttpReply {
    let body: Value = match serde_json::from_slice(body) {
        Ok(body) => body,
        Err(cause) => return bad(&format!("the body is not JSON: {cause}")),
    };
    match model::described(&body) {
        Some(described) if described != *id => {
            return bad(&format!("the body describes {described}, and the path {id}"));
        }
        Some(_) | None => {}
    }
    change(service, vec![Document { origin: String::new(), body }], Vec::new(), dry_run).await
}

async fn change_several(service: &Arc<ApiService>, requested: ObjectChange) -> HttpReply {
    let mut removed = Vec::new();
    for api::ObjectName { kind, tenant, name } in &requested.remove {
        let Some(kind) = ObjectKind::ALL.into_iter().find(|known| known.title() == kind) else {
            return bad(&format!("there is no kind {kind}"));
        };
        match ObjectId::parse(kind, tenant, name) {
            Ok(id) => removed.push(id),
            Err(error) => return bad(&error.to_string()),
        }
    }
    let documents =
        requested.apply.into_iter().map(|it| Document { origin: it.origin, body: it.body }).collect();
    change(service, documents, removed, requested.dry_run).await
}

async fn change(
    service: &Arc<ApiService>,
    documents: Vec<Document>,
    removed: Vec<ObjectId>,
    dry_run: bool,
) -> HttpReply {
    let Some(cluster) = &service.cluster else {
        return reply::error(StatusCode::SERVICE_UNAVAILABLE, super::nodes::NO_STORE);
    };
    // Reads files on a blocking thread, so that the server's thread never waits for a disk.
    let reader = Arc::clone(service);
    let pods = match spawn_blocking(move || placements(&reader)).await {
        Ok(Ok(pods)) => pods,
        Ok(Err(error)) => return refusal(&AskError::Failed(error)),
        Err(error) => return refusal(&AskError::Failed(error.to_string())),
    };
    let defaults = cluster.default_objects();
    let changes = ObjectChanges { defaults, documents, removed, pods, dry_run };
    match cluster.change_objects(changes).await {
        Ok(steps) => reply::json(StatusCode::OK, &steps),
        Err(error) => refusal(&error),
    }
}

/// The placements of this node's pods: their objects cannot be removed.
fn placements(service: &ApiService) -> Result<Vec<Placement>, String> {
    let failed = |error: engine::state::StateError| format!("records cannot be read: {}", error.with_cause());
    let Some(state) = NodeState::open_existing(&service.description.run_dir).map_err(failed)? else {
        return Ok(Vec::new());
    };
    let mut placements = Vec::new();
    for network in state.networks().map_err(failed)? {
        let attachments = network.list().map_err(failed)?.into_iter().filter_map(|listed| listed.attachment);
        placements.extend(attachments.filter_map(|attachment| attachment.placement));
    }
    Ok(placements)
}

fn bad(message: &str) -> HttpReply {
    reply::error(StatusCode::BAD_REQUEST, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_name_lists_or_one_object() {
        let find = |path: &str| ObjectPath::find(&format!("{}{path}", api::OBJECTS));
        let list =
            |kind, tenant: Option<&str>| Some(ObjectPath::List { kind, tenant: tenant.map(str::to_owned) });
        assert_eq!(find(""), list(None, None));
        assert_eq!(find("/groups"), list(Some(ObjectKind::Group), None));
        assert_eq!(find("/groups/blue"), list(Some(ObjectKind::Group), Some("blue")));
        let one = |kind, tenant, name| Some(ObjectPath::One(ObjectId::parse(kind, tenant, name).unwrap()));
        assert_eq!(find("/groups/blue/web"), one(ObjectKind::Group, "blue", "web"));
        assert_eq!(find("/tenants/blue"), one(ObjectKind::Tenant, "blue", "blue"));
        for path in ["x", "/", "/group", "/groups/blue/web/x", "/groups/blue/UPPER", "/tenants/a%20b"] {
            assert_eq!(find(path), None, "{path}");
        }
    }
}
