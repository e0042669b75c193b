use std::fs;

use rustix::process::Signal;
use serde_json::{Value, json};
use testkit::{DEADLINE, wait_until};

use crate::common::{Host, has, plugin_config};

#[test]
fn a_ready_agent_is_shown_as_text_and_json() {
    let host = Host::new("status");
    let runtime = host.runtime();
    let agent = host.agent(&[&runtime.agent_flags()[..], &["--node", "worker-1"]].concat());
    let pod = host.node.pod("a").unwrap();
    host.plugin.add(&pod, &agent.config(&json!({}))).unwrap().ok().unwrap();
    let config = runtime.conf.join("10-podwire.conflist");
    wait_until("the installed files", DEADLINE, || {
        Ok(agent.get(api::STATUS)?["installed"].as_array().is_some_and(|files| files.len() == 3))
    })
    .unwrap();
    let outcome = host.ask(&["status"]);
    assert_eq!(outcome.status.code(), Some(0), "{}{}", outcome.stdout, outcome.stderr);
    has(
        &outcome.stdout,
        &[
            "on worker-1: ready\n",
            &format!("process {}, up ", agent.pid().unwrap()),
            "store          embedded",
            "podwire: routed, bridge podwire0, MTU of the bridge, masqueraded",
            "attachments    1 ready, 0 pending",
            "10.83.0.0/16  1     65532",
            "fd00:88::/64  1 ",
            &format!("ok   {}", config.display()),
            "no problems",
        ],
    );
    assert!(!outcome.stdout.contains('\u{1b}'), "no colours: {}", outcome.stdout);

    let outcome = host.ask(&["status", "-o", "json"]);
    let status: api::Status = serde_json::from_str(&outcome.stdout).unwrap();
    assert!(status.ready && status.attachments.unwrap().ready == 1, "{status:?}");
    assert_eq!((status.network.blocks[0].used, status.installed.len()), (Some(1), 3));
    // The socket is a sufficient argument.
    let socket = agent.socket();
    assert!(host.run(&["status", "--socket", socket.to_str().unwrap()]).success());
}

#[test]
fn an_agent_that_is_not_ready_exits_with_1_and_the_reason() {
    let host = Host::new("unready");
    let mut agent = host.idle_agent(&["--no-install"]);
    // A directory of another program, which reconcile refuses.
    fs::create_dir_all(host.node.run_dir().join("networks")).unwrap();
    fs::write(host.node.run_dir().join("networks/other"), "").unwrap();
    agent.launch().unwrap();
    wait_until("an answer", DEADLINE, || {
        let answer = agent.client().get(api::READY, DEADLINE)?;
        Ok(answer.status == 503 && !String::from_utf8_lossy(&answer.body).contains("starting"))
    })
    .unwrap();
    let outcome = host.ask(&["status"]);
    assert_eq!(outcome.status.code(), Some(1), "{}{}", outcome.stdout, outcome.stderr);
    has(
        &outcome.stdout,
        &[": not ready\n", "\n\nNOT READY\n- RunDirUnusable directory ", "of Podwire: it contains networks"],
    );
    let outcome = host.ask(&["status", "-o", "json"]);
    assert_eq!(outcome.status.code(), Some(1));
    let status: api::Status = serde_json::from_str(&outcome.stdout).unwrap();
    assert!(!status.ready);
}

#[test]
fn without_an_agent_status_exits_with_3_and_shows_records() {
    let host = Host::new("noagent");
    // Nothing is installed: no command can start an agent.
    let fresh = host.ask(&["status"]);
    assert_eq!(fresh.status.code(), Some(3));
    has(&fresh.stdout, &[": not installed\n", "agent          not running", "nothing is installed"]);
    has(&fresh.stdout, &["\n- AgentUnreachable socket ", "docs/install.md", "`podwire lab up`"]);
    assert!(!fresh.stdout.lines().any(|line| line.starts_with("    ")), "no fix: {}", fresh.stdout);

    fs::create_dir_all(host.state_dir()).unwrap();
    let empty = host.ask(&["status"]);
    assert_eq!(empty.status.code(), Some(3));
    has(&empty.stdout, &["agent          not running", "no agent is running", "0 ready, 0 pending"]);
    has(&empty.stdout, &[": not ready\n", "\n- AgentUnreachable socket ", "\n    systemctl start podwire"]);

    let pod = host.node.pod("a").unwrap();
    host.plugin.add(&pod, &host.standalone()).unwrap().ok().unwrap();
    let json: Value = serde_json::from_str(&host.ask(&["status", "-o", "json"]).stdout).unwrap();
    assert_eq!((&json["mode"], &json["ready"]), (&json!("standalone"), &json!(true)));
}

