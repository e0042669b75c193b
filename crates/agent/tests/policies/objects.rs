//! Objects in the API: checked together before the first change, and kept for a start without the store.

use serde_json::json;

use crate::scene::{Scene, document, network, tenant};

#[test]
fn d_invalid_documents_change_nothing() {
    let scene = Scene::new("objects", &[]);
    let group = document("Group", ("blue", "web"), &json!({ "network": "front", "policies": ["missing"] }));
    let (status, answer) = scene.change(&[tenant("blue"), network("blue", "front"), group], &[], false);
    assert_eq!(status, 400, "{answer}");
    assert!(
        answer["error"].as_str().unwrap().contains("policy missing of tenant blue does not exist"),
        "{answer}"
    );
    let (status, answer) = scene.change(&[tenant("blue")], &[], true);
    assert_eq!((status, &answer["steps"][0]["action"]), (200, &json!("create")), "{answer}");
    let kinds = scene.host.agent.get("/v1/objects/tenants").unwrap();
    assert_eq!(kinds["items"].as_array().unwrap().len(), 1, "{kinds}");
}

#[test]
fn d_objects_in_use_cannot_be_removed() {
    let scene = Scene::new("objects-use", &[]);
    scene.apply(&[
        tenant("blue"),
        network("blue", "front"),
        document("Group", ("blue", "web"), &json!({ "network": "front" })),
    ]);
    let pod = scene.pod("a", "blue", "web");
    let (status, answer) = scene.change(&[], &[("Group", "blue", "web")], false);
    assert_eq!(status, 409, "{answer}");
    assert!(answer["error"].as_str().unwrap().contains("in use by 1 pod"), "{answer}");
    scene.host.del(&pod.pod);
    scene.remove(&[("Tenant", "", "blue"), ("Group", "blue", "web"), ("Network", "blue", "front")]);
    let (status, answer) = scene.change(&[], &[("Tenant", "", "blue")], false);
    assert_eq!(status, 404, "{answer}");
}

const YAML: &str = "\
apiVersion: podwire.io/v1alpha1
kind: Tenant
metadata: {name: blue}
spec: {}
---
apiVersion: podwire.io/v1alpha1
kind: Share
metadata: {name: dns, tenant: blue}
spec: {ports: [udp/53]}
";

#[test]
fn d_the_command_applies_shows_and_deletes_documents_of_a_file() {
    let scene = Scene::new("objects-cli", &[]);
    let agent = &scene.host.agent;
    let file = scene.host.lab.dir().join("objects.yaml");
    std::fs::write(&file, YAML).unwrap();
    let (file, run_dir) = (file.to_str().unwrap(), agent.run_dir().to_str().unwrap());
    let podwire = |args: &[&str]| {
        let args: Vec<&str> = args.iter().copied().chain(["--run-dir", run_dir]).collect();
        agent.podwire(&args).unwrap()
    };
    let run = |args: &[&str]| {
        let done = podwire(args);
        assert!(done.success(), "{args:?}: {done:?}");
        done.stdout
    };
    let checked = run(&["apply", "-f", file, "--dry-run"]);
    assert_eq!(checked, "tenant blue would be created\nshare dns of tenant blue would be created\n");
    assert_eq!(run(&["apply", "-f", file]), "tenant blue created\nshare dns of tenant blue created\n");
    scene.wait_for_table(true);
    assert_eq!(run(&["apply", "-f", file]), "tenant blue unchanged\nshare dns of tenant blue unchanged\n");
    let shown = run(&["get", "share", "dns", "--tenant", "blue", "-o", "yaml"]);
    std::fs::write(file, &shown).unwrap();
    assert_eq!(run(&["apply", "-f", file]), "share dns of tenant blue unchanged\n", "{shown}");
    assert!(run(&["get", "shares"]).contains("udp/53"));
    let refused = podwire(&["delete", "tenant", "blue"]);
    assert!(!refused.success() && refused.stderr.contains("in use by share dns"), "{refused:?}");
    std::fs::write(file, YAML).unwrap();
    assert_eq!(run(&["delete", "-f", file]), "share dns of tenant blue deleted\ntenant blue deleted\n");
    scene.wait_for_table(false);
}
