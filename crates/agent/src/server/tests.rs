mod fixture;
mod in_place;
mod stream;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream as Client};
use std::path::Path;
use std::pin::pin;
use std::sync::{Mutex, mpsc};
use std::thread;

use api::Status;
use cni::Request;
use engine::Caller;
use serde_json::json;
use tempfile::TempDir;

use super::*;
use fixture::*;

#[test]
fn the_socket_is_only_for_root_and_replaces_a_stale_one() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("a/b/agent.sock");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let first = bind(&path).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
        assert!(first.watch().check());
        let error = bind(&path).err().unwrap().to_string();
        assert!(error.contains(path.to_str().unwrap()) && error.contains("--socket"), "{error}");
        let watch = first.watch();
        drop(first);
        let second = bind(&path).unwrap();
        assert!(second.watch().check());
        assert!(!watch.check());
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
        let long = dir.path().join("x".repeat(120));
        assert!(matches!(bind(&long), Err(ServerError::TooLong(_))));
    });
}

#[test]
fn a_socket_with_a_listener_is_never_replaced() {
    let dir = TempDir::new().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let busy = dir.path().join("busy");
        let _listener = UnixListener::bind(&busy).unwrap();
        let datagrams = dir.path().join("datagrams");
        let _socket = UnixDatagram::bind(&datagrams).unwrap();
        for path in [&busy, &datagrams] {
            assert!(matches!(bind(path), Err(ServerError::Taken(_))), "{}", path.display());
        }
    });
}

#[test]
fn a14_only_a_socket_is_replaced_by_the_socket() {
    let dir = TempDir::new().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (file, link, inner) = (dir.path().join("file"), dir.path().join("link"), dir.path().join("dir"));
        fs::write(&file, "precious").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        fs::create_dir(&inner).unwrap();
        let other_users = dir.path().join("other-users");
        drop(UnixListener::bind(&other_users).unwrap());
        std::os::unix::fs::lchown(&other_users, Some(1000), None).unwrap();
        for path in [&file, &link, &inner, &other_users] {
            let error = bind(path).err().unwrap();
            assert!(matches!(error, ServerError::NotASocket(_)), "{}: {error}", path.display());
            assert!(error.to_string().contains("--socket"), "{error}");
        }
        assert_eq!(fs::read_to_string(&link).unwrap(), "precious");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 4, "bind left a temporary file");
    });
}

#[test]
fn temporary_sockets_of_killed_agents_are_removed() {
    let dir = TempDir::new().unwrap();
    // One process that has ended and one that runs.
    let mut child = std::process::Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    let stale = dir.path().join(format!(".new-{}", child.id()));
    let in_use = dir.path().join(".new-1");
    drop((UnixListener::bind(&stale).unwrap(), UnixListener::bind(&in_use).unwrap()));
    let other = dir.path().join(format!(".new-file-{}", child.id()));
    fs::write(&other, "").unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let _socket = bind(&dir.path().join("agent.sock")).unwrap();
    });
    assert!(!stale.exists() && in_use.exists() && other.exists());
}

#[test]
fn a_socket_taken_by_another_process_is_reported() {
    let fixture = Fixture::new(Options::default());
    fs::remove_file(&fixture.socket).unwrap();
    let other = UnixListener::bind(&fixture.socket).unwrap();
    let tried = Instant::now();
    assert!(!fixture.watch.check());
    wait_until("the condition", || {
        fixture.agent_status.conditions().iter().any(|condition| condition.message.contains("--socket"))
    });
    for _ in 0..100 {
        assert!(!fixture.watch.check());
    }
    // Without a listener, the agent replaces it at the next attempt.
    drop(other);
    wait_until("the socket to be created again", || fixture.watch.check());
    assert!(tried.elapsed() >= REBIND_PAUSE);
    wait_until("the end of the condition", || fixture.agent_status.conditions().is_empty());
    assert_eq!(fixture.get("/v1/health").0, 200);
}