#[test]
fn a6_a_standalone_node_is_ready_without_an_agent() {
    let host = Host::new("alone");
    assert!(host.install(&["--standalone", "--name", "pods", "--subnet", "10.50.0.0/24"]).success());
    let state_dir = host.state_dir();
    let ask = || host.ask(&["status"]);
    let expect = |mode: &str| {
        let outcome = ask();
        assert_eq!(outcome.status.code(), Some(0), "{}{}", outcome.stdout, outcome.stderr);
        has(&outcome.stdout, &[": ready\n", "agent          not needed", mode, "no problems"]);
        assert!(outcome.stderr.is_empty() && !outcome.stdout.contains("systemctl"), "{}", outcome.stderr);
    };
    assert!(state_dir.exists());
    // A backup file that no runtime reads.
    let copy =
        json!({"cniVersion": "1.0.0", "name": "x", "plugins": [{"type": "podwire-cni", "agent": true}]});
    fs::write(host.runtime().conf.join("10-podwire.conflist.bak"), copy.to_string()).unwrap();
    expect("standalone: installed, no pod attached yet");
    let pod = host.node.pod("a").unwrap();
    let config = plugin_config(&host.runtime().config("10-pods.conflist"), &host.node);
    host.plugin.add(&pod, &config).unwrap().ok().unwrap();
    expect("standalone: no agent has run here");
}

#[test]
fn a_killed_agent_is_reported_with_pods_and_tombstones() {
    let host = Host::new("killed");
    let mut agent = host.agent(&["--no-install"]);
    let config = agent.config(&json!({}));
    let pods = ["a", "b"].map(|name| host.node.pod(name).unwrap());
    for pod in &pods {
        host.plugin.add(pod, &config).unwrap().ok().unwrap();
    }
    let pid = agent.pid().unwrap();
    agent.kill().unwrap();
    assert!(host.plugin.del(&pods[0], &config).unwrap().success());
    let outcome = host.ask(&["status"]);
    assert_eq!(outcome.status.code(), Some(3));
    has(
        &outcome.stdout,
        &[
            &format!("the agent (process {pid}) has ended"),
            "attachments    2 ready",
            "tombstones     1 DEL for the agent",
        ],
    );
}

/// F5: schema and exit code are as documented.
#[test]
fn f5_a_hanging_agent_is_reported_with_the_state_in_files() {
    let host = Host::new("hangs");
    let agent = host.agent(&["--no-install"]);
    let pod = host.node.pod("a").unwrap();
    host.plugin.add(&pod, &agent.config(&json!({}))).unwrap().ok().unwrap();
    agent.signal(Signal::STOP).unwrap();
    // The agent repairs it later. Until then `podwire doctor --repair` refuses to run.
    host.node.sh(&["ip", "link", "set", "podwire0", "down"]).unwrap();
    let (page, shown) = (host.ask(&["status"]), host.ask(&["status", "-o", "json"]));
    agent.signal(Signal::CONT).unwrap();
    assert_eq!((page.status.code(), shown.status.code()), (Some(3), Some(3)), "{page:?} {shown:?}");
    let process = format!("an agent (process {}) has the socket", agent.pid().unwrap());
    has(&page.stdout, &[": not ready\n", "does not answer", &process, "AgentUnreachable"]);
    has(&page.stdout, &["\n    systemctl restart podwire"]);
    let status: api::StatusWithoutAgent = serde_json::from_str(&shown.stdout).unwrap();
    assert_eq!(
        (status.mode, status.ready, status.attachments.unwrap().ready),
        (api::NodeMode::Agent, false, 1)
    );
    assert_eq!(status.conditions[0].code, types::Code::AgentUnreachable);
    let down = status.conditions.iter().find(|one| one.code == types::Code::BridgeDown).unwrap();
    assert_eq!(down.fix.as_deref(), Some("systemctl restart podwire"), "{:?}", status.conditions);
}

/// F5: the path is too long for a socket.
#[test]
fn f5_an_unusable_socket_is_not_a_hanging_agent() {
    let host = Host::new("longpath");
    let socket = format!("/run/{}", "x".repeat(110));
    for command in ["status", "doctor"] {
        let outcome = host.ask(&[command, "--socket", &socket]);
        assert_eq!(outcome.status.code(), Some(if command == "status" { 3 } else { 1 }), "{outcome:?}");
        has(&outcome.stdout, &["File name too long", "the path may have 107 bytes", "agent --check-config"]);
        for wrong in ["does not answer", "systemctl", "root only"] {
            assert!(!outcome.stdout.contains(wrong), "{}", outcome.stdout);
        }
    }
    let pod = host.node.pod("a").unwrap();
    host.plugin.add(&pod, &host.standalone()).unwrap().ok().unwrap();
    let outcome = host.ask(&["status", "--socket", &socket]);
    assert_eq!(outcome.status.code(), Some(0), "pods are standalone: {outcome:?}");
}

