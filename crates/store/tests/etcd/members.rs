//! Several endpoints, not all of which work.

use std::time::Duration;

use store::{Error, EtcdConfig};

use super::{config, open};
use crate::common::{Etcd, Options, answers, in_time, put, told};

/// With each endpoint first: which one a store begins with is random.
#[tokio::test]
async fn one_dead_endpoint_of_several_does_not_matter() {
    let server = Etcd::start(&Options::default());
    let mut dead = Etcd::start(&Options::default());
    let frozen = Etcd::start(&Options::default());
    dead.stop();
    frozen.freeze();
    for n in 0..6 {
        // Nobody answers from the last: TEST-NET-1 leads nowhere.
        let mut config = config(&[&dead, &server, &frozen]);
        config.endpoints.push("http://192.0.2.1:2379".to_owned());
        let store = open(&config);
        store.commit(&[], &[put("/a", &n.to_string())]).await.unwrap();
        assert_eq!(store.get("/a").await.unwrap().unwrap().value, n.to_string().as_bytes());
    }
}

#[tokio::test]
async fn a_cluster_loses_a_member_and_then_its_majority() {
    let mut servers = Etcd::start_cluster(3);
    let store = open(&config(&servers.iter().collect::<Vec<_>>()));
    answers(&store).await;
    store.commit(&[], &[put("/f/a", "1")]).await.unwrap();
    // One that is silent, while we may well be connected to it: reads go elsewhere in time.
    servers[0].freeze();
    let patient = store.with_deadline(Duration::from_secs(8));
    assert_eq!(in_time(patient.get("/f/a")).await.unwrap().unwrap().value, b"1");
    // Writes are not sent twice, so the first may fail.
    in_time(async { while patient.commit(&[], &[put("/f/a", "2")]).await.is_err() {} }).await;

    // The last member answers, but knows no leader: whoever watches there is told.
    let last = open(&config(&[&servers[2]]));
    let mut watch = last.watch("/f/", last.list("/f/").await.unwrap().revision + 1).await.unwrap();
    last.commit(&[], &[put("/f/a", "3")]).await.unwrap();
    assert_eq!(told(&mut watch, 1).await.len(), 1);
    servers[1].stop();
    let error = in_time(watch.next()).await.unwrap_err();
    assert!(error.to_string().contains("no leader"), "{error}");
    let error = last.with_deadline(Duration::from_secs(1)).get("/f/a").await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    servers[1].start_again();
    answers(&last).await;
    assert_eq!(last.get("/f/a").await.unwrap().unwrap().value, b"3");
}

#[test]
fn wrong_settings_are_told_when_the_store_is_opened() {
    let path = || Some("/nowhere".into());
    let good = || EtcdConfig { endpoints: vec!["http://a:2379".to_owned()], ..EtcdConfig::default() };
    let at = |endpoint: &str| EtcdConfig { endpoints: vec![endpoint.to_owned()], ..EtcdConfig::default() };
    for (config, expected) in [
        (EtcdConfig::default(), "no etcd endpoint"),
        (at("ftp://a:1"), "begins with ftp://"),
        (at("http://"), "no URL"),
        (at("http://a"), "needs a host and a port"),
        (EtcdConfig { ca: path(), ..good() }, "is not https://"),
        (EtcdConfig { cert: path(), ..good() }, "both its file and the file of its key"),
        (EtcdConfig { cert: path(), key: path(), ..good() }, "a client certificate, but"),
        (EtcdConfig { user: Some("u".to_owned()), ..good() }, "go together"),
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
