use serde_json::{Value, json};
use testkit::{Call, Verb};

use crate::common::{Host, document, has, tenant_blue};

#[test]
fn pods_are_listed_as_table_and_json() {
    let host = Host::new("pods");
    assert!(host.ask(&["pods"]).stdout.starts_with("no pods in "));
    let pod = host.node.pod("a").unwrap();
    host.plugin.add(&pod, &host.standalone()).unwrap().ok().unwrap();
    let table = host.ask(&["pods"]).stdout;
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines.len(), 3, "{table}");
    assert_eq!(lines[0].split_whitespace().collect::<Vec<_>>(), ["POD", "ADDRESSES", "PHASE", "AGE"]);
    has(lines[1], &[pod.id(), "  10.50.0.2  ", "  ready  "]);
    assert_eq!(lines[2].trim(), "fd00:50::2", "{table}");
    let wide = host.ask(&["pods", "-o", "wide"]).stdout;
    assert_eq!(wide.lines().count(), 2, "{wide}");
    let all = ["10.50.0.2 fd00:50::2", "bridge", "ready", "eth0", pod.id(), "default/default-net/-", "pods "];
    has(wide.lines().nth(1).unwrap(), &all);
    let json: Value = serde_json::from_str(&host.ask(&["pods", "-o", "json"]).stdout).unwrap();
    let json = &json["attachments"];
    assert_eq!((&json[0]["phase"], &json[0]["network"]), (&json!("ready"), &json!("pods")));
    assert_eq!(json[0]["record"]["containerId"], pod.id());
    assert_eq!(json[0]["record"]["addresses"][1]["address"], "fd00:50::2/64");
    assert!(host.plugin.del(&pod, &host.standalone()).unwrap().success());
    assert!(host.ask(&["pods"]).stdout.starts_with("no pods in "));
}

#[test]
fn b11_a_pod_without_addresses_is_shown_as_layer_2() {
    let host = Host::new("pods-l2");
    let mut config = host.standalone();
    config.as_object_mut().unwrap().remove("subnet");
    let pod = host.node.pod("a").unwrap();
    host.plugin.add(&pod, &config).unwrap().ok().unwrap();
    has(&host.ask(&["pods", "-o", "wide"]).stdout, &["none (layer 2)", "bridge", "ready"]);
    let shown = host.ask(&["attachment", "show", pod.id()]).stdout;
    has(&shown, &["none (layer 2)", "MAC only"]);
    let outcome = host.ask(&["cleanup"]);
    assert!(outcome.success(), "{}{}", outcome.stdout, outcome.stderr);
}

