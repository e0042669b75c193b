//! Requests to the agent, and the plugin's output for each of the agent's answers.

use serde_json::{Value, json};
use testkit::{Call, Verb};

use crate::common::{Host, with, with_previous};
use crate::fake_agent::{FakeAgent, Reply, config, log_lines, result};
use crate::watch::{Watch, refused, refused_with};

#[test]
fn b2_requests_and_results_are_passed_unchanged() {
    let host = Host::new("b2");
    let agent = FakeAgent::new(&host.node, vec![Reply::result(), Reply::done()]);
    let (pod, config) = (host.pod("a"), config(&host, &json!({})));
    let watch = Watch::on(&host, &[&pod]);
    let args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0";
    let env = vec![("CNI_FUTURE".to_owned(), "x".to_owned()), ("OTHER".to_owned(), "y".to_owned())];
    let add = Call { args: Some(args.to_owned()), env, ..Call::pod(Verb::Add, &pod, &config) };
    assert_eq!(host.plugin.call(&host.node, &add).unwrap().ok().unwrap(), result());
    host.plugin.check(&pod, &config, &result()).unwrap().ok().unwrap();
    host.del(&pod, &with_previous(&config, &result()));
    host.plugin.gc(&host.node, &config, &[]).unwrap().ok().unwrap();
    let status = host.plugin.status(&host.node, &config).unwrap();
    assert_eq!((status.success(), status.stdout.as_str(), status.stderr.as_str()), (true, "", ""));
    let requests = agent.requests();
    let verbs: Vec<_> = requests.iter().map(|a| a.call["env"]["CNI_COMMAND"].as_str().unwrap()).collect();
    assert_eq!(verbs, ["ADD", "CHECK", "DEL", "GC", "STATUS"]);
    assert!(requests.iter().all(|a| a.line == "POST /v1/cni HTTP/1.1"), "{requests:?}");
    let call = &requests[0].call;
    assert_eq!(call["config"].as_str().unwrap().as_bytes(), add.stdin);
    let env = call["env"].as_object().unwrap();
    let names: Vec<_> = env.keys().map(String::as_str).collect();
    let expected =
        ["CNI_ARGS", "CNI_COMMAND", "CNI_CONTAINERID", "CNI_FUTURE", "CNI_IFNAME", "CNI_NETNS", "CNI_PATH"];
    assert_eq!(names, expected);
    assert_eq!((&env["CNI_ARGS"], &env["CNI_CONTAINERID"]), (&json!(args), &json!(pod.id())));
    let ids: std::collections::BTreeSet<_> =
        requests.iter().map(|a| a.call["requestId"].to_string()).collect();
    assert_eq!(ids.len(), 5, "request ids are not unique");
    watch.expect_same("the plugin changed the node");
    assert!(!host.node.run_dir().exists(), "the plugin created a run directory");
    let lines = log_lines(&host);
    assert_eq!(lines.len(), 5);
    let expected =
        json!(["ADD", "ok", true, call["requestId"], 1, ["10.88.0.7", "fd00:88::7"], "shop/web-0"]);
    let fields = ["command", "outcome", "agent", "requestId", "attempts", "addresses", "pod"];
    assert_eq!(json!(fields.map(|key| &lines[0][key])), expected);
    assert!(lines[0]["ms"].as_f64().is_some_and(|ms| ms > 0.0));
    assert!(lines[3].get("collected").is_none(), "the plugin does not know the number");
}

