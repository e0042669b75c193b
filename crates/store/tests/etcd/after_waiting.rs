//! Tests that have to wait for pings, token expiry and idle time. They run in parallel, in a single test that starts first.

use std::time::Duration;

use store::Error;

use crate::common::{Etcd, Options, in_time, next_events, put, wait_until_ready};
use crate::etcd::access::{enable_auth, with_certs, with_user};
use crate::etcd::{config, open};

#[tokio::test]
async fn watches_fail_tokens_are_renewed_and_idle_stores_are_silent() {
    tokio::join!(
        a_watch_of_a_stopped_server_fails(),
        an_expired_token_is_renewed(),
        an_idle_store_sends_no_requests()
    );
}

/// The kernel still accepts requests, but the server does not read them.
async fn a_watch_of_a_stopped_server_fails() {
    let server = Etcd::start(&Options::default());
    let store = open(&config(&[&server]));
    let mut watch = store.watch("/f/", 1).await.unwrap();
    store.commit(&[], &[put("/f/a", "1")]).await.unwrap();
    next_events(&mut watch, 1).await;
    server.freeze();
    let error = in_time(watch.next()).await.unwrap_err();
    assert!(matches!(error, Error::WatchFailed { .. }), "{error}");
    let error = store.with_deadline(Duration::from_secs(1)).get("/a").await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }) && !error.is_connection_refused(), "{error}");
}

/// The token expires while the connection stays open.
async fn an_expired_token_is_renewed() {
    let (server, certs) = Etcd::start_tls();
    let good = with_certs(&server, &certs);
    wait_until_ready(&open(&good)).await;
    enable_auth(&server, &certs).await;
    let pod = open(&with_user(&good, "pod", "podpw"));
    pod.commit(&[], &[put("/pod/a", "1")]).await.unwrap();
    // Longer than the lifetime of a token (see the server's options).
    tokio::time::sleep(Duration::from_secs(3)).await;
    pod.commit(&[], &[put("/pod/a", "2")]).await.unwrap();
    pod.watch("/pod/", 1).await.unwrap();
}

/// An idle node must not cost etcd any requests.
async fn an_idle_store_sends_no_requests() {
    let server = Etcd::start(&Options::default());
    let store = open(&config(&[&server]));
    let _watch = store.watch("/f/", 1).await.unwrap();
    store.get("/a").await.unwrap();
    let requests = || async {
        let mut stream =
            tokio::net::TcpStream::connect(server.url().trim_start_matches("http://")).await.unwrap();
        let request = format!("GET /metrics HTTP/1.0\r\nHost: {}\r\n\r\n", server.address);
        tokio::io::AsyncWriteExt::write_all(&mut stream, request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        tokio::io::AsyncReadExt::read_to_string(&mut stream, &mut answer).await.unwrap();
        let started = answer.lines().filter(|line| line.starts_with("grpc_server_started_total"));
        let count: f64 = started.map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()).sum();
        assert!(count > 0.0, "{answer}");
        count
    };
    let before = requests().await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(requests().await, before);
}
