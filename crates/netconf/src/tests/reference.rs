//! docs/reference/cni-config.md lists the keys that the parser reads, those that it refuses, and all error codes.

use std::collections::BTreeSet;
use std::path::Path;

use cni::{Args, Env, Error, ErrorCode, NetworkConfig, Request};
use serde_json::{Map, Value, json};

use crate::{LocalPaths, NetConf};

const PAGE: &str = include_str!("../../../../docs/reference/cni-config.md");
/// String literals of the parser that are no keys, in alphabetical order.
const NOT_KEYS: [&str; 9] =
    ["agent.sock", "cni0", "dhcp", "false", "journal", "nftables", "routed", "supportedVersions", "true"];

/// The cells of the table below a heading.
fn rows(heading: &str) -> Vec<Vec<&'static str>> {
    let part = PAGE.split(&format!("\n## {heading}\n")).nth(1).unwrap().split("\n## ").next().unwrap();
    let lines = part.lines().filter(|line| line.starts_with('|')).skip(2);
    let rows: Vec<Vec<_>> =
        lines.map(|line| line.trim_matches('|').split('|').map(str::trim).collect()).collect();
    assert!(!rows.is_empty(), "{heading}");
    rows
}

fn name(cell: &str) -> &str {
    cell.trim_matches('`')
}

/// The name without a value.
fn key(cell: &str) -> &str {
    name(cell).split('=').next().unwrap_or_default()
}

/// Keys that an object needs so that the parser reads its other keys.
fn companions(object: &str) -> Map<String, Value> {
    let keys = match object {
        "ipam.ranges[][]" | "ipam" => json!({ "subnet": "10.1.0.0/24" }),
        "ipam.routes[]" => json!({ "dst": "0.0.0.0/0" }),
        "runtimeConfig.portMappings[]" => json!({ "hostPort": 80, "containerPort": 80 }),
        "cni.dev/valid-attachments[]" => json!({ "containerID": "c", "ifname": "eth0" }),
        _ => json!({}),
    };
    keys.as_object().unwrap().clone()
}

/// A config with this value for a key, which may be inside objects and lists.
fn config(key: &str, value: Value) -> Value {
    let dots = key.replace("cni.dev", "cni:dev");
    let mut parts: Vec<String> = dots.split('.').map(|part| part.replace(':', ".")).collect();
    let mut inner = value;
    while let Some(part) = parts.pop() {
        let mut object = companions(&parts.join("."));
        let depth = part.matches("[]").count();
        let wrapped = (0..depth).fold(inner, |inner, _| json!([inner]));
        object.insert(part.trim_end_matches("[]").to_owned(), wrapped);
        inner = Value::Object(object);
    }
    let mut all =
        json!({ "cniVersion": "1.1.0", "name": "n", "type": "podwire-cni", "subnet": "10.1.0.0/24" });
    all.as_object_mut().unwrap().extend(inner.as_object().unwrap().clone());
    all
}

fn parse(config: &Value) -> Result<(), Error> {
    let raw = config.to_string();
    let parsed = NetworkConfig::from_slice(raw.as_bytes())?;
    LocalPaths::parse(&parsed)?;
    NetConf::parse(&parsed)?;
    if raw.contains("cni.dev") {
        let env = [("CNI_COMMAND", "GC"), ("CNI_PATH", "/opt/cni/bin")];
        let env = Env::from_vars(env.map(|(name, value)| (name.into(), value.into())));
        Request::parse(&env, raw.as_bytes()).map_err(|failure| failure.error)?;
    }
    Ok(())
}

#[test]
fn documented_keys_are_read_by_the_parser() {
    for row in rows("Keys") {
        let (key, kind) = (name(row[0]), row[1]);
        let wrong = match kind {
            "boolean" | "number" => json!("x"),
            "string" | "boolean or string" | "object" => json!(7),
            list if list.starts_with("list of") => json!(7),
            other => panic!("{key} has the type {other}"),
        };
        let error = parse(&config(key, wrong)).expect_err(key);
        let last = key.rsplit('.').next().unwrap();
        assert!(error.msg.contains(last), "{key}: {error}");
    }
}

#[test]
fn documented_refused_keys_are_refused() {
    for row in rows("Refused keys") {
        let key = name(row[0]);
        let error = parse(&config(key, json!(["10.1.0.0/24"]))).expect_err(key);
        assert_eq!(error.code, ErrorCode::UnsupportedField, "{key}: {error}");
    }
    let mut delegated = config("ipam.resolvConf", json!("/etc/resolv.conf"));
    delegated["ipam"]["type"] = json!("host-local");
    parse(&delegated).unwrap();
}

#[test]
fn documented_arguments_are_known() {
    for row in rows("CNI_ARGS") {
        let value = match name(row[0]) {
            "IP" => "10.1.0.5",
            "MAC" => "02:00:00:00:00:01",
            _ => "1",
        };
        Args::parse(&format!("{}={value}", key(row[0]))).unwrap();
    }
}

/// The parts of a source file before its tests, without comments.
fn source(path: &Path) -> String {
    let text = std::fs::read_to_string(path).unwrap();
    let code = text.split("#[cfg(test)]").next().unwrap();
    code.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

#[test]
fn keys_in_the_parser_are_documented() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut files: Vec<_> = ["args", "config", "dns", "runtime", "version"]
        .map(|file| crates.join(format!("cni/src/{file}.rs")))
        .into();
    for entry in std::fs::read_dir(crates.join("netconf/src")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|end| end == "rs") && !path.ends_with("tests.rs") {
            files.push(path);
        }
    }
    let tables = ["Keys", "Refused keys", "CNI_ARGS"].map(rows).concat();
    let documented: BTreeSet<&str> = tables
        .iter()
        .flat_map(|row| key(row[0]).split('.').chain([key(row[0])]))
        .map(|part| part.trim_end_matches("[]"))
        .collect();
    let is_name = |text: &&str| {
        text.len() > 1
            && text.starts_with(|c: char| c.is_ascii_alphabetic())
            && text.chars().all(|c| c.is_ascii_alphanumeric() || "_-./".contains(c))
    };
    let code: String = files.iter().map(|path| source(path)).collect();
    let literals: BTreeSet<&str> = code.split('"').filter(is_name).collect();
    let unknown: Vec<_> = literals.iter().filter(|literal| !documented.contains(**literal)).collect();
    assert_eq!(
        unknown,
        NOT_KEYS.iter().collect::<Vec<_>>(),
        "keys that are not documented, or no longer in the code"
    );
}

#[test]
fn documented_error_codes_are_all_codes() {
    let documented: Vec<String> = rows("Error codes").iter().map(|row| row[0].to_owned()).collect();
    assert_eq!(documented, ErrorCode::ALL.map(|code| code.number().to_string()));
}
