use model::{API_VERSION, ClusterObject};
use proptest::prelude::*;
use serde_json::json;

use super::*;

fn values(text: &str) -> Vec<Value> {
    parse("f.yaml", text.as_bytes()).unwrap().into_iter().map(|document| document.body).collect()
}

fn refused(text: &str) -> String {
    let error = parse("f.yaml", text.as_bytes()).expect_err(text).to_string();
    assert!(error.starts_with("f.yaml") && error.len() < 600, "{error}");
    error
}

#[test]
fn d_a_file_has_several_documents_with_their_lines() {
    let text = "# tenants\n---\nkind: Tenant\nmetadata: {name: blue}\n---\n---\nkind: Group\nspec:\n  pools:\n  - 10.1.0.0/24\n";
    let documents = parse("f.yaml", text.as_bytes()).unwrap();
    assert_eq!(documents.len(), 2);
    assert_eq!(documents[0].body, json!({ "kind": "Tenant", "metadata": { "name": "blue" } }));
    assert_eq!(documents[1].body, json!({ "kind": "Group", "spec": { "pools": ["10.1.0.0/24"] } }));
    assert_eq!((documents[0].origin.as_str(), documents[1].origin.as_str()), ("f.yaml:3", "f.yaml:7"));
}

#[test]
fn d_json_is_read() {
    let text = r#"{"kind": "Tenant", "spec": {"nodes": "deny", "x": [1, true, null]}}"#;
    assert_eq!(
        values(text),
        [json!({ "kind": "Tenant", "spec": { "nodes": "deny", "x": [1, true, null] } })]
    );
}

#[test]
fn d_words_that_look_like_booleans_are_names() {
    assert_eq!(
        values("{a: no, b: on, c: y, d: true, e: 1, f: '1'}"),
        [json!({ "a": "no", "b": "on", "c": "y", "d": true, "e": 1, "f": "1" })]
    );
}

#[test]
fn d_aliases_nesting_size_and_duplicate_keys_are_refused() {
    let bomb = "a: &a [x,x]\nb: &b [*a,*a]\nc: [*b,*b]\n";
    assert!(refused(bomb).contains("anchor"), "{}", refused(bomb));
    refused("<<: {a: 1}\n");
    refused(&format!("a: {}{}", "[".repeat(40), "]".repeat(40)));
    refused(&format!("a: {}{}", "[".repeat(100_000), "]".repeat(100_000)));
    let block: String = (0..40).map(|depth| format!("{}a:\n", " ".repeat(depth))).collect();
    refused(&block);
    refused(&"- ".repeat(100_000));
    assert!(refused(&"x".repeat(MAX_SIZE + 1)).contains("too large"));
    let twice = refused("kind: Tenant\nkind: Group\n");
    assert!(twice.contains("kind") && twice.contains("line 2"), "{twice}");
    refused(&"---\na: 1\n".repeat(MAX_DOCUMENTS + 1));
}

#[test]
fn d_invalid_text_is_refused_with_its_line() {
    assert!(refused("kind: Tenant\n  spec: : {\n").contains("line 2"));
    assert!(refused("").contains("no documents"));
    assert!(refused("# nothing\n---\n").contains("no documents"));
    assert!(parse("f", b"\xff\xfe\x00").unwrap_err().to_string().contains("not UTF-8"));
    let hostile = refused("\"\u{1b}]0;x\u{7}\": *\u{1b}[31m\n");
    assert!(!hostile.contains('\u{1b}'), "{hostile:?}");
}

#[test]
fn d_objects_round_trip_as_yaml() {
    let rule = json!({ "id": 3, "direction": "in", "priority": 5, "peer": { "group": "no" }, "protocol": "tcp", "port": "80-90", "action": "allow" });
    let spec = json!({ "rules": [rule] });
    let document = json!({ "apiVersion": API_VERSION, "kind": "Policy", "metadata": { "name": "1e3", "tenant": "true" }, "spec": spec });
    let object = ClusterObject::from_document(document.clone()).unwrap();
    let text = to_yaml(&[document.clone(), document.clone()]).unwrap();
    let read = values(&text);
    assert_eq!(read, [document.clone(), document]);
    assert_eq!(ClusterObject::from_document(read[0].clone()), Ok(object), "{text}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn d_no_text_causes_a_panic(text in any::<String>(), yaml in "[-a&*:\\[\\]{}<!|>'\"#,% \n]{0,60}", bytes in any::<Vec<u8>>()) {
        for input in [text.as_bytes(), yaml.as_bytes(), &bytes] {
            if let Ok(documents) = parse("f", input) {
                for document in documents {
                    let _any_result = ClusterObject::from_document(document.body);
                }
            }
        }
    }
}
