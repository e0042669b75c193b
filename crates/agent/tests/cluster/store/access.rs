//! An etcd with TLS and authentication.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use ::store::EtcdConfig;
use testkit::{Agent, Cluster, Plan, Tls};

use super::{StoreClient, await_no_problem, await_ok_routes, await_problem, blocks_of};
use crate::common::{Streams, TIMEOUT, await_that, expect_reach};

/// `ca` signed the certificates of the servers and of `good`, `other-ca` that of `other`.
struct Certs {
    dir: tempfile::TempDir,
}

impl Certs {
    fn new(plan: &Plan) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let addresses: Vec<String> =
            plan.etcd_addresses().iter().map(|address| format!("IP:{address}")).collect();
        for ca in ["ca", "other-ca"] {
            let name = format!("-subj /CN={ca} -keyout {ca}.key -out {ca}.pem");
            openssl(dir.path(), &format!("req -x509 {NEW_KEY} -days 2 {name}"));
        }
        fs::write(dir.path().join("ext"), format!("subjectAltName={}\n", addresses.join(","))).unwrap();
        for (name, ca) in [("good", "ca"), ("other", "other-ca")] {
            // Without a common name, which would select an etcd user.
            openssl(
                dir.path(),
                &format!("req -new {NEW_KEY} -keyout {name}.key -out {name}.csr -subj /O=podwire"),
            );
            let by = format!("-CA {ca}.pem -CAkey {ca}.key -CAcreateserial -days 2 -extfile ext");
            openssl(dir.path(), &format!("x509 -req -in {name}.csr -out {name}.pem {by}"));
        }
        Self { dir }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn path(&self, name: &str) -> String {
        self.file(name).display().to_string()
    }
}

const NEW_KEY: &str = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";

fn openssl(dir: &Path, args: &str) {
    let output = Command::new("openssl").args(args.split_whitespace()).current_dir(dir).output().unwrap();
    assert!(output.status.success(), "openssl {args}: {}", String::from_utf8_lossy(&output.stderr));
}

/// The credentials of an agent.
#[derive(Clone, Copy)]
struct Credentials<'a> {
    ca: &'a str,
    cert: &'a str,
    password: &'a str,
}

const GOOD: Credentials<'static> = Credentials { ca: "ca", cert: "good", password: "s3same" };

struct SecuredCluster {
    /// Stopped before the cluster is removed.
    agents: Vec<Agent>,
    cluster: Cluster,
    certs: Certs,
}

impl SecuredCluster {
    /// With a user `podwire` that may access only its own prefix.
    fn up() -> Self {
        let plan = Plan { nodes: 2, ..Plan::default() };
        let certs = Certs::new(&plan);
        let tls = Tls { ca: certs.file("ca.pem"), cert: certs.file("good.pem"), key: certs.file("good.key") };
        let mut cluster = Cluster::hosts("access", &Plan { etcd_tls: Some(tls), ..plan }).unwrap();
        cluster.start_etcd().unwrap();
        let secured = Self { agents: Vec::new(), cluster, certs };
        for line in [
            "user add root:r00t",
            "user add podwire:s3same",
            "role add podwire",
            "role grant-permission podwire --prefix=true readwrite /podwire/",
            "user grant-role podwire podwire",
            "auth enable",
        ] {
            secured.etcdctl(line);
        }
        secured
    }

    fn etcdctl(&self, line: &str) {
        let member = &self.cluster.etcd.members[0];
        let [ca, cert, key] = ["ca.pem", "good.pem", "good.key"].map(|name| self.certs.path(name));
        // Authentication is enabled before the first agent starts.
        let user = if self.agents.is_empty() { vec![] } else { vec!["--user", "root:r00t"] };
        let ctl = ["env", "ETCDCTL_API=3", "etcdctl", "--endpoints", member.endpoint(), "--cacert", &ca];
        let more = ["--cert", &cert, "--key", &key];
        let (line, input) = line.split_once(" < ").unwrap_or((line, ""));
        let argv = [&ctl[..], &more, &user, &line.split(' ').collect::<Vec<_>>()].concat();
        let done = member.node().run(&argv, input.as_bytes()).unwrap();
        assert!(done.success(), "{line}: {done:?}");
    }

