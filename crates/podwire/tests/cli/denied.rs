//! `podwire denied` and `podwire explain` with an agent: real flows, their verdicts and the rules that decide.

use std::io::{BufRead as _, BufReader};
use std::net::{IpAddr, SocketAddr};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use testkit::{Agent, Call, DEADLINE, Outcome, Pod, Verb, tcp_connects, tcp_echo, wait_until};

use crate::common::{Host, document, has};
use crate::schemas::expect_valid;

/// How long a connection attempt may take that must fail.
const DENIED: Duration = Duration::from_millis(300);

struct Scene {
    /// Before the host, so that it ends first.
    agent: Agent,
    host: Host,
}

struct NamedPod {
    pod: Pod,
    ips: Vec<IpAddr>,
}

impl Scene {
    fn new(label: &str) -> Self {
        let host = Host::new(label);
        let agent = host.agent(&["--no-install"]);
        Self { agent, host }
    }

    /// Tenant `red`, and tenant `blue` with the groups `web` and `db`. `db` denies port 5432 from `web`.
    fn apply(&self) {
        let rule = json!({ "direction": "in", "priority": 10, "peer": { "group": "web" }, "protocol": "tcp",
            "port": 5432, "action": "deny" });
        self.host.apply(&[
            document("Tenant", ("", "red"), &json!({})),
            document("Tenant", ("", "blue"), &json!({})),
            document("Network", ("blue", "front"), &json!({ "subnets": ["10.91.0.0/16", "fd00:91::/64"] })),
            document("Group", ("blue", "web"), &json!({ "network": "front" })),
            document("Group", ("blue", "db"), &json!({ "network": "front", "policies": ["from-web"] })),
            document("Policy", ("blue", "from-web"), &json!({ "rules": [rule] })),
        ]);
        wait_until("policies to be enforced", DEADLINE, || Ok(self.denied()["notEnforced"].is_null()))
            .unwrap();
    }

    fn pod(&self, name: &str, (tenant, group): (&str, &str), more: &Value) -> NamedPod {
        let pod = self.host.node.pod(name).unwrap();
        let mut config = self.agent.config(more);
        config["tenant"] = tenant.into();
        if !group.is_empty() {
            config["group"] = group.into();
        }
        let args = Some(format!("IgnoreUnknown=1;K8S_POD_NAMESPACE={tenant};K8S_POD_NAME={name}"));
        let call = Call { args, ..Call::pod(Verb::Add, &pod, &config) };
        let result: Value = self.host.plugin.call(&self.host.node, &call).unwrap().ok().unwrap();
        let ips = result["ips"].as_array().unwrap().iter();
        let ips = ips.map(|ip| ip["address"].as_str().unwrap().split('/').next().unwrap().parse().unwrap());
        NamedPod { pod, ips: ips.collect() }
    }

    fn denied(&self) -> Value {
        let listed = self.host.ask(&["denied", "-o", "json"]);
        assert!(listed.success(), "{listed:?}");
        expect_valid("denied", &listed.stdout);
        serde_json::from_str(&listed.stdout).unwrap()
    }

    /// The entry of a flow. The firewall sends logged packets after a moment.
    #[track_caller]
    fn flow(&self, (from, to): (&str, IpAddr), port: u16) -> Value {
        let mut found = None;
        let waited = wait_until("the denied flow", DEADLINE, || {
            let is_flow = |flow: &&Value| {
                flow["from"]["name"] == from
                    && flow["to"]["address"] == to.to_string()
                    && flow["port"] == port
            };
            found = self.denied()["flows"].as_array().unwrap().iter().find(is_flow).cloned();
            Ok(found.is_some())
        });
        waited.unwrap_or_else(|error| panic!("{error}: {:#}", self.denied()));
        found.unwrap()
    }

    fn explain(&self, from: &str, to: &str, port: u16) -> Outcome {
        self.host.ask(&["explain", from, to, "--port", &port.to_string()])
    }
}

