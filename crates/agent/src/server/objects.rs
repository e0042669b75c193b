//! Tenants, groups, policies and other objects: reads the agent's copy, and changes the store.

use std::sync::Arc;
use std::time::Duration;

use api::{BlockView, ObjectChange, ObjectDetails, ObjectDocument, ObjectList, ObjectName, RuleChange};
use engine::state::{Attachment, NodeState};
use hyper::body::Incoming;
use hyper::{Method, Request, StatusCode};
use model::{Catalog, ClusterObject, Document, ObjectId, ObjectKind, PolicyEdit};
use serde_json::Value;
use tokio::task::spawn_blocking;

use super::nodes::refusal;
use super::object_details::CandidatePods;
use super::reply::{self, HttpReply};
use super::{ApiService, nodes, object_details};
use crate::membership::{AskError, ObjectChanges, RequestedObjects};

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
        Self::after(api::OBJECTS, path)
    }

    /// The object of a path of details.
    pub(super) fn find_details(path: &str) -> Option<ObjectId> {
        match Self::after(api::OBJECT_DETAILS, path)? {
            Self::One(id) => Some(id),
            Self::List { .. } => None,
        }
    }

    fn after(root: &str, path: &str) -> Option<Self> {
        let rest = path.strip_prefix(root)?;
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
        (Method::DELETE, ObjectPath::One(id)) => {
            let requested = RequestedObjects { removed: vec![id], ..RequestedObjects::default() };
            change(service, requested, is_dry_run).await
        }
        (_, ObjectPath::List { kind: None, tenant: None }) => reply::not_allowed(&Method::POST),
        (_, ObjectPath::List { .. } | ObjectPath::One(_)) => reply::not_allowed(&Method::GET),
    }
}

fn list(service: &ApiService, path: &ObjectPath) -> HttpReply {
    let Some(objects) = service.work.policies().objects() else { return not_read_yet() };
    let found = objects.records().filter(|(id, _)| path.includes(id));
    let items: Vec<Value> = found.map(|(_, record)| record.object.to_document()).collect();
    match path {
        ObjectPath::List { .. } => {
            let problems = object_details::problems(&objects, |id| path.includes(id));
            reply::json(StatusCode::OK, &ObjectList { items, problems })
        }
        ObjectPath::One(id) => match items.first() {
            Some(item) => reply::json(StatusCode::OK, item),
            None => missing(&objects, id),
        },
    }
}

fn not_read_yet() -> HttpReply {
    reply::error(StatusCode::SERVICE_UNAVAILABLE, "the agent has not read the store yet")
}

fn missing(objects: &Catalog, id: &ObjectId) -> HttpReply {
    reply::error(StatusCode::NOT_FOUND, &objects.missing(id).to_string())
}

/// One object with its problems, users, rules, pods and blocks.
pub(super) async fn details(service: &Arc<ApiService>, id: &ObjectId) -> HttpReply {
    let Some(objects) = service.work.policies().objects() else { return not_read_yet() };
    let pods = match pods(service).await {
        Ok(pods) => pods,
        Err(error) => return refusal(&error),
    };
    let (others, pods_missing) = match &service.cluster {
        Some(cluster) => match cluster.pods_of_other_nodes().await {
            Ok(others) => (others, None),
            Err(error) => (Vec::new(), Some(error.to_string())),
        },
        None => (Vec::new(), Some(nodes::NO_STORE.to_owned())),
    };
    let known = CandidatePods { node: service.work.policies().node(), local: &pods, others: &others };
    let Some(details) = object_details::details(&objects, id, &known) else {
        return missing(&objects, id);
    };
    let details = ObjectDetails { pods_missing, ..details };
    let subnets = match objects.get(id).map(|record| &record.object) {
        Some(ClusterObject::Network(network)) => network.subnets.as_slice(),
        Some(_) | None => return reply::json(StatusCode::OK, &details),
    };
    let blocks = match &service.cluster {
        Some(cluster) => nodes::blocks(service, cluster).await.ok(),
        None => None,
    };
    // Subnets of all networks are disjoint.
    let is_inside = |view: &BlockView| subnets.iter().any(|subnet| subnet.contains(&view.block));
    let blocks = blocks.map(|view| view.blocks.into_iter().filter(is_inside).collect());
    reply::json(StatusCode::OK, &ObjectDetails { blocks, ..details })
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
    let documents = vec![Document { origin: String::new(), body }];
    change(service, RequestedObjects { documents, ..RequestedObjects::default() }, dry_run).await
}

