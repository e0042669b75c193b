//! Policies between nodes: each node knows the tenants and groups of all pods, from the store or from its disk.

mod identities;
mod outages;
mod paths;
mod verdicts;

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use serde_json::{Value, json};
use testkit::{Cluster, DEADLINE, Plan, Pod, TransportMode, tcp_connects, tcp_echo, wait_until};

use crate::common::await_that;

/// How long a connection attempt may take that must fail.
const DENIED: Duration = Duration::from_millis(400);
const PREFIX: &str = "/podwire";

/// A cluster with objects.
struct Tenants {
    cluster: Cluster,
}

/// A pod with a placement, on a node.
struct PlacedPod {
    node: &'static str,
    pod: Pod,
    placement: Value,
    addresses: Vec<IpAddr>,
}

impl Tenants {
    /// A cluster of two nodes, with tenants `blue` and `red`.
    fn new(label: &str, transport: TransportMode) -> Self {
        let cluster = Cluster::up(label, &Plan { nodes: 2, transport, ..Plan::default() }).unwrap();
        let tenants = Self { cluster };
        tenants.apply(&[tenant("blue"), tenant("red")]);
        for node in ["n1", "n2"] {
            tenants.await_table(node);
        }
        tenants
    }

    /// Applies documents at n1, which must succeed.
    #[track_caller]
    fn apply(&self, documents: &[Value]) {
        let (status, answer) = self.change("n1", documents, &[]);
        assert_eq!(status, 200, "{answer}");
        // A pod of a new group is refused by an agent that does not know it yet.
        let names: Vec<&Value> = documents.iter().map(|it| &it["metadata"]["name"]).collect();
        for node in ["n1", "n2"] {
            await_that("the objects", DEADLINE, || {
                let known = self.cluster.agent(node).unwrap().get("/v1/objects").unwrap();
                let known = known["items"].as_array().unwrap();
                names.iter().all(|name| known.iter().any(|it| it["metadata"]["name"] == **name))
            });
        }
    }

    /// Removes objects, given as kind, tenant and name.
    #[track_caller]
    fn remove(&self, objects: &[(&str, &str, &str)]) {
        let (status, answer) = self.change("n1", &[], objects);
        assert_eq!(status, 200, "{answer}");
    }

    fn change(&self, node: &str, documents: &[Value], removed: &[(&str, &str, &str)]) -> (u16, Value) {
        let apply: Vec<Value> = documents.iter().map(|body| json!({ "body": body })).collect();
        let remove: Vec<Value> = removed
            .iter()
            .map(|(kind, tenant, name)| json!({ "kind": kind, "tenant": tenant, "name": name }))
            .collect();
        let body = json!({ "apply": apply, "remove": remove, "dryRun": false });
        let client = self.cluster.agent(node).unwrap().client();
        let answer = client.post("/v1/objects", &body, DEADLINE).unwrap();
        (answer.status, serde_json::from_slice(&answer.body).unwrap())
    }

    #[track_caller]
    fn await_table(&self, node: &str) {
        let list = ["nft", "list", "table", "inet", "podwire-policy"];
        let node = self.cluster.node(node).unwrap();
        await_that("the table of policies", DEADLINE, || node.run(&list, b"").unwrap().success());
    }

    /// A pod of this tenant and group. An empty name means the default.
    #[track_caller]
    fn pod(&self, node: &'static str, name: &str, placement: (&str, &str)) -> PlacedPod {
        self.pod_at(node, name, placement, &[])
    }

    /// With these addresses.
    #[track_caller]
    fn pod_at(
        &self,
        node: &'static str,
        name: &str,
        (tenant, group): (&str, &str),
        addresses: &[IpAddr],
    ) -> PlacedPod {
        let mut placement = json!({ "runtimeConfig": { "ips": addresses } });
        for (key, value) in [("tenant", tenant), ("group", group)] {
            if !value.is_empty() {
                placement[key] = value.into();
            }
        }
        let pod = self.cluster.node(node).unwrap().pod(name).unwrap();
        let config = self.cluster.agent(node).unwrap().config(&placement);
        let result = self.cluster.plugin().add(&pod, &config).unwrap().ok().unwrap();
        let ips = result["ips"].as_array().unwrap().iter();
        let addresses =
            ips.map(|ip| ip["address"].as_str().unwrap().split('/').next().unwrap().parse().unwrap());
        PlacedPod { node, pod, placement, addresses: addresses.collect() }
    }

    #[track_caller]
    fn del(&self, pod: &PlacedPod) {
        let config = self.cluster.agent(pod.node).unwrap().config(&pod.placement);
        self.cluster.plugin().del(&pod.pod, &config).unwrap().ok().unwrap();
    }

    /// Whether connections succeed is as expected, in both families.
    #[track_caller]
    fn expect(&self, (from, to): (&PlacedPod, &PlacedPod), port: u16, expected: bool) {
        assert_eq!(to.addresses.len(), 2, "{:?}", to.addresses);
        for ip in &to.addresses {
            let at = SocketAddr::new(*ip, port);
            let _echo = tcp_echo(&to.pod, at).unwrap();
            let reaches =
                || tcp_connects(&from.pod, at, DENIED).map(|connected| connected.is_some() == expected);
            let names = (from.pod.name(), to.pod.name());
            let reached = wait_until("the verdict", DEADLINE, reaches);
            assert!(reached.is_ok(), "{names:?} {at}: expected {expected}");
        }
    }

    /// Whether the node's kernel has a class of its own for the address.
    fn knows(&self, node: &str, address: IpAddr) -> bool {
        let map = if address.is_ipv4() { "class4" } else { "class6" };
        let element = format!("{{ {address} }}");
        let get = ["nft", "get", "element", "inet", "podwire-policy", map, &element];
        self.cluster.node(node).unwrap().run(&get, b"").unwrap().success()
    }

    #[track_caller]
    fn await_known(&self, node: &str, pod: &PlacedPod, expected: bool) {
        for address in &pod.addresses {
            let what = format!("{node} to know {address}: {expected}");
            await_that(&what, DEADLINE, || self.knows(node, *address) == expected);
        }
    }
}

fn document(kind: &str, (tenant, name): (&str, &str), spec: &Value) -> Value {
    let mut metadata = json!({ "name": name });
    if !tenant.is_empty() {
        metadata["tenant"] = tenant.into();
    }
    json!({ "apiVersion": "podwire.io/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec })
}

fn tenant(name: &str) -> Value {
    document("Tenant", ("", name), &json!({}))
}