impl NamedPod {
    fn reaches(&self, ip: IpAddr, port: u16) -> bool {
        tcp_connects(&self.pod, SocketAddr::new(ip, port), DENIED).unwrap().is_some()
    }
}

#[test]
fn d_denied_flows_name_both_pods_and_the_rule() {
    let scene = Scene::new("denied");
    let none = scene.host.ask(&["denied"]);
    assert!(none.success(), "{none:?}");
    has(&none.stdout, &["no policies are enforced on this node: no object restricts flows"]);
    scene.apply();
    let none = scene.host.ask(&["denied"]);
    assert_eq!(none.stdout.trim(), "no flow was denied since the agent started");
    let pod = |name, place| scene.pod(name, place, &json!({}));
    let (web, db, red) = (pod("web", ("blue", "web")), pod("db", ("blue", "db")), pod("app", ("red", "")));
    for ip in &db.ips {
        assert!(!web.reaches(*ip, 5432) && !red.reaches(*ip, 80));
        let flow = scene.flow(("blue/web", *ip), 5432);
        let part = |name: &str| flow[name].as_str().unwrap_or_default().to_owned();
        assert_eq!(
            (part("direction"), part("tier"), part("tenant")),
            ("ingress".into(), "group".into(), "blue".into())
        );
        assert_eq!((&flow["to"]["name"], &flow["protocol"]), (&json!("blue/db"), &json!("tcp")));
        has(&part("rule"), &["group db, policy from-web, rule id "]);
        let flow = scene.flow(("red/app", *ip), 80);
        assert_eq!(
            (&flow["direction"], &flow["tier"], &flow["tenant"]),
            (&json!("egress"), &json!("tenant"), &json!("red"))
        );
    }
    let view = scene.denied();
    let total = view["packets"]["ingress"].as_u64().unwrap() + view["packets"]["egress"].as_u64().unwrap();
    assert!(total >= view["sampled"].as_u64().unwrap() && total >= 4, "{view:#}");
    let table = scene.host.ask(&["denied"]);
    has(&table.stdout, &["blue/web", "blue/db", "red/app", "tcp/5432", "group: group db, policy from-web"]);
    let of_red = scene.host.ask(&["denied", "--tenant", "red", "-o", "wide"]);
    has(&of_red.stdout, &["red/app", "tenant: the peer is a pod of another tenant than red"]);
    assert!(!of_red.stdout.contains("blue/web"), "{}", of_red.stdout);
    let of_web = scene.host.ask(&["denied", "--pod", "blue/web"]);
    assert!(of_web.stdout.contains("blue/web") && !of_web.stdout.contains("red/app"), "{}", of_web.stdout);
}

