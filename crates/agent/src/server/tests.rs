mod in_place;
mod site;
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
use site::*;

#[test]
fn the_socket_is_roots_alone_and_replaces_an_old_one() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("a/b/agent.sock");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let first = bind(&path).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
        assert!(first.watch().look());
        let error = bind(&path).err().unwrap().to_string();
        assert!(error.contains(path.to_str().unwrap()) && error.contains("--socket"), "{error}");
        let watch = first.watch();
        drop(first);
        let second = bind(&path).unwrap();
        assert!(second.watch().look());
        assert!(!watch.look());
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
        let long = dir.path().join("x".repeat(120));
        assert!(matches!(bind(&long), Err(ServerError::TooLong(_))));
    });
}

#[test]
fn a_socket_that_lives_is_never_replaced_whoever_has_it() {
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
        let theirs = dir.path().join("theirs");
        drop(UnixListener::bind(&theirs).unwrap());
        std::os::unix::fs::lchown(&theirs, Some(1000), None).unwrap();
        for path in [&file, &link, &inner, &theirs] {
            let error = bind(path).err().unwrap();
            assert!(matches!(error, ServerError::NotASocket(_)), "{}: {error}", path.display());
            assert!(error.to_string().contains("--socket"), "{error}");
        }
        assert_eq!(fs::read_to_string(&link).unwrap(), "precious");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 4, "nothing is left behind");
    });
}

#[test]
fn sockets_that_never_got_their_name_are_swept() {
    let dir = TempDir::new().unwrap();
    // One that ended and one that lives.
    let mut child = std::process::Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    let left = dir.path().join(format!(".new-{}", child.id()));
    let theirs = dir.path().join(".new-1");
    drop((UnixListener::bind(&left).unwrap(), UnixListener::bind(&theirs).unwrap()));
    let other = dir.path().join(format!(".new-file-{}", child.id()));
    fs::write(&other, "").unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let _socket = bind(&dir.path().join("agent.sock")).unwrap();
    });
    assert!(!left.exists() && theirs.exists() && other.exists());
}

#[test]
fn a_socket_that_somebody_took_is_told_and_not_fought_for() {
    let site = Site::new(Options::default());
    fs::remove_file(&site.socket).unwrap();
    let theirs = UnixListener::bind(&site.socket).unwrap();
    let tried = Instant::now();
    assert!(!site.watch.look());
    wait_until("the problem", || {
        site.agent_status.conditions().iter().any(|problem| problem.message.contains("--socket"))
    });
    for _ in 0..100 {
        assert!(!site.watch.look());
    }
    // Nobody answers there any more: it is ours again, at the next attempt.
    drop(theirs);
    wait_until("the socket again", || site.watch.look());
    assert!(tried.elapsed() >= REBIND_PAUSE);
    wait_until("the problem's end", || site.agent_status.conditions().is_empty());
    assert_eq!(site.get("/v1/health").0, 200);
}

#[test]
fn what_can_be_asked() {
    let site = Site::new(Options::default());
    assert_eq!(site.get("/v1/health"), (200, json!({ "healthy": true })));
    assert_eq!(site.get("/v1/ready"), (200, json!({ "ready": true, "conditions": [] })));
    assert_eq!(site.get("/v1/attachments"), (200, json!({ "attachments": [] })));
    assert_eq!(site.get("/v1/attachments/c0ffee"), (200, json!({ "attachments": [] })));
    let (status, version) = site.get("/v1/version");
    assert_eq!((status, &version["api"]), (200, &json!(1)));
    assert_eq!(version["cniVersions"][6], "1.1.0");
    let (_, status) = site.get("/v1/status");
    let status: Status = serde_json::from_value(status).unwrap();
    assert_eq!((status.node.as_str(), status.network.blocks[0].free), ("n1", Some(253)));
    assert!(status.ready && status.rss_bytes > 0);
    let (status, page) = site.get("/metrics");
    assert_eq!(status, 200);
    assert!(page.as_str().unwrap().contains("podwire_ready 1\n"), "{page}");
}

#[test]
fn b4_404_is_page_not_found_and_the_wrong_method_405() {
    let site = Site::new(Options::default());
    for path in ["/", "/v2/cni", "/v1/attachmentsx", "/v1/cni/"] {
        assert_eq!(site.get(path), (404, json!({ "error": "page not found" })), "{path}");
    }
    assert_eq!(site.get("/v1/cni"), (405, json!({ "error": "only POST is allowed here" })));
    assert_eq!(site.post("/v1/status", &json!({})).0, 405);
}

