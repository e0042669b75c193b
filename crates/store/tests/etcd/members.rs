//! Several endpoints, some of which do not work.

use std::time::Duration;

use store::{Error, EtcdConfig};

use super::{config, open};
use crate::common::{Etcd, Options, in_time, next_events, put, wait_until_ready};

/// Repeated, because the first endpoint of a store is random.
#[tokio::test]
async fn dead_endpoints_do_not_matter_if_one_works() {
    let server = Etcd::start(&Options::default());
    let mut dead = Etcd::start(&Options::default());
    let frozen = Etcd::start(&Options::default());
    dead.stop();
    frozen.freeze();
    for n in 0..6 {
        // The last endpoint never answers: TEST-NET-1 is not routed.
        let mut config = config(&[&dead, &server, &frozen]);
        config.endpoints.push("http://192.0.2.1:2379".to_owned());
        let store = open(&config);
        store.commit(&[], &[put("/a", &n.to_string())]).await.unwrap();
        assert_eq!(store.get("/a").await.unwrap().unwrap().value, n.to_string().as_bytes());
    }
}

#[tokio::test]
async fn a_cluster_works_without_one_member_and_fails_without_a_majority() {
    let mut servers = Etcd::start_cluster(3);
    let store = open(&config(&servers.iter().collect::<Vec<_>>()));
    wait_until_ready(&store).await;
    store.commit(&[], &[put("/f/a", "1")]).await.unwrap();
    // The store may be connected to the stopped member. Reads then switch to another member in time.
    servers[0].freeze();
    let slow = store.with_deadline(Duration::from_secs(8));
    assert_eq!(in_time(slow.get("/f/a")).await.unwrap().unwrap().value, b"1");
    // Writes are not retried, so the first may fail.
    in_time(async { while slow.commit(&[], &[put("/f/a", "2")]).await.is_err() {} }).await;

    // The last member answers, but has no leader. Its watches end with an error.
    let last = open(&config(&[&servers[2]]));
    let mut watch = last.watch("/f/", last.list("/f/").await.unwrap().revision + 1).await.unwrap();
    last.commit(&[], &[put("/f/a", "3")]).await.unwrap();
    assert_eq!(next_events(&mut watch, 1).await.len(), 1);
    servers[1].stop();
    let error = in_time(watch.next()).await.unwrap_err();
    assert!(error.to_string().contains("no leader"), "{error}");
    let error = last.with_deadline(Duration::from_secs(1)).get("/f/a").await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }) && !error.is_connection_refused(), "{error}");
    servers[1].restart();
    wait_until_ready(&last).await;
    assert_eq!(last.get("/f/a").await.unwrap().unwrap().value, b"3");
}

#[test]
fn an_invalid_configuration_is_reported_when_the_store_is_opened() {
    let path = || Some("/nowhere".into());
    let good = || EtcdConfig { endpoints: vec!["http://a:2379".to_owned()], ..EtcdConfig::default() };
    let at = |endpoint: &str| EtcdConfig { endpoints: vec![endpoint.to_owned()], ..EtcdConfig::default() };
    for (config, expected) in [
        (EtcdConfig::default(), "no etcd endpoint"),
        (at("ftp://a:1"), "is ftp://"),
        (at("http://"), "is not a URL"),
        (at("http://a"), "needs a host and a port"),
        (EtcdConfig { ca: path(), ..good() }, "is not https://"),
        (EtcdConfig { cert: path(), ..good() }, "both the certificate file and the key file"),
        (EtcdConfig { cert: path(), key: path(), ..good() }, "a client certificate is set, but"),
        (EtcdConfig { user: Some("u".to_owned()), ..good() }, "must be set together"),
        (
            EtcdConfig { user: Some("u".to_owned()), password: Some("p".to_owned()), ..good() },
            "in clear text",
        ),
        (
            EtcdConfig { user: Some("u".to_owned()), password: Some("p".to_owned()), ..at("a:2379") },
            "in clear text",
        ),
    ] {
        let error = store::Store::open(&store::StoreConfig::Etcd(config)).unwrap_err();
        assert!(matches!(error, Error::Config { .. }) && error.to_string().contains(expected), "{error}");
    }
    let config = EtcdConfig {
        user: Some("u".to_owned()),
        password: Some("secret".to_owned()),
        insecure: true,
        ..at("[fd00::1]:2379")
    };
    assert!(!format!("{config:?}").contains("secret"));
    assert_eq!(open(&config).describe(), "etcd at http://[fd00::1]:2379");
}