struct Follower {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Follower {
    fn start(host: &Host) -> Self {
        let mut child = Command::new(&host.tool)
            .args(["denied", "--follow", "-o", "json", "--run-dir"])
            .arg(host.node.run_dir())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    /// The next event. A stream that ends has none.
    fn next(&mut self) -> Option<Value> {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        if line.is_empty() {
            return None;
        }
        expect_valid("denied-follow", &line);
        serde_json::from_str(&line).ok()
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn d_follow_shows_known_and_new_flows_until_the_agent_stops() {
    let scene = Scene::new("denied-follow");
    scene.apply();
    let pod = |name, place| scene.pod(name, place, &json!({}));
    let (web, red) = (pod("web", ("blue", "web")), pod("app", ("red", "")));
    let ip = red.ips[0];
    assert!(!web.reaches(ip, 81));
    scene.flow(("blue/web", ip), 81);
    let mut follower = Follower::start(&scene.host);
    assert_eq!(follower.next().unwrap()["flow"]["port"], 81);
    assert!(!web.reaches(ip, 82));
    // Repeated packets of the first flow are events, too.
    let event = std::iter::from_fn(|| follower.next()).find(|event| event["flow"]["port"] == 82).unwrap();
    assert_eq!((&event["flow"]["to"]["name"], &event["missed"]), (&json!("red/app"), &json!(0)));
    // The places of clients that have ended are free again.
    for _ in 0..20 {
        wait_until("a place for a client", DEADLINE, || Ok(Follower::start(&scene.host).next().is_some()))
            .unwrap();
    }
    drop(scene.agent);
    while follower.next().is_some() {}
    assert_eq!(follower.child.wait().unwrap().code(), Some(3));
}

#[test]
fn d_explain_agrees_with_real_connections_and_shows_the_path() {
    let scene = Scene::new("explain-live");
    let plain = scene.pod("plain", ("default", ""), &json!({}));
    let unenforced = scene.explain("default/plain", "192.0.2.99", 80);
    assert!(unenforced.success(), "{unenforced:?}");
    has(&unenforced.stdout, &["policies are not enforced on this node", "verdict: accept", "path:"]);
    scene.apply();
    let ports = json!({ "runtimeConfig": { "portMappings":
        [{ "hostPort": 8080, "containerPort": 80, "protocol": "tcp" }] } });
    let (web, db) = (scene.pod("web", ("blue", "web"), &ports), scene.pod("db", ("blue", "db"), &json!({})));
    let pods = [("default/plain", &plain), ("blue/web", &web), ("blue/db", &db)];
    for (from, sender) in pods {
        for (to, receiver) in pods.into_iter().filter(|(to, _)| *to != from) {
            for port in [80, 5432] {
                let explained = scene.explain(from, to, port);
                for ip in &receiver.ips {
                    let _echo = tcp_echo(&receiver.pod, SocketAddr::new(*ip, port)).unwrap();
                    let of_address = scene.explain(from, &ip.to_string(), port);
                    assert_eq!(of_address.status.code(), explained.status.code(), "{of_address:?}");
                    assert_eq!(sender.reaches(*ip, port), explained.success(), "{explained:?}");
                }
            }
        }
    }
    let denied = scene.explain("blue/web", "blue/db", 5432);
    assert_eq!(denied.status.code(), Some(1), "{denied:?}");
    has(
        &denied.stdout,
        &[
            "group: drop (group db, policy from-web",
            "transport: inside of the node",
            "NAT: none on this node",
            "MTU: 1500",
        ],
    );
    let outside = scene.host.ask(&["explain", web.pod.id(), "192.0.2.99", "--port", "443", "-o", "json"]);
    expect_valid("explain", &outside.stdout);
    let answer: Value = serde_json::from_str(&outside.stdout).unwrap();
    let path = &answer["flows"][0]["path"];
    assert_eq!((&path["transport"], &path["fromLink"]["mode"]), (&json!("none"), &json!("routed")));
    // With a route out of the node.
    scene.host.node.sh(&["ip", "route", "add", "192.0.2.0/24", "dev", "lo"]).unwrap();
    let outside = scene.explain(web.pod.id(), "192.0.2.99", 443);
    has(
        &outside.stdout,
        &["transport: by the routes of the node, link lo", "NAT: masquerade: this node's address on link lo"],
    );
    let node = scene.agent.get("/v1/status").unwrap()["node"].as_str().unwrap().to_owned();
    let published = scene.explain("default/plain", &format!("node:{node}"), 8080);
    assert_eq!(published.status.code(), Some(1), "{published:?}");
    has(&published.stdout, &["tenant: drop", "NAT: hostPort:", "port 80 replaces"]);
    for (from, to, message) in [
        ("blue/wbe", "world", "did you mean blue/web?"),
        ("group:blue/none", "world", "group blue/none does not exist: known are blue/db, blue/web"),
    ] {
        let refused = scene.explain(from, to, 80);
        assert_eq!(refused.status.code(), Some(1));
        has(&refused.stderr, &[message]);
    }
}
