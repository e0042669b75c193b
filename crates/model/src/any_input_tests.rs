//! No JSON value causes a panic, and what is read is read again in the same way.

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use crate::kubernetes::{KubeNamespace, KubeNode, KubePod, RawNamespace, RawNode, RawPod, decode};
use crate::objects::{ClusterNetworkPolicy, NetworkPolicy};
use crate::{API_VERSION, ClusterObject, ObjectId, ObjectKind, ObjectRecord};

const NAMES: [&str; 44] = [
    "metadata",
    "spec",
    "status",
    "name",
    "tenant",
    "subnets",
    "blockMargin",
    "mtu",
    "nodes",
    "network",
    "pools",
    "policies",
    "rules",
    "id",
    "direction",
    "priority",
    "peer",
    "cidr",
    "group",
    "protocol",
    "port",
    "action",
    "ingress",
    "egress",
    "rate",
    "burst",
    "dscp",
    "with",
    "ports",
    "from",
    "to",
    "podSelector",
    "ipBlock",
    "tier",
    "subject",
    "namespaces",
    "pods",
    "protocols",
    "tcp",
    "destinationPort",
    "number",
    "range",
    "containers",
    "addresses",
];
const WORDS: [&str; 14] = [
    "a",
    "blue",
    "10.1.0.0/16",
    "fd00::/64",
    "in",
    "allow",
    "deny",
    "any",
    "tcp",
    "80-90",
    "Admin",
    "Accept",
    "100M",
    "",
];

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        prop_oneof![0u64..101, any::<u64>()].prop_map(Value::from),
        any::<i16>().prop_map(|n| Value::from(f64::from(n) / 2.0)),
        prop::sample::select(&WORDS[..]).prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 60, 6, |inner| {
        let name =
            prop_oneof![9 => prop::sample::select(&NAMES[..]).prop_map(str::to_owned), 1 => any::<String>()];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((name, inner), 0..6)
                .prop_map(|fields| Value::Object(fields.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn d_no_value_causes_a_panic(spec in value(), kind in prop::sample::select(&ObjectKind::ALL[..])) {
        let name = json!({ "name": "web" });
        let document = json!({ "apiVersion": API_VERSION, "kind": kind.title(), "metadata": name, "spec": spec });
        if let Ok(object) = ClusterObject::from_document(document) {
            prop_assert_eq!(ClusterObject::from_document(object.to_document()), Ok(object));
        }
        let id = ObjectId::parse(kind, "default", "web").unwrap();
        let stored = json!({ "schema": 1, kind.as_str(): { "metadata": name, "spec": spec } });
        if let Ok(record) = ObjectRecord::decode(&id, stored.to_string().as_bytes()) {
            prop_assert_eq!(ObjectRecord::decode(&id, &record.encode()), Ok(record));
        }
        let object = json!({ "metadata": { "name": "web", "uid": "1" }, "spec": spec, "status": spec });
        let texts = [
            NetworkPolicy::decode(object.clone()).err().map(|error| error.to_string()),
            ClusterNetworkPolicy::decode(object.clone()).err().map(|error| error.to_string()),
            decode::<RawPod, KubePod>(object.clone()).err().map(|error| error.to_string()),
            decode::<RawNode, KubeNode>(object.clone()).err().map(|error| error.to_string()),
            decode::<RawNamespace, KubeNamespace>(object).err().map(|error| error.to_string()),
        ];
        for text in texts.into_iter().flatten() {
            prop_assert!(text.len() < 2_000 && !text.contains(char::is_control), "{text:?}");
        }
    }
}