async fn change_several(service: &Arc<ApiService>, requested: ObjectChange) -> HttpReply {
    let ObjectChange { apply, create, rules, remove, dry_run } = requested;
    let removed: Result<Vec<ObjectId>, String> = remove.iter().map(parse_name).collect();
    let edits: Result<Vec<PolicyEdit>, String> = rules.into_iter().map(parse_edit).collect();
    let (removed, edits) = match (removed, edits) {
        (Ok(removed), Ok(edits)) => (removed, edits),
        (Err(error), _) | (_, Err(error)) => return bad(&error),
    };
    let created = create.iter().filter_map(|it| model::described(&it.body)).collect();
    let document = |it: ObjectDocument| Document { origin: it.origin, body: it.body };
    let documents = apply.into_iter().chain(create).map(document).collect();
    change(service, RequestedObjects { documents, created, edits, removed }, dry_run).await
}

fn parse_name(name: &ObjectName) -> Result<ObjectId, String> {
    let ObjectName { kind, tenant, name } = name;
    let found = ObjectKind::ALL.into_iter().find(|known| known.title() == kind);
    let kind = found.ok_or_else(|| format!("there is no kind {kind}"))?;
    ObjectId::parse(kind, tenant, name).map_err(|error| error.to_string())
}

fn parse_edit(change: RuleChange) -> Result<PolicyEdit, String> {
    let RuleChange { tenant, policy, add, remove } = change;
    let policy = ObjectId::parse(ObjectKind::Policy, &tenant, &policy).map_err(|error| error.to_string())?;
    Ok(PolicyEdit { policy, add, remove })
}

async fn change(service: &Arc<ApiService>, requested: RequestedObjects, dry_run: bool) -> HttpReply {
    let Some(cluster) = &service.cluster else {
        return reply::error(StatusCode::SERVICE_UNAVAILABLE, nodes::NO_STORE);
    };
    let pods = match pods(service).await {
        Ok(pods) => pods.into_iter().filter_map(|pod| pod.placement).collect(),
        Err(error) => return refusal(&error),
    };
    // The last valid version of an object stays in force if its value in the store cannot be read, so changes are checked against it.
    let known = service.work.policies().objects();
    let known = known.map_or_else(|| cluster.default_objects(), |objects| (*objects).clone());
    match cluster.change_objects(ObjectChanges { known, requested, pods, dry_run }).await {
        Ok(steps) => reply::json(StatusCode::OK, &steps),
        Err(error) => refusal(&error),
    }
}

/// This node's pods: their objects cannot be removed. Reads files on a blocking thread, so that the server's thread never waits
/// for a disk.
async fn pods(service: &Arc<ApiService>) -> Result<Vec<Attachment>, AskError> {
    let reader = Arc::clone(service);
    let read = spawn_blocking(move || recorded_pods(&reader)).await;
    read.map_err(|error| AskError::Failed(error.to_string()))?.map_err(AskError::Failed)
}

fn recorded_pods(service: &ApiService) -> Result<Vec<Attachment>, String> {
    let failed = |error: engine::state::StateError| format!("records cannot be read: {}", error.with_cause());
    let Some(state) = NodeState::open_existing(&service.description.run_dir).map_err(failed)? else {
        return Ok(Vec::new());
    };
    let mut pods = Vec::new();
    for network in state.networks().map_err(failed)? {
        pods.extend(network.list().map_err(failed)?.into_iter().filter_map(|listed| listed.attachment));
    }
    Ok(pods)
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
        let details = |path: &str| ObjectPath::find_details(&format!("{}{path}", api::OBJECT_DETAILS));
        let web = ObjectId::parse(ObjectKind::Group, "blue", "web").unwrap();
        assert_eq!(
            (details("/groups/blue/web"), details("/groups/blue"), details("")),
            (Some(web), None, None)
        );
        for path in ["x", "/", "/group", "/groups/blue/web/x", "/groups/blue/UPPER", "/tenants/a%20b"] {
            assert_eq!(find(path), None, "{path}");
        }
    }
}