#[test]
fn get_requests_return_the_state_of_the_agent() {
    let fixture = Fixture::new(Options::default());
    assert_eq!(fixture.get("/v1/health"), (200, json!({ "healthy": true })));
    assert_eq!(fixture.get("/v1/ready"), (200, json!({ "ready": true, "conditions": [] })));
    assert_eq!(fixture.get("/v1/attachments"), (200, json!({ "attachments": [] })));
    assert_eq!(fixture.get("/v1/attachments/c0ffee"), (200, json!({ "attachments": [] })));
    let (status, version) = fixture.get("/v1/version");
    assert_eq!((status, &version["api"]), (200, &json!(1)));
    assert_eq!(version["cniVersions"][6], "1.1.0");
    let (_, status) = fixture.get("/v1/status");
    let status: Status = serde_json::from_value(status).unwrap();
    assert_eq!((status.node.as_str(), status.network.blocks[0].free), ("n1", Some(253)));
    assert!(status.ready && status.rss_bytes > 0);
    let (status, page) = fixture.get("/metrics");
    assert_eq!(status, 200);
    assert!(page.as_str().unwrap().contains("podwire_ready 1\n"), "{page}");
}

#[test]
fn b4_unknown_paths_get_404_and_wrong_methods_405() {
    let fixture = Fixture::new(Options::default());
    for path in ["/", "/v2/cni", "/v1/attachmentsx", "/v1/cni/"] {
        assert_eq!(fixture.get(path), (404, json!({ "error": "page not found" })), "{path}");
    }
    assert_eq!(fixture.get("/v1/cni"), (405, json!({ "error": "only POST is allowed here" })));
    assert_eq!(fixture.post("/v1/status", &json!({})).0, 405);
}

#[test]
fn b4_users_other_than_root_get_403() {
    let fixture = Fixture::new(Options { users: AllowedUsers(vec![4242]), ..Options::default() });
    for (status, body) in [fixture.get("/v1/health"), fixture.post("/v1/cni", &call("ADD", "a"))] {
        assert_eq!(status, 403);
        assert!(body["error"].as_str().unwrap().starts_with("access denied"));
    }
}

#[test]
fn cni_calls_return_results_and_errors() {
    let fixture = Fixture::new(Options::default());
    let (status, body) = fixture.post("/v1/cni", &call("ADD", "a"));
    assert_eq!((status, &body["result"]["ips"][0]["address"]), (200, &json!("10.9.0.5/24")));
    assert_eq!(fixture.post("/v1/cni", &call("DEL", "a")), (200, json!({})));
    let failure =
        json!({ "cniVersion": "1.1.0", "code": 100, "msg": "no address left", "details": EXHAUSTED });
    assert_eq!(fixture.post("/v1/cni", &call("ADD", "bad")), (500, failure));
    let (status, body) = fixture.post("/v1/cni", &call("JUMP", "a"));
    assert_eq!((status, &body["code"]), (500, &json!(4)));
    assert_eq!(fixture.post("/v1/cni", &json!({ "env": 1 })).0, 400);
    fixture.report_missing_bridge();
    let (status, body) = fixture.post("/v1/cni", &call("ADD", "a"));
    assert_eq!((status, &body["code"]), (503, &json!(11)));
    assert!(body["msg"].as_str().unwrap().contains("the bridge is missing"));
    assert_eq!(fixture.post("/v1/cni", &call("DEL", "a")).0, 200);
    assert_eq!(body["details"], "BridgeMissing: ip link add");
    let (status, readiness) = fixture.get("/v1/ready");
    let conditions = &readiness["conditions"];
    assert_eq!((status, &readiness["ready"], &conditions[1]), (503, &json!(false), &json!(null)));
    assert_eq!(
        (&conditions[0]["code"], &conditions[0]["fix"]),
        (&json!("BridgeMissing"), &json!("ip link add"))
    );
    let (_, status) = fixture.get("/v1/status");
    assert_eq!((&status["ready"], &status["conditions"]), (&json!(false), conditions));
}

