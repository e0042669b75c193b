//! Exit status, stdout and stderr.

use serde_json::{Value, json};
use testkit::{Call, Outcome, Verb};

use crate::common::{Host, with, with_previous};
use crate::watch::{Watch, dual, refused, refused_with, wrapped};

#[track_caller]
fn silent(case: &str, outcome: &Outcome) {
    assert_eq!(outcome.status.code(), Some(0), "{case}: {outcome:?}");
    assert_eq!((outcome.stdout.as_str(), outcome.stderr.as_str()), ("", ""), "{case}");
}

/// Parsing as one value fails where a log line stands beside it.
#[track_caller]
fn one_value(case: &str, outcome: &Outcome) -> Value {
    assert_eq!(outcome.status.code(), Some(0), "{case}: {outcome:?}");
    assert_eq!(outcome.stderr, "", "{case}");
    assert_eq!(outcome.stdout.lines().count(), 1, "{case}: {}", outcome.stdout);
    outcome.json().unwrap()
}

#[test]
fn e1_stdout_holds_one_value_for_add_and_version_and_nothing_else_ever() {
    let host = Host::new("e1");
    let config = dual(&host, &json!({}));
    let pod = host.pod("a");
    silent("STATUS of a fresh node", &host.plugin.status(&host.node, &config).unwrap());
    let result = one_value("ADD", &host.plugin.add(&pod, &config).unwrap());
    assert_eq!(result["cniVersion"], "1.1.0");
    silent("CHECK", &host.plugin.check(&pod, &config, &result).unwrap());
    silent("STATUS", &host.plugin.status(&host.node, &config).unwrap());
    silent("GC", &host.plugin.gc(&host.node, &config, &[(pod.id(), "eth0")]).unwrap());
    silent("CHECK after GC", &host.plugin.check(&pod, &config, &result).unwrap());
    let version = one_value("VERSION", &host.plugin.version(&host.node).unwrap());
    assert_eq!(version["cniVersion"], "1.1.0");
    silent("DEL", &host.plugin.del(&pod, &with_previous(&config, &result)).unwrap());
    silent("second DEL", &host.plugin.del(&pod, &config).unwrap());
    assert!(host.node.log_file().is_file(), "all of that was logged, and none of it on stdout");
}

#[test]
fn e1_b5_every_verb_fails_with_exit_1_and_an_error_object() {
    let host = Host::new("b5");
    let pod = host.pod("a");
    let bad = dual(&host, &json!({"name": "/"}));
    for verb in [Verb::Add, Verb::Del, Verb::Check, Verb::Gc, Verb::Status] {
        let outcome = host.plugin.call(&host.node, &Call::pod(verb, &pod, &bad)).unwrap();
        refused_with(verb.as_str(), &outcome, (7, &["name", "\"/\""]));
        assert_eq!(outcome.stderr, "", "{}", verb.as_str());
        assert_eq!(outcome.stdout.lines().count(), 1, "{}", outcome.stdout);
    }
}

#[test]
fn b5_an_error_stays_an_error_object_when_the_log_cannot_be_opened() {
    let host = Host::new("b5log");
    let pod = host.pod("a");
    let config = dual(&host, &json!({"logFile": host.node.dir(), "bridge": "lo"}));
    let outcome = host.plugin.add(&pod, &config).unwrap();
    refused_with("no log", &outcome, (7, &["lo exists but is a"]));
    assert!(outcome.stderr.contains("cannot write the log"), "{}", outcome.stderr);
}

