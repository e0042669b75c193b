//! What has to be waited for: pings, tokens, quiet. All at the same time, in the one test that begins first.

use std::time::Duration;

use store::Error;

use crate::common::{Etcd, Options, answers, in_time, put, told};
use crate::etcd::access::{want_passwords, with_certs, with_user};
use crate::etcd::{config, open};

#[tokio::test]
async fn silence_is_noticed_tokens_are_renewed_and_an_idle_store_asks_nothing() {
    tokio::join!(
        a_watch_of_a_silent_server_breaks_off(),
        a_token_that_ran_out_is_asked_for_anew(),
        an_idle_store_asks_nothing()
    );
}

/// The kernel still accepts what we send; nobody reads it.
async fn a_watch_of_a_silent_server_breaks_off() {
    let server = Etcd::start(&Options::default());
    let store = open(&config(&[&server]));
    let mut watch = store.watch("/f/", 1).await.unwrap();
    store.commit(&[], &[put("/f/a", "1")]).await.unwrap();
    told(&mut watch, 1).await;
    server.freeze();
    let error = in_time(watch.next()).await.unwrap_err();
    assert!(matches!(error, Error::WatchBroke { .. }), "{error}");
    let error = store.with_deadline(Duration::from_secs(1)).get("/a").await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
}

/// Tokens are forgotten while the connection stays.
async fn a_token_that_ran_out_is_asked_for_anew() {
    let (server, certs) = Etcd::start_tls();
    let good = with_certs(&server, &certs);
    answers(&open(&good)).await;
    want_passwords(&server, &certs).await;
    let pod = open(&with_user(&good, "pod", "podpw"));
    pod.commit(&[], &[put("/pod/a", "1")]).await.unwrap();
    // Longer than a token lives (see the server's options).
    tokio::time::sleep(Duration::from_secs(3)).await;
    pod.commit(&[], &[put("/pod/a", "2")]).await.unwrap();
    pod.watch("/pod/", 1).await.unwrap();
}

/// Nothing is asked while nothing happens: whatever a node costs etcd, it is not requests.
async fn an_idle_store_asks_nothing() {
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
