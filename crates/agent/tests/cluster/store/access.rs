//! An etcd that wants certificates and passwords.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use ::store::EtcdConfig;
use testkit::{Agent, Cluster, Plan, Tls};

use super::{Desk, await_good_routes, await_no_problem, await_problem, blocks_of};
use crate::common::{SOON, Streams, TIMEOUT, await_that, expect_reach};

/// `ca` signed the servers' and our certificates, `other` is a stranger's.
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
            // Without a common name: that would be a user of etcd.
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

/// Who an agent says to be.
#[derive(Clone, Copy)]
struct Papers<'a> {
    ca: &'a str,
    cert: &'a str,
    password: &'a str,
}

const GOOD: Papers<'static> = Papers { ca: "ca", cert: "good", password: "s3same" };

struct Guarded {
    /// Ends before the cluster it runs in.
    agents: Vec<Agent>,
    cluster: Cluster,
    certs: Certs,
}

impl Guarded {
    /// With a user `podwire`, who may use its own directory and nothing else.
    fn up() -> Self {
        let plan = Plan { nodes: 2, ..Plan::default() };
        let certs = Certs::new(&plan);
        let tls = Tls { ca: certs.file("ca.pem"), cert: certs.file("good.pem"), key: certs.file("good.key") };
        let mut cluster = Cluster::hosts("access", &Plan { etcd_tls: Some(tls), ..plan }).unwrap();
        cluster.start_etcd().unwrap();
        let guarded = Self { agents: Vec::new(), cluster, certs };
        for line in [
            "user add root:r00t",
            "user add podwire:s3same",
            "role add podwire",
            "role grant-permission podwire --prefix=true readwrite /podwire/",
            "user grant-role podwire podwire",
            "auth enable",
        ] {
            guarded.etcdctl(line);
        }
        guarded
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

    fn flags(&self, node: &str, papers: Papers<'_>) -> Vec<String> {
        let Papers { ca, cert, password } = papers;
        let endpoint = self.cluster.etcd.members[0].endpoint();
        let [ca, cert, key] = [format!("{ca}.pem"), format!("{cert}.pem"), format!("{cert}.key")]
            .map(|name| self.certs.path(&name));
        let mut flags = vec!["--no-install", "--node", node, "--store", "etcd", "--etcd-endpoints", endpoint];
        flags.extend(["--network-subnet", "10.42.0.0/16,fd42::/64", "--network-margin", "8"]);
        flags.extend(["--etcd-ca", &ca, "--etcd-cert", &cert, "--etcd-key", &key]);
        flags.extend(["--etcd-user", "podwire", "--etcd-password", password]);
        flags.into_iter().map(str::to_owned).collect()
    }

    /// An agent for the node, which takes the place of the cluster's own.
    fn agent(&self, node: &str, papers: Papers<'_>) -> Agent {
        let flags = self.flags(node, papers);
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let mut agent = Agent::new(self.cluster.node(node).unwrap(), &flags).unwrap();
        agent.launch().unwrap();
        agent
    }

    fn desk(&self) -> Desk<'_> {
        let desk = Desk::of(&self.cluster);
        let config = EtcdConfig {
            ca: Some(self.certs.file("ca.pem")),
            cert: Some(self.certs.file("good.pem")),
            key: Some(self.certs.file("good.key")),
            user: Some("root".to_owned()),
            password: Some("r00t".to_owned()),
            ..desk.config
        };
        Desk { config, ..desk }
    }

    /// Whoever comes with these is told what is wrong with them, in status, readiness and log, and nothing is done.
    #[track_caller]
    fn expect_refused(&self, papers: Papers<'_>, words: &[&str]) {
        let before = self.desk().all();
        let mut agent = self.agent("n2", papers);
        await_that("an agent that answers", TIMEOUT, || agent.get(api::STATUS).is_ok());
        await_problem(&agent, words);
        // One of the conditions began with this reason. That of others (`BlockMissing`) may have changed since it was logged.
        await_that(&format!("the log to say {words:?}"), SOON, || {
            agent.log().unwrap().lines().any(|line| words.iter().all(|word| line.contains(word)))
        });
        await_that(&format!("readiness to say {words:?}"), SOON, || {
            let ready = agent.client().get(api::READY, SOON).unwrap();
            let why = String::from_utf8_lossy(&ready.body).into_owned();
            ready.status == 503 && words.iter().all(|word| why.contains(word))
        });
        agent.kill().unwrap();
        let names = |all: std::collections::BTreeMap<String, String>| all.into_keys().collect::<Vec<_>>();
        assert_eq!(names(self.desk().all()), names(before));
    }
}

