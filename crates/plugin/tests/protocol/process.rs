//! Exit code, stdout and stderr.

use serde_json::{Value, json};
use testkit::{Call, Outcome, Verb};

use crate::common::{Host, with, with_previous};
use crate::watch::{Watch, dual, refused, refused_with, wrapped};

#[track_caller]
fn expect_no_output(case: &str, outcome: &Outcome) {
    assert_eq!(outcome.status.code(), Some(0), "{case}: {outcome:?}");
    assert_eq!((outcome.stdout.as_str(), outcome.stderr.as_str()), ("", ""), "{case}");
}

/// Expects exactly one JSON value on stdout and no output on stderr.
#[track_caller]
fn expect_one_value(case: &str, outcome: &Outcome) -> Value {
    assert_eq!(outcome.status.code(), Some(0), "{case}: {outcome:?}");
    assert_eq!(outcome.stderr, "", "{case}");
    assert_eq!(outcome.stdout.lines().count(), 1, "{case}: {}", outcome.stdout);
    outcome.json().unwrap()
}

#[test]
fn e1_only_add_and_version_print_a_value() {
    let host = Host::new("e1");
    let config = dual(&host, &json!({}));
    let pod = host.pod("a");
    expect_no_output("STATUS of a new node", &host.plugin.status(&host.node, &config).unwrap());
    let result = expect_one_value("ADD", &host.plugin.add(&pod, &config).unwrap());
    assert_eq!(result["cniVersion"], "1.1.0");
    expect_no_output("CHECK", &host.plugin.check(&pod, &config, &result).unwrap());
    expect_no_output("STATUS", &host.plugin.status(&host.node, &config).unwrap());
    expect_no_output("GC", &host.plugin.gc(&host.node, &config, &[(pod.id(), "eth0")]).unwrap());
    expect_no_output("CHECK after GC", &host.plugin.check(&pod, &config, &result).unwrap());
    let version = expect_one_value("VERSION", &host.plugin.version(&host.node).unwrap());
    assert_eq!(version["cniVersion"], "1.1.0");
    expect_no_output("DEL", &host.plugin.del(&pod, &with_previous(&config, &result)).unwrap());
    expect_no_output("second DEL", &host.plugin.del(&pod, &config).unwrap());
    assert!(host.node.log_file().is_file(), "the log file does not exist");
}

#[test]
fn e1_b5_failed_commands_exit_with_1_and_an_error_object() {
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
fn b5_errors_are_returned_if_the_log_cannot_be_opened() {
    let host = Host::new("b5log");
    let pod = host.pod("a");
    let config = dual(&host, &json!({"logFile": host.node.dir(), "bridge": "lo"}));
    let outcome = host.plugin.add(&pod, &config).unwrap();
    refused_with("no log", &outcome, (7, &["lo exists but is a"]));
    assert!(outcome.stderr.contains("cannot write the log"), "{}", outcome.stderr);
}

/// A runtime that gets no result treats the ADD as failed, so the exit code must be 1.
#[test]
fn b5_an_answer_that_cannot_be_written_fails_the_call() {
    let host = Host::new("b5full");
    let (pod, config) = (host.pod("a"), dual(&host, &json!({})));
    let full = wrapped(&host, "full", "exec \"$PLUGIN\" >/dev/full");
    // A pipe without a reader. The plugin must not be killed by SIGPIPE.
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
fn e4_the_error_names_an_unknown_command() {
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
fn e4_without_a_command_the_plugin_describes_itself_on_stderr() {
    let host = Host::new("e4about");
    let path = host.plugin.path.display().to_string();
    for option in ["-uCNI_COMMAND", "CNI_COMMAND=", "-i"] {
        let argv = ["env", option, &path];
        let outcome = host.node.run(&argv, b"not even JSON").unwrap();
        assert_eq!((outcome.status.code(), outcome.stdout.as_str()), (Some(0), ""), "{argv:?}");
        let about = outcome.stderr.lines().next().unwrap_or_default();
        assert!(about.starts_with("podwire-cni ") && about.contains("CNI plugin"), "{argv:?}: {about}");
        assert!(outcome.stderr.contains("0.1.0") && outcome.stderr.contains("1.1.0"), "{}", outcome.stderr);
    }
}

/// Reading a directory is an I/O error. A closed stdin is replaced by /dev/null and therefore empty.
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
                _ => refused_with(&case, &outcome, (6, &["stdin is empty"])),
            };
        }
    }
}

#[test]
fn e1_status_version_and_unrelated_dels_change_nothing() {
    let host = Host::new("e1unrelated");
    let config = dual(&host, &json!({}));
    let (pod, _) = host.attached("a", &config);
    let watch = Watch::on(&host, &[&pod]);
    host.plugin.status(&host.node, &config).unwrap().ok().unwrap();
    host.plugin.version(&host.node).unwrap().ok().unwrap();
    let unknown = host.pod("b");
    host.del(&unknown, &config);
    host.del(&pod, &with(&config, &json!({"name": "other"})));
    watch.expect_same("STATUS, VERSION, DEL of an unknown pod, DEL in another network");
}
