//! Wrong arguments, and isolation of a lab from the host.

use std::fs;
use std::path::Path;
use std::process::Command;

use testkit::{DEADLINE, wait_until};

use crate::common::{Lab, has, texts};

#[test]
fn commands_in_a_node_use_its_settings_and_directories() {
    let lab = Lab::new("inside");
    lab.ok(&["up", "--nodes", "2"]);
    let before = host_directories();
    let output = lab.ok(&["exec", "n1", "podwire", "install"]);
    let own = |name: &str| lab.dir().join("n1/cni").join(name);
    has(&output, &[own("bin").to_str().unwrap(), own("net.d").to_str().unwrap()]);
    assert!(own("bin/podwire-cni").is_file() && own("net.d/10-podwire.conflist").is_file());
    assert_eq!(host_directories(), before, "CNI directories of the host are unchanged");

    lab.ok(&["kill", "agent", "n2"]);
    let config = lab.ok(&["exec", "n2", "--", "podwire", "agent", "--print-config"]);
    has(&config, &["node = \"n2\"", "store = \"etcd\"", "subnets = [\"10.42.0.0/16\", \"fd42::/64\"]"]);
    has(
        &config,
        &["http://10.199.0.1:2379", "enabled = false", lab.dir().join("n2/state").to_str().unwrap()],
    );
    lab.ok(&["start", "agent", "n2"]);
    assert!(lab.run(&["test"]).status.success());

    // Variables of the caller that select another agent or etcd are ignored.
    let with_variables = |target: &str, words: &[&str]| {
        let mut command = lab.command(&[&["exec", target], words].concat());
        command.env("PODWIRE_SOCKET", "/nowhere").env("PODWIRE_NODE", "other").env("PODWIRE_NONSENSE", "1");
        command
            .env("ETCD_HOST", "192.0.2.1")
            .env("IP_SUBNET", "10.9.0.0/16")
            .env("ETCDCTL_CACERT", "/nowhere");
        let output = command.output().unwrap();
        (output.status.code(), texts(&output))
    };
    for (target, node) in [("n2", "on n2: ready"), ("p1", "on n1: ready")] {
        let (code, (out, err)) = with_variables(target, &["podwire", "status"]);
        assert_eq!(code, Some(0), "{target}: {out}{err}");
        has(&out, &[node]);
    }
    has(
        &with_variables("n1", &["podwire", "agent", "--print-config"]).1.0,
        &["node = \"n1\"", "10.42.0.0/16"],
    );
    assert_eq!(with_variables("n1", &["etcdctl", "get", "--limit=1", "--prefix", "/podwire"]).0, Some(0));
    for target in ["etcd1", "underlay"] {
        assert_eq!(with_variables(target, &["podwire", "status"]).0, Some(3), "{target} has no agent");
    }
}

/// Entries of the CNI directories of the host.
fn host_directories() -> Vec<String> {
    let directories =
        ["/opt/cni/bin", "/etc/cni/net.d"].into_iter().filter_map(|path| fs::read_dir(path).ok());
    let entries = directories.flatten().flatten();
    entries.map(|entry| format!("{:?} {:?}", entry.path(), entry.metadata().unwrap().modified())).collect()
}

#[test]
fn errors_name_the_next_command() {
    let lab = Lab::new("words");
    let output = lab.ok(&["up", "--nodes", "1"]);
    has(&output, &["nodes: n1 ", &lab.command_line("cut n1")]);
    assert!(!output.contains("podwire lab cut"), "a command without the name selects another lab: {output}");
    has(&lab.ok(&["cut", "n1"]), &[&lab.command_line("heal n1")]);
    has(&lab.ok(&["heal", "n1"]), &["connected"]);
    let start = lab.command_line("start agent n1");
    has(&lab.ok(&["kill", "agent", "n1"]), &[&start]);
    has(&texts(&lab.run(&["status"])).0, &["PROBLEMS\n- node n1 has no running agent:\n", &start]);
    lab.ok(&["start", "agent", "n1"]);
    has(&lab.fails(&["exec", "n7", "--", "true"]), &[&lab.command_line("status")]);
    has(&lab.fails(&["cut", "n2"]), &["there is no node n2: this lab has n1\n"]);
    has(&lab.fails(&["kill", "etcd", "etcd2"]), &["the only member is etcd1"]);

    let long = "x".repeat(300);
    for name in ["", "a b", "Web", &long, "-a"] {
        let output = lab.run(&["pod", "add", "n1", "--", name]);
        let (out, err) = texts(&output);
        assert_eq!(output.status.code(), Some(2), "{name:?}: {out}{err}");
        has(&err, &["up to 63 characters of a-z"]);
        assert!(!err.contains("n1-"), "{err}");
    }
    assert_eq!(lab.json(&["status"])["pods"].as_array().unwrap().len(), 1);

    let plain = lab.dir().join("lab.json").display().to_string();
    for (command, code) in [("no-such-program", 127), ("/no/such/program", 127), (plain.as_str(), 126)] {
        assert_eq!(lab.run(&["exec", "n1", "--", command]).status.code(), Some(code), "{command}");
    }
}

