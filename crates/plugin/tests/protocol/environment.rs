//! The variables: which verb needs which, what they may hold, and what CNI_ARGS means.

use std::fs;

use serde_json::{Value, json};
use testkit::{Call, Outcome, Verb, inspect};

use crate::common::{Host, ips, with};
use crate::watch::{Watch, dual, refused_with, wrapped};

const CONTAINER: &str = "CNI_CONTAINERID";
const NETNS: &str = "CNI_NETNS";
const IFNAME: &str = "CNI_IFNAME";

fn unset(call: &Call, variables: &[&str]) -> Call {
    let keep = |name: &str, value: &Option<String>| value.clone().filter(|_| !variables.contains(&name));
    Call {
        container: keep(CONTAINER, &call.container),
        netns: keep(NETNS, &call.netns),
        ifname: keep(IFNAME, &call.ifname),
        ..call.clone()
    }
}

fn emptied(call: &Call, variables: &[&str]) -> Call {
    let env = variables.iter().map(|&name| (name.to_owned(), String::new())).collect();
    Call { env, ..call.clone() }
}

#[test]
fn e2_missing_and_empty_variables_are_all_named() {
    let host = Host::new("e2");
    let config = dual(&host, &json!({}));
    let (pod, _) = host.attached("a", &config);
    let watch = Watch::on(&host, &[&pod]);
    let all: &[&str] = &[CONTAINER, NETNS, IFNAME];
    let cases = [
        (Verb::Add, vec![all, &[CONTAINER], &[NETNS], &[IFNAME], &[NETNS, IFNAME]]),
        (Verb::Check, vec![all, &[CONTAINER], &[NETNS], &[IFNAME], &[CONTAINER, NETNS]]),
        (Verb::Del, vec![&[CONTAINER, IFNAME], &[CONTAINER], &[IFNAME]]),
    ];
    for (verb, lacking) in cases {
        let call = Call::pod(verb, &pod, &config);
        for variables in lacking {
            for call in [unset(&call, variables), emptied(&call, variables)] {
                let case = format!("{} without {variables:?}", verb.as_str());
                let outcome = host.plugin.call(&host.node, &call).unwrap();
                let error = refused_with(&case, &outcome, (4, variables));
                for innocent in all.iter().filter(|name| !variables.contains(name)) {
                    assert!(!error.msg.contains(innocent), "{case}: {error:?}");
                }
            }
        }
    }
    watch.expect_same("calls without their variables");
}

#[test]
fn e2_bad_values_and_missing_ones_are_named_together() {
    let host = Host::new("e2both");
    let pod = host.pod("a");
    let call = Call {
        container: Some("-x".to_owned()),
        netns: None,
        ifname: Some("a/b".to_owned()),
        args: Some("no pair".to_owned()),
        ..Call::pod(Verb::Add, &pod, &dual(&host, &json!({})))
    };
    let outcome = host.plugin.call(&host.node, &call).unwrap();
    refused_with(
        "four bad ones",
        &outcome,
        (4, &[CONTAINER, "\"-x\"", NETNS, IFNAME, "\"a/b\"", "CNI_ARGS"]),
    );
}

#[test]
fn e2_verbs_ask_for_no_more_than_they_need() {
    let host = Host::new("e2less");
    let config = dual(&host, &json!({}));
    let pod = host.pod("a");
    let bare = wrapped(&host, "bare", "unset CNI_PATH CNI_ARGS; exec \"$PLUGIN\"");
    let add = bare.call(&host.node, &Call::pod(Verb::Add, &pod, &config)).unwrap();
    add.ok().unwrap();
    bare.status(&host.node, &config).unwrap().ok().unwrap();
    bare.version(&host.node).unwrap().ok().unwrap();
    let without_netns = Call { netns: None, ..Call::pod(Verb::Del, &pod, &config) };
    bare.call(&host.node, &without_netns).unwrap().ok().unwrap();
    assert!(inspect::link(&pod, "eth0").is_err(), "DEL without a namespace works all the same");
    refused_with("GC", &bare.gc(&host.node, &config, &[]).unwrap(), (4, &["CNI_PATH"]));
    host.plugin.gc(&host.node, &config, &[]).unwrap().ok().unwrap();
}

/// libcni sends these with VERSION.
#[test]
fn e2_version_takes_dummy_values() {
    let host = Host::new("e2dummy");
    let dummy = || Some("dummy".to_owned());
    let env = vec![("CNI_PATH".to_owned(), "dummy".to_owned())];
    let call = Call {
        container: dummy(),
        netns: dummy(),
        ifname: dummy(),
        env,
        ..Call::network(Verb::Version, &json!({"cniVersion": "0.4.0"}))
    };
    let answer = host.plugin.call(&host.node, &call).unwrap().ok().unwrap();
    assert_eq!(answer["cniVersion"], "0.4.0");
}