#[test]
fn b4_403_for_others_than_root() {
    let site = Site::new(Options { users: AllowedUsers(vec![4242]), ..Options::default() });
    for (status, body) in [site.get("/v1/health"), site.post("/v1/cni", &call("ADD", "a"))] {
        assert_eq!(status, 403);
        assert!(body["error"].as_str().unwrap().starts_with("access denied"));
    }
}

#[test]
fn cni_calls_and_their_failures() {
    let site = Site::new(Options::default());
    let (status, body) = site.post("/v1/cni", &call("ADD", "a"));
    assert_eq!((status, &body["result"]["ips"][0]["address"]), (200, &json!("10.9.0.5/24")));
    assert_eq!(site.post("/v1/cni", &call("DEL", "a")), (200, json!({})));
    let failure =
        json!({ "cniVersion": "1.1.0", "code": 100, "msg": "no address left", "details": EXHAUSTED });
    assert_eq!(site.post("/v1/cni", &call("ADD", "bad")), (500, failure));
    let (status, body) = site.post("/v1/cni", &call("JUMP", "a"));
    assert_eq!((status, &body["code"]), (500, &json!(4)));
    assert_eq!(site.post("/v1/cni", &json!({ "env": 1 })).0, 400);
    site.lose_bridge();
    let (status, body) = site.post("/v1/cni", &call("ADD", "a"));
    assert_eq!((status, &body["code"]), (503, &json!(11)));
    assert!(body["msg"].as_str().unwrap().contains("the bridge is missing"));
    assert_eq!(site.post("/v1/cni", &call("DEL", "a")).0, 200);
    assert_eq!(body["details"], "BridgeMissing: make it");
    let (status, readiness) = site.get("/v1/ready");
    let conditions = &readiness["conditions"];
    assert_eq!((status, &readiness["ready"], &conditions[1]), (503, &json!(false), &json!(null)));
    assert_eq!((&conditions[0]["code"], &conditions[0]["fix"]), (&json!("BridgeMissing"), &json!("make it")));
    let (_, status) = site.get("/v1/status");
    assert_eq!((&status["ready"], &status["conditions"]), (&json!(false), conditions));
}

#[test]
fn b3_the_seeds_calls() {
    let site = Site::new(Options::default());
    let pod = |container: &str| {
        json!({ "K8S_POD_NAME": "web", "K8S_POD_NAMESPACE": "default", "K8S_POD_INFRA_CONTAINER_ID": container,
                "CNI_NETNS": "/proc/1/ns/net", "CNI_IFNAME": "eth0" })
    };
    let added = json!({ "result": 0, "endpointid": "podwire/c1/eth0", "ipaddress": "10.9.0.5/24",
                        "ipv6address": "fd00:9::5/64" });
    assert_eq!(site.post("/ContivCNI.AddPod", &pod("c1")), (200, added));
    assert_eq!(site.post("/ContivCNI.DelPod", &pod("c1")), (200, json!({ "result": 0 })));
    let failed = json!({ "result": 1, "errmsg": "no address left", "errinfo": EXHAUSTED });
    assert_eq!(site.post("/ContivCNI.AddPod", &pod("bad")), (500, failed));
    site.lose_bridge();
    let (status, body) = site.post("/ContivCNI.AddPod", &pod("c1"));
    assert_eq!((status, &body["result"]), (500, &json!(1)));
}

#[test]
fn a_body_that_is_too_large_is_refused() {
    let site = Site::new(Options::default());
    let length = api::MAX_BODY + 1;
    let (status, _) =
        site.ask(&format!("POST /v1/cni HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n"));
    assert_eq!(status, 413);
    // Without a length, it is counted.
    let mut client = site.connect();
    client.write_all(b"POST /v1/cni HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n").unwrap();
    let chunk = format!("100000\r\n{}\r\n", "x".repeat(1 << 20));
    // The server may hang up in the middle of it.
    let _ = (0..4).try_for_each(|_| client.write_all(chunk.as_bytes()));
    let mut head = [0; 12];
    client.read_exact(&mut head).unwrap();
    assert_eq!(&head, b"HTTP/1.1 413");
}

