//! The client with a listener that sends prepared answers.

use std::os::unix::net::UnixListener;
use std::thread::JoinHandle;

use super::*;

const TIMEOUT: Duration = Duration::from_secs(20);

/// A listener that reads one request up to its blank line and `body` more bytes, sends `answer`, and closes the connection.
fn server(answer: Vec<u8>, body: usize) -> (tempfile::TempDir, Client, JoinHandle<Vec<u8>>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let thread = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = Vec::new();
        let is_complete = |request: &[u8]| {
            request.windows(4).position(|w| w == b"\r\n\r\n").is_some_and(|at| request.len() >= at + 4 + body)
        };
        while !is_complete(&request) {
            let mut chunk = [0; 4096];
            let read = stream.read(&mut chunk).unwrap();
            assert!(read > 0, "the client closed the connection");
            request.extend_from_slice(&chunk[..read]);
        }
        // Fails if the client closed the connection early.
        let _ = stream.write_all(&answer);
        request
    });
    (dir, Client::new(&path), thread)
}

fn answer_to_get(answer: &[u8]) -> Result<HttpAnswer, ClientError> {
    let (_dir, client, thread) = server(answer.to_vec(), 0);
    let outcome = client.get("/x", TIMEOUT);
    thread.join().unwrap();
    outcome
}

#[test]
fn a_post_request_has_the_required_headers() {
    let (_dir, client, thread) = server(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_vec(), 7);
    assert_eq!(
        client.post("/v1/cni", &[1, 2, 3], TIMEOUT).unwrap(),
        HttpAnswer { status: 200, body: vec![] }
    );
    let request = String::from_utf8(thread.join().unwrap()).unwrap();
    assert!(request.starts_with("POST /v1/cni HTTP/1.1\r\nHost: "), "{request}");
    assert!(request.contains("\r\nConnection: close\r\n"), "{request}");
    assert!(request.ends_with("Content-Length: 7\r\n\r\n[1,2,3]"), "{request}");
}

#[test]
fn requests_without_a_body_have_no_body_headers() {
    for method in ["GET", "DELETE"] {
        let (_dir, client, thread) = server(b"HTTP/1.1 409 No\r\nContent-Length: 2\r\n\r\nno".to_vec(), 0);
        let path = "/v1/nodes/a?force=true";
        let answer = if method == "GET" { client.get(path, TIMEOUT) } else { client.delete(path, TIMEOUT) };
        assert_eq!(answer.unwrap(), HttpAnswer { status: 409, body: b"no".to_vec() });
        let request = String::from_utf8(thread.join().unwrap()).unwrap();
        assert!(request.starts_with(&format!("{method} {path} HTTP/1.1\r\nHost: ")), "{request}");
        assert!(request.ends_with("\r\nConnection: close\r\n\r\n"), "{request}");
    }
}

#[test]
fn bodies_end_by_length_by_chunks_or_by_close() {
    for raw in [
        "HTTP/1.1 503 Busy\r\ncontent-length: 5\r\n\r\nhello",
        "HTTP/1.1 503 Busy\r\nContent-Length: 5\r\n\r\nhello and more",
        "HTTP/1.0 503\r\n\r\nhello",
        "HTTP/1.1 503 Busy\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\n\r\n",
    ] {
        let answer = answer_to_get(raw.as_bytes()).unwrap();
        assert_eq!((answer.status, answer.body.as_slice()), (503, &b"hello"[..]), "{raw}");
    }
    let long = vec![b'x'; 3_000_000];
    let raw = [b"HTTP/1.1 200 OK\r\nContent-Length: 3000000\r\n\r\n", long.as_slice()].concat();
    assert_eq!(answer_to_get(&raw).unwrap().body, long);
}

#[test]
fn truncated_answers_are_reported_as_broken() {
    for raw in [
        "",
        "HTTP/1.1 200 O",
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
    ] {
        let error = answer_to_get(raw.as_bytes()).unwrap_err();
        assert!(matches!(error, ClientError::Broken { .. }), "{raw}: {error}");
    }
}

