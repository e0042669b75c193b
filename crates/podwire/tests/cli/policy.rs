//! `podwire policy test` and `podwire explain`: verdicts from files, without an agent.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use crate::common::{Host, has};
use crate::schemas::expect_valid;

struct Files {
    host: Host,
}

impl Files {
    fn new(label: &str) -> Self {
        Self { host: Host::new(label) }
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path = self.host.node.dir().join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    }
}

fn example(name: &str) -> String {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    fs::read_to_string(root.join("deploy/examples").join(name)).unwrap()
}

fn shop(files: &Files) -> [String; 2] {
    ["shop.yaml", "shop-test.yaml"].map(|name| files.write(name, &example(name)))
}

#[test]
fn d_policies_in_files_are_compared_with_expected_verdicts() {
    let files = Files::new("policytest");
    let [objects, cases] = shop(&files);
    let tested = files.host.run(&["policy", "test", "-f", &objects, "-f", &cases]);
    assert!(tested.success(), "{tested:?}");
    has(&tested.stdout, &["8 cases: all verdicts are as expected"]);
    let json = files.host.run(&["policy", "test", "-f", &objects, "-f", &cases, "-o", "json"]);
    expect_valid("policy-test", &json.stdout);

    let wrong = files.write(
        "wrong.yaml",
        &example("shop-test.yaml").replace("to: shop/db, port: 5432", "to: shop/db, port: 5433"),
    );
    let tested = files.host.run(&["policy", "test", "-f", &objects, "-f", &wrong]);
    assert_eq!(tested.status.code(), Some(1), "{tested:?}");
    has(
        &tested.stdout,
        &[
            "FAILED: deny",
            "wrong.yaml:",
            "case 1",
            "network policy: drop (isolated in namespace shop by db",
            "1 with another verdict",
        ],
    );
    let json = files.host.run(&["policy", "test", "-f", &objects, "-f", &wrong, "-o", "json"]);
    expect_valid("policy-test", &json.stdout);
    let answer: Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(
        (&answer["cases"][0]["expected"], &answer["cases"][0]["verdict"]),
        (&"allow".into(), &"deny".into())
    );
}

#[test]
fn d_explain_names_the_deciding_rule() {
    let files = Files::new("explain");
    let [objects, cases] = shop(&files);
    let explain =
        |args: &[&str]| files.host.run(&[&["explain"], args, &["-f", &objects, "-f", &cases]].concat());
    let allowed = explain(&["shop/web", "shop/db", "--port", "5432"]);
    assert_eq!(allowed.status.code(), Some(0), "{allowed:?}");
    has(&allowed.stdout, &["verdict: accept", "NetworkPolicy shop/db"]);
    let denied = explain(&["other/client", "shop/web", "--port", "80"]);
    assert_eq!(denied.status.code(), Some(1), "{denied:?}");
    has(&denied.stdout, &["verdict: drop", "tenant: drop ("]);
    let mail = explain(&["group:shop/web", "2001:db8::25", "--port", "25"]);
    assert_eq!(mail.status.code(), Some(1), "{mail:?}");
    has(&mail.stdout, &["group: drop (", "no-mail"]);
}

#[test]
fn d_lists_of_kubectl_are_read_and_other_kinds_are_named() {
    let files = Files::new("lists");
    let pod = r#"{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "namespace": "x"}, "status": {"podIPs": [{"ip": "10.83.0.9"}]}}"#;
    let deployment = r#"{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a"}}"#;
    let list = format!(r#"{{"apiVersion": "v1", "kind": "List", "items": [{pod}, {deployment}]}}"#);
    let list = files.write("list.json", &list);
    let explained = files.host.run(&["explain", "world", "x/a", "--port", "80", "-f", &list]);
    assert_eq!(explained.status.code(), Some(0), "{explained:?}");
    has(&explained.stdout, &["pod x/a on node node (10.83.0.9)"]);
    has(&explained.stderr, &["ignored documents that do not decide about flows: 1 Deployment"]);
}

#[test]
fn d_all_errors_of_all_files_are_reported_and_nothing_is_judged() {
    let files = Files::new("badfiles");
    let bad = files.write(
        "bad.yaml",
        "apiVersion: podwire.io/v1alpha1\nkind: Group\nmetadata: {name: web}\nspec: {network: nothing}\n---\n\
         apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: p, namespace: x}\n\
         spec: {podSelector: {}, ingress: [{ports: [{port: 99999}]}]}\n",
    );
    let tested = files.host.run(&["policy", "test", "-f", &bad]);
    assert_eq!((tested.status.code(), tested.stdout.as_str()), (Some(1), ""), "{tested:?}");
    has(&tested.stderr, &["bad.yaml:1", "nothing", "bad.yaml:6: NetworkPolicy", "99999"]);
    let [objects, cases] = shop(&files);
    let none = files.host.run(&["policy", "test", "-f", &objects]);
    assert_eq!(none.status.code(), Some(2), "{none:?}");
    has(&none.stderr, &["kind PolicyTest"]);
    for (args, message) in [
        (&["shop/wbe", "shop/db", "--port", "1"][..], "did you mean shop/web?"),
        (&["shop/web", "shop/db"], "protocol tcp needs a port"),
        (&["shop/web", "shop/db", "--proto", "icmp", "--port", "1"], "has no ports"),
        (&["group:shop/none", "world", "--port", "1"], "described are shop/web"),
    ] {
        let refused = files.host.run(&[&["explain"], args, &["-f", &objects, "-f", &cases]].concat());
        assert!(!refused.success() && refused.stdout.is_empty(), "{refused:?}");
        has(&refused.stderr, &[message]);
    }
}