#[test]
fn slow_clients_are_let_go_and_hold_up_nobody() {
    let site = Site::new(Options { bounds: SHORT, ..Options::default() });
    let (mut silent, mut slow, mut deaf) = (site.connect(), site.connect(), site.connect());
    slow.write_all(b"POST /v1/cni HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{").unwrap();
    deaf.write_all(b"GET /v1/cni-config HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    assert_eq!(site.get("/v1/health").0, 200);
    let mut bytes = Vec::new();
    assert_eq!(silent.read_to_end(&mut bytes).unwrap(), 0);
    assert_eq!(answer(&mut slow).0, 408);
    // Nobody reads until the time is over; then only what the kernel holds is left of the 16 MiB.
    thread::sleep(SHORT.answer * 4);
    bytes.clear();
    let read = deaf.read_to_end(&mut bytes);
    assert!(bytes.len() < 8 << 20, "{read:?} {}", bytes.len());
}

#[test]
fn a_client_that_hangs_up_cancels_its_add() {
    let (begun, observed) = mpsc::channel();
    let (reported, cancelled) = mpsc::channel();
    let serve = move |request: &Request, caller: &Caller<'_>| {
        begun.send(()).unwrap();
        reported.send(hung_up_in_time(caller)).unwrap();
        done(request)
    };
    let site = Site::new(Options { serve: Box::new(serve), ..Options::default() });
    // Served by the acceptor; and by a worker, because the body is read only after hyper's first poll.
    let whole = post("/v1/cni", &call("ADD", "a"));
    for request in [whole.clone(), whole.replace("Host: agent", "Host: agent\r\nExpect: 100-continue")] {
        let mut client = site.connect();
        client.write_all(request.as_bytes()).unwrap();
        observed.recv_timeout(SOON).unwrap();
        assert!(cancelled.try_recv().is_err());
        drop(client);
        assert_eq!(cancelled.recv_timeout(SOON), Ok(true));
    }
}

/// One worker for ADDs: `slow` holds it until it is told to go on; the others say that they were there.
fn one_worker(bound: usize) -> (Options, mpsc::Receiver<String>, mpsc::Sender<()>) {
    let ((begun, observed), (go, gone)) = (mpsc::channel(), mpsc::channel::<()>());
    let gone = Mutex::new(gone);
    let serve = move |request: &Request, _: &Caller<'_>| {
        let Request::Add(call) = request else { panic!("{request:?}") };
        begun.send(call.container.to_string()).unwrap();
        if call.container.as_str() == "slow" {
            gone.lock().unwrap().recv_timeout(SOON).unwrap();
        }
        done(request)
    };
    let queue = Queue::with_bound(3, bound).unwrap();
    (Options { serve: Box::new(serve), queue, ..Options::default() }, observed, go)
}

#[test]
fn a_client_that_hung_up_in_the_queue_is_not_served() {
    let (options, observed, go) = one_worker(10);
    let site = Site::new(options);
    let mut clients: Vec<Client> = Vec::new();
    for (waiting, container) in ["slow", "gone", "there"].into_iter().enumerate() {
        let mut client = site.connect();
        client.write_all(post("/v1/cni", &call("ADD", container)).as_bytes()).unwrap();
        clients.push(client);
        if container == "slow" {
            assert_eq!(observed.recv_timeout(SOON).unwrap(), "slow");
        }
        wait_until("the queue", || site.queue.waiting() == waiting);
    }
    drop(clients.remove(1));
    // By the time that somebody later has an answer, the server knows.
    assert_eq!(site.get("/v1/health").0, 200);
    go.send(()).unwrap();
    for client in &mut clients {
        assert_eq!(answer(client).0, 200);
    }
    assert_eq!(observed.try_iter().collect::<Vec<_>>(), ["there"]);
}

#[test]
fn a_full_queue_is_told() {
    let (options, observed, go) = one_worker(1);
    let site = Site::new(options);
    let (mut slow, mut second) = (site.connect(), site.connect());
    slow.write_all(post("/v1/cni", &call("ADD", "slow")).as_bytes()).unwrap();
    observed.recv_timeout(SOON).unwrap();
    second.write_all(post("/v1/cni", &call("ADD", "b")).as_bytes()).unwrap();
    wait_until("the queue", || site.queue.waiting() == 1);
    let (status, body) = site.post("/v1/cni", &call("ADD", "c"));
    assert_eq!((status, &body["code"]), (503, &json!(11)));
    assert!(body["msg"].as_str().unwrap().contains("busy"), "{body}");
    go.send(()).unwrap();
    assert_eq!((answer(&mut slow).0, answer(&mut second).0), (200, 200));
}

#[test]
fn a_thousand_clients_at_once() {
    connections();
    let site = Site::new(Options::default());
    let mut clients: Vec<Client> = (0..1000).map(|_| site.connect()).collect();
    for (n, client) in clients.iter_mut().enumerate() {
        client.write_all(post("/v1/cni", &call("ADD", &format!("c{n}"))).as_bytes()).unwrap();
    }
    assert_eq!(site.get("/v1/health").0, 200);
    for client in &mut clients {
        assert_eq!(answer(client).0, 200);
    }
}