#[test]
fn invalid_answers_are_malformed_and_large_ones_refused() {
    for raw in [
        "SSH-2.0-OpenSSH\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nhello\r\n0\r\n\r\n",
    ] {
        let error = answer_to_get(raw.as_bytes()).unwrap_err();
        assert!(matches!(error, ClientError::Malformed { .. }), "{raw}: {error}");
    }
    for raw in [
        "HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
    ] {
        let error = answer_to_get(raw.as_bytes()).unwrap_err();
        assert!(matches!(error, ClientError::TooLarge { .. }), "{raw}: {error}");
    }
    let large = [b"HTTP/1.1 200 OK\r\n\r\n", vec![0; MAX_RESULT + FIRST_READ].as_slice()].concat();
    let (_dir, client, thread) = server(large, 2);
    let error = client.post("/x", &[(); 0], TIMEOUT).unwrap_err();
    assert!(matches!(error, ClientError::TooLarge { .. }), "{error}");
    drop(thread.join());
}

#[test]
fn a_missing_listener_is_distinct_from_other_errors() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let closed = dir.path().join("closed");
    drop(UnixListener::bind(&closed).unwrap());
    for path in [dir.path().join("missing"), file.join("below"), file, closed] {
        let error = Client::new(&path).get("/x", TIMEOUT).unwrap_err();
        assert!(matches!(error, ClientError::NoListener { .. }), "{error}");
        let message = error.to_string();
        assert!(message.contains(path.to_str().unwrap()) && message.contains("podwire agent"), "{message}");
    }
    let long = dir.path().join("x".repeat(200));
    let error = Client::new(&long).get("/x", TIMEOUT).unwrap_err();
    assert!(matches!(error, ClientError::Connect { .. }), "{error}");
}

/// A listener that does not accept, with a free queue and with a full one.
#[test]
fn requests_time_out() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.sock");
    let _listener = UnixListener::bind(&path).unwrap();
    let short = Duration::from_millis(60);
    let request = || Client::new(&path).post("/x", &"x".repeat(2 << 20), short).unwrap_err();
    let start = Instant::now();
    assert!(matches!(request(), ClientError::TimedOut { .. }));
    assert!(start.elapsed() >= short);
    // Fill the queue with connections that are not accepted.
    let mut queued = Vec::new();
    while let Ok(stream) = connect_with_timeout(&path, Duration::from_millis(5)) {
        queued.push(stream);
        assert!(queued.len() < 100_000, "the queue is not limited");
    }
    let error = request();
    assert!(matches!(error, ClientError::TimedOut { .. }), "{error}");
}

/// An ADD may wait for its IPAM plugin.
#[test]
fn a_slow_answer_of_an_agent_that_is_alive_is_awaited() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let empty = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
    let thread = std::thread::spawn(move || {
        let (mut slow, _) = listener.accept().unwrap();
        for _ in 0..2 {
            let (mut probe, _) = listener.accept().unwrap();
            let mut request = [0; 4096];
            let read = probe.read(&mut request).unwrap();
            assert!(request[..read].starts_with(b"GET /v1/health "));
            probe.write_all(empty).unwrap();
        }
        slow.write_all(empty).unwrap();
    });
    let client = Client { probe_interval: Duration::from_millis(20), ..Client::new(&path) };
    assert_eq!(client.post("/x", &"x", TIMEOUT).unwrap().status, 200);
    thread.join().unwrap();
}

/// The agent may refuse a request before it has read all of it.
#[test]
fn an_answer_before_the_end_of_the_request_is_returned() {
    let answer = b"HTTP/1.1 413 Large\r\nContent-Length: 3\r\n\r\nbig".to_vec();
    let (_dir, client, thread) = server(answer, 0);
    let outcome = client.post("/x", &"x".repeat(3 << 20), TIMEOUT).unwrap();
    assert_eq!((outcome.status, outcome.body.as_slice()), (413, &b"big"[..]));
    thread.join().unwrap();
}
