//! Exit codes of all commands, as documented in docs/reference/exit-codes.md.

use serde_json::json;
use testkit::{Agent, Outcome};

use crate::common::{Host, has};

const USAGE: i32 = 2;
const AGENT_UNREACHABLE: i32 = 3;
const PERMISSION_DENIED: i32 = 4;

/// Every command that needs root, with its required arguments.
const COMMANDS: [&[&str]; 25] = [
    &["demo"],
    &["agent"],
    &["agent", "--check-config"],
    &["status"],
    &["doctor"],
    &["pods"],
    &["nodes"],
    &["node", "rm", "n2"],
    &["routes"],
    &["blocks"],
    &["attachment", "show", "abc"],
    &["install"],
    &["install", "--standalone"],
    &["cleanup"],
    &["lab", "up"],
    &["lab", "ls"],
    &["lab", "status"],
    &["lab", "pod", "add", "n1"],
    &["lab", "exec", "n1", "true"],
    &["lab", "test"],
    &["lab", "cut", "n1"],
    &["lab", "kill", "node", "n1"],
    &["lab", "start", "node", "n1"],
    &["lab", "logs", "n1"],
    &["lab", "down"],
];

/// Commands that need an answer of the agent.
const AGENT_COMMANDS: [&[&str]; 8] = [
    &["status"],
    &["status", "-o", "json"],
    &["nodes"],
    &["node", "rm", "n2"],
    &["routes"],
    &["blocks"],
    &["blocks", "-o", "json"],
    &["install", "--timeout", "0"],
];

fn unprivileged(host: &Host, args: &[&str]) -> Outcome {
    let tool = host.tool.to_str().unwrap();
    let drop = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", tool];
    host.node.run(&[&drop[..], args].concat(), b"").unwrap()
}

fn code(outcome: &Outcome) -> i32 {
    outcome.status.code().unwrap_or_else(|| panic!("{outcome:?}"))
}

#[test]
fn a3_commands_of_other_users_name_sudo() {
    let host = Host::new("sudo");
    // Only root can read the directory with the records.
    let agent: Agent = host.agent(&["--no-install"]);
    let pod = host.node.pod("a").unwrap();
    host.plugin.add(&pod, &agent.config(&json!({}))).unwrap().ok().unwrap();
    for args in COMMANDS {
        let outcome = unprivileged(&host, args);
        assert_eq!(
            (code(&outcome), outcome.stdout.as_str()),
            (PERMISSION_DENIED, ""),
            "{args:?}: {outcome:?}"
        );
        let command = format!("sudo {} {}", host.tool.display(), args.join(" "));
        assert_eq!(outcome.stderr, format!("podwire: this needs root; run: {command}\n"), "{args:?}");
    }
}

#[test]
fn a3_static_text_needs_no_root() {
    let host = Host::new("text");
    for args in [
        &["--help"][..],
        &["--version"],
        &["version"],
        &["version", "-o", "json"],
        &["status", "--help"],
        &["agent", "--print-config"],
        &["agent", "--print-config-sample"],
        &["agent", "--print-config-reference"],
    ] {
        let outcome = unprivileged(&host, args);
        assert_eq!(code(&outcome), 0, "{args:?}: {outcome:?}");
        assert!(!outcome.stdout.is_empty(), "{args:?}");
    }
    // A config file that only root can read.
    let file = host.node.dir().join("agent.toml");
    std::fs::write(&file, "").unwrap();
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let outcome = unprivileged(&host, &["agent", "--config", file.to_str().unwrap(), "--print-config"]);
    assert_eq!(code(&outcome), PERMISSION_DENIED, "{outcome:?}");
    has(&outcome.stderr, &["Permission denied", "run: sudo "]);
}

#[test]
fn a7_commands_exit_with_3_if_no_agent_is_reachable() {
    let host = Host::new("noagent3");
    for args in AGENT_COMMANDS {
        let outcome = if args[0] == "install" { host.install(&args[1..]) } else { host.ask(args) };
        assert_eq!(code(&outcome), AGENT_UNREACHABLE, "{args:?}: {outcome:?}");
        // `status` prints a condition on stdout, the other commands an error on stderr.
        let shown = format!("{}{}", outcome.stdout, outcome.stderr);
        has(&shown.split_whitespace().collect::<Vec<_>>().join(" "), &["no agent listens on"]);
    }
}

#[test]
fn a7_invalid_arguments_and_configurations_exit_with_2() {
    let host = Host::new("usage");
    let file = host.node.dir().join("bad.toml");
    std::fs::write(&file, "wrokers = 1\n").unwrap();
    let file = file.to_str().unwrap();
    for args in COMMANDS {
        let outcome = host.run(&[&args[..1], &["--no-such-flag"]].concat());
        assert_eq!(code(&outcome), USAGE, "{args:?}: {outcome:?}");
    }
    for args in [
        &["agent", "--config", file][..],
        &["agent", "--config", file, "--print-config"],
        &["install", "--config", file],
        &["lab", "up", "--nodes", "0"],
        &["lab", "--name", "a b", "status"],
        &["node", "rm", "../n2"],
        &["status", "-o", "yaml"],
    ] {
        let outcome = host.run(args);
        assert_eq!((code(&outcome), outcome.stdout.as_str()), (USAGE, ""), "{args:?}: {outcome:?}");
        if args.contains(&file) {
            has(&outcome.stderr, &["bad.toml:1: unknown key \"wrokers\"; did you mean \"workers\"?"]);
        }
    }
}

#[test]
fn a7_a_missing_capability_exits_with_4_and_is_named() {
    let host = Host::new("nocap");
    let tool = host.tool.to_str().unwrap();
    for (drop, name) in [("-net_admin", "CAP_NET_ADMIN"), ("-sys_admin", "CAP_SYS_ADMIN")] {
        for args in [&["agent"][..], &["demo"], &["lab", "up"]] {
            let argv = [&["setpriv", "--bounding-set", drop, tool], args].concat();
            let outcome = host.node.run(&argv, b"").unwrap();
            assert_eq!((code(&outcome), outcome.stdout.as_str()), (PERMISSION_DENIED, ""), "{outcome:?}");
            has(&outcome.stderr, &[&format!("podwire: {name} is missing\n"), "outside of a container"]);
        }
    }
    for args in [&["cleanup"][..], &["install", "--standalone"]] {
        let argv = [&["setpriv", "--bounding-set", "-net_admin", tool], args].concat();
        let outcome = host.node.run(&argv, b"").unwrap();
        assert_eq!(code(&outcome), PERMISSION_DENIED, "{outcome:?}");
        has(&outcome.stderr, &["CAP_NET_ADMIN"]);
    }
}