/// A runtime that cannot read the result takes the ADD for failed: the status must not say otherwise.
#[test]
fn b5_an_answer_that_cannot_be_written_is_a_failure() {
    let host = Host::new("b5full");
    let (pod, config) = (host.pod("a"), dual(&host, &json!({})));
    let full = wrapped(&host, "full", "exec \"$PLUGIN\" >/dev/full");
    // A pipe whose reader has gone: it is told, and the plugin is not killed by a signal in the middle.
    let pipe = host.node.dir().join("pipe").display().to_string();
    let unread =
        format!("rm -f {pipe}; mkfifo {pipe}; exec 3<>{pipe} 4>{pipe}; exec 3<&-; exec \"$PLUGIN\" >&4 4>&-");
    let unread = wrapped(&host, "unread", &unread);
    for plugin in [&full, &unread] {
        for call in [Call::pod(Verb::Add, &pod, &config), Call::network(Verb::Version, &config)] {
            let outcome = plugin.call(&host.node, &call).unwrap();
            assert_eq!(outcome.status.code(), Some(1), "{outcome:?}");
            assert!(outcome.stderr.contains("stdout"), "{}", outcome.stderr);
        }
        host.del(&pod, &config);
    }
    host.add(&pod, &config);
}

#[test]
fn e4_an_unknown_command_is_named_exactly() {
    let host = Host::new("e4");
    let pod = host.pod("a");
    let watch = Watch::on(&host, &[&pod]);
    for command in ["add", "Add", "ADD ", "UPDATE", "x=y"] {
        let env = vec![("CNI_COMMAND".to_owned(), command.to_owned())];
        let call = Call { env, ..Call::pod(Verb::Add, &pod, &dual(&host, &json!({}))) };
        let error = refused(command, &host.plugin.call(&host.node, &call).unwrap());
        assert_eq!((error.code, error.msg), (4, format!("unknown CNI_COMMAND: {command}")));
    }
    watch.expect_same("unknown commands");
}

#[test]
fn e4_without_a_command_it_says_what_it_is_on_stderr() {
    let host = Host::new("e4about");
    let path = host.plugin.path.display().to_string();
    for before in ["-uCNI_COMMAND", "CNI_COMMAND=", "-i"] {
        let argv = ["env", before, &path];
        let outcome = host.node.run(&argv, b"not even JSON").unwrap();
        assert_eq!((outcome.status.code(), outcome.stdout.as_str()), (Some(0), ""), "{argv:?}");
        let about = outcome.stderr.lines().next().unwrap_or_default();
        assert!(about.starts_with("podwire-cni ") && about.contains("CNI plugin"), "{argv:?}: {about}");
        assert!(outcome.stderr.contains("0.1.0") && outcome.stderr.contains("1.1.0"), "{}", outcome.stderr);
    }
}

/// Stdin that cannot be read, unlike stdin that cannot be understood: reading a directory is an I/O error.
#[test]
fn e5_stdin_that_cannot_be_read_is_code_5() {
    let host = Host::new("e5read");
    let pod = host.pod("a");
    let config = dual(&host, &json!({}));
    for (name, redirect) in [("directory", "</"), ("closed", "<&-")] {
        let plugin = wrapped(&host, name, &format!("exec \"$PLUGIN\" {redirect}"));
        for verb in [Verb::Add, Verb::Del, Verb::Check, Verb::Gc, Verb::Status] {
            let outcome = plugin.call(&host.node, &Call::pod(verb, &pod, &config)).unwrap();
            let case = format!("{name} {}", verb.as_str());
            match name {
                "directory" => refused_with(&case, &outcome, (5, &["stdin", "Is a directory"])),
                // The plugin opens /dev/null in the place of a closed stdin, which is then empty.
                _ => refused_with(&case, &outcome, (6, &["stdin is empty"])),
            };
        }
    }
}

/// The same config, a running pod beside it: every verb leaves what it has no business with.
#[test]
fn e1_verbs_that_only_look_change_nothing() {
    let host = Host::new("e1look");
    let config = dual(&host, &json!({}));
    let (pod, _) = host.attached("a", &config);
    let watch = Watch::on(&host, &[&pod]);
    host.plugin.status(&host.node, &config).unwrap().ok().unwrap();
    host.plugin.version(&host.node).unwrap().ok().unwrap();
    let never = host.pod("b");
    host.del(&never, &config);
    host.del(&pod, &with(&config, &json!({"name": "other"})));
    watch.expect_same("STATUS, VERSION, DEL of a stranger, DEL in another network");
}
