//! Certificates and passwords.

use std::fs;

use etcd_client::{Certificate, Client, ConnectOptions, Identity, Permission, PermissionType, TlsOptions};
use store::{Change, CommitOutcome, Compare, Error, EtcdConfig};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};

use super::{config, open};
use crate::common::{Certs, Etcd, answers, in_time, put, told};

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

/// From now on etcd wants a password; `pod` may use `/pod/`.
pub(crate) async fn want_passwords(server: &Etcd, certs: &Certs) {
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

/// Leads from a port of the IPv6 loopback address to this server.
async fn over_v6(server: &Etcd) -> String {
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
async fn certificates_and_passwords_open_the_door_and_wrong_ones_do_not() {
    let (mut server, certs) = Etcd::start_tls();
    let good = with_certs(&server, &certs);
    answers(&open(&good)).await;
    // A user that is not needed yet does no harm.
    open(&with_user(&good, "pod", "podpw")).commit(&[], &[put("/pod/a", "1")]).await.unwrap();

    let v6 = EtcdConfig { endpoints: vec![over_v6(&server).await], ..good.clone() };
    assert_eq!(open(&v6).get("/pod/a").await.unwrap().unwrap().value, b"1");

    denied(&EtcdConfig { ca: Some(certs.path("other-ca.pem")), ..good.clone() }, "not signed by our CA")
        .await;
    let (cert, key) = (Some(certs.path("stranger.pem")), Some(certs.path("stranger.key")));
    denied(&EtcdConfig { cert, key, ..good.clone() }, "does not accept our certificate").await;
    denied(&EtcdConfig { cert: None, key: None, ..good.clone() }, "does not accept our certificate").await;
    denied(&EtcdConfig { ca: Some(certs.path("none.pem")), ..good.clone() }, "none.pem").await;
    denied(&EtcdConfig { ca: Some(certs.path("ext")), ..good.clone() }, "check").await;

    want_passwords(&server, &certs).await;
    let pod = open(&with_user(&good, "pod", "podpw"));
    assert_eq!(pod.get("/pod/a").await.unwrap().unwrap().value, b"1");
    let mut watch = pod.watch("/pod/", 1).await.unwrap();
    told(&mut watch, 1).await;
    denied(&with_user(&good, "pod", "wrong"), "check the user and the password").await;
    denied(&with_user(&good, "nobody", "podpw"), "check the user and the password").await;
    denied(&good, "a role").await;
    for error in [
        pod.get("/other/a").await.unwrap_err(),
        pod.commit(&[], &[put("/other/a", "")]).await.unwrap_err(),
        pod.watch("/other/", 1).await.unwrap_err(),
    ] {
        assert!(matches!(error, Error::Denied { .. }) && error.to_string().contains("a role"), "{error}");
    }
    // F9: rights are checked before compares. So a write that changes nothing shows whether writes are denied.
    let unchanged = |key: &str| [Change::Delete(key.to_owned())];
    let exists = [Compare::Absent("/pod/a".to_owned())];
    let error = pod.commit(&exists, &unchanged("/other/a")).await.unwrap_err();
    assert!(error.is_denied_write(), "{error}");
    assert!(!pod.get("/other/a").await.unwrap_err().is_denied_write(), "it was read");
    assert_eq!(pod.commit(&exists, &unchanged("/pod/a")).await.unwrap(), CommitOutcome::Refused);
    // A server that begins anew does not know our token any more.
    server.stop();
    server.start_again();
    assert_eq!(pod.get("/pod/a").await.unwrap().unwrap().value, b"1");
}

const ENDPOINT: &str = "PODWIRE_TEST_ENDPOINT";
const CERTS: &str = "PODWIRE_TEST_CERTS";

/// What another process is started for: whom a system trusts is the same for all of a process.
#[tokio::test]
#[ignore = "the other half of without_a_ca_whom_the_system_trusts_is_trusted"]
async fn asks_without_a_ca() {
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
fn without_a_ca_whom_the_system_trusts_is_trusted() {
    let (server, certs) = Etcd::start_tls();
    let ask = |ca: &str, endpoint: &str| {
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "etcd::access::asks_without_a_ca", "--ignored", "--nocapture"])
            .env("SSL_CERT_FILE", certs.path(ca))
            .env_remove("SSL_CERT_DIR")
            .env(ENDPOINT, endpoint)
            .env(CERTS, certs.path(""))
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let url = server.url();
    // Who has a certificate means https.
    for endpoint in [url.as_str(), url.trim_start_matches("https://")] {
        let said = ask("ca.pem", endpoint);
        assert!(said.contains("answered"), "{endpoint}: {said}");
    }
    let said = ask("other-ca.pem", &url);
    assert!(said.contains("refused") && said.contains("whom the system trusts"), "{said}");
}