    fn flags(&self, node: &str, credentials: Credentials<'_>) -> Vec<String> {
        let Credentials { ca, cert, password } = credentials;
        let endpoint = self.cluster.etcd.members[0].endpoint();
        let [ca, cert, key] = [format!("{ca}.pem"), format!("{cert}.pem"), format!("{cert}.key")]
            .map(|name| self.certs.path(&name));
        let mut flags = vec!["--no-install", "--node", node, "--store", "etcd", "--etcd-endpoints", endpoint];
        flags.extend(["--network-subnet", "10.42.0.0/16,fd42::/64", "--network-margin", "8"]);
        flags.extend(["--etcd-ca", &ca, "--etcd-cert", &cert, "--etcd-key", &key]);
        flags.extend(["--etcd-user", "podwire", "--etcd-password", password]);
        flags.into_iter().map(str::to_owned).collect()
    }

    /// An agent that replaces the cluster's agent of the node.
    fn agent(&self, node: &str, credentials: Credentials<'_>) -> Agent {
        let flags = self.flags(node, credentials);
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let mut agent = Agent::new(self.cluster.node(node).unwrap(), &flags).unwrap();
        agent.launch().unwrap();
        agent
    }

    fn store_client(&self) -> StoreClient<'_> {
        let store_client = StoreClient::of(&self.cluster);
        let config = EtcdConfig {
            ca: Some(self.certs.file("ca.pem")),
            cert: Some(self.certs.file("good.pem")),
            key: Some(self.certs.file("good.key")),
            user: Some("root".to_owned()),
            password: Some("r00t".to_owned()),
            ..store_client.config
        };
        StoreClient { config, ..store_client }
    }

    /// An agent with these credentials reports the problem in status, readiness and log, and changes nothing.
    #[track_caller]
    fn expect_refused(&self, credentials: Credentials<'_>, words: &[&str]) {
        let before = self.store_client().all();
        let mut agent = self.agent("n2", credentials);
        await_that("an agent that answers", TIMEOUT, || agent.get(api::STATUS).is_ok());
        await_problem(&agent, words);
        // One of the conditions began with this reason. The message of other ones (`BlockMissing`) may have changed since.
        await_that(&format!("the log to contain {words:?}"), TIMEOUT, || {
            agent.log().unwrap().lines().any(|line| words.iter().all(|word| line.contains(word)))
        });
        await_that(&format!("readiness to contain {words:?}"), TIMEOUT, || {
            let ready = agent.client().get(api::READY, TIMEOUT).unwrap();
            let body = String::from_utf8_lossy(&ready.body).into_owned();
            ready.status == 503 && words.iter().all(|word| body.contains(word))
        });
        agent.kill().unwrap();
        let names = |all: std::collections::BTreeMap<String, String>| all.into_keys().collect::<Vec<_>>();
        assert_eq!(names(self.store_client().all()), names(before));
    }
}

