//! A node with an agent, objects in its store, and pods with placements.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use serde_json::{Value, json};
use testkit::{DEADLINE, Ns, Pod, tcp_connects, tcp_echo, uninterrupted, wait_until};

use crate::common::{Host, host_link, ips};

/// How long a connection attempt may take that must fail.
const DENIED: Duration = Duration::from_millis(400);
const TABLE: &str = "inet podwire-policy";

pub(crate) struct Scene {
    pub(crate) host: Host,
}

/// A pod with the result of its ADD.
pub(crate) struct PlacedPod {
    pub(crate) pod: Pod,
    pub(crate) result: Value,
}

impl Scene {
    pub(crate) fn new(label: &str, flags: &[&str]) -> Self {
        Self { host: Host::with_flags(label, flags) }
    }

    /// Applies documents, which must succeed, and waits until the agent enforces policies.
    #[track_caller]
    pub(crate) fn apply(&self, documents: &[Value]) {
        let (status, answer) = self.change(documents, &[], false);
        assert_eq!(status, 200, "{answer}");
        self.wait_for_objects(documents);
    }

    /// The agent receives its own changes from the store.
    #[track_caller]
    fn wait_for_objects(&self, documents: &[Value]) {
        wait_until("the agent to know the objects", DEADLINE, || {
            let known = self.host.agent.get("/v1/objects")?;
            let names: Vec<Value> = known["items"]
                .as_array()
                .unwrap()
                .iter()
                .map(|it| json!([it["kind"], it["metadata"]["name"]]))
                .collect();
            Ok(documents.iter().all(|it| names.contains(&json!([it["kind"], it["metadata"]["name"]]))))
        })
        .unwrap();
    }

    /// Removes objects, given as kind, tenant and name.
    #[track_caller]
    pub(crate) fn remove(&self, objects: &[(&str, &str, &str)]) {
        let (status, answer) = self.change(&[], objects, false);
        assert_eq!(status, 200, "{answer}");
    }

    pub(crate) fn change(
        &self,
        documents: &[Value],
        removed: &[(&str, &str, &str)],
        dry_run: bool,
    ) -> (u16, Value) {
        let apply: Vec<Value> = documents.iter().map(|body| json!({ "body": body })).collect();
        let remove: Vec<Value> = removed
            .iter()
            .map(|(kind, tenant, name)| json!({ "kind": kind, "tenant": tenant, "name": name }))
            .collect();
        let body = json!({ "apply": apply, "remove": remove, "dryRun": dry_run });
        let answer = self.host.agent.client().post("/v1/objects", &body, DEADLINE).unwrap();
        (answer.status, serde_json::from_slice(&answer.body).unwrap())
    }

    /// A pod of this tenant and group. An empty name means the default.
    #[track_caller]
    pub(crate) fn pod(&self, name: &str, tenant: &str, group: &str) -> PlacedPod {
        let pod = self.host.pod(name);
        let result = self.host.add_with(&pod, &placement(tenant, group));
        PlacedPod { pod, result }
    }

    /// Whether the node has the table of policies.
    pub(crate) fn has_table(&self) -> bool {
        self.node().run(&["nft", "list", "table", "inet", "podwire-policy"], b"").unwrap().success()
    }

    #[track_caller]
    pub(crate) fn wait_for_table(&self, expected: bool) {
        wait_until("the table of policies", DEADLINE, || Ok(self.has_table() == expected)).unwrap();
    }

    pub(crate) fn node(&self) -> &Ns {
        &self.host.node
    }

    /// The table without counters, as sorted lines and elements.
    pub(crate) fn table(&self) -> Vec<String> {
        let listed = self.node().run(&["nft", "-s", "list", "table", "inet", "podwire-policy"], b"").unwrap();
        let text = listed.stdout.replace("elements = {", "\n").replace('}', "\n");
        let mut parts: Vec<String> = text.split([',', '\n']).map(|part| part.trim().to_owned()).collect();
        parts.retain(|part| !part.is_empty());
        parts.sort();
        parts
    }

