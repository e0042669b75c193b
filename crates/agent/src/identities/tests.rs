//! The mirror, the differences to write, and this node's pods: pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use model::objects::{Identity, NamespacedName};
use model::{KeyLayout, Labels, NodeRecord, Object as _, PodRecord};
use policy::{PodEntry, PodPhase};
use store::{Change, Compare};
use types::{AttachmentKey, Mac, NodeName, NodeUid, Placement};

use super::differences::{OwnKeys, commits};
use super::local::{LocalIdentities, PublishedPod, PublishedPods};
use super::mirror::{IdentityKey, IdentityMirror};
use super::records::record_name;
use super::saved::SavedPods;
use super::unused::{Removal, UnusedValues};
use crate::peers::inputs::RecordUpdate;
use crate::policies::LocalPod;

const BLOCK: &str = "10.42.1.0/24";

fn name(node: &str) -> NodeName {
    node.try_into().unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn identity(tenant: &str) -> Identity {
    let placement = Placement::parse(Some(tenant), None, None).unwrap();
    Identity { placement, namespace: None, labels: Labels::new(), ports: Vec::new() }
}

fn record(tenant: &str) -> PodRecord {
    PodRecord { identity: identity(tenant).stored().0, uid: "pods/c/eth0".to_owned(), name: "c".to_owned() }
}

fn node(node: &str, blocks: &[&str]) -> NodeRecord {
    NodeRecord {
        name: name(node),
        uid: NodeUid::from_random([1; 16]),
        addresses: vec![ip("192.0.2.7"), ip("10.42.9.9")],
        blocks: model::BlockAllocation::of_default(blocks.iter().map(|block| net(block)).collect()),
        tunnel_mac: Mac::local([1, 2, 3, 4, 5]),
        macs: Vec::new(),
        version: "0".to_owned(),
        transport: None,
    }
}

fn mirror() -> IdentityMirror {
    IdentityMirror::new(name("n1"), vec![model::BlockLayout::new(net("10.42.0.0/16"), 8).unwrap()])
}

/// One of the values that must be known.
#[derive(Debug, Clone, Copy)]
enum Value {
    Node,
    Claim,
    Record,
    Identity,
}

const VALUES: [Value; 4] = [Value::Node, Value::Claim, Value::Record, Value::Identity];

fn set(mirror: &mut IdentityMirror, value: Value) {
    let (hash, bytes) = identity("blue").stored();
    match value {
        Value::Node => mirror.set_node(&node("n2", &[BLOCK])),
        Value::Claim => mirror.set_claim(net(BLOCK), Some(&name("n2"))),
        Value::Record => {
            let key = IdentityKey::Pod(name("n2"), ip("10.42.1.2"));
            mirror.put(&key, &record("blue").encode(), 1).unwrap();
        }
        Value::Identity => mirror.put(&IdentityKey::Identity(hash), &bytes, 1).unwrap(),
    }
}

fn unset(mirror: &mut IdentityMirror, value: Value) {
    match value {
        Value::Node => mirror.remove_node(&name("n2")),
        Value::Claim => mirror.set_claim(net(BLOCK), None),
        Value::Record => mirror.delete(&IdentityKey::Pod(name("n2"), ip("10.42.1.2"))),
        Value::Identity => mirror.delete(&IdentityKey::Identity(identity("blue").stored().0)),
    }
}

/// The tenants of the addresses that changed. None: no pod is known.
fn changed(mirror: &mut IdentityMirror) -> BTreeMap<IpAddr, Option<String>> {
    let tenant = |pod: super::RemotePod| pod.identity.placement.tenant.to_string();
    mirror.take_changes().pods.into_iter().map(|(address, pod)| (address, pod.map(tenant))).collect()
}

fn orders() -> Vec<Vec<Value>> {
    let mut orders = vec![Vec::new()];
    for value in VALUES {
        orders = orders
            .into_iter()
            .flat_map(|order: Vec<Value>| {
                (0..=order.len()).map(move |at| {
                    let mut order = order.clone();
                    order.insert(at, value);
                    order
                })
            })
            .collect();
    }
    orders
}

#[test]
fn d_a_pod_is_known_when_all_four_values_are_in_any_order() {
    let known = BTreeMap::from([(ip("10.42.1.2"), Some("blue".to_owned()))]);
    for order in orders() {
        let mut mirror = mirror();
        for value in &order[..3] {
            set(&mut mirror, *value);
            assert!(changed(&mut mirror).values().all(Option::is_none), "{order:?}");
        }
        set(&mut mirror, order[3]);
        assert_eq!(changed(&mut mirror), known, "{order:?}");
        assert_eq!(changed(&mut mirror), BTreeMap::new());
        // Without one of them, it is not.
        unset(&mut mirror, order[3]);
        assert_eq!(changed(&mut mirror), BTreeMap::from([(ip("10.42.1.2"), None)]), "{order:?}");
        set(&mut mirror, order[3]);
        assert_eq!(changed(&mut mirror), known, "{order:?}");
    }
}

#[test]
fn d_records_for_addresses_of_other_nodes_are_refused() {
    let mut mirror = mirror();
    VALUES.into_iter().for_each(|value| set(&mut mirror, value));
    mirror.set_node(&node("n3", &[]));
    let put = |mirror: &mut IdentityMirror, node: &str, address: &str| {
        let key = IdentityKey::Pod(name(node), ip(address));
        mirror.put(&key, &record("blue").encode(), 2).unwrap();
    };
    // Of another node, outside of all blocks, at a node's address, and of this node's own block.
    mirror.set_claim(net("10.42.0.0/24"), Some(&name("n1")));
    for (node, address) in
        [("n3", "10.42.1.3"), ("n2", "10.42.7.1"), ("n2", "192.0.2.7"), ("n2", "10.42.0.2")]
    {
        put(&mut mirror, node, address);
    }
    let known: Vec<IpAddr> =
        changed(&mut mirror).into_iter().filter_map(|(address, tenant)| tenant.map(|_| address)).collect();
    assert_eq!(known, [ip("10.42.1.2")]);
    // The block moves to the other node, and so do the records that count.
    mirror.set_claim(net(BLOCK), Some(&name("n3")));
    let after = changed(&mut mirror);
    assert_eq!(
        (after[&ip("10.42.1.2")].as_deref(), after[&ip("10.42.1.3")].as_deref()),
        (None, Some("blue"))
    );
}

#[test]
fn d_a_node_has_its_published_addresses_gateways_and_tunnel_addresses() {
    let mut mirror = mirror();
    set(&mut mirror, Value::Node);
    let addresses = |mirror: &mut IdentityMirror| mirror.take_changes().nodes.remove(&name("n2")).flatten();
    assert_eq!(addresses(&mut mirror), Some(vec![ip("192.0.2.7")]), "a node has no address of a pod");
    set(&mut mirror, Value::Claim);
    mirror.set_claim(net("fd42:0:0:0:100::/72"), Some(&name("n2")));
    let all = ["10.42.1.0", "10.42.1.1", "192.0.2.7", "fd42::100:0:0:1"].map(ip);
    assert_eq!(addresses(&mut mirror), Some(all.to_vec()));
    // A network whose subnet has the node's address is created and removed.
    let default = model::BlockLayout::new(net("10.42.0.0/16"), 8).unwrap();
    let other = model::BlockLayout::new(net("192.0.2.0/24"), 4).unwrap();
    mirror.update_node(&RecordUpdate::Networks(vec![default, other]));
    assert!(!addresses(&mut mirror).unwrap().contains(&ip("192.0.2.7")));
    mirror.update_node(&RecordUpdate::Networks(vec![default]));
    assert_eq!(addresses(&mut mirror), Some(all.to_vec()));
    mirror.remove_node(&name("n2"));
    assert_eq!(mirror.take_changes().nodes, BTreeMap::from([(name("n2"), None)]));
}

#[test]
fn d_an_identity_whose_value_has_another_hash_is_refused() {
    let mut mirror = mirror();
    [Value::Node, Value::Claim, Value::Record].into_iter().for_each(|value| set(&mut mirror, value));
    let (hash, _) = identity("blue").stored();
    let (_, other) = identity("red").stored();
    let key = IdentityKey::Identity(hash);
    assert!(mirror.put(&key, &other, 1).is_err());
    assert_eq!(changed(&mut mirror), BTreeMap::from([(ip("10.42.1.2"), None)]));
    set(&mut mirror, Value::Identity);
    assert!(mirror.put(&key, &other, 2).is_err(), "the known identity stays");
    assert_eq!(changed(&mut mirror)[&ip("10.42.1.2")].as_deref(), Some("blue"));
}

#[test]
fn d_a_listing_removes_what_it_does_not_have() {
    let mut mirror = mirror();
    VALUES.into_iter().for_each(|value| set(&mut mirror, value));
    changed(&mut mirror);
    let identity = IdentityKey::Identity(identity("blue").stored().0);
    mirror.retain(&BTreeSet::from([identity.clone(), IdentityKey::Pod(name("n2"), ip("10.42.1.2"))]));
    assert_eq!(changed(&mut mirror), BTreeMap::new(), "a listing that changes nothing");
    mirror.retain(&BTreeSet::from([identity]));
    assert_eq!(changed(&mut mirror), BTreeMap::from([(ip("10.42.1.2"), None)]));
}

fn published(pods: &[(&str, &str)]) -> PublishedPods {
    let value = |tenant: &str| {
        Arc::new(PublishedPod { record: record(tenant), identity: identity(tenant).stored().1 })
    };
    pods.iter().map(|(address, tenant)| (ip(address), value(tenant))).collect()
}

/// The keys to write, with `-` before those to delete.
fn differences(mirror: &IdentityMirror, desired: &PublishedPods) -> Vec<String> {
    let layout = KeyLayout::new("/p", None);
    let keys = OwnKeys { layout: &layout, node: &name("n1") };
    let changes = mirror.differences(keys, desired, &[net("10.42.0.0/24")]).concat();
    let text = |change: &Change| match change {
        Change::Put { key, .. } => key.clone(),
        Change::Delete(key) => format!("-{key}"),
    };
    changes.iter().map(text).collect()
}

fn store(mirror: &mut IdentityMirror, address: &str, value: &[u8]) {
    let _ = mirror.put(&IdentityKey::Pod(name("n1"), ip(address)), value, 1);
}

#[test]
fn d_only_differences_are_written() {
    let mut mirror = mirror();
    let (blue, value) = identity("blue").stored();
    let desired = published(&[("10.42.0.2", "blue"), ("10.42.0.3", "blue"), ("10.9.9.9", "blue")]);
    let identity_key = format!("/p/identities/{blue}");
    let all = [identity_key.as_str(), "/p/pods/n1/10.42.0.2", "/p/pods/n1/10.42.0.3"];
    assert_eq!(differences(&mirror, &desired), all, "the identity first, and no address of another block");
    store(&mut mirror, "10.42.0.2", &record("blue").encode());
    store(&mut mirror, "10.42.0.3", &record("red").encode());
    store(&mut mirror, "10.42.0.4", &record("red").encode());
    let after = [identity_key.as_str(), "/p/pods/n1/10.42.0.3", "-/p/pods/n1/10.42.0.4"];
    assert_eq!(differences(&mirror, &desired), after);
    mirror.put(&IdentityKey::Identity(blue.clone()), &value, 1).unwrap();
    store(&mut mirror, "10.42.0.3", &record("blue").encode());
    mirror.delete(&IdentityKey::Pod(name("n1"), ip("10.42.0.4")));
    assert_eq!(differences(&mirror, &desired), [""; 0]);
    // A removed identity is written again while a pod has it.
    mirror.delete(&IdentityKey::Identity(blue));
    assert_eq!(differences(&mirror, &desired), [identity_key]);
}

#[test]
fn d_values_of_newer_versions_are_not_overwritten_and_unreadable_ones_are() {
    let mut mirror = mirror();
    let (blue, value) = identity("blue").stored();
    mirror.put(&IdentityKey::Identity(blue), &value, 1).unwrap();
    for address in ["10.42.0.2", "10.42.0.3"] {
        store(&mut mirror, address, br#"{"schema":99,"pod":{}}"#);
    }
    for address in ["10.42.0.4", "10.42.0.5"] {
        store(&mut mirror, address, b"{");
    }
    let desired = published(&[("10.42.0.2", "blue"), ("10.42.0.4", "blue")]);
    assert_eq!(differences(&mirror, &desired), ["/p/pods/n1/10.42.0.4", "-/p/pods/n1/10.42.0.5"]);
}

#[test]
fn d_a_value_that_was_written_but_cannot_be_read_is_not_written_again() {
    let mut mirror = mirror();
    let (blue, value) = identity("blue").stored();
    let mut desired = published(&[("10.42.0.2", "blue")]);
    let long = PodRecord { name: "a".repeat(model::MAX_SIZE), ..record("blue") };
    let pod = PublishedPod { record: long.clone(), identity: value.clone() };
    desired.insert(ip("10.42.0.3"), Arc::new(pod));
    mirror.put(&IdentityKey::Identity(blue), &value, 1).unwrap();
    assert_eq!(differences(&mirror, &desired), ["/p/pods/n1/10.42.0.2", "/p/pods/n1/10.42.0.3"]);
    store(&mut mirror, "10.42.0.2", &record("blue").encode());
    store(&mut mirror, "10.42.0.3", &long.encode());
    assert_eq!(differences(&mirror, &desired), [""; 0]);
    desired.remove(&ip("10.42.0.3"));
    assert_eq!(differences(&mirror, &desired), ["-/p/pods/n1/10.42.0.3"]);
}

#[test]
fn d_published_values_are_bounded() {
    let of = |pod: LocalPod| {
        let identities = LocalIdentities::new();
        identities.set(&pod);
        identities.begin_listing();
        identities.finish_listing(&[], &BTreeSet::from([record_name(&pod.key)]));
        identities.published().unwrap().into_values().next()
    };
    let mut long = local(&"c".repeat(200_000), &["10.42.0.2"], "blue");
    long.entry.as_mut().unwrap().name.name = "ä".repeat(100_000);
    let pod = of(long.clone()).unwrap();
    assert_eq!((pod.record.name.len(), pod.record.uid.len()), (252, 52));
    PodRecord::decode(&pod.record.encode()).unwrap();
    let identity = Identity { namespace: Some("n".repeat(200_000)), ..identity("blue") };
    long.entry.as_mut().unwrap().identity = Arc::new(identity);
    assert_eq!(of(long), None, "other nodes cannot read the identity");
}

#[test]
fn transactions_are_bounded_by_the_number_of_changes_and_their_size() {
    let put = |size| Change::Put { key: "k".to_owned(), value: vec![0; size], lease: None };
    let sizes = |changes: Vec<Change>| commits(changes).iter().map(Vec::len).collect::<Vec<_>>();
    assert_eq!(sizes((0..250).map(|_| put(1)).collect()), [100, 100, 50]);
    assert_eq!(sizes((0..5).map(|_| put(200 << 10)).collect()), [2, 2, 1]);
    assert_eq!(sizes(Vec::new()), [0; 0]);
}

#[test]
fn d_values_are_removed_if_two_checks_found_them_unused() {
    let mut mirror = mirror();
    for tenant in ["blue", "red", "green"] {
        let (hash, value) = identity(tenant).stored();
        mirror.put(&IdentityKey::Identity(hash), &value, 5).unwrap();
    }
    mirror.set_node(&node("n2", &[]));
    for owner in ["n2", "gone"] {
        let key = IdentityKey::Pod(name(owner), ip("10.42.1.2"));
        mirror.put(&key, &record("blue").encode(), 1).unwrap();
    }
    let hash = |tenant: &str| identity(tenant).stored().0;
    // Blue has pods of other nodes, green is about to be published.
    let unused = mirror.unused(&published(&[("10.42.0.2", "green")]));
    let pods = BTreeSet::from([(name("gone"), ip("10.42.1.2"))]);
    assert_eq!(unused, UnusedValues { identities: BTreeMap::from([(hash("red"), 5)]), pods });
    let layout = KeyLayout::new("/p", None);
    assert_eq!(unused.removal(&UnusedValues::default(), &layout), Removal::default());
    let red = layout.identity(&hash("red"));
    let changes = vec![Change::Delete(red.clone()), Change::Delete("/p/pods/gone/10.42.1.2".to_owned())];
    let compares = vec![Compare::Revision(red, 5), Compare::Absent("/p/nodes/gone".to_owned())];
    assert_eq!(unused.removal(&unused, &layout), Removal { compares, changes });
    // It was written again meanwhile, and the node is back.
    let later = UnusedValues { identities: BTreeMap::from([(hash("red"), 6)]), pods: BTreeSet::new() };
    assert_eq!(later.removal(&unused, &layout), Removal::default());
}

#[test]
fn d_saved_pods_are_known_before_the_store_answers() {
    let mut before = mirror();
    VALUES.into_iter().for_each(|value| set(&mut before, value));
    let saved = before.saved();
    let text = saved.encode();
    assert_eq!(SavedPods::decode(&text), saved);
    // Unreadable lines are ignored.
    let damaged = [b"{\nnull\n".as_slice(), &text, b"{\"pod\":"].concat();
    let mut after = mirror();
    after.restore(&[node("n2", &[BLOCK])], SavedPods::decode(&damaged));
    assert_eq!(changed(&mut after), BTreeMap::from([(ip("10.42.1.2"), Some("blue".to_owned()))]));
    // This node's addresses are only known to be in use: the store's listing follows.
    let mut own = mirror();
    own.put(&IdentityKey::Pod(name("n1"), ip("10.42.0.2")), &record("blue").encode(), 1).unwrap();
    let mut after = mirror();
    after.restore(&[], SavedPods::decode(&own.saved().encode()));
    assert_eq!(after.take_own(), Some([ip("10.42.0.2")].into()));
    assert_eq!(after.take_own(), None, "nothing changed");
    after.retain(&BTreeSet::new());
    assert_eq!(after.take_own(), Some([].into()));
    // A saved pod counts only in a block of its node.
    let mut other = mirror();
    other.restore(&[node("n3", &[BLOCK])], SavedPods::decode(&text));
    assert_eq!(changed(&mut other), BTreeMap::from([(ip("10.42.1.2"), None)]));
}

fn local(container: &str, addresses: &[&str], tenant: &str) -> LocalPod {
    let key = AttachmentKey {
        network: "pods".try_into().unwrap(),
        container: container.try_into().unwrap(),
        ifname: "eth0".try_into().unwrap(),
    };
    let entry = PodEntry {
        uid: key.to_string().into(),
        name: NamespacedName { namespace: None, name: container.to_owned() },
        node: name("n1"),
        identity: Arc::new(identity(tenant)),
        addresses: Some(addresses.iter().map(|address| ip(address)).collect()),
        phase: PodPhase::Running,
    };
    LocalPod { link: key.host_link(0), key, entry: Some(entry) }
}

fn names(local: &LocalIdentities) -> BTreeMap<IpAddr, String> {
    let published = local.published().unwrap();
    published.into_iter().map(|(address, pod)| (address, pod.record.name.clone())).collect()
}

#[test]
fn d_pods_are_published_after_the_records_were_listed() {
    let identities = LocalIdentities::new();
    let (one, other) = (local("a", &["10.42.0.2", "fd42::2"], "blue"), local("b", &["10.42.0.3"], "blue"));
    identities.set(&one);
    assert_eq!(identities.published(), None, "pods of an earlier agent would be removed");
    identities.begin_listing();
    // These change while the records are listed: one is added, and one that the listing has is removed.
    let late = local("c", &["10.42.0.4"], "blue");
    identities.set(&late);
    identities.remove(&other.key);
    let recorded = [&one, &other].map(|pod| record_name(&pod.key)).into();
    identities.finish_listing(&[one.clone(), other], &recorded);
    let expected = [("10.42.0.2", "a"), ("10.42.0.4", "c"), ("fd42::2", "a")];
    assert_eq!(names(&identities), expected.map(|(address, name)| (ip(address), name.to_owned())).into());
    // A pod without a record is gone. One with a pending record stays.
    identities.begin_listing();
    identities.finish_listing(&[], &BTreeSet::from([record_name(&one.key)]));
    assert_eq!(names(&identities).len(), 2);
}

#[test]
fn d_an_address_is_published_for_the_last_pod_that_got_it() {
    let identities = LocalIdentities::new();
    identities.begin_listing();
    identities.finish_listing(&[], &BTreeSet::new());
    let (one, other) = (local("a", &["10.42.0.2", "fd42::2"], "blue"), local("b", &["10.42.0.2"], "red"));
    identities.set(&one);
    identities.set(&other);
    identities.remove(&one.key);
    assert_eq!(names(&identities), BTreeMap::from([(ip("10.42.0.2"), "b".to_owned())]));
    // Its placement is not known any more.
    identities.set(&LocalPod { entry: None, ..other });
    assert_eq!(names(&identities), BTreeMap::new());
}
