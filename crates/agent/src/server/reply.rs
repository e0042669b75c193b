//! Reads request bodies with limits of size and time, and builds JSON answers.

use std::error::Error;
use std::time::Duration;

use api::{ErrorAnswer, MAX_BODY};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Body, Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use serde::Serialize;
use serde_json::json;
use tokio::time::timeout;

use crate::work::Answer;

/// Complete or streamed. Hyper polls for the next part when the client can receive it.
pub(super) type ReplyBody = UnsyncBoxBody<Bytes, BodyError>;
pub(super) type BodyError = Box<dyn Error + Send + Sync>;
pub(super) type HttpReply = Response<ReplyBody>;

pub(super) const JSON: &str = "application/json";
/// JSON values, one per line.
pub(super) const JSON_LINES: &str = "application/jsonl";

/// Reads the whole body. The error is the reply.
pub(super) async fn read(request: Request<Incoming>, limit: Duration) -> Result<Bytes, HttpReply> {
    let body = request.into_body();
    if body.size_hint().lower() > MAX_BODY as u64 {
        return Err(too_large());
    }
    match timeout(limit, Limited::new(body, MAX_BODY).collect()).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large()),
        Ok(Err(cause)) => {
            Err(error(StatusCode::BAD_REQUEST, &format!("cannot read the request body: {cause}")))
        }
        Err(_) => Err(error(
            StatusCode::REQUEST_TIMEOUT,
            &format!("the request took longer than {limit:?} to arrive"),
        )),
    }
}

fn too_large() -> HttpReply {
    error(StatusCode::PAYLOAD_TOO_LARGE, &format!("the request is larger than {MAX_BODY} bytes"))
}

pub(super) fn json(status: StatusCode, value: &impl Serialize) -> HttpReply {
    match serde_json::to_vec(value) {
        Ok(text) => with_type(status, JSON, text),
        Err(cause) => {
            let text = json!({ "error": format!("cannot serialize the answer: {cause}") });
            with_type(StatusCode::INTERNAL_SERVER_ERROR, JSON, text.to_string())
        }
    }
}

/// The answer to a CNI call.
pub(super) fn cni(answer: &Answer) -> HttpReply {
    match answer {
        Answer::Done(answer) => json(StatusCode::OK, answer),
        Answer::Failed(failure) => json(StatusCode::INTERNAL_SERVER_ERROR, &failure.to_json()),
        Answer::Unavailable(failure) => json(StatusCode::SERVICE_UNAVAILABLE, &failure.to_json()),
    }
}

pub(super) fn error(status: StatusCode, message: &str) -> HttpReply {
    json(status, &ErrorAnswer { error: message.to_owned() })
}

pub(super) fn with_type(status: StatusCode, kind: &'static str, text: impl Into<Bytes>) -> HttpReply {
    let body = Full::new(text.into()).map_err(|never| match never {});
    with_body(status, kind, body.boxed_unsync())
}

pub(super) fn with_body(status: StatusCode, kind: &'static str, body: ReplyBody) -> HttpReply {
    let mut reply = Response::new(body);
    *reply.status_mut() = status;
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    reply
}

pub(super) fn not_allowed(allowed: &Method) -> HttpReply {
    let mut reply = error(StatusCode::METHOD_NOT_ALLOWED, &format!("only {allowed} is allowed here"));
    if let Ok(value) = HeaderValue::from_str(allowed.as_str()) {
        reply.headers_mut().insert(ALLOW, value);
    }
    reply
}