    #[track_caller]
    pub(crate) fn nft(&self, command: &str) {
        let words: Vec<&str> = ["nft"].into_iter().chain(command.split_whitespace()).collect();
        let done = self.node().run(&words, b"").unwrap();
        assert!(done.success(), "{command}: {done:?}");
    }

    pub(crate) fn flush_table(&self) {
        self.nft(&format!("flush table {TABLE}"));
    }

    /// Whether connections succeed is as expected, in both families.
    #[track_caller]
    pub(crate) fn expect(&self, (from, to): (&PlacedPod, &PlacedPod), port: u16, expected: bool) {
        for ip in ips(&to.result) {
            let _echo = tcp_echo(&to.pod, SocketAddr::new(ip, port)).unwrap();
            // The agent applies objects after it received them from the store.
            let reached = wait_until("the verdict", DEADLINE, || Ok(from.reaches(ip, port) == expected));
            let names = (from.pod.name(), to.pod.name());
            assert!(reached.is_ok(), "{names:?} {ip} port {port}: expected {expected}\n{:#?}", self.table());
        }
    }
}

impl PlacedPod {
    pub(crate) fn reaches(&self, ip: IpAddr, port: u16) -> bool {
        tcp_connects(&self.pod, SocketAddr::new(ip, port), DENIED).unwrap().is_some()
    }

    pub(crate) fn link(&self) -> &str {
        host_link(&self.result)
    }

    /// The group of its host end.
    pub(crate) fn group(&self, scene: &Scene) -> String {
        let shown = scene.node().sh(&["ip", "-d", "link", "show", "dev", self.link()]).unwrap();
        let words: Vec<&str> = shown.split_whitespace().collect();
        let at = words.iter().position(|word| *word == "group").unwrap();
        words[at + 1].to_owned()
    }
}

/// An established connection between two pods.
pub(crate) struct Connection {
    client: TcpStream,
    server: TcpStream,
}

impl Connection {
    #[track_caller]
    pub(crate) fn open((from, to): (&PlacedPod, &PlacedPod), address: SocketAddr) -> Self {
        let listener = to.pod.enter(|| TcpListener::bind(address).unwrap()).unwrap();
        let client = from.pod.enter(|| TcpStream::connect_timeout(&address, DEADLINE).unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        client.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        server.set_nonblocking(true).unwrap();
        Self { client, server }
    }

    /// An echoed byte proves that both directions work. A lost one is sent again later, so all received bytes are read.
    pub(crate) fn is_alive(&mut self) -> bool {
        let Self { client, server } = self;
        let mut buffer = [0; 64];
        client.write_all(b"x").unwrap();
        std::thread::sleep(Duration::from_millis(20));
        if let Ok(count) = uninterrupted(|| server.read(&mut buffer)) {
            server.write_all(&buffer[..count]).unwrap();
        }
        uninterrupted(|| client.read(&mut buffer)).is_ok()
    }
}

pub(crate) fn placement(tenant: &str, group: &str) -> Value {
    let mut placement = json!({});
    for (key, value) in [("tenant", tenant), ("group", group)] {
        if !value.is_empty() {
            placement[key] = value.into();
        }
    }
    placement
}

pub(crate) fn document(kind: &str, (tenant, name): (&str, &str), spec: &Value) -> Value {
    let mut metadata = json!({ "name": name });
    if !tenant.is_empty() {
        metadata["tenant"] = tenant.into();
    }
    json!({ "apiVersion": "podwire.io/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec })
}

pub(crate) fn tenant(name: &str) -> Value {
    document("Tenant", ("", name), &json!({}))
}

/// A network with a subnet that no other network has.
pub(crate) fn network(tenant: &str, name: &str) -> Value {
    document("Network", (tenant, name), &json!({ "subnets": ["10.99.0.0/16", "fd00:99::/64"] }))
}