#[test]
fn f13_an_agent_that_cannot_join_is_reported_with_its_conditions() {
    let lab = Lab::new("mismatch");
    lab.ok(&["up", "--nodes", "2", "--pods", "0"]);
    let file = lab.dir().join("n1/agent.toml");
    let config = fs::read_to_string(&file).unwrap();
    fs::write(&file, config.replace("margin = 8", "margin = 4")).unwrap();
    let error = lab.fails(&["restart", "agent", "n1"]);
    let [restart, status] = ["restart agent n1", "exec n1 podwire status"].map(|args| lab.command_line(args));
    has(&error, &["the agent cannot become ready: ", "NetworkMismatch", &restart, &status]);
    assert!(!error.contains("systemctl"), "{error}");
    fs::write(&file, config).unwrap();
    lab.ok(&["restart", "agent", "n1"]);
}

#[test]
fn f13_the_fix_of_a_lost_address_restores_it() {
    let lab = Lab::new("lost");
    lab.ok(&["up", "--nodes", "1", "--pods", "0"]);
    lab.ok(&["exec", "n1", "ip", "address", "del", "10.199.1.1/24", "dev", "eth0"]);
    let heal = format!("    {}\n", lab.command_line("heal n1"));
    wait_until("the fix", DEADLINE, || {
        Ok(texts(&lab.run(&["exec", "n1", "podwire", "status"])).0.contains(&heal))
    })
    .unwrap();
    let status = lab.command_line("exec n1 podwire status");
    has(&texts(&lab.run(&["status"])).0, &["PROBLEMS\n- node n1 has ", "NodeAddressMissing", &status]);
    lab.ok(&["heal", "n1"]);
    wait_until("the end of the problems", DEADLINE, || {
        Ok(lab.json(&["status"])["nodes"][0]["conditions"] == serde_json::json!([]))
    })
    .unwrap();
    let healthy = lab.ok(&["status"]);
    assert!(!healthy.contains("PROBLEMS"), "{healthy}");
}

#[test]
fn invalid_combinations_of_arguments_are_refused() {
    let lab = Lab::new("invalid");
    for (args, word) in [
        (&["up", "--nodes", "1001"][..], "1 to 200 nodes, not 1001"),
        (&["up", "--nodes", "1", "--subnets", "2"], "a lab of 1 node has 1 subnet, not 2"),
        (&["up", "--store", "embedded", "--etcd-members", "3"], "--etcd-members needs --store etcd"),
        (&["up", "--nodes", "2", "--store", "embedded"], "a lab of 2 nodes needs etcd"),
    ] {
        has(&lab.misused(args), &[word]);
        assert_eq!(lab.traces(), [] as [String; 0], "{args:?}");
    }
    has(&lab.fails(&["status"]), &["there is no lab"]);
    let help = lab.ok(&["up", "--help"]);
    for (flag, start) in [("--nodes <N>", "Number of nodes"), ("--transport <TRANSPORT>", "Transport of")] {
        let words = help.split(flag).nth(1).unwrap().trim_start();
        assert!(words.starts_with(start), "{flag}: {help}");
    }
}

#[test]
fn a_test_reports_an_exhausted_limit_of_open_files() {
    let lab = Lab::new("files");
    lab.ok(&["up", "--nodes", "2", "--pods", "4"]);
    let limited = |ulimit: &str| {
        let script = format!("ulimit {ulimit} 24 && exec \"$0\" \"$@\"");
        let mut command = Command::new("/bin/sh");
        command.args(["-c", &script, env!("CARGO_BIN_EXE_podwire"), "lab", "--name", lab.name(), "test"]);
        command.output().unwrap()
    };
    let raised = limited("-S -n");
    assert!(raised.status.success(), "{:?}", texts(&raised));
    let output = limited("-n");
    let (out, err) = texts(&output);
    assert_eq!(output.status.code(), Some(1), "{out}{err}");
    has(&err, &["open files", "ulimit -n"]);
    assert_eq!((out.as_str(), err.lines().count()), ("", 1), "{err}");
}

#[test]
fn the_program_file_can_have_another_name() {
    let lab = Lab::new("renamed");
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(lab.name());
    fs::create_dir_all(&directory).unwrap();
    let program = directory.join("pw");
    fs::hard_link(env!("CARGO_BIN_EXE_podwire"), &program).unwrap();
    let plugin = testkit::Plugin::podwire().unwrap().path;
    let up = Command::new(&program)
        .args(["lab", "--name", lab.name(), "up", "--nodes", "1"])
        .env_remove("PODWIRE")
        .env("PODWIRE_CNI", plugin)
        .output();
    let status = Command::new(&program)
        .args(["lab", "--name", lab.name(), "exec", "n1", "--", "podwire", "status"])
        .output();
    fs::remove_dir_all(&directory).unwrap();
    let (up, status) = (up.unwrap(), status.unwrap());
    assert!(up.status.success(), "{:?}", texts(&up));
    assert!(texts(&status).0.contains("on n1: ready"), "{:?}", texts(&status));
}