#[test]
fn b3_contiv_calls_return_addresses_and_errors() {
    let fixture = Fixture::new(Options::default());
    let pod = |container: &str| {
        json!({ "K8S_POD_NAME": "web", "K8S_POD_NAMESPACE": "default", "K8S_POD_INFRA_CONTAINER_ID": container,
                "CNI_NETNS": "/proc/1/ns/net", "CNI_IFNAME": "eth0" })
    };
    let added = json!({ "result": 0, "endpointid": "podwire/c1/eth0", "ipaddress": "10.9.0.5/24",
                        "ipv6address": "fd00:9::5/64" });
    assert_eq!(fixture.post("/ContivCNI.AddPod", &pod("c1")), (200, added));
    assert_eq!(fixture.post("/ContivCNI.DelPod", &pod("c1")), (200, json!({ "result": 0 })));
    let failed = json!({ "result": 1, "errmsg": "no address left", "errinfo": EXHAUSTED });
    assert_eq!(fixture.post("/ContivCNI.AddPod", &pod("bad")), (500, failed));
    fixture.report_missing_bridge();
    let (status, body) = fixture.post("/ContivCNI.AddPod", &pod("c1"));
    assert_eq!((status, &body["result"]), (500, &json!(1)));
}

#[test]
fn a_too_large_body_is_refused() {
    let fixture = Fixture::new(Options::default());
    let length = api::MAX_BODY + 1;
    let (status, _) =
        fixture.request(&format!("POST /v1/cni HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n"));
    assert_eq!(status, 413);
    // Without a length, the server counts the bytes.
    let mut client = fixture.connect();
    client.write_all(b"POST /v1/cni HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n").unwrap();
    let chunk = format!("100000\r\n{}\r\n", "x".repeat(1 << 20));
    // The server may close the connection before all is written.
    let _ = (0..4).try_for_each(|_| client.write_all(chunk.as_bytes()));
    let mut head = [0; 12];
    client.read_exact(&mut head).unwrap();
    assert_eq!(&head, b"HTTP/1.1 413");
}

#[test]
fn slow_clients_are_disconnected_and_block_no_other_client() {
    let fixture = Fixture::new(Options { timeouts: SHORT, ..Options::default() });
    let (mut silent, mut slow, mut not_reading) = (fixture.connect(), fixture.connect(), fixture.connect());
    slow.write_all(b"POST /v1/cni HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{").unwrap();
    not_reading.write_all(b"GET /v1/cni-config HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    assert_eq!(fixture.get("/v1/health").0, 200);
    let mut bytes = Vec::new();
    assert_eq!(silent.read_to_end(&mut bytes).unwrap(), 0);
    assert_eq!(answer(&mut slow).0, 408);
    // Does not read until the timeout has passed. Then only the part of the 16 MiB in the kernel's buffers is left.
    thread::sleep(SHORT.answer * 4);
    bytes.clear();
    let read = not_reading.read_to_end(&mut bytes);
    assert!(bytes.len() < 8 << 20, "{read:?} {}", bytes.len());
}

#[test]
fn a_client_that_hangs_up_cancels_its_add() {
    let (started, received) = mpsc::channel();
    let (reported, cancelled) = mpsc::channel();
    let serve = move |request: &Request, caller: &Caller<'_>| {
        started.send(()).unwrap();
        reported.send(wait_for_cancel(caller)).unwrap();
        fixed_result(request)
    };
    let fixture = Fixture::new(Options { serve: Box::new(serve), ..Options::default() });
    // Served by the acceptor, and then by a worker, because hyper reads this body only after its first poll.
    let whole = post("/v1/cni", &call("ADD", "a"));
    for request in [whole.clone(), whole.replace("Host: agent", "Host: agent\r\nExpect: 100-continue")] {
        let mut client = fixture.connect();
        client.write_all(request.as_bytes()).unwrap();
        received.recv_timeout(TEST_TIMEOUT).unwrap();
        assert!(cancelled.try_recv().is_err());
        drop(client);
        assert_eq!(cancelled.recv_timeout(TEST_TIMEOUT), Ok(true));
    }
}

/// One worker for ADDs. The container `slow` occupies it until it is resumed. Each request reports its container.
fn one_worker(bound: usize) -> (Options, mpsc::Receiver<String>, mpsc::Sender<()>) {
    let ((started, received), (resume, resumed)) = (mpsc::channel(), mpsc::channel::<()>());
    let resumed = Mutex::new(resumed);
    let serve = move |request: &Request, _: &Caller<'_>| {
        let Request::Add(call) = request else { panic!("{request:?}") };
        started.send(call.container.to_string()).unwrap();
        if call.container.as_str() == "slow" {
            resumed.lock().unwrap().recv_timeout(TEST_TIMEOUT).unwrap();
        }
        fixed_result(request)
    };
    let queue = Queue::with_bound(3, bound).unwrap();
    (Options { serve: Box::new(serve), queue, ..Options::default() }, received, resume)
}

