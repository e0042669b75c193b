//! Certificates and passwords.

use std::fs;
use std::time::Duration;

use etcd_client::{Certificate, Client, ConnectOptions, Identity, Permission, PermissionType, TlsOptions};
use store::{Change, CommitOutcome, Compare, Error, EtcdConfig};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};

use super::{config, open};
use crate::common::{Certs, Etcd, in_time, next_events, put, wait_until_ready};

pub(crate) fn with_certs(server: &Etcd, certs: &Certs) -> EtcdConfig {
    EtcdConfig {
        ca: Some(certs.path("ca.pem")),
        cert: Some(certs.path("client.pem")),
        key: Some(certs.path("client.key")),
        ..config(&[server])
    }
}

pub(crate) fn with_user(config: &EtcdConfig, user: &str, password: &str) -> EtcdConfig {
    EtcdConfig { user: Some(user.to_owned()), password: Some(password.to_owned()), ..config.clone() }
}

/// Enables authentication in etcd. User `pod` may access `/pod/`.
pub(crate) async fn enable_auth(server: &Etcd, certs: &Certs) {
    let read = |name: &str| fs::read(certs.path(name)).unwrap();
    let tls = TlsOptions::new()
        .ca_certificate(Certificate::from_pem(read("ca.pem")))
        .identity(Identity::from_pem(read("client.pem"), read("client.key")));
    let options = ConnectOptions::new().with_tls(tls);
    let mut client = Client::connect([server.url()], Some(options)).await.unwrap();
    client.role_add("root").await.unwrap();
    client.user_add("root", "rootpw", None).await.unwrap();
    client.user_grant_role("root", "root").await.unwrap();
    client.role_add("pod").await.unwrap();
    let permission = Permission::new(PermissionType::Readwrite, "/pod/").with_prefix();
    client.role_grant_permission("pod", permission).await.unwrap();
    client.user_add("pod", "podpw", None).await.unwrap();
    client.user_grant_role("pod", "pod").await.unwrap();
    client.auth_enable().await.unwrap();
}

async fn denied(config: &EtcdConfig, expected: &str) {
    let error = in_time(open(config).get("/pod/a")).await.unwrap_err();
    assert!(matches!(error, Error::Denied { .. }) && error.is_denied() && !error.is_transient(), "{error}");
    assert!(error.to_string().contains(expected), "{error}");
    println!("{error}");
}

/// Forwards a port of the IPv6 loopback address to this server.
async fn forward_v6(server: &Etcd) -> String {
    let listener = TcpListener::bind("[::1]:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let target = server.url().trim_start_matches("https://").to_owned();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let mut server = TcpStream::connect(&target).await.unwrap();
            tokio::spawn(async move { copy_bidirectional(&mut client, &mut server).await });
        }
    });
    format!("https://[::1]:{port}")
}

#[tokio::test]
async fn wrong_certificates_and_passwords_are_denied() {
    let (mut server, certs) = Etcd::start_tls();
    let good = with_certs(&server, &certs);
    wait_until_ready(&open(&good)).await;
    // A user is accepted although authentication is disabled.
    open(&with_user(&good, "pod", "podpw")).commit(&[], &[put("/pod/a", "1")]).await.unwrap();

    let v6 = EtcdConfig { endpoints: vec![forward_v6(&server).await], ..good.clone() };
    assert_eq!(open(&v6).get("/pod/a").await.unwrap().unwrap().value, b"1");

    denied(
        &EtcdConfig { ca: Some(certs.path("other-ca.pem")), ..good.clone() },
        "not signed by the configured CA",
    )
    .await;
    let (cert, key) = (Some(certs.path("other-client.pem")), Some(certs.path("other-client.key")));
    denied(&EtcdConfig { cert, key, ..good.clone() }, "does not accept the client certificate").await;
    denied(&EtcdConfig { cert: None, key: None, ..good.clone() }, "does not accept the client certificate")
        .await;
    denied(&EtcdConfig { ca: Some(certs.path("none.pem")), ..good.clone() }, "none.pem").await;
    denied(&EtcdConfig { ca: Some(certs.path("ext")), ..good.clone() }, "check").await;

    enable_auth(&server, &certs).await;
    let pod = open(&with_user(&good, "pod", "podpw"));
    assert_eq!(pod.get("/pod/a").await.unwrap().unwrap().value, b"1");
    let mut watch = pod.watch("/pod/", 1).await.unwrap();
    next_events(&mut watch, 1).await;
    denied(&with_user(&good, "pod", "wrong"), "check the user and the password").await;
    denied(&with_user(&good, "missing", "podpw"), "check the user and the password").await;
    denied(&good, "a role").await;
    for error in [
        pod.get("/other/a").await.unwrap_err(),
        pod.commit(&[], &[put("/other/a", "")]).await.unwrap_err(),
        pod.watch("/other/", 1).await.unwrap_err(),
    ] {
        assert!(matches!(error, Error::Denied { .. }) && error.to_string().contains("a role"), "{error}");
    }
    // F9: etcd checks permissions before compares, so a write without effect shows whether writes are denied.
    let unchanged = |key: &str| [Change::Delete(key.to_owned())];
    let refused = [Compare::Absent("/pod/a".to_owned())];
    let error = pod.commit(&refused, &unchanged("/other/a")).await.unwrap_err();
    assert!(error.is_denied_write(), "{error}");
    assert!(!pod.get("/other/a").await.unwrap_err().is_denied_write(), "a read");
    assert_eq!(pod.commit(&refused, &unchanged("/pod/a")).await.unwrap(), CommitOutcome::Refused);
    // A restarted server does not know the token any more.
    server.stop();
    server.restart();
    assert_eq!(pod.get("/pod/a").await.unwrap().unwrap().value, b"1");
}