#[test]
fn e3_names_that_cannot_be_are_refused_on_add_and_del() {
    let host = Host::new("e3");
    let config = dual(&host, &json!({}));
    let (pod, _) = host.attached("a", &config);
    let watch = Watch::on(&host, &[&pod]);
    for verb in [Verb::Add, Verb::Del] {
        let call = Call::pod(verb, &pod, &config);
        for bad in ["-a", ".a", "_a", "a/b", "../../etc", "a b", "a\n", "ä", "a:b"] {
            let call = Call { container: Some(bad.to_owned()), ..call.clone() };
            refused_with(bad, &host.plugin.call(&host.node, &call).unwrap(), (4, &[CONTAINER]));
        }
        for bad in [".", "..", "a/b", "a:b", "a b", "a\tb", "sixteen-bytes-xx"] {
            let call = Call { ifname: Some(bad.to_owned()), ..call.clone() };
            refused_with(bad, &host.plugin.call(&host.node, &call).unwrap(), (4, &[IFNAME]));
        }
        for bad in [json!(""), json!("-a"), json!("a/b"), json!(".."), json!("a b"), Value::Null] {
            let call = Call::pod(verb, &pod, &with(&config, &json!({"name": bad})));
            refused_with(&bad.to_string(), &host.plugin.call(&host.node, &call).unwrap(), (7, &["name"]));
        }
    }
    watch.expect_same("bad names");
}

/// Any length is allowed, though file names, link names and aliases are short.
#[test]
fn e3_long_names_work() {
    let host = Host::new("e3long");
    let long = format!("a{}", "_.-Z9".repeat(200));
    let config = dual(&host, &json!({"name": long}));
    let pod = host.pod("a");
    let of = |verb, end: &str| Call {
        container: Some(format!("{long}{end}")),
        ifname: Some("fifteen-bytes-x".to_owned()),
        ..Call::pod(verb, &pod, &config)
    };
    let result = host.plugin.call(&host.node, &of(Verb::Add, "1")).unwrap().ok().unwrap();
    let other = Call { ifname: Some("eth1".to_owned()), ..of(Verb::Add, "2") };
    let second = host.plugin.call(&host.node, &other).unwrap().ok().unwrap();
    assert_ne!(ips(&result), ips(&second), "two containers whose ids differ at the end");
    host.plugin.call(&host.node, &of(Verb::Del, "1")).unwrap().ok().unwrap();
    assert!(inspect::link(&pod, "fifteen-bytes-x").is_err());
    assert!(inspect::link(&pod, "eth1").is_ok());
}

#[test]
fn e2_variables_that_are_no_text_are_named() {
    let host = Host::new("e2bytes");
    let pod = host.pod("a");
    for name in [CONTAINER, NETNS, IFNAME, "CNI_ARGS"] {
        let script = format!("export {name}=\"$(printf 'a\\377')\"; exec \"$PLUGIN\"");
        let bytes = wrapped(&host, &name.to_lowercase(), &script);
        let outcome = bytes.add(&pod, &dual(&host, &json!({}))).unwrap();
        refused_with(name, &outcome, (4, &[name, "UTF-8"]));
    }
    let bytes = wrapped(&host, "cni_command", "export CNI_COMMAND=\"$(printf 'A\\377')\"; exec \"$PLUGIN\"");
    let outcome = bytes.add(&pod, &dual(&host, &json!({}))).unwrap();
    refused_with("CNI_COMMAND", &outcome, (4, &["CNI_COMMAND"]));
}

#[test]
fn e8_the_plugins_own_namespace_is_refused_before_anything_is_done() {
    let host = Host::new("e8");
    let (pod, config) = (host.pod("a"), dual(&host, &json!({})));
    let watch = Watch::on(&host, &[]);
    let own = host.node.path().display().to_string();
    for path in [own.as_str(), "/proc/self/ns/net", "/proc/thread-self/ns/net"] {
        for value in ["", "0", "false", "no"] {
            let env = vec![("CNI_NETNS_OVERRIDE".to_owned(), value.to_owned())];
            let call = Call { netns: Some(path.to_owned()), env, ..Call::pod(Verb::Add, &pod, &config) };
            let outcome = host.plugin.call(&host.node, &call).unwrap();
            refused_with(path, &outcome, (4, &["CNI_NETNS", path, "CNI_NETNS_OVERRIDE"]));
        }
    }
    watch.expect_same("ADD into the node's own namespace");
    assert!(!host.node.run_dir().exists(), "not even a state directory was made");
}

fn insisting(host: &Host, verb: Verb, value: &str, config: &Value) -> Outcome {
    let env = vec![("CNI_NETNS_OVERRIDE".to_owned(), value.to_owned())];
    let call = Call {
        container: Some("insisting".to_owned()),
        netns: Some(host.node.path().display().to_string()),
        ifname: Some("eth0".to_owned()),
        env,
        ..Call::network(verb, config)
    };
    host.plugin.call(&host.node, &call).unwrap()
}

