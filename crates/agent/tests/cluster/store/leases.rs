//! Nodes with an agent that does not renew its lease.

use api::{Condition, RoutesView, Status};
use testkit::{Agent, Cluster, DEADLINE};
use types::Code;

use super::{StoreClient, await_no_problem, mixed, up_with};
use crate::common::{TIMEOUT, await_that};

fn conditions(agent: &Agent, code: Code) -> Vec<Condition> {
    let status: Status = serde_json::from_value(agent.get(api::STATUS).unwrap()).unwrap();
    status.conditions.into_iter().filter(|condition| condition.code == code).collect()
}

/// The nodes that an agent reports as offline.
fn offline(cluster: &Cluster, node: &str) -> Vec<String> {
    let conditions = conditions(cluster.agent(node).unwrap(), Code::PeerAway);
    conditions.into_iter().map(|condition| condition.object).collect()
}

fn routes(cluster: &Cluster, node: &str) -> RoutesView {
    serde_json::from_value(cluster.agent(node).unwrap().get(api::ROUTES).unwrap()).unwrap()
}

#[test]
fn a1_a_node_without_lease_is_reported_until_it_returns_or_is_removed() {
    let mut cluster = up_with("leases", &mixed(), &["n1", "n2"]);
    // A node that is starting is not reported.
    cluster.start_agent("n3").unwrap();
    cluster.kill_node("n2").unwrap();
    await_that("n2 to be offline", TIMEOUT, || offline(&cluster, "n1") == ["node n2"]);
    let condition = conditions(cluster.agent("n1").unwrap(), Code::PeerAway).remove(0);
    let (message, fix) = (condition.message, condition.fix);
    assert!(message.contains("ended at 20") && message.contains("'podwire node rm n2'"), "{message}");
    assert_eq!(fix, None, "a pasted fix must not remove the blocks of a node that is only switched off");
    assert!(cluster.agent("n1").unwrap().is_ready());
    cluster.start_node("n2").unwrap();
    await_that("n2 to return", TIMEOUT, || offline(&cluster, "n1").is_empty());
    cluster.kill_agent("n3").unwrap();
    StoreClient::of(&cluster).revoke_lease_of("/podwire/alive/n3");
    await_that("n3 to be offline", TIMEOUT, || offline(&cluster, "n1") == ["node n3"]);
    let removed = cluster.agent("n1").unwrap().client().delete("/v1/nodes/n3", DEADLINE).unwrap();
    assert_eq!(removed.status, 200, "{}", String::from_utf8_lossy(&removed.body));
    await_no_problem(cluster.agent("n1").unwrap());
    let log = cluster.agent("n1").unwrap().log().unwrap();
    let began = log.lines().filter(|line| line.contains("condition began") && line.contains("code=PeerAway"));
    assert_eq!(began.count(), 2, "{log}");
}

#[test]
fn a1_nodes_are_not_reported_as_offline_while_etcd_is_unreachable() {
    let mut cluster = up_with("leaseless", &mixed(), &["n1", "n2", "n3"]);
    cluster.kill_agent("n3").unwrap();
    StoreClient::of(&cluster).revoke_lease_of("/podwire/alive/n3");
    await_that("n3 to be offline", TIMEOUT, || offline(&cluster, "n1") == ["node n3"]);
    assert!(!routes(&cluster, "n1").freshness.stale);
    cluster.etcd.members[0].kill().unwrap();
    let outage = |cluster: &Cluster| conditions(cluster.agent("n1").unwrap(), Code::StoreUnreachable);
    await_that("the outage", TIMEOUT, || !outage(&cluster).is_empty());
    assert_eq!(offline(&cluster, "n1"), [""; 0]);
    // The fix of the condition checks etcd.
    let fix = outage(&cluster).remove(0).fix.unwrap();
    let run_fix = |cluster: &Cluster| cluster.node("n1").unwrap().run(&["sh", "-c", &fix], b"").unwrap();
    assert!(!run_fix(&cluster).success(), "{fix}");
    // An agent that starts now reports that it does not know its peers.
    cluster.kill_agent("n1").unwrap();
    std::fs::remove_file(cluster.node("n1").unwrap().dir().join("lib/podwire/peers.json")).unwrap();
    cluster.start_agent("n1").unwrap();
    await_that("the outage", TIMEOUT, || !outage(&cluster).is_empty());
    let view = routes(&cluster, "n1");
    assert!(view.freshness.stale && view.routes.iter().all(|route| route.node.is_none()), "{view:?}");
    assert!(view.freshness.reason.unwrap().starts_with("etcd is not reachable: "));
    cluster.start_etcd().unwrap();
    await_that("the end of the outage", TIMEOUT, || outage(&cluster).is_empty());
    assert!(run_fix(&cluster).success(), "{fix}");
    await_that("n3 to be offline", TIMEOUT, || offline(&cluster, "n1") == ["node n3"]);
    let view = routes(&cluster, "n1");
    assert!(!view.freshness.stale && view.routes.len() == 4, "{view:?}");
    let log = cluster.agent("n1").unwrap().log().unwrap();
    let is_n2 = |line: &&str| line.contains("code=PeerAway") && line.contains("node n2");
    assert_eq!(log.lines().filter(is_n2).count(), 0, "{log}");
}

#[test]
fn a6_each_refusal_of_the_agent_has_its_own_http_status() {
    let mut cluster = up_with("statuses", &mixed(), &["n1", "n2"]);
    let remove = |cluster: &Cluster, name: &str| {
        let answer =
            cluster.agent("n1").unwrap().client().delete(&format!("/v1/nodes/{name}"), DEADLINE).unwrap();
        (answer.status, String::from_utf8_lossy(&answer.body).into_owned())
    };
    for (name, status, word) in
        [("n1", 409, "is this node"), ("n2", 409, "is alive"), ("n9", 404, "no node n9"), ("-", 400, "")]
    {
        let (got, body) = remove(&cluster, name);
        assert!(got == status && body.contains(word), "{name}: {got} {body}");
    }
    cluster.etcd.members[0].kill().unwrap();
    await_that("the outage", TIMEOUT, || remove(&cluster, "n2").0 == 503);
}