/// A8: what the agent would be told by etcd, without an agent.
#[test]
fn a8_check_config_logs_in_to_etcd_and_changes_nothing() {
    let guarded = Guarded::up();
    let check = |papers: Papers<'_>, more: &[&str]| {
        let mut flags = guarded.flags("n1", papers);
        for pair in more.chunks(2) {
            let at = flags.iter().position(|flag| flag == pair[0]).unwrap_or(flags.len());
            flags.splice(at..flags.len().min(at + 2), pair.iter().map(|&word| word.to_owned()));
        }
        let node = guarded.cluster.node("n1").unwrap();
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
    let refused = |papers: Papers<'_>, more: &[&str], words: &[&str]| {
        let before = guarded.desk().all();
        let (code, text) = check(papers, more);
        assert_eq!((code, text.matches("- ").count()), (1, 1), "{text}");
        assert!(words.iter().all(|word| text.contains(word)), "{words:?} in {text}");
        assert_eq!(guarded.desk().all(), before);
    };
    let (code, text) = check(GOOD, &[]);
    assert_eq!(code, 0, "{text}");
    assert!(guarded.desk().all().is_empty(), "nothing is written");
    refused(Papers { cert: "other", ..GOOD }, &[], &["does not accept our certificate"]);
    refused(Papers { ca: "other-ca", ..GOOD }, &[], &["not signed by our CA"]);
    refused(Papers { password: "wr0ng", ..GOOD }, &[], &["does not let us in", "password"]);
    refused(Papers { ca: "missing", ..GOOD }, &[], &["missing.pem", "No such file"]);
    let other_key = guarded.certs.path("other.key");
    refused(GOOD, &["--etcd-key", &other_key], &["key"]);
    fs::write(guarded.certs.file("broken.pem"), "no certificate").unwrap();
    let broken = guarded.certs.path("broken.pem");
    refused(GOOD, &["--etcd-cert", &broken], &["certificate"]);
    // The role allows its own prefix only.
    refused(GOOD, &["--etcd-prefix", "/elsewhere"], &["/elsewhere", "does not let us in"]);

    // A network of another shape, and a name that is taken.
    let mut first = guarded.agent("n2", GOOD);
    first.wait_ready().unwrap();
    refused(GOOD, &["--network-margin", "6"], &["this cluster's network is", "configure all nodes alike"]);
    refused(GOOD, &["--node", "n2"], &["n2"]);
    assert_eq!(check(GOOD, &[]).0, 0);
}

#[test]
fn etcd_wrong_certificate_and_wrong_password_are_told_and_right_ones_join() {
    let mut guarded = Guarded::up();
    let mut first = guarded.agent("n1", GOOD);
    first.wait_ready().unwrap();
    guarded.agents.push(first);
    guarded.expect_refused(Papers { cert: "other", ..GOOD }, &["does not accept our certificate"]);
    guarded.expect_refused(Papers { ca: "other-ca", ..GOOD }, &["not signed by our CA"]);
    guarded.expect_refused(Papers { password: "wr0ng", ..GOOD }, &["does not let us in", "password"]);
    let mut second = guarded.agent("n2", GOOD);
    second.wait_ready().unwrap();
    guarded.agents.push(second);
    for node in ["n1", "n2"] {
        guarded.cluster.pod(node, &node.replace('n', "p")).unwrap();
    }
    expect_reach(&guarded.cluster, TIMEOUT);

    // F9: the role loses its rights while the watches run.
    guarded.etcdctl("role revoke-permission podwire --prefix=true /podwire/");
    for agent in &guarded.agents {
        await_problem(agent, &["does not let us in", "permission denied"]);
    }
    guarded.etcdctl("role grant-permission podwire --prefix=true readwrite /podwire/");
    for agent in &guarded.agents {
        await_no_problem(agent);
    }

    // Somebody changes the password: the next connection is refused, and nothing else is.
    let streams = Streams::between(&guarded.cluster, &[("p1", "p2"), ("p2", "p1")]);
    let before = guarded.desk().blocks();
    guarded.etcdctl("user passwd podwire --interactive=false < 0ther");
    guarded.cluster.etcd.members[0].kill().unwrap();
    guarded.cluster.start_etcd().unwrap();
    await_problem(&guarded.agents[0], &["does not let us in", "password"]);
    guarded.agents[1].restart().unwrap();
    await_problem(&guarded.agents[1], &["does not let us in", "password"]);
    for node in ["n1", "n2"] {
        guarded.cluster.pod(node, &format!("late-{node}")).unwrap();
    }
    expect_reach(&guarded.cluster, SOON);
    guarded.etcdctl("user passwd podwire --interactive=false < s3same");
    for agent in &guarded.agents {
        await_no_problem(agent);
        await_good_routes(agent, 2);
    }
    assert_eq!(guarded.desk().blocks(), before);
    assert_eq!(blocks_of(&guarded.agents[1]), before["n2"]);
    streams.expect_whole();
}