#[test]
fn stopping_lets_what_is_under_way_end() {
    let (begun, observed) = mpsc::channel();
    let serve = move |request: &Request, _: &Caller<'_>| {
        begun.send(()).unwrap();
        thread::sleep(Duration::from_millis(100));
        done(request)
    };
    let mut site = Site::new(Options { serve: Box::new(serve), ..Options::default() });
    let (mut client, idle) = (site.connect(), site.connect());
    client.write_all(post("/v1/cni", &call("ADD", "a")).as_bytes()).unwrap();
    observed.recv_timeout(SOON).unwrap();
    let start = Instant::now();
    assert_eq!(site.stop(SOON), Leftover::default());
    assert!(start.elapsed() < SOON, "an idle connection held up the end");
    assert_eq!(answer(&mut client).0, 200);
    assert!(Client::connect(&site.socket).is_err());
    drop(idle);
}

#[test]
fn stopping_has_an_end() {
    let (begun, observed) = mpsc::channel();
    let (go, gone) = mpsc::channel::<()>();
    let gone = Mutex::new(gone);
    let serve = move |request: &Request, _: &Caller<'_>| {
        begun.send(()).unwrap();
        let _ = gone.lock().unwrap().recv_timeout(SOON);
        done(request)
    };
    let mut site = Site::new(Options { serve: Box::new(serve), ..Options::default() });
    let mut client = site.connect();
    client.write_all(post("/v1/cni", &call("ADD", "a")).as_bytes()).unwrap();
    observed.recv_timeout(SOON).unwrap();
    assert_eq!(site.stop(Duration::from_millis(50)), Leftover { waiting: 0, running: 1 });
    go.send(()).unwrap();
}

#[test]
fn a_socket_that_somebody_removed_is_made_again() {
    let site = Site::new(Options::default());
    let mut old = site.connect();
    assert!(site.watch.look());
    fs::remove_file(&site.socket).unwrap();
    assert!(!site.watch.look());
    wait_until("the socket again", || site.watch.look());
    assert_eq!(site.get("/v1/health").0, 200);
    old.write_all(b"GET /v1/health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
    assert_eq!(answer(&mut old).0, 200);
    assert!(site.dir.path().exists());
}

#[test]
fn over_tcp_there_are_only_metrics_and_health() {
    let site = Site::new(Options::default());
    let ask = |path: &str| {
        let mut client = TcpStream::connect(site.tcp).unwrap();
        client.set_read_timeout(Some(SOON)).unwrap();
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

fn ask_tcp(site: &Site, path: &str) -> (u16, Vec<u8>) {
    let mut client = TcpStream::connect(site.tcp).unwrap();
    client.set_read_timeout(Some(SOON)).unwrap();
    // The client does not close: the server does.
    client.write_all(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes()).unwrap();
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).unwrap();
    let status = String::from_utf8_lossy(&answer).split(' ').nth(1).unwrap().parse().unwrap();
    (status, answer)
}

/// The timeouts are long: only a new connection can close another one.
#[test]
fn held_tcp_connections_do_not_keep_health_checks_away() {
    let hour = Duration::from_secs(3600);
    let bounds = Bounds { head: hour, body: hour, answer: hour };
    let site = Site::new(Options { bounds, ..Options::default() });
    let holders: Vec<TcpStream> = (0..tcp::MOST + 100)
        .map(|n| {
            let mut client = TcpStream::connect(site.tcp).unwrap();
            // Some are idle, some have begun a request, some sent one whole.
            let begun =
                ["", "GET /v1/health HTTP/1.1\r\nHost:", "GET /v1/health HTTP/1.1\r\nHost: a\r\n\r\n"];
            // It may have been closed already, for others.
            let _ = client.write_all(begun[n % 3].as_bytes());
            client
        })
        .collect();
    for _ in 0..3 {
        assert_eq!(ask_tcp(&site, "/v1/health").0, 200);
        assert_eq!(ask_tcp(&site, "/metrics").0, 200);
    }
    // The socket has places of its own.
    assert_eq!(site.get("/v1/health").0, 200);
    drop(holders);
}

#[test]
fn metrics_requests_that_were_given_up_leave_no_queue() {
    let site = Site::new(Options::default());
    for _ in 0..500 {
        let mut client = TcpStream::connect(site.tcp).unwrap();
        let _ = client.write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
    }
    assert_eq!(site.get("/v1/status").0, 200);
    assert_eq!(ask_tcp(&site, "/metrics").0, 200);
}

#[test]
fn an_agent_whose_tcp_address_is_taken_serves_its_socket() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let site = Site::new(Options { tcp: Some(address), ..Options::default() });
    assert_eq!(site.get("/v1/health").0, 200);
    let problems = || site.get("/v1/status").1["conditions"].to_string();
    wait_until("the problem", || problems().contains(&format!("cannot listen on {address}")));
    drop(taken);
    wait_until("metrics to be served", || problems() == "[]");
    assert_eq!(ask_tcp(&site, "/metrics").0, 200);
}
