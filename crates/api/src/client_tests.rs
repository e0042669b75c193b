//! The client against a listener that says what a test wants.

use std::os::unix::net::UnixListener;
use std::thread::JoinHandle;

use super::*;

const SOON: Duration = Duration::from_secs(20);

/// A listener that reads one request as far as its blank line and `body` bytes, then says `answer` and hangs up.
fn server(answer: Vec<u8>, body: usize) -> (tempfile::TempDir, Client, JoinHandle<Vec<u8>>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let thread = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = Vec::new();
        let is_whole = |request: &[u8]| {
            request.windows(4).position(|w| w == b"\r\n\r\n").is_some_and(|at| request.len() >= at + 4 + body)
        };
        while !is_whole(&request) {
            let mut some = [0; 4096];
            let read = stream.read(&mut some).unwrap();
            assert!(read > 0, "the client hung up");
            request.extend_from_slice(&some[..read]);
        }
        // A client that has heard enough hangs up.
        let _ = stream.write_all(&answer);
        request
    });
    (dir, Client::new(&path), thread)
}

fn answer_to_get(answer: &[u8]) -> Result<HttpAnswer, ClientError> {
    let (_dir, client, thread) = server(answer.to_vec(), 0);
    let outcome = client.get("/x", SOON);
    thread.join().unwrap();
    outcome
}

#[test]
fn the_request_says_what_it_must() {
    let (_dir, client, thread) = server(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_vec(), 7);
    assert_eq!(client.post("/v1/cni", &[1, 2, 3], SOON).unwrap(), HttpAnswer { status: 200, body: vec![] });
    let request = String::from_utf8(thread.join().unwrap()).unwrap();
    assert!(request.starts_with("POST /v1/cni HTTP/1.1\r\nHost: "), "{request}");
    assert!(request.contains("\r\nConnection: close\r\n"), "{request}");
    assert!(request.ends_with("Content-Length: 7\r\n\r\n[1,2,3]"), "{request}");
}

#[test]
fn what_has_no_body_says_nothing_of_one() {
    for method in ["GET", "DELETE"] {
        let (_dir, client, thread) = server(b"HTTP/1.1 409 No\r\nContent-Length: 2\r\n\r\nno".to_vec(), 0);
        let path = "/v1/nodes/a?force=true";
        let answer = if method == "GET" { client.get(path, SOON) } else { client.delete(path, SOON) };
        assert_eq!(answer.unwrap(), HttpAnswer { status: 409, body: b"no".to_vec() });
        let request = String::from_utf8(thread.join().unwrap()).unwrap();
        assert!(request.starts_with(&format!("{method} {path} HTTP/1.1\r\nHost: ")), "{request}");
        assert!(request.ends_with("\r\nConnection: close\r\n\r\n"), "{request}");
    }
}

#[test]
fn bodies_end_by_length_by_chunks_or_with_the_connection() {
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
fn answers_that_are_cut_off_are_broken() {
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
fn garbage_is_malformed_and_size_has_a_bound() {
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
    let endless = [b"HTTP/1.1 200 OK\r\n\r\n", vec![0; LARGEST_RESULT + FIRST_READ].as_slice()].concat();
    let (_dir, client, thread) = server(endless, 2);
    let error = client.post("/x", &[(); 0], SOON).unwrap_err();
    assert!(matches!(error, ClientError::TooLarge { .. }), "{error}");
    drop(thread.join());
}

#[test]
fn nobody_there_is_told_from_everything_else() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let closed = dir.path().join("closed");
    drop(UnixListener::bind(&closed).unwrap());
    for path in [dir.path().join("missing"), file.join("below"), file, closed] {
        let error = Client::new(&path).get("/x", SOON).unwrap_err();
        assert!(matches!(error, ClientError::NoListener { .. }), "{error}");
        let said = error.to_string();
        assert!(said.contains(path.to_str().unwrap()) && said.contains("podwire agent"), "{said}");
    }
    let long = dir.path().join("x".repeat(200));
    let error = Client::new(&long).get("/x", SOON).unwrap_err();
    assert!(matches!(error, ClientError::Connect { .. }), "{error}");
}

/// A listener that accepts nobody, with its queue free and with its queue full.
#[test]
fn every_wait_has_an_end() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.sock");
    let _listener = UnixListener::bind(&path).unwrap();
    let short = Duration::from_millis(60);
    let ask = || Client::new(&path).post("/x", &"x".repeat(2 << 20), short).unwrap_err();
    let start = Instant::now();
    assert!(matches!(ask(), ClientError::TimedOut { .. }));
    assert!(start.elapsed() >= short);
    // Connections that nobody accepted yet fill the queue, of whatever length.
    let mut queued = Vec::new();
    while let Ok(stream) = connected(&path, Duration::from_millis(5)) {
        queued.push(stream);
        assert!(queued.len() < 100_000, "the queue has no end");
    }
    let error = ask();
    assert!(matches!(error, ClientError::TimedOut { .. }), "{error}");
}

/// The agent may refuse before it has read a long request.
#[test]
fn an_answer_that_came_before_the_end_of_the_request_counts() {
    let answer = b"HTTP/1.1 413 Large\r\nContent-Length: 3\r\n\r\nbig".to_vec();
    let (_dir, client, thread) = server(answer, 0);
    let outcome = client.post("/x", &"x".repeat(3 << 20), SOON).unwrap();
    assert_eq!((outcome.status, outcome.body.as_slice()), (413, &b"big"[..]));
    thread.join().unwrap();
}