#[test]
fn a_client_that_hung_up_in_the_queue_is_not_served() {
    let (options, received, resume) = one_worker(10);
    let fixture = Fixture::new(options);
    let mut clients: Vec<Client> = Vec::new();
    for (waiting, container) in ["slow", "closed", "open"].into_iter().enumerate() {
        let mut client = fixture.connect();
        client.write_all(post("/v1/cni", &call("ADD", container)).as_bytes()).unwrap();
        clients.push(client);
        if container == "slow" {
            assert_eq!(received.recv_timeout(TEST_TIMEOUT).unwrap(), "slow");
        }
        wait_until("the queue", || fixture.queue.waiting() == waiting);
    }
    let mut closed = clients.remove(1);
    closed.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(closed.read(&mut [0]).unwrap(), 0, "the server closes the connection without an answer");
    // The thread that drops the connection answers this request afterwards.
    assert_eq!(fixture.get("/v1/health").0, 200);
    resume.send(()).unwrap();
    for client in &mut clients {
        assert_eq!(answer(client).0, 200);
    }
    assert_eq!(received.try_iter().collect::<Vec<_>>(), ["open"]);
}

#[test]
fn a_full_queue_is_reported() {
    let (options, received, resume) = one_worker(1);
    let fixture = Fixture::new(options);
    let (mut slow, mut second) = (fixture.connect(), fixture.connect());
    slow.write_all(post("/v1/cni", &call("ADD", "slow")).as_bytes()).unwrap();
    received.recv_timeout(TEST_TIMEOUT).unwrap();
    second.write_all(post("/v1/cni", &call("ADD", "b")).as_bytes()).unwrap();
    wait_until("the queue", || fixture.queue.waiting() == 1);
    let (status, body) = fixture.post("/v1/cni", &call("ADD", "c"));
    assert_eq!((status, &body["code"]), (503, &json!(11)));
    assert!(body["msg"].as_str().unwrap().contains("busy"), "{body}");
    resume.send(()).unwrap();
    assert_eq!((answer(&mut slow).0, answer(&mut second).0), (200, 200));
}

#[test]
fn a_thousand_concurrent_clients_are_served() {
    connection_limit();
    let fixture = Fixture::new(Options::default());
    let mut clients: Vec<Client> = (0..1000).map(|_| fixture.connect()).collect();
    for (n, client) in clients.iter_mut().enumerate() {
        client.write_all(post("/v1/cni", &call("ADD", &format!("c{n}"))).as_bytes()).unwrap();
    }
    assert_eq!(fixture.get("/v1/health").0, 200);
    for client in &mut clients {
        assert_eq!(answer(client).0, 200);
    }
}

#[test]
fn stopping_waits_for_requests_in_flight() {
    let (started, received) = mpsc::channel();
    let serve = move |request: &Request, _: &Caller<'_>| {
        started.send(()).unwrap();
        thread::sleep(Duration::from_millis(100));
        fixed_result(request)
    };
    let mut fixture = Fixture::new(Options { serve: Box::new(serve), ..Options::default() });
    let (mut client, idle) = (fixture.connect(), fixture.connect());
    client.write_all(post("/v1/cni", &call("ADD", "a")).as_bytes()).unwrap();
    received.recv_timeout(TEST_TIMEOUT).unwrap();
    let start = Instant::now();
    assert_eq!(fixture.stop(TEST_TIMEOUT), UnfinishedRequests::default());
    assert!(start.elapsed() < TEST_TIMEOUT, "an idle connection delayed the stop");
    assert_eq!(answer(&mut client).0, 200);
    assert!(Client::connect(&fixture.socket).is_err());
    drop(idle);
}

#[test]
fn stopping_ends_at_the_deadline() {
    let (started, received) = mpsc::channel();
    let (resume, resumed) = mpsc::channel::<()>();
    let resumed = Mutex::new(resumed);
    let serve = move |request: &Request, _: &Caller<'_>| {
        started.send(()).unwrap();
        let _ = resumed.lock().unwrap().recv_timeout(TEST_TIMEOUT);
        fixed_result(request)
    };
    let mut fixture = Fixture::new(Options { serve: Box::new(serve), ..Options::default() });
    let mut client = fixture.connect();
    client.write_all(post("/v1/cni", &call("ADD", "a")).as_bytes()).unwrap();
    received.recv_timeout(TEST_TIMEOUT).unwrap();
    assert_eq!(fixture.stop(Duration::from_millis(50)), UnfinishedRequests { waiting: 0, running: 1 });
    resume.send(()).unwrap();
}