/// The plugin prints an error object in the version of the request and exits with 1.
#[test]
fn b4_b5_unsuccessful_answers_become_errors() {
    let cases: Vec<(Reply, u32, &[&str])> = vec![
        (Reply::Status(404, String::new()), 5, &["page not found", "agent.sock"]),
        (Reply::Status(403, "no".into()), 5, &["access denied"]),
        (Reply::error(500, 100, "no free address"), 100, &["no free address", "some details"]),
        (Reply::error(500, 7777, "unknown code"), 106, &["unknown code", "code 7777"]),
        (Reply::Status(500, String::new()), 6, &["cannot be read", "500"]),
        (Reply::Status(500, "oops {".into()), 6, &["cannot be read", "oops {"]),
        (Reply::json(500, &json!({"msg": "no code"})), 6, &["no code"]),
        (Reply::Status(418, "I am a teapot\n".into()), 5, &["I am a teapot", "418"]),
        (Reply::Status(418, String::new()), 5, &["418"]),
        (Reply::Status(200, String::new()), 6, &["cannot be read"]),
        (Reply::Status(200, "{".into()), 6, &["cannot be read"]),
        (Reply::json(200, &json!({})), 6, &["no result"]),
        (Reply::json(200, &json!({"result": {"ips": 7}})), 6, &["ips"]),
        (
            Reply::Raw("220 smtp ready\r\n\r\n"),
            6,
            &["agent.sock", "check that the agent listens on this socket"],
        ),
        (Reply::Raw("HTTP/1.1 200 OK\r\nContent-Length: 5000000\r\n\r\n"), 6, &["larger than"]),
    ];
    let host = Host::new("b4");
    let config = config(&host, &json!({"cniVersion": "0.4.0"}));
    let pod = host.pod("a");
    for (reply, code, words) in cases {
        let case = format!("{reply:?}");
        let agent = FakeAgent::new(&host.node, vec![reply]);
        let outcome = host.plugin.add(&pod, &config).unwrap();
        refused_with(&case, &outcome, (code, words));
        assert_eq!(outcome.json().unwrap()["cniVersion"], "0.4.0", "{case}");
        assert_eq!(agent.requests().len(), 1, "{case}: not retried");
    }
}

#[test]
fn b4_404_is_page_not_found_and_403_access_denied() {
    let host = Host::new("b4words");
    let (pod, config) = (host.pod("a"), config(&host, &json!({})));
    for (status, msg) in [(404, "page not found"), (403, "access denied")] {
        let _agent = FakeAgent::new(&host.node, vec![Reply::Status(status, "a text".to_owned())]);
        assert_eq!(refused(msg, &host.plugin.add(&pod, &config).unwrap()).msg, msg);
    }
}

/// The config is close to the size limit.
#[test]
fn b2_large_configs_and_chunked_answers_are_supported() {
    let host = Host::new("b2long");
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n";
    let agent = FakeAgent::new(&host.node, vec![Reply::Raw(chunked)]);
    let config = config(&host, &json!({"comment": "\"".repeat(500_000)}));
    host.plugin.status(&host.node, &config).unwrap().ok().unwrap();
    assert_eq!(agent.requests()[0].call["config"].as_str(), Some(config.to_string().as_str()));
}

#[test]
fn b2_invalid_requests_and_version_are_not_sent_to_the_agent() {
    let host = Host::new("b2bad");
    let agent = FakeAgent::new(&host.node, vec![Reply::result()]);
    let (pod, config) = (host.pod("a"), config(&host, &json!({})));
    let add = Call::pod(Verb::Add, &pod, &config);
    let call = |call: &Call| host.plugin.call(&host.node, call).unwrap();
    refused_with("no ifname", &call(&Call { ifname: None, ..add.clone() }), (4, &["CNI_IFNAME"]));
    refused_with("no JSON", &call(&Call { stdin: b"{".to_vec(), ..add }), (6, &["stdin"]));
    let bad = with(&config, &json!({"name": "-x"}));
    refused_with("bad name", &call(&Call::pod(Verb::Add, &pod, &bad)), (7, &["name"]));
    let relative = with(&config, &json!({"agent": "agent.sock"}));
    refused_with("bad socket", &call(&Call::pod(Verb::Add, &pod, &relative)), (7, &["agent", "absolute"]));
    let version = call(&Call::network(Verb::Version, &config)).ok().unwrap();
    assert_eq!(version["cniVersion"], "1.1.0");
    assert_eq!(agent.requests(), []);
}

