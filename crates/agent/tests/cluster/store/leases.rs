//! Nodes whose agent does not renew its lease.

use api::{Condition, RoutesView, Status};
use testkit::{Agent, Cluster, DEADLINE};
use types::Code;

use super::{Desk, await_no_problem, mixed, up_with};
use crate::common::{TIMEOUT, await_that};

fn conditions(agent: &Agent, code: Code) -> Vec<Condition> {
    let status: Status = serde_json::from_value(agent.get(api::STATUS).unwrap()).unwrap();
    status.conditions.into_iter().filter(|one| one.code == code).collect()
}

/// The nodes that an agent reports as away.
fn away(cluster: &Cluster, node: &str) -> Vec<String> {
    let found = conditions(cluster.agent(node).unwrap(), Code::PeerAway);
    found.into_iter().map(|one| one.object).collect()
}

fn routes(cluster: &Cluster, node: &str) -> RoutesView {
    serde_json::from_value(cluster.agent(node).unwrap().get(api::ROUTES).unwrap()).unwrap()
}

#[test]
fn a1_a_node_whose_lease_ended_is_reported_until_its_agent_is_back_or_it_is_removed() {
    let mut cluster = up_with("leases", &mixed(), &["n1", "n2"]);
    // The first look at a node that starts is no reason to report it.
    cluster.start_agent("n3").unwrap();
    cluster.kill_node("n2").unwrap();
    await_that("n2 to be away", TIMEOUT, || away(&cluster, "n1") == ["node n2"]);
    let found = conditions(cluster.agent("n1").unwrap(), Code::PeerAway).remove(0);
    let (message, fix) = (found.message, found.fix);
    assert!(message.contains("ended at 20") && message.contains("'podwire node rm n2'"), "{message}");
    assert_eq!(fix, None, "a node that is switched off must not lose its blocks by a command that is pasted");
    assert!(cluster.agent("n1").unwrap().is_ready());
    cluster.start_node("n2").unwrap();
    await_that("n2 to be back", TIMEOUT, || away(&cluster, "n1").is_empty());
    cluster.kill_agent("n3").unwrap();
    Desk::of(&cluster).revoke_lease_of("/podwire/alive/n3");
    await_that("n3 to be away", TIMEOUT, || away(&cluster, "n1") == ["node n3"]);
    let removed = cluster.agent("n1").unwrap().client().delete("/v1/nodes/n3", DEADLINE).unwrap();
    assert_eq!(removed.status, 200, "{}", String::from_utf8_lossy(&removed.body));
    await_no_problem(cluster.agent("n1").unwrap());
    let log = cluster.agent("n1").unwrap().log().unwrap();
    let began = log.lines().filter(|line| line.contains("condition began") && line.contains("code=PeerAway"));
    assert_eq!(began.count(), 2, "{log}");
}

#[test]
fn a1_nodes_are_not_reported_as_away_while_etcd_is_not_reachable() {
    let mut cluster = up_with("leaseless", &mixed(), &["n1", "n2", "n3"]);
    cluster.kill_agent("n3").unwrap();
    Desk::of(&cluster).revoke_lease_of("/podwire/alive/n3");
    await_that("n3 to be away", TIMEOUT, || away(&cluster, "n1") == ["node n3"]);
    assert!(!routes(&cluster, "n1").freshness.stale);
    cluster.etcd.members[0].kill().unwrap();
    let outage = |cluster: &Cluster| conditions(cluster.agent("n1").unwrap(), Code::StoreUnreachable);
    await_that("the outage", TIMEOUT, || !outage(&cluster).is_empty());
    assert_eq!(away(&cluster, "n1"), [""; 0]);
    // The command of the condition checks etcd.
    let fix = outage(&cluster).remove(0).fix.unwrap();
    let node = |cluster: &Cluster| cluster.node("n1").unwrap().run(&["sh", "-c", &fix], b"").unwrap();
    assert!(!node(&cluster).success(), "{fix}");
    // An agent that starts now says that it does not know the other nodes.
    cluster.kill_agent("n1").unwrap();
    std::fs::remove_file(cluster.node("n1").unwrap().dir().join("lib/podwire/peers.json")).unwrap();
    cluster.start_agent("n1").unwrap();
    await_that("the outage", TIMEOUT, || !outage(&cluster).is_empty());
    let shown = routes(&cluster, "n1");
    assert!(shown.freshness.stale && shown.routes.iter().all(|route| route.node.is_none()), "{shown:?}");
    assert!(shown.freshness.reason.unwrap().starts_with("etcd is not reachable: "));
    cluster.start_etcd().unwrap();
    await_that("the end of the outage", TIMEOUT, || outage(&cluster).is_empty());
    assert!(node(&cluster).success(), "{fix}");
    await_that("n3 to be away", TIMEOUT, || away(&cluster, "n1") == ["node n3"]);
    let shown = routes(&cluster, "n1");
    assert!(!shown.freshness.stale && shown.routes.len() == 4, "{shown:?}");
    let log = cluster.agent("n1").unwrap().log().unwrap();
    let is_n2 = |line: &&str| line.contains("code=PeerAway") && line.contains("node n2");
    assert_eq!(log.lines().filter(is_n2).count(), 0, "{log}");
}

#[test]
fn a6_refusals_of_the_agent_have_statuses_of_their_own() {
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