/// A6: wrong mode or owner.
#[test]
fn a6_an_unsafe_run_directory_is_a_condition_with_a_fix() {
    let host = Host::new("unsafe");
    let pod = host.node.pod("a").unwrap();
    host.plugin.add(&pod, &host.standalone()).unwrap().ok().unwrap();
    let run_dir = host.node.run_dir();
    for (command, word) in [("chmod 0777", "mode 0777"), ("chown 12345", "user 12345")] {
        host.node.sh(&["sh", "-c", &format!("{command} {}", run_dir.display())]).unwrap();
        let outcome = host.ask(&["status"]);
        assert_eq!(outcome.status.code(), Some(1), "{outcome:?}");
        has(&outcome.stdout, &[": not ready\n", "RunDirUnusable directory ", word, "attachments    unknown"]);
        let json: Value = serde_json::from_str(&host.ask(&["status", "-o", "json"]).stdout).unwrap();
        assert_eq!(json["attachments"], Value::Null);
        let found = json["conditions"].as_array().unwrap();
        let fix = found.iter().find(|one| one["code"] == "RunDirUnusable").unwrap()["fix"].as_str().unwrap();
        host.node.sh(&["sh", "-c", fix]).unwrap();
        assert_eq!(host.ask(&["status"]).status.code(), Some(0), "{fix}");
    }
}

#[test]
fn f4_the_fix_moves_a_directory_at_the_socket_path() {
    let host = Host::new("occupied");
    let agent = host.agent(&["--no-install"]);
    let socket = agent.socket();
    fs::remove_file(&socket).unwrap();
    fs::create_dir(&socket).unwrap();
    fs::write(socket.join("file"), "").unwrap();
    let lost = "code=SocketLost";
    wait_until("the condition", DEADLINE, || Ok(agent.log()?.contains(lost))).unwrap();
    let log = agent.log().unwrap();
    let (line, moved) =
        (log.lines().find(|line| line.contains(lost)).unwrap(), format!("{}.old", socket.display()));
    assert!(line.ends_with(&format!("fix=mv {} {moved}", socket.display())), "{line}");
    let fix = format!("mv {} {moved} && systemctl restart podwire", socket.display());
    for command in ["status", "doctor"] {
        let page = host.ask(&[command]).stdout;
        has(&page, &["AgentUnreachable", "agent.sock is a directory, not a socket"]);
        assert!(page.lines().any(|line| line.trim() == fix), "{fix} in {page}");
    }
    // The node has no systemd. The agent creates its socket again without a restart.
    host.node.sh(&["sh", "-c", fix.split(" && ").next().unwrap()]).unwrap();
    wait_until("the agent to answer", DEADLINE, || Ok(host.ask(&["status"]).success())).unwrap();
}

#[test]
fn a2_inactive_host_ports_are_shown() {
    let ports = json!({"runtimeConfig": {"portMappings":
        [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp", "hostIP": "198.51.100.7"},
         {"hostPort": 8081, "containerPort": 80, "protocol": "tcp", "hostIP": "127.0.0.1"}]}});
    let shown = |host: &Host| {
        let page = host.ask(&["status"]).stdout.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(!page.contains(":8081"), "{page}");
        let is_shown = page.contains("host port 198.51.100.7:8080 to 80/tcp");
        assert_eq!(is_shown, page.contains("is not an address of this node"), "{page}");
        is_shown
    };
    for standalone in [true, false] {
        let host = Host::new("inactive");
        let agent = (!standalone).then(|| host.agent(&["--no-install", "--reconcile-seconds", "1"]));
        let mut config = agent.as_ref().map_or_else(|| host.standalone(), |agent| agent.config(&json!({})));
        config["runtimeConfig"] = ports["runtimeConfig"].clone();
        let pod = host.node.pod("a").unwrap();
        host.plugin.add(&pod, &config).unwrap().ok().unwrap();
        wait_until("the port to be shown", DEADLINE, || Ok(shown(&host))).unwrap();
        host.node.sh(&["ip", "addr", "add", "198.51.100.7/32", "dev", "lo"]).unwrap();
        wait_until("the port to be active", DEADLINE, || Ok(!shown(&host))).unwrap();
    }
}