/// An agent in a container cannot open a namespace that is not mounted into the container.
#[test]
fn f9_a_namespace_missing_for_the_agent_is_reported_with_a_hint() {
    let host = Host::new("f9");
    let _agent = FakeAgent::new(&host.node, vec![Reply::error(500, 3, "network namespace does not exist")]);
    let config = config(&host, &json!({}));
    let pod = host.pod("a");
    let path = pod.netns_path().display().to_string();
    let words = ["network namespace does not exist", "some details", "HostToContainer", &path];
    refused_with("existing namespace", &host.plugin.add(&pod, &config).unwrap(), (3, &words));
    pod.destroy_but_leave_file().unwrap();
    let error = refused("removed namespace", &host.plugin.add(&pod, &config).unwrap());
    assert_eq!((error.code, error.details.as_str()), (3, "some details"));
}

#[test]
fn e17_status_fails_with_50_or_51_and_the_reason() {
    let host = Host::new("e17agent");
    let config = config(&host, &json!({}));
    let status = || host.plugin.status(&host.node, &config).unwrap();
    refused_with("no agent", &status(), (50, &["does not answer", "agent.sock", "podwire agent"]));
    assert_eq!(status().error().unwrap().details, "AgentUnreachable: systemctl start podwire");
    let cases: Vec<(Reply, u32, &[&str])> = vec![
        (Reply::error(503, 11, "still starting"), 50, &["still starting", "some details"]),
        (Reply::error(503, 51, "pods are disconnected"), 51, &["pods are disconnected"]),
        (Reply::Status(503, "busy".into()), 50, &["busy"]),
        (Reply::error(500, 50, "no address left"), 50, &["no address left"]),
        (Reply::error(500, 51, "no masquerade"), 51, &["no masquerade"]),
        (
            Reply::Raw(""),
            50,
            &[
                "does not answer",
                "closed the connection before the answer was complete",
                "systemctl start podwire",
            ],
        ),
        (Reply::Status(404, String::new()), 50, &["page not found"]),
        (
            Reply::Status(200, "?".into()),
            50,
            &["cannot be read", "AgentUnreachable: systemctl restart podwire"],
        ),
    ];
    for (reply, code, words) in cases {
        let case = format!("{reply:?}");
        let _agent = FakeAgent::new(&host.node, vec![reply]);
        let outcome = status();
        refused_with(&case, &outcome, (code, words));
    }
}

#[test]
fn b9_invalid_requests_are_logged() {
    let host = Host::new("b9refused");
    let (pod, config) = (host.pod("a"), config(&host, &json!({})));
    let args = Some("K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0".to_owned());
    let add = Call { args, ..Call::pod(Verb::Add, &pod, &config) };
    let bad_name = with(&config, &json!({"name": "-x"})).to_string().into_bytes();
    let bad_version = with(&config, &json!({"cniVersion": 7})).to_string().into_bytes();
    let cases = [
        Call { ifname: Some("a/b".to_owned()), ..add.clone() },
        Call { stdin: bad_name, ..add.clone() },
        Call { stdin: bad_version, ..add },
        Call { env: vec![("CNI_COMMAND".into(), "JUMP".into())], ..Call::network(Verb::Add, &config) },
    ];
    for call in &cases {
        refused("an invalid request", &host.plugin.call(&host.node, call).unwrap());
    }
    let lines = log_lines(&host);
    let fields = |line: &Value| json!(["command", "outcome", "code", "network"].map(|key| line[key].clone()));
    let all: Vec<_> = lines.iter().map(fields).collect();
    let expected = [
        json!(["ADD", "failed", 4, "blue"]),
        json!(["ADD", "failed", 7, "-x"]),
        json!(["ADD", "failed", 6, "blue"]),
        json!(["JUMP", "failed", 4, "blue"]),
    ];
    assert_eq!(all, expected);
    assert_eq!((&lines[0]["pod"], &lines[0]["container"]), (&json!("shop/web-0"), &json!(pod.id())));
}
