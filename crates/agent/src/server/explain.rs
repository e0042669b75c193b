//! Explains flows: the policy thread judges them, and the path comes from records, routes to peers and the kernel.

mod ends;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use api::{ExplainAnswer, ExplainRequest, FlowView};
use engine::state::{Attachment, NodeState, StateError};
use hyper::StatusCode;
use netlink::RtSocket;
use policy::{FlowAnswers, FlowQuery, FlowTraffic};
use tokio::task::spawn_blocking;

use super::ApiService;
use super::denied::{not_enforced, refusal};
use super::reply::{self, HttpReply};
use crate::flow_path::{EgressRoute, KernelRoutes, PathFacts};
use crate::flow_view::flow_view;
use ends::{LocalEnds, PublishedTarget};

pub(super) async fn answer(service: &Arc<ApiService>, body: &[u8]) -> HttpReply {
    let request: ExplainRequest = match serde_json::from_slice(body) {
        Ok(request) => request,
        Err(cause) => {
            let message = format!("the body is not a flow (from, to, protocol, port): {cause}");
            return reply::error(StatusCode::BAD_REQUEST, &message);
        }
    };
    match explained(service, &request).await {
        Ok(answer) => reply::json(StatusCode::OK, &answer),
        Err(reply) => *reply,
    }
}

/// The error is the reply.
async fn explained(
    service: &Arc<ApiService>,
    request: &ExplainRequest,
) -> Result<ExplainAnswer, Box<HttpReply>> {
    let bad = |error: String| Box::new(reply::error(StatusCode::BAD_REQUEST, &error));
    let failed = |error: String| Box::new(reply::error(StatusCode::INTERNAL_SERVER_ERROR, &error));
    let traffic =
        FlowTraffic::parse(&request.protocol, request.port).map_err(|error| bad(error.to_string()))?;
    let node = service.work.policies().node().clone();
    // Files and netlink on blocking threads, so that the server's thread never waits for them.
    let run_dir = service.description.run_dir.clone();
    let pods = spawn_blocking(move || local_pods(&run_dir)).await;
    let pods = pods.map_err(|error| failed(error.to_string()))?.map_err(failed)?;
    let addresses = spawn_blocking(node_addresses).await.map_err(|error| failed(error.to_string()))?;
    let inactive = service.agent_status.inactive_ports();
    let ends = LocalEnds { node: &node, pods: &pods, addresses: &addresses, inactive: &inactive };
    let from = ends.end(&request.from).map_err(bad)?;
    let PublishedTarget { to, traffic, nat } = ends.target(&request.to, traffic).map_err(bad)?;
    let asked = service.work.policies().explain(FlowQuery { from, to, traffic }).await;
    let (state, answers) = asked.map_err(|error| Box::new(refusal(error)))?;
    let FlowAnswers { explanations, omitted } = answers.map_err(|error| bad(error.to_string()))?;
    let routes = match &service.cluster {
        Some(cluster) => cluster.routes().await.map(|view| view.routes).map_err(|error| error.to_string()),
        None => Err(super::nodes::NO_STORE.to_owned()),
    };
    let targets: BTreeSet<IpAddr> = explanations.iter().filter_map(|flow| flow.to.address()).collect();
    let egress = spawn_blocking(move || kernel_routes(targets)).await;
    let egress = egress.map_err(|error| failed(error.to_string()))?;
    let facts = PathFacts::new(node, pods, routes, egress);
    let flows = explanations.iter().map(|flow| {
        let mut path = facts.path(flow);
        path.nat.splice(0..0, nat.clone());
        FlowView { path: Some(path), ..flow_view(flow) }
    });
    let flows = flows.collect();
    Ok(ExplainAnswer { not_enforced: not_enforced(state), flows, omitted: omitted as u64 })
}

/// The pods of this node with addresses, also those of networks without an agent.
fn local_pods(run_dir: &Path) -> Result<Vec<Attachment>, String> {
    let read = || -> Result<Vec<Attachment>, StateError> {
        let mut pods = Vec::new();
        let Some(state) = NodeState::open_existing(run_dir)? else { return Ok(pods) };
        for network in state.networks()? {
            pods.extend(network.list()?.into_iter().filter_map(|listed| listed.attachment));
        }
        Ok(pods)
    };
    read().map_err(|error| format!("records cannot be read: {}", error.with_cause()))
}

/// Only for published ports: without the addresses, a port of the node is not translated.
fn node_addresses() -> Vec<IpAddr> {
    let listed = RtSocket::open().and_then(|mut socket| socket.addresses(None));
    listed.map(|all| all.iter().map(|address| address.addr.addr()).collect()).unwrap_or_default()
}

fn kernel_routes(targets: BTreeSet<IpAddr>) -> KernelRoutes {
    let mut socket = RtSocket::open().map_err(|error| error.to_string());
    let mut route = |target: IpAddr| {
        let socket = socket.as_mut().map_err(|error| error.clone())?;
        let found = match socket.route_to(target) {
            Ok(found) => found,
            Err(error) if error.is_unreachable() => return Ok(None),
            Err(error) => return Err(error.to_string()),
        };
        let link = socket.link_at(found.link).map_err(|error| error.to_string())?;
        let link = link.ok_or_else(|| "its link was deleted".to_owned())?;
        Ok(Some(EgressRoute { link: link.name, mtu: link.mtu, gateway: found.gateway }))
    };
    targets.into_iter().map(|target| (target, route(target))).collect()
}