/// Whoever insists gets both ends of the pair in one namespace, and DEL takes both away.
#[test]
fn e8_the_override_insists() {
    let host = Host::new("e8override");
    let config = dual(&host, &json!({"isGateway": false, "isDefaultGateway": false}));
    host.attached("b", &config);
    let watch = Watch::on(&host, &[]);
    for value in ["1", "true", "TRUE"] {
        let result = insisting(&host, Verb::Add, value, &config).ok().unwrap();
        let has: Vec<_> = inspect::addresses(&host.node, "eth0").unwrap();
        assert!(ips(&result).iter().all(|ip| has.iter().any(|a| a.net.addr() == *ip)), "{has:?}");
        assert_eq!(result["interfaces"][2]["sandbox"], json!(host.node.path()));
        insisting(&host, Verb::Del, value, &config).ok().unwrap();
        watch.expect_same(value);
    }
}

/// Where the gateway is the namespace's own address, the kernel takes no route through it: refused, and undone.
#[test]
fn e8_the_override_cannot_route_through_itself() {
    let host = Host::new("e8self");
    let config = dual(&host, &json!({}));
    host.attached("b", &config);
    let watch = Watch::on(&host, &[]);
    refused_with("ADD", &insisting(&host, Verb::Add, "1", &config), (103, &["route", "local address"]));
    watch.expect_same("ADD");
    insisting(&host, Verb::Del, "1", &config).ok().unwrap();
    watch.expect_same("DEL");
}

#[test]
fn b1_cni_args_name_the_pod() {
    let host = Host::new("b1");
    let (pod, config) = (host.pod("a"), dual(&host, &json!({})));
    let args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0;K8S_POD_INFRA_CONTAINER_ID=c1;\
                K8S_POD_UID=0b5d;Other=x";
    let add = Call { args: Some(args.to_owned()), ..Call::pod(Verb::Add, &pod, &config) };
    host.plugin.call(&host.node, &add).unwrap().ok().unwrap();
    let record = host.node.run_dir().join(format!("networks/blue/attachments/{}@eth0.ready", pod.id()));
    let record: Value = serde_json::from_slice(&fs::read(record).unwrap()).unwrap();
    assert_eq!(record["pod"], json!({"namespace": "shop", "name": "web-0", "uid": "0b5d"}));
    let log = fs::read_to_string(host.node.log_file()).unwrap();
    let line: Value = serde_json::from_str(log.lines().last().unwrap()).unwrap();
    assert_eq!(line["pod"], "shop/web-0");
}

#[test]
fn b1_unknown_and_broken_args_are_refused_unless_told_otherwise() {
    let host = Host::new("b1bad");
    let config = dual(&host, &json!({}));
    let (running, _) = host.attached("a", &config);
    let pod = host.pod("b");
    let watch = Watch::on(&host, &[&running, &pod]);
    let cases: [(&str, &[&str]); 9] = [
        ("A=1;K8S_POD_NAME=x;B=2", &["A, B", "IgnoreUnknown=1"]),
        ("IgnoreUnknown=0;A=1", &["A", "IgnoreUnknown=1"]),
        ("k8s_pod_name=x", &["k8s_pod_name"]),
        ("IgnoreUnknown=maybe", &["IgnoreUnknown", "maybe"]),
        ("IgnoreUnknown=1;K8S_POD_NAME", &["K8S_POD_NAME"]),
        ("IgnoreUnknown=1;;K8S_POD_NAME=x", &["KEY=VALUE"]),
        ("IgnoreUnknown=1;K8S_POD_NAME=x=y", &["x=y"]),
        ("IP=10.88.0.300", &["IP", "10.88.0.300"]),
        ("MAC=01:00:5e:00:00:01", &["MAC"]),
    ];
    for (args, words) in cases {
        let call = |verb| Call { args: Some(args.to_owned()), ..Call::pod(verb, &pod, &config) };
        refused_with(args, &host.plugin.call(&host.node, &call(Verb::Add)).unwrap(), (4, words));
        host.plugin.call(&host.node, &call(Verb::Del)).unwrap().ok().unwrap();
    }
    watch.expect_same("bad CNI_ARGS");
    for args in ["A=1;IgnoreUnknown=true", "IgnoreUnknown=TRUE;A=", ""] {
        let call = |verb| Call { args: Some(args.to_owned()), ..Call::pod(verb, &pod, &config) };
        host.plugin.call(&host.node, &call(Verb::Add)).unwrap().ok().unwrap();
        host.plugin.call(&host.node, &call(Verb::Del)).unwrap().ok().unwrap();
    }
}
