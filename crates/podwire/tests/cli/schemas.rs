//! docs/reference/schemas is generated from the types of `api`, and the output of commands conforms to it.

use std::collections::BTreeMap;
use std::path::Path;

use api::{
    AttachmentDetails, AttachmentsView, BlocksView, DoctorReport, ErrorAnswer, LabList, LabStatus, LabTest,
    NodesView, ObjectDetails, ObjectList, ObjectSteps, PolicyRules, PolicyTestAnswer, Readiness, Removed,
    RoutesView, Status, StatusWithoutAgent, VersionAnswer,
};
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Value, json};
use testkit::{Call, Plan, Verb};

use crate::common::{Host, group_web, has};

fn schema<T: JsonSchema>() -> Value {
    SchemaSettings::draft2020_12().for_serialize().into_generator().into_root_schema_for::<T>().to_value()
}

/// By the name of the file.
fn schemas() -> BTreeMap<&'static str, Value> {
    BTreeMap::from([
        ("status", schema::<Status>()),
        ("status-without-agent", schema::<StatusWithoutAgent>()),
        ("ready", schema::<Readiness>()),
        ("version", schema::<VersionAnswer>()),
        ("error", schema::<ErrorAnswer>()),
        ("pods", schema::<AttachmentsView>()),
        ("attachment-show", schema::<AttachmentDetails>()),
        ("nodes", schema::<NodesView>()),
        ("node-rm", schema::<Removed>()),
        ("routes", schema::<RoutesView>()),
        ("blocks", schema::<BlocksView>()),
        ("doctor", schema::<DoctorReport>()),
        ("objects", schema::<ObjectList>()),
        ("object-steps", schema::<ObjectSteps>()),
        ("object-inspect", schema::<ObjectDetails>()),
        ("policy-rules", schema::<PolicyRules>()),
        ("policy-test", schema::<PolicyTestAnswer>()),
        ("lab-ls", schema::<LabList>()),
        ("lab-status", schema::<LabStatus>()),
        ("lab-test", schema::<LabTest>()),
    ])
}

#[test]
fn a9_recorded_schemas_match_the_types() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/schemas");
    let all = schemas();
    for (name, schema) in &all {
        let (path, text) = (dir.join(format!("{name}.json")), format!("{schema:#}\n"));
        if std::env::var_os("PODWIRE_RECORD").is_some() {
            std::fs::write(&path, &text).unwrap();
        }
        let committed = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(committed == text, "{} differs; write it with PODWIRE_RECORD=1", path.display());
    }
    let is_schema = |name: &String| name.ends_with(".json");
    let names =
        std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert_eq!(names.filter(is_schema).count(), all.len(), "a schema in docs/reference/schemas has no type");
}