/// A8: `--check-config` reports the same problems without an agent.
#[test]
fn a8_check_config_logs_in_to_etcd_and_changes_nothing() {
    let secured = SecuredCluster::up();
    let check = |credentials: Credentials<'_>, more: &[&str]| {
        let mut flags = secured.flags("n1", credentials);
        for pair in more.chunks(2) {
            let at = flags.iter().position(|flag| flag == pair[0]).unwrap_or(flags.len());
            flags.splice(at..flags.len().min(at + 2), pair.iter().map(|&word| word.to_owned()));
        }
        let node = secured.cluster.node("n1").unwrap();
        let program = testkit::agent_program().unwrap().display().to_string();
        let [run, state] = ["check-run", "check-lib"].map(|name| node.dir().join(name).display().to_string());
        let mut argv =
            vec![program.as_str(), "agent", "--check-config", "--run-dir", &run, "--state-dir", &state];
        argv.extend(["--config", "/dev/null"]);
        argv.extend(flags.iter().map(String::as_str));
        let outcome = node.run(&argv, b"").unwrap();
        let text = outcome.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
        (outcome.status.code().unwrap(), text)
    };
    let refused = |credentials: Credentials<'_>, more: &[&str], words: &[&str]| {
        let before = secured.store_client().all();
        let (code, text) = check(credentials, more);
        assert_eq!((code, text.matches("- ").count()), (1, 1), "{text}");
        assert!(words.iter().all(|word| text.contains(word)), "{words:?} in {text}");
        assert_eq!(secured.store_client().all(), before);
    };
    let (code, text) = check(GOOD, &[]);
    assert_eq!(code, 0, "{text}");
    assert!(secured.store_client().all().is_empty(), "the check must write nothing");
    refused(Credentials { cert: "other", ..GOOD }, &[], &["does not accept the client certificate"]);
    refused(Credentials { ca: "other-ca", ..GOOD }, &[], &["not signed by the configured CA"]);
    refused(Credentials { password: "wr0ng", ..GOOD }, &[], &["denied access", "password"]);
    refused(Credentials { ca: "missing", ..GOOD }, &[], &["missing.pem", "No such file"]);
    let other_key = secured.certs.path("other.key");
    refused(GOOD, &["--etcd-key", &other_key], &["key"]);
    fs::write(secured.certs.file("broken.pem"), "no certificate").unwrap();
    let broken = secured.certs.path("broken.pem");
    refused(GOOD, &["--etcd-cert", &broken], &["certificate"]);
    // The role allows its own prefix only.
    refused(GOOD, &["--etcd-prefix", "/elsewhere"], &["/elsewhere", "denied access"]);

    // Another network configuration, and a name that is taken.
    let mut first = secured.agent("n2", GOOD);
    first.wait_ready().unwrap();
    refused(
        GOOD,
        &["--network-margin", "6"],
        &["the network of this cluster is", "use the same configuration on all nodes"],
    );
    refused(GOOD, &["--node", "n2"], &["n2"]);
    assert_eq!(check(GOOD, &[]).0, 0);
}

#[test]
fn etcd_wrong_credentials_are_reported_and_right_ones_join() {
    let mut secured = SecuredCluster::up();
    let mut first = secured.agent("n1", GOOD);
    first.wait_ready().unwrap();
    secured.agents.push(first);
    secured
        .expect_refused(Credentials { cert: "other", ..GOOD }, &["does not accept the client certificate"]);
    secured.expect_refused(Credentials { ca: "other-ca", ..GOOD }, &["not signed by the configured CA"]);
    secured.expect_refused(Credentials { password: "wr0ng", ..GOOD }, &["denied access", "password"]);
    let mut second = secured.agent("n2", GOOD);
    second.wait_ready().unwrap();
    secured.agents.push(second);
    for node in ["n1", "n2"] {
        secured.cluster.pod(node, &node.replace('n', "p")).unwrap();
    }
    expect_reach(&secured.cluster, TIMEOUT);

    // F9: the permissions of the role are revoked while the watches run.
    secured.etcdctl("role revoke-permission podwire --prefix=true /podwire/");
    for agent in &secured.agents {
        await_problem(agent, &["denied access", "permission denied"]);
    }
    secured.etcdctl("role grant-permission podwire --prefix=true readwrite /podwire/");
    for agent in &secured.agents {
        await_no_problem(agent);
    }

    // The password is changed: new connections are refused, and nothing else is affected.
    let streams = Streams::between(&secured.cluster, &[("p1", "p2"), ("p2", "p1")]);
    let before = secured.store_client().blocks();
    secured.etcdctl("user passwd podwire --interactive=false < 0ther");
    secured.cluster.etcd.members[0].kill().unwrap();
    secured.cluster.start_etcd().unwrap();
    await_problem(&secured.agents[0], &["denied access", "password"]);
    secured.agents[1].restart().unwrap();
    await_problem(&secured.agents[1], &["denied access", "password"]);
    for node in ["n1", "n2"] {
        secured.cluster.pod(node, &format!("late-{node}")).unwrap();
    }
    expect_reach(&secured.cluster, TIMEOUT);
    secured.etcdctl("user passwd podwire --interactive=false < s3same");
    for agent in &secured.agents {
        await_no_problem(agent);
        await_ok_routes(agent, 2);
    }
    assert_eq!(secured.store_client().blocks(), before);
    assert_eq!(blocks_of(&secured.agents[1]), before["n2"]);
    streams.expect_no_loss();
}