/// B10: tenant, network and group are recorded from the config.
#[test]
fn b10_placement_of_pods_is_shown_with_and_without_agent() {
    let host = Host::new("placement");
    let mut agent = host.agent(&["--no-install"]);
    host.apply(&tenant_blue());
    let config = agent.config(&json!({ "tenant": "blue", "network": "front", "group": "web" }));
    let pod = host.node.pod("a").unwrap();
    let container = "0123456789abcdef".repeat(4);
    let call = Call {
        container: Some(container.clone()),
        args: Some("IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-1".to_owned()),
        ..Call::pod(Verb::Add, &pod, &config)
    };
    host.plugin.call(&host.node, &call).unwrap().ok().unwrap();
    let other = host.node.pod("b").unwrap();
    host.plugin.add(&other, &host.standalone()).unwrap().ok().unwrap();
    let table = host.ask(&["pods", "-o", "wide"]).stdout;
    has(&table.split_whitespace().collect::<Vec<_>>().join(" "), &["shop/web-1 0123456789ab eth0"]);
    has(&table, &["blue/front/web", "routed", "CNI NETWORK", "10.50.0.2"]);
    // The API has the same data.
    let answer: Value = agent.get(api::ATTACHMENTS).unwrap();
    let json = || serde_json::from_str::<Value>(&host.ask(&["pods", "-o", "json"]).stdout).unwrap();
    assert_eq!(sorted(&answer), sorted(&json()));
    agent.kill().unwrap();
    let without_age = |table: &str| {
        table.lines().map(|line| line.rsplit_once(' ').unwrap().0.trim().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(without_age(&host.ask(&["pods", "-o", "wide"]).stdout), without_age(&table));
}

/// The records are lost. The aliases of the links have the placements.
#[test]
fn a9_recovered_pods_have_their_placement_or_none() {
    let host = Host::new("recovered");
    let mut agent = host.agent(&["--no-install"]);
    // The alias has no space for a placement with long names.
    let [long_tenant, long_network, long_group] = ["t", "n", "g"].map(|letter| letter.repeat(63));
    let long = json!({ "tenant": long_tenant, "network": long_network, "group": long_group });
    let subnets = |subnet: &str| json!({ "subnets": [subnet] });
    host.apply(&tenant_blue());
    host.apply(&[
        document("Tenant", ("", &long_tenant), &json!({})),
        document("Network", (&long_tenant, &long_network), &subnets("10.92.0.0/16")),
        document("Group", (&long_tenant, &long_group), &json!({ "network": long_network })),
        document("Tenant", ("", "red"), &json!({ "defaultNetwork": "back" })),
        document("Network", ("red", "back"), &subnets("10.93.0.0/16")),
        document("Group", ("red", "db"), &json!({ "network": "back" })),
    ]);
    let pods = [
        ("placed", json!({ "tenant": "blue", "network": "front", "group": "web" }), "blue/front/web"),
        ("plain", json!({}), "default/default-net/-"),
        ("long", long, "unplaced"),
        ("older", json!({ "tenant": "red", "network": "back", "group": "db" }), "unplaced"),
    ]
    .map(|(name, more, wanted)| {
        let pod = host.node.pod(name).unwrap();
        let result = host.plugin.add(&pod, &agent.config(&more)).unwrap().ok().unwrap();
        (pod, result["interfaces"][1]["name"].as_str().unwrap().to_owned(), wanted)
    });
    agent.kill().unwrap();
    // The alias in the format of the previous version.
    let (pod, link, _) = &pods[3];
    let alias = format!("podwire:podwire/{}/eth0 10.83.0.5/32 fd00:88::5/128", pod.id());
    host.node.sh(&["ip", "link", "set", link, "alias", &alias]).unwrap();
    std::fs::remove_dir_all(agent.run_dir()).unwrap();
    agent.launch().unwrap();
    agent.wait_ready().unwrap();
    let table = host.ask(&["pods", "-o", "wide"]).stdout;
    for (pod, link, wanted) in &pods {
        let line =
            table.lines().find(|line| line.contains(link.as_str())).unwrap_or_else(|| panic!("{table}"));
        has(line, &[wanted]);
        // The link has no creation time.
        assert!(line.trim_end().ends_with(" unknown"), "{line}");
        let shown = host.ask(&["attachment", "show", pod.id()]).stdout;
        assert!(shown.contains("ready, recovered from its link") && !shown.contains("1970-"), "{shown}");
        assert_eq!(shown.contains("unplaced"), *wanted == "unplaced", "{shown}");
    }
    let list: Value = serde_json::from_str(&host.ask(&["pods", "-o", "json"]).stdout).unwrap();
    for attachment in list["attachments"].as_array().unwrap() {
        assert_eq!(attachment["record"].get("createdAt"), Some(&Value::Null), "{attachment}");
    }
    // The records stay the same after another restart.
    agent.restart().unwrap();
    agent.wait_ready().unwrap();
    assert_eq!(host.ask(&["pods", "-o", "wide"]).stdout.matches("unplaced").count(), 2);
}

fn sorted(list: &Value) -> Vec<String> {
    let mut all: Vec<String> =
        list["attachments"].as_array().unwrap().iter().map(ToString::to_string).collect();
    all.sort();
    all
}

/// B16: podman passes a name without a namespace, cnitool passes none.
#[test]
fn b16_containers_without_kubernetes_name_show_name_or_id() {
    let host = Host::new("names");
    let agent = host.agent(&["--no-install"]);
    for (config, container) in [(host.standalone(), "ab"), (agent.config(&json!({})), "cd")] {
        let add = |name: &str, args: Option<&str>, digit: &str| {
            let pod = host.node.pod(&format!("{name}{container}")).unwrap();
            let call = Call {
                container: Some(format!("{digit}{container}{container}").repeat(12)),
                args: args.map(str::to_owned),
                ..Call::pod(Verb::Add, &pod, &config)
            };
            host.plugin.call(&host.node, &call).unwrap().ok().unwrap();
            pod
        };
        let _podman = add("podman", Some("IgnoreUnknown=1;K8S_POD_NAME=web"), "1");
        let _cnitool = add("cnitool", None, "2");
        let table = host.ask(&["pods", "-o", "wide"]).stdout;
        let id = |digit: &str| format!("{digit}{container}{container}").repeat(12)[..12].to_owned();
        let words: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
        for (name, id) in [("web".to_owned(), id("1")), (id("2"), id("2"))] {
            let pair = [name.as_str(), id.as_str()];
            assert!(words.iter().any(|line| line.windows(2).any(|two| two == pair)), "{pair:?} in {table}");
        }
        assert!(!words.iter().skip(1).any(|line| line[1] == "-"), "{table}");
    }
}

#[test]
fn a3_unreadable_records_are_not_an_empty_list() {
    let host = Host::new("broken");
    let pod = host.node.pod("a").unwrap();
    host.plugin.add(&pod, &host.standalone()).unwrap().ok().unwrap();
    let records = host.node.run_dir().join("networks/pods/attachments");
    let record = std::fs::read_dir(records).unwrap().next().unwrap().unwrap().path();
    std::fs::write(record, "{").unwrap();
    let outcome = host.ask(&["pods"]);
    assert_eq!(outcome.status.code(), Some(1), "{outcome:?}");
    assert!(!outcome.stdout.contains("no pods"), "{outcome:?}");
    has(&outcome.stderr, &["cannot be read"]);
}

/// The runtime has removed the pod, and the agent does not run to process the DEL.
#[test]
fn a_pod_with_a_pending_del_is_shown_as_deleting() {
    let host = Host::new("deleting");
    let mut agent = host.agent(&["--no-install"]);
    let config = agent.config(&json!({}));
    let pods = ["a", "b"].map(|name| host.node.pod(name).unwrap());
    for pod in &pods {
        host.plugin.add(pod, &config).unwrap().ok().unwrap();
    }
    agent.kill().unwrap();
    assert!(host.plugin.del(&pods[0], &config).unwrap().success());
    let phase = |pod: &testkit::Pod| {
        let list: Value = serde_json::from_str(&host.ask(&["pods", "-o", "json"]).stdout).unwrap();
        let all = list["attachments"].as_array().unwrap().clone();
        all.into_iter().find(|one| one["record"]["containerId"] == pod.id()).unwrap()["phase"].take()
    };
    assert_eq!([&pods[0], &pods[1]].map(phase), [json!("deleting"), json!("ready")]);
    let table = host.ask(&["pods"]).stdout;
    let row = table.lines().find(|line| line.starts_with(pods[0].id())).unwrap();
    has(row, &["  deleting  "]);
    has(&host.ask(&["attachment", "show", pods[0].id()]).stdout, &["deleting, created "]);
}

#[test]
fn interface_and_container_are_shown_if_names_are_ambiguous() {
    let host = Host::new("ambiguous");
    let header = || host.ask(&["pods"]).stdout.lines().next().unwrap().to_owned();
    let add = |pod: &testkit::Pod, ifname: &str, name: &str| {
        let call = Call {
            ifname: Some(ifname.to_owned()),
            args: Some(format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME={name}")),
            ..Call::pod(Verb::Add, pod, &host.standalone())
        };
        host.plugin.call(&host.node, &call).unwrap().ok().unwrap();
    };
    let [a, b] = ["a", "b"].map(|name| host.node.pod(name).unwrap());
    add(&a, "eth0", "web");
    assert!(!header().contains("IF") && !header().contains("CONTAINER"), "{}", header());
    add(&a, "eth1", "web");
    assert!(header().contains("IF") && !header().contains("CONTAINER"), "{}", header());
    add(&b, "eth1", "web");
    assert!(header().contains("IF") && header().contains("CONTAINER"), "{}", header());
}
