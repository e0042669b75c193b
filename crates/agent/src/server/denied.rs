//! Denied flows: a list, or a stream of lines.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use api::{DeniedEvent, DeniedFlow, DeniedPacketsView, DeniedView};
use http_body_util::BodyExt as _;
use hyper::StatusCode;
use hyper::body::{Body, Bytes, Frame};
use nft::DeniedPackets;
use tokio::sync::broadcast::error::RecvError;

use super::ApiService;
use super::reply::{self, BodyError, HttpReply};
use crate::policies::{DeniedFollower, DeniedSnapshot, EnforcementState, PolicyAskError};

/// `query` is the query string of the URL.
pub(super) async fn answer(service: &ApiService, query: Option<&str>) -> HttpReply {
    let is_stream = query.is_some_and(|query| query.split('&').any(|part| part == "follow=true"));
    if is_stream { follow(service) } else { list(service).await }
}

async fn list(service: &ApiService) -> HttpReply {
    let policies = service.work.policies();
    let state = match policies.count_denied().await {
        Ok(state) => state,
        Err(error) => return refusal(error),
    };
    let DeniedSnapshot { flows, sampled, lost } = policies.denied.snapshot();
    let DeniedPackets { ingress, egress, invalid, forbidden } = service.metrics.denied_packets();
    let view = DeniedView {
        not_enforced: not_enforced(state),
        packets: DeniedPacketsView { ingress, egress, invalid, forbidden },
        sampled,
        lost,
        flows: flows.into_iter().map(Arc::unwrap_or_clone).collect(),
    };
    reply::json(StatusCode::OK, &view)
}

pub(super) fn not_enforced(state: EnforcementState) -> Option<String> {
    match state {
        EnforcementState::Enforced => None,
        EnforcementState::Not(reason) => Some(reason),
    }
}

pub(super) fn refusal(error: PolicyAskError) -> HttpReply {
    let status = match error {
        PolicyAskError::Busy => StatusCode::TOO_MANY_REQUESTS,
        PolicyAskError::TimedOut => StatusCode::GATEWAY_TIMEOUT,
        PolicyAskError::Stopped => StatusCode::SERVICE_UNAVAILABLE,
    };
    reply::error(status, &error.to_string())
}

fn follow(service: &ApiService) -> HttpReply {
    let Some(follower) = service.work.policies().denied.follow() else {
        let message = "too many clients follow denied flows: end another `podwire denied --follow`";
        return reply::error(StatusCode::TOO_MANY_REQUESTS, message);
    };
    let body = DeniedStream { next: next(follower), missed: 0 };
    reply::with_body(StatusCode::OK, reply::JSON_LINES, body.boxed_unsync())
}

type NextFlow = Pin<Box<dyn Future<Output = (Result<Arc<DeniedFlow>, RecvError>, DeniedFollower)> + Send>>;

/// The known flows first, then each flow that is recorded.
fn next(mut follower: DeniedFollower) -> NextFlow {
    Box::pin(async move {
        let flow = match follower.known.pop_front() {
            Some(flow) => Ok(flow),
            None => follower.events.recv().await,
        };
        (flow, follower)
    })
}

/// Each frame is one line. Hyper asks for the next one when the client can take it. A client that is too slow misses events, and
/// the next line has their number.
struct DeniedStream {
    next: NextFlow,
    missed: u64,
}

impl Body for DeniedStream {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        loop {
            let (flow, follower) = ready!(self.next.as_mut().poll(cx));
            self.next = next(follower);
            let flow = match flow {
                Ok(flow) => flow,
                Err(RecvError::Lagged(missed)) => {
                    self.missed += missed;
                    continue;
                }
                Err(RecvError::Closed) => return Poll::Ready(None),
            };
            let missed = std::mem::take(&mut self.missed);
            let line = serde_json::to_vec(&DeniedEvent { flow: Arc::unwrap_or_clone(flow), missed });
            return Poll::Ready(Some(match line {
                Ok(mut line) => {
                    line.push(b'\n');
                    Ok(Frame::data(line.into()))
                }
                Err(error) => Err(error.into()),
            }));
        }
    }
}

#[cfg(test)]
mod tests {
    use api::{FlowDirection, FlowEndKind, FlowEndView, Timestamp};

    use super::*;
    use crate::policies::DeniedFlows;

    fn flow(port: u16) -> DeniedFlow {
        let end = FlowEndView { kind: FlowEndKind::Outside, name: None, node: None, address: None };
        DeniedFlow {
            time: Timestamp(1),
            direction: FlowDirection::Ingress,
            from: end.clone(),
            to: end,
            protocol: "tcp".to_owned(),
            port: Some(port),
            icmp_type: None,
            tenant: None,
            link: None,
            tier: None,
            rule: "rule".to_owned(),
            samples: 1,
        }
    }

    #[test]
    fn d_a_slow_follower_gets_the_number_of_missed_events() {
        let denied = DeniedFlows::new();
        denied.record(flow(1));
        let mut stream = DeniedStream { next: next(denied.follow().unwrap()), missed: 0 };
        for port in 1000..2000 {
            denied.record(flow(port));
        }
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mut event = || -> DeniedEvent {
            let frame = runtime.block_on(stream.frame()).unwrap().unwrap();
            serde_json::from_slice(frame.data_ref().unwrap()).unwrap()
        };
        let known = event();
        assert_eq!((known.flow.port, known.missed), (Some(1), 0));
        let first = event();
        assert_eq!(first.missed + 1000, u64::from(first.flow.port.unwrap()));
        assert!(first.missed > 0);
        assert_eq!(event().missed, 0);
    }
}