/// Every object in a schema.
fn objects<'a>(schema: &'a Value, found: &mut Vec<&'a Value>) {
    match schema {
        Value::Object(map) => {
            if map.get("properties").is_some_and(Value::is_object) {
                found.push(schema);
            }
            map.values().for_each(|inner| objects(inner, found));
        }
        Value::Array(items) => items.iter().for_each(|inner| objects(inner, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[test]
fn a9_fields_are_camel_case_and_required() {
    for (name, schema) in schemas() {
        let mut found = Vec::new();
        objects(&schema, &mut found);
        for object in found {
            let required = object["required"].as_array().cloned().unwrap_or_default();
            for key in object["properties"].as_object().unwrap().keys() {
                let is_camel = key.starts_with(|c: char| c.is_ascii_lowercase())
                    && key.chars().all(|c| c.is_ascii_alphanumeric());
                assert!(is_camel, "{name}: {key}");
                assert!(required.contains(&json!(key)), "{name}: {key} may be missing");
            }
        }
    }
}

/// Violations of the schema. Unknown fields are violations, too.
fn violations(schema: &Value, root: &Value, value: &Value, at: &str) -> Vec<String> {
    if let Some(name) = schema["$ref"].as_str() {
        let definition = root.pointer(name.trim_start_matches('#')).unwrap();
        return violations(definition, root, value, at);
    }
    for key in ["anyOf", "oneOf"] {
        if let Some(choices) = schema[key].as_array() {
            let all: Vec<_> = choices.iter().map(|choice| violations(choice, root, value, at)).collect();
            return if all.iter().any(Vec::is_empty) { Vec::new() } else { all.concat() };
        }
    }
    let mut found = Vec::new();
    let types = match &schema["type"] {
        Value::String(one) => vec![one.clone()],
        Value::Array(all) => all.iter().filter_map(|one| one.as_str().map(str::to_owned)).collect(),
        _ => Vec::new(),
    };
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    if !types.is_empty() && !types.iter().any(|one| one == kind) {
        found.push(format!("{at} is {kind}, not {types:?}"));
    }
    let is_listed = |list: &Value| list.as_array().is_none_or(|all| all.contains(value));
    if !is_listed(&schema["enum"]) || schema.get("const").is_some_and(|expected| expected != value) {
        found.push(format!("{at} is {value}"));
    }
    if let Some(fields) = value.as_object().filter(|_| schema["properties"].is_object()) {
        for key in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            if !fields.contains_key(key) {
                found.push(format!("{at}.{key} is missing"));
            }
        }
        for (key, inner) in fields {
            match schema["properties"].get(key) {
                Some(schema) => found.extend(violations(schema, root, inner, &format!("{at}.{key}"))),
                None => found.push(format!("{at}.{key} is not in the schema")),
            }
        }
    }
    for (index, inner) in value.as_array().into_iter().flatten().enumerate() {
        found.extend(violations(&schema["items"], root, inner, &format!("{at}[{index}]")));
    }
    found
}

#[track_caller]
pub(crate) fn expect_valid(name: &str, text: &str) {
    let value: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{name}: {error}: {text}"));
    let schema = &schemas()[name];
    assert_eq!(violations(schema, schema, &value, name), [] as [String; 0], "{text}");
}

#[test]
fn a9_output_of_commands_conforms_to_the_schemas() {
    let host = Host::new("schemas");
    expect_valid("status-without-agent", &host.ask(&["status", "-o", "json"]).stdout);
    expect_valid("version", &host.run(&["version", "-o", "json"]).stdout);
    expect_valid("lab-ls", &host.run(&["lab", "ls", "-o", "json"]).stdout);
    let runtime = host.runtime();
    let agent = host.agent(&runtime.agent_flags());
    let pod = host.node.pod("a").unwrap();
    host.apply(&[group_web()]);
    let mut config = agent.config(&json!({ "group": "web" }));
    config["runtimeConfig"] = json!({
        "portMappings": [{ "hostPort": 8080, "containerPort": 80, "protocol": "tcp", "hostIP": "198.51.100.7" }],
        "bandwidth": { "ingressRate": 10_000_000, "ingressBurst": 1_500_000 },
    });
    let args = Some("IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-1".to_owned());
    host.plugin
        .call(&host.node, &Call { args, ..Call::pod(Verb::Add, &pod, &config) })
        .unwrap()
        .ok()
        .unwrap();
    let other = host.node.pod("b").unwrap();
    host.plugin.add(&other, &host.standalone()).unwrap().ok().unwrap();
    for (name, args) in [
        ("status", &["status"][..]),
        ("pods", &["pods"]),
        ("attachment-show", &["attachment", "show", pod.id()]),
        ("nodes", &["nodes"]),
        ("routes", &["routes"]),
        ("blocks", &["blocks"]),
        ("doctor", &["doctor"]),
    ] {
        expect_valid(name, &host.ask(&[args, &["-o", "json"]].concat()).stdout);
    }
    for (name, path) in [
        ("status", api::STATUS),
        ("ready", api::READY),
        ("version", api::VERSION),
        ("pods", api::ATTACHMENTS),
    ] {
        expect_valid(name, &agent.get(path).unwrap().to_string());
    }
    let refused = agent.client().get("/v1/nothing", testkit::DEADLINE).unwrap();
    expect_valid("error", &String::from_utf8(refused.body).unwrap());
    // An unreadable record, without an agent.
    drop(agent);
    let dir = host.node.run_dir().join("networks/pods/attachments");
    std::fs::write(std::fs::read_dir(dir).unwrap().next().unwrap().unwrap().path(), "{").unwrap();
    expect_valid("pods", &host.ask(&["pods", "-o", "json"]).stdout);
    expect_valid("status-without-agent", &host.ask(&["status", "-o", "json"]).stdout);
    expect_valid("doctor", &host.ask(&["doctor", "-o", "json"]).stdout);
}

#[test]
fn a9_output_in_a_cluster_conforms_to_the_schemas() {
    let mut cluster = crate::cluster::cluster("schemas", &Plan { nodes: 3, subnets: 2, ..Plan::default() });
    let json = |cluster: &testkit::Cluster, args: &[&str]| {
        crate::cluster::ask(cluster, "n1", &[args, &["-o", "json"]].concat()).stdout
    };
    cluster.kill_node("n3").unwrap();
    for name in ["nodes", "routes", "blocks", "status", "doctor"] {
        expect_valid(name, &json(&cluster, &[name]));
    }
    expect_valid("node-rm", &json(&cluster, &["node", "rm", "n3", "--force"]));
}

#[test]
fn a9_the_schemas_are_listed_in_the_docs() {
    let listed = include_str!("../../../../docs/reference/schemas/README.md");
    for name in schemas().keys() {
        has(listed, &[&format!("[{name}.json]({name}.json)")]);
    }
}
