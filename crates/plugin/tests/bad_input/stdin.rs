//! Stdin that is not a network config or exceeds the size limit.

use serde_json::json;
use testkit::{Call, Verb};

use crate::common::Host;
use crate::watch::{Watch, dual, refused_with};

const LIMIT: usize = 1 << 20;
const VERBS: [Verb; 5] = [Verb::Add, Verb::Del, Verb::Check, Verb::Gc, Verb::Status];

#[test]
fn e5_every_command_refuses_invalid_stdin_with_code_6() {
    let host = Host::new("e5stdin");
    let config = dual(&host, &json!({}));
    let (pod, _) = host.attached("a", &config);
    let watch = Watch::on(&host, &[&pod]);
    let valid = config.to_string();
    let deep = "[".repeat(100_000);
    let cases: [(&str, &[u8], &str); 12] = [
        ("empty", b"", "stdin is empty"),
        ("white space", b" \n\t ", "stdin is empty"),
        ("truncated", &valid.as_bytes()[..valid.len() / 2], "not JSON"),
        ("a trailing comma", br#"{"name": "n",}"#, "line 1 column"),
        ("two objects", br#"{"name": "n"} {"name": "n"}"#, "trailing characters"),
        ("a list", b"[]", "must be a JSON object"),
        ("null", b"null", "must be a JSON object"),
        ("a string", b"\n  \"net\"", "line 2 column 3"),
        ("a number out of range", br#"{"name": 1e999}"#, "number out of range"),
        ("not UTF-8", b"{\"name\": \"\xff\"}", "not JSON"),
        ("zero bytes", &[0; 100], "not JSON"),
        ("deep nesting", deep.as_bytes(), "recursion limit"),
    ];
    for (case, stdin, reason) in cases {
        for verb in VERBS {
            let call = Call { stdin: stdin.to_vec(), ..Call::pod(verb, &pod, &config) };
            let case = format!("{} of {case}", verb.as_str());
            refused_with(&case, &host.plugin.call(&host.node, &call).unwrap(), (6, &[reason]));
        }
    }
    watch.expect_same("stdin that is not a config");
}

#[test]
fn e5_the_size_limit_of_a_config_is_one_mebibyte() {
    let host = Host::new("e5size");
    let (pod, config) = (host.pod("a"), dual(&host, &json!({})));
    let watch = Watch::on(&host, &[&pod]);
    let padded = |length: usize| {
        let mut stdin = config.to_string().into_bytes();
        stdin.resize(length, b' ');
        stdin
    };
    for length in [LIMIT + 1, 8 * LIMIT] {
        for verb in VERBS {
            let call = Call { stdin: padded(length), ..Call::pod(verb, &pod, &config) };
            let outcome = host.plugin.call(&host.node, &call).unwrap();
            refused_with(verb.as_str(), &outcome, (6, &["stdin", "larger than 1048576 bytes"]));
        }
    }
    watch.expect_same("a config that is too large");
    let call = Call { stdin: padded(LIMIT), ..Call::pod(Verb::Add, &pod, &config) };
    host.plugin.call(&host.node, &call).unwrap().ok().unwrap();
}