#[test]
fn a_removed_socket_is_created_again() {
    let fixture = Fixture::new(Options::default());
    let mut old = fixture.connect();
    assert!(fixture.watch.check());
    fs::remove_file(&fixture.socket).unwrap();
    assert!(!fixture.watch.check());
    wait_until("the socket to be created again", || fixture.watch.check());
    assert_eq!(fixture.get("/v1/health").0, 200);
    old.write_all(b"GET /v1/health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
    assert_eq!(answer(&mut old).0, 200);
    assert!(fixture.dir.path().exists());
}

#[test]
fn tcp_serves_only_metrics_and_health() {
    let fixture = Fixture::new(Options::default());
    let ask = |path: &str| {
        let mut client = TcpStream::connect(fixture.tcp).unwrap();
        client.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        client.write_all(request.as_bytes()).unwrap();
        answer(&mut client).0
    };
    for path in ["/metrics", "/v1/health", "/v1/ready"] {
        assert_eq!(ask(path), 200, "{path}");
    }
    for path in ["/v1/cni", "/v1/attachments", "/v1/status", "/v1/cni-config", "/ContivCNI.AddPod"] {
        assert_eq!(ask(path), 404, "{path}");
    }
}

fn ask_tcp(fixture: &Fixture, path: &str) -> (u16, Vec<u8>) {
    let mut client = TcpStream::connect(fixture.tcp).unwrap();
    client.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    // The server closes the connection, not the client.
    client.write_all(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes()).unwrap();
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).unwrap();
    let status = String::from_utf8_lossy(&answer).split(' ').nth(1).unwrap().parse().unwrap();
    (status, answer)
}

/// The timeouts are long, so that only a new connection can close another one.
#[test]
fn held_tcp_connections_do_not_block_health_checks() {
    let hour = Duration::from_secs(3600);
    let timeouts = ClientTimeouts { head: hour, body: hour, answer: hour };
    let fixture = Fixture::new(Options { timeouts, ..Options::default() });
    let held: Vec<TcpStream> = (0..tcp::MAX_CONNECTIONS + 100)
        .map(|n| {
            let mut client = TcpStream::connect(fixture.tcp).unwrap();
            // Idle, with a partial request, or with a complete one.
            let requests =
                ["", "GET /v1/health HTTP/1.1\r\nHost:", "GET /v1/health HTTP/1.1\r\nHost: a\r\n\r\n"];
            // The server may have closed the connection already.
            let _ = client.write_all(requests[n % 3].as_bytes());
            client
        })
        .collect();
    for _ in 0..3 {
        assert_eq!(ask_tcp(&fixture, "/v1/health").0, 200);
        assert_eq!(ask_tcp(&fixture, "/metrics").0, 200);
    }
    // The unix socket has a separate limit.
    assert_eq!(fixture.get("/v1/health").0, 200);
    drop(held);
}

#[test]
fn abandoned_metrics_requests_leave_no_backlog() {
    let fixture = Fixture::new(Options::default());
    for _ in 0..500 {
        let mut client = TcpStream::connect(fixture.tcp).unwrap();
        let _ = client.write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
    }
    assert_eq!(fixture.get("/v1/status").0, 200);
    assert_eq!(ask_tcp(&fixture, "/metrics").0, 200);
}

#[test]
fn a_taken_tcp_address_is_reported_and_the_socket_served() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let fixture = Fixture::new(Options { tcp: Some(address), ..Options::default() });
    assert_eq!(fixture.get("/v1/health").0, 200);
    let conditions = || fixture.get("/v1/status").1["conditions"].to_string();
    wait_until("the condition", || conditions().contains(&format!("cannot listen on {address}")));
    drop(taken);
    wait_until("metrics to be served", || conditions() == "[]");
    assert_eq!(ask_tcp(&fixture, "/metrics").0, 200);
}