const ENDPOINT: &str = "PODWIRE_TEST_ENDPOINT";
const CERTS: &str = "PODWIRE_TEST_CERTS";

/// Runs in a separate process, because the system trust store is read once per process.
#[tokio::test]
#[ignore = "the child process of without_a_ca_the_system_trust_store_is_used"]
async fn connects_without_a_ca() {
    let (Ok(endpoint), Ok(certs)) = (std::env::var(ENDPOINT), std::env::var(CERTS)) else { return };
    let (cert, key) =
        (Some(format!("{certs}/client.pem").into()), Some(format!("{certs}/client.key").into()));
    let config = EtcdConfig { endpoints: vec![endpoint], cert, key, ..EtcdConfig::default() };
    match in_time(open(&config).get("/pod/a")).await {
        Ok(_) => println!("answered"),
        Err(error) => println!("refused: {error}"),
    }
}

#[test]
fn without_a_ca_the_system_trust_store_is_used() {
    let (server, certs) = Etcd::start_tls();
    let connect = |ca: &str, endpoint: &str| {
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "etcd::access::connects_without_a_ca", "--ignored", "--nocapture"])
            .env("SSL_CERT_FILE", certs.path(ca))
            .env_remove("SSL_CERT_DIR")
            .env(ENDPOINT, endpoint)
            .env(CERTS, certs.path(""))
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let url = server.url();
    // A certificate implies https.
    for endpoint in [url.as_str(), url.trim_start_matches("https://")] {
        let stdout = connect("ca.pem", endpoint);
        assert!(stdout.contains("answered"), "{endpoint}: {stdout}");
    }
    let stdout = connect("other-ca.pem", &url);
    assert!(stdout.contains("refused") && stdout.contains("system trust store"), "{stdout}");
}

/// The files are read for each connection. A connection that exists does not need them.
#[tokio::test]
async fn replaced_certificates_are_used_by_the_next_connection() {
    let (mut server, certs) = Etcd::start_tls();
    let replace = |name: &str| {
        for kind in ["pem", "key"] {
            fs::copy(certs.path(&format!("{name}.{kind}")), certs.path(&format!("node.{kind}"))).unwrap();
        }
    };
    let (cert, key) = (Some(certs.path("node.pem")), Some(certs.path("node.key")));
    replace("client");
    let store = open(&EtcdConfig { cert, key, ..with_certs(&server, &certs) });
    wait_until_ready(&store).await;
    replace("other-client");
    assert_eq!(store.get("/a").await.unwrap(), None, "the connection stays open");
    server.stop();
    server.restart();
    let error = in_time(async {
        loop {
            match store.with_deadline(Duration::from_secs(2)).get("/a").await {
                Err(error) if error.is_denied() => break error,
                Ok(_) | Err(_) => {}
            }
        }
    })
    .await;
    assert!(error.to_string().contains("does not accept the client certificate"), "{error}");
    replace("client");
    assert_eq!(store.get("/a").await.unwrap(), None, "without a restart");
}
