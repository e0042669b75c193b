//! Conditions: all outputs report the same, and fixes work when pasted.

use std::fs;
use std::net::IpAddr;

use ipnet::IpNet;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde_json::{Value, json};
use testkit::{Agent, Call, DEADLINE, Plugin, Pod, Verb, inspect, ping, wait_until};

use crate::common::{Host, has};

/// Runs a program in a mount namespace without nft, after this command.
fn without_nft(host: &Host, (name, program): (&str, &str), command: &str) -> std::path::PathBuf {
    let path = host.node.dir().join(name);
    let script = format!(
        "#!/bin/sh\nexport PATH=/usr/bin:/bin\nexec unshare --mount --propagation slave sh -c '\n\
         for dir in /usr/sbin /sbin /usr/local/sbin; do mount -t tmpfs pwt $dir; done\n\
         {command}\n\
         exec {program} \"$@\"' sh \"$@\"\n"
    );
    let write = format!("cat >{0} && chmod 755 {0}", path.display());
    assert!(host.node.run(&["sh", "-c", &write], script.as_bytes()).unwrap().success());
    path
}

fn json_of(host: &Host, args: &[&str]) -> (Option<i32>, Value) {
    let outcome = host.ask(&[args, &["-o", "json"]].concat());
    let json = serde_json::from_str(&outcome.stdout).unwrap_or_else(|e| panic!("{e}: {}", outcome.stderr));
    (outcome.status.code(), json)
}

/// The conditions of this code, in status.
fn found(host: &Host, code: &str) -> Vec<Value> {
    let (_, status) = json_of(host, &["status"]);
    let all = status["conditions"].as_array().unwrap().clone();
    all.into_iter().filter(|one| one["code"] == code).collect()
}

#[test]
fn a2_all_outputs_report_missing_nft() {
    for standalone in [true, false] {
        expect_nft_missing(standalone, ":", "apt install nftables");
        expect_nft_missing(standalone, "touch /usr/sbin/nft", "chmod a+x /usr/sbin/nft");
    }
}

fn expect_nft_missing(standalone: bool, command: &str, install: &str) {
    let mut host = Host::new("nonft");
    let path = without_nft(&host, ("plugin", host.plugin.path.to_str().unwrap()), command);
    let plugin = Plugin { path };
    host.tool = without_nft(&host, ("tool", host.tool.to_str().unwrap()), command);
    let mut agent = host.idle_agent(&["--no-install"]);
    let config = if standalone { host.standalone() } else { agent.config(&json!({})) };
    if standalone {
        // A pod that was attached before nft was removed makes the node standalone.
        host.plugin.add(&host.node.pod("a").unwrap(), &config).unwrap().ok().unwrap();
    } else {
        agent.launch().unwrap();
        let is_reported = || {
            let answer = agent.client().get(api::READY, DEADLINE)?;
            let ready: api::Readiness = serde_json::from_slice(&answer.body)?;
            let fixes: Vec<_> = ready.conditions.iter().map(|one| (&one.code, &one.fix)).collect();
            Ok(answer.status == 503
                && matches!(fixes[..], [(code, Some(fix))] if *code == types::Code::NftMissing && fix == install))
        };
        wait_until("/v1/ready to report it", DEADLINE, is_reported).unwrap();
    }
    let (code, status) = json_of(&host, &["status"]);
    assert_eq!((code, &status["ready"]), (Some(1), &json!(false)), "{status}");
    let first = &status["conditions"][0];
    assert_eq!((&first["code"], &first["fix"]), (&json!("NftMissing"), &json!(install)), "{status}");
    let page = host.ask(&["status"]).stdout;
    assert!(
        page.contains("NOT READY\n- NftMissing program nft") && page.contains(&format!("\n    {install}"))
    );
    let (code, doctor) = json_of(&host, &["doctor"]);
    let all = doctor["checks"].as_array().unwrap();
    let wrong: Vec<&Value> = all.iter().filter(|one| one["code"] == "NftMissing").collect();
    assert!(code == Some(1) && wrong.len() == 1 && wrong[0]["fix"] == install, "{doctor}");
    let status = Call::network(Verb::Status, &config);
    let error = plugin.call(&host.node, &status).unwrap().error().unwrap();
    assert_eq!(
        (error.code, error.details.as_str()),
        (50, format!("NftMissing: {install}").as_str()),
        "{error:?}"
    );
}

#[test]
fn a14_a_ready_agent_has_installed_its_files() {
    let host = Host::new("installed");
    let runtime = host.runtime();
    // A file at the path of the plugin directory.
    fs::create_dir_all(runtime.bin.parent().unwrap()).unwrap();
    fs::write(&runtime.bin, "").unwrap();
    let mut agent = host.idle_agent(&[&runtime.agent_flags()[..], &["--reconcile-seconds", "1"]].concat());
    agent.launch().unwrap();
    wait_until("its condition", DEADLINE, || {
        let answer = agent.client().get(api::READY, DEADLINE)?;
        let ready: api::Readiness = serde_json::from_slice(&answer.body)?;
        let is_it = |one: &api::Condition| {
            let bin = runtime.bin.to_str().unwrap();
            one.code == types::Code::InstallIncomplete
                && one.message.contains(bin)
                && one.object.starts_with(&format!("file {bin}"))
        };
        Ok(answer.status == 503 && ready.conditions.len() == 1 && ready.conditions.iter().all(is_it))
    })
    .unwrap();
    assert_eq!(json_of(&host, &["status"]).0, Some(1));
    assert!(!agent.log().unwrap().contains("ready after"));
    // ADD works, because a runtime that calls it has a plugin.
    let config = agent.config(&json!({}));
    host.plugin.add(&host.node.pod("a").unwrap(), &config).unwrap().ok().unwrap();
    let error = host.plugin.status(&host.node, &config).unwrap().error().unwrap();
    assert!(error.code == 50 && error.details.starts_with("InstallIncomplete"), "{error:?}");
    fs::remove_file(&runtime.bin).unwrap();
    agent.wait_ready().unwrap();
    assert!(runtime.bin.join("podwire-cni").exists() && runtime.conf.join("10-podwire.conflist").exists());
    assert_eq!(json_of(&host, &["status"]).0, Some(0));
}

/// A pod, in each mode, with and without an agent.
struct Scene {
    host: Host,
    agent: Option<Agent>,
    pod: Pod,
    addresses: Vec<IpAddr>,
    mode: &'static str,
}

fn with_pods(label: &str, test: &dyn Fn(&Scene)) {
    for mode in ["routed", "bridge"] {
        for standalone in [false, true] {
            let host = Host::new(label);
            let flags = ["--no-install", "--network-mode", mode, "--reconcile-seconds", "1"];
            let agent = (!standalone).then(|| host.agent(&flags));
            let mut config =
                agent.as_ref().map_or_else(|| host.standalone(), |agent| agent.config(&json!({})));
            config["mode"] = json!(mode);
            let pod = host.node.pod("a").unwrap();
            let result = host.plugin.add(&pod, &config).unwrap().ok().unwrap();
            let address = |ip: &Value| ip["address"].as_str().unwrap().parse::<IpNet>().unwrap().addr();
            let addresses = result["ips"].as_array().unwrap().iter().map(address).collect();
            println!("{mode}, standalone: {standalone}");
            test(&Scene { host, agent, pod, addresses, mode });
        }
    }
}

impl Scene {
    /// The pod has its addresses, and the node reaches them.
    fn expect_reachable(&self) {
        for address in &self.addresses {
            let is_present = || {
                Ok(self.pod.sh(&["ip", "-o", "addr", "show", "dev", "eth0"])?.contains(&address.to_string()))
            };
            wait_until("the address", DEADLINE, is_present).unwrap();
            wait_until("an answer", DEADLINE, || Ok(ping(&self.host.node, *address, 1)?.all())).unwrap();
        }
    }
}

/// The condition, after status and doctor show it.
fn shown(host: &Host, code: &str) -> Value {
    wait_until(code, DEADLINE, || Ok(!found(host, code).is_empty())).unwrap();
    let (_, doctor) = json_of(host, &["doctor"]);
    assert!(doctor["checks"].as_array().unwrap().iter().any(|one| one["code"] == code), "{doctor}");
    found(host, code).remove(0)
}

/// Runs the fix of a condition that status and doctor show.
fn fixed(host: &Host, code: &str) -> Value {
    let shown = shown(host, code);
    // The complete line of each page, as an operator pastes it.
    let fix = shown["fix"].as_str().unwrap();
    let pasted = |page: &str| {
        let line = page.lines().find(|line| line.trim() == fix);
        line.unwrap_or_else(|| panic!("{fix:?} in {page}")).to_owned()
    };
    pasted(&host.ask(&["doctor"]).stdout);
    host.node.sh(&["sh", "-c", &pasted(&host.ask(&["status"]).stdout)]).unwrap();
    wait_until("the end of the condition", DEADLINE, || Ok(found(host, code).is_empty())).unwrap();
    shown
}

#[test]
fn a6_a_changed_mac_in_a_pod_is_shown_with_a_working_fix() {
    with_pods("mac", &|scene| {
        let Scene { host, agent, pod, .. } = scene;
        let mac = inspect::link(pod, "eth0").unwrap().mac;
        pod.sh(&["ip", "link", "set", "dev", "eth0", "address", "02:00:00:00:00:77"]).unwrap();
        // The kernel removes the permanent neighbours of a routed pod with the MAC. Without an agent nothing restores them.
        let is_lost = agent.is_none() && scene.mode == "routed";
        let shown = if is_lost { shown(host, "PodMacChanged") } else { fixed(host, "PodMacChanged") };
        assert!(shown["message"].as_str().unwrap().contains("02:00:00:00:00:77"), "{shown}");
        assert_eq!(shown["since"].is_null(), agent.is_none(), "{shown}");
        assert_eq!(shown["fix"].is_null(), is_lost, "{shown}");
        if !is_lost {
            assert_eq!(inspect::link(pod, "eth0").unwrap().mac, mac);
            scene.expect_reachable();
        }
    });
}

#[test]
fn a6_a_link_moved_out_of_its_pod_has_a_working_fix() {
    with_pods("moved", &|scene| {
        let Scene { host, agent, pod, .. } = scene;
        let node = host.node.path().display().to_string();
        pod.sh(&["ip", "link", "set", "dev", "eth0", "netns", &node, "name", "taken"]).unwrap();
        if agent.is_none() {
            return not_restored(scene);
        }
        let shown = fixed(host, "PodLinkMoved");
        assert!(shown["message"].as_str().unwrap().contains("is taken on the node now"), "{shown}");
        scene.expect_reachable();
        // Renamed inside the pod, also to names that a shell would interpret.
        for name in ["other0", "$(x)", ";x"] {
            pod.sh(&["ip", "link", "set", "dev", "eth0", "down"]).unwrap();
            pod.sh(&["ip", "link", "set", "dev", "eth0", "name", name]).unwrap();
            let shown = fixed(host, "PodLinkMoved");
            assert!(shown["message"].as_str().unwrap().contains(&format!("renamed to {name} ")), "{shown}");
            scene.expect_reachable();
        }
        // In a namespace that is neither the pod's nor the node's, no command can find the link.
        let elsewhere = host.node.pod("elsewhere").unwrap();
        let path = elsewhere.path().display().to_string();
        pod.sh(&["ip", "link", "set", "dev", "eth0", "netns", &path]).unwrap();
        wait_until("the condition", DEADLINE, || Ok(!found(host, "PodLinkMoved").is_empty())).unwrap();
        assert!(found(host, "PodLinkMoved")[0]["fix"].is_null());
    });
}

/// Without an agent nothing restores addresses and routes, so moving the link back is not sufficient and there is no fix.
fn not_restored(scene: &Scene) {
    let Scene { host, pod, addresses, .. } = scene;
    let moved = shown(host, "PodLinkMoved");
    assert!(moved["fix"].is_null(), "{moved}");
    assert!(moved["message"].as_str().unwrap().ends_with(": restart the pod"), "{moved}");
    let path = pod.path().display().to_string();
    host.node.sh(&["ip", "link", "set", "dev", "taken", "netns", &path, "name", "eth0"]).unwrap();
    pod.sh(&["ip", "link", "set", "dev", "eth0", "up"]).unwrap();
    let incomplete = shown(host, "PodNetworkIncomplete");
    let message = incomplete["message"].as_str().unwrap();
    for address in addresses {
        assert!(message.contains(&format!("address {address}/")), "{message}");
    }
    assert!(message.ends_with("; restart the pod") && incomplete["fix"].is_null(), "{incomplete}");
    assert!(!host.ask(&["status"]).stdout.contains("no problems"));
    assert!(found(host, "PodLinkMoved").is_empty());
}

#[test]
fn a6_pods_with_recovered_records_are_not_inspected() {
    with_pods("recovered", &|scene| {
        let Scene { host, .. } = scene;
        if scene.agent.is_some() {
            // A running agent has the records in memory.
            return;
        }
        fs::remove_dir_all(host.node.run_dir().join("networks")).unwrap();
        let mut config = host.standalone();
        config["mode"] = json!(scene.mode);
        // The network is recovered from its links.
        host.plugin.status(&host.node, &config).unwrap();
        let unknown = shown(host, "PodNotInspected");
        assert_eq!((&unknown["severity"], &unknown["fix"]), (&json!("degraded"), &Value::Null), "{unknown}");
    });
}

/// `podwire pods` must not print "no pods" for unreadable records.
#[test]
fn a6_a_file_instead_of_the_record_directory_is_reported() {
    with_pods("notadir", &|scene| {
        let Scene { host, agent, .. } = scene;
        let networks = host.node.run_dir().join("networks");
        let network = fs::read_dir(&networks).unwrap().next().unwrap().unwrap().path();
        let (records, aside) = (network.join("attachments"), host.node.dir().join("aside"));
        fs::write(&aside, "").unwrap();
        let exchange = || renameat_with(CWD, &records, CWD, &aside, RenameFlags::EXCHANGE).unwrap();
        exchange();
        let unusable = shown(host, "RunDirUnusable");
        assert!(
            unusable["message"].as_str().unwrap().to_lowercase().contains("not a directory"),
            "{unusable}"
        );
        wait_until("not ready", DEADLINE, || Ok(json_of(host, &["status"]).0 == Some(1))).unwrap();
        let pods = host.ask(&["pods"]);
        assert!(!pods.success() && pods.stderr.contains("Not a directory"), "{pods:?}");
        exchange();
        wait_until("the end of the condition", DEADLINE, || Ok(found(host, "RunDirUnusable").is_empty()))
            .unwrap();
        if let Some(agent) = agent {
            wait_until("ready", DEADLINE, || Ok(agent.is_ready())).unwrap();
        }
        scene.expect_reachable();
    });
}

/// Nothing is overwritten, and all outputs have the same fix.
#[test]
fn b14_a_file_of_another_program_has_a_working_fix() {
    for (dir, name) in [("opt/cni/bin", "podwire-cni"), ("etc/cni/net.d", "10-podwire.conflist")] {
        let host = Host::new("otherfile");
        let path = host.node.dir().join(dir).join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::copy("/bin/true", &path).unwrap();
        let before = fs::read(&path).unwrap();
        let runtime = host.runtime();
        let mut agent = host.idle_agent(&runtime.agent_flags());
        agent.launch().unwrap();
        let is_reported =
            || Ok(agent.client().get(api::STATUS, DEADLINE).is_ok() && !found(&host, INCOMPLETE).is_empty());
        wait_until("the condition", DEADLINE, is_reported).unwrap();
        let [condition] = &found(&host, INCOMPLETE)[..] else { panic!("one condition") };
        let fix = condition["fix"].as_str().unwrap();
        assert_eq!(fix, format!("mv {0} {0}.moved", path.display()));
        let (_, doctor) = json_of(&host, &["doctor"]);
        let is_problem = |check: &&Value| check["verdict"] == "problem" && check["code"] == INCOMPLETE;
        let problems: Vec<&Value> = doctor["checks"].as_array().unwrap().iter().filter(is_problem).collect();
        assert_eq!(problems.len(), 1, "{problems:?}");
        for key in ["object", "message", "fix"] {
            assert_eq!(problems[0][key], condition[key], "{key}");
        }
        let outcome = host.install(&["--timeout", "0"]);
        assert_eq!(outcome.status.code(), Some(1));
        assert!(outcome.stderr.contains(fix), "{}", outcome.stderr);
        assert!(fs::read(&path).unwrap() == before, "{} was overwritten", path.display());
        host.node.sh(&["sh", "-c", fix]).unwrap();
        agent.wait_ready().unwrap();
        assert!(fs::read(&path).unwrap() != before);
    }
}

const INCOMPLETE: &str = "InstallIncomplete";

#[test]
fn b14_files_that_wait_for_readiness_are_shown() {
    let host = Host::new("waiting");
    let mut agent = host.idle_agent(&host.runtime().agent_flags());
    let networks = host.node.run_dir().join("networks");
    fs::create_dir_all(&networks).unwrap();
    fs::write(networks.join("other"), "").unwrap();
    agent.launch().unwrap();
    let is_reported =
        || Ok(agent.client().get(api::READY, DEADLINE).is_ok_and(|answer| answer.status == 503));
    wait_until("an answer", DEADLINE, is_reported).unwrap();
    let page = host.ask(&["status"]).stdout;
    let config = host.runtime().conf.join("10-podwire.conflist");
    has(&page, &[&format!("wait {}", config.display()), "the agent installs it when it is ready"]);
    assert!(!page.contains("podwire install"), "{page}");
    let doctor = host.ask(&["doctor"]).stdout;
    has(&doctor, &["the agent installs its files when it is ready"]);
    fs::remove_dir_all(&networks).unwrap();
    agent.wait_ready().unwrap();
    has(&host.ask(&["status"]).stdout, &[&format!("ok {}", config.display())]);
}

/// The fix must not be `systemctl start podwire`, because the agent cannot start.
#[test]
fn a8_an_invalid_configuration_is_reported_without_an_agent() {
    let host = Host::new("configinvalid");
    let config = host.node.dir().join("agent.toml");
    fs::write(&config, "wrokers = 1\n").unwrap();
    let ask = |command: &str| {
        let variable = format!("PODWIRE_CONFIG={}", config.display());
        let run_dir = host.node.run_dir();
        let line = ["env", &variable, host.tool.to_str().unwrap(), command, "-o", "json", "--run-dir"];
        let outcome = host.node.run(&[&line[..], &[run_dir.to_str().unwrap()]].concat(), b"").unwrap();
        // stderr does not repeat the message of the condition.
        has(&outcome.stderr, &["podwire agent --check-config"]);
        assert!(!outcome.stderr.contains("workers"), "{}", outcome.stderr);
        assert!(outcome.stderr.lines().all(|line| line.len() <= 80), "{}", outcome.stderr);
        serde_json::from_str::<Value>(&outcome.stdout).unwrap_or_else(|e| panic!("{e}: {outcome:?}"))
    };
    for (command, list) in [("status", "conditions"), ("doctor", "checks")] {
        let shown = ask(command);
        let all = shown[list].as_array().unwrap();
        let found =
            all.iter().find(|one| one["code"] == "ConfigInvalid").unwrap_or_else(|| panic!("{shown}"));
        assert_eq!(found["fix"], "podwire agent --check-config", "{shown}");
        assert!(found["message"].as_str().unwrap().contains("did you mean \"workers\"?"), "{shown}");
        assert!(all.iter().all(|one| one["code"] != "AgentUnreachable"), "{shown}");
    }
    // Keys of an invalid configuration that can be read are used.
    let status = |text: &str| {
        fs::write(&config, text).unwrap();
        let variable = format!("PODWIRE_CONFIG={}", config.display());
        host.node.run(&["env", &variable, host.tool.to_str().unwrap(), "status"], b"").unwrap().stdout
    };
    let run_dir = host.node.run_dir().display().to_string();
    let shown = status(&format!("run_dir = '{run_dir}'\nwrokers = 1\n"));
    has(&shown, &[&format!("run directory  {run_dir}\n"), "attachments    0 ready"]);
    has(&status("run_dir = \n"), &["run directory  unknown\n", "attachments    unknown\n"]);
}

/// The plugin does not read the agent's configuration, so it cannot name the cause itself.
#[test]
fn f8_cni_status_without_agent_names_podwire_status() {
    let host = Host::new("whynoagent");
    let config = host.idle_agent(&["--no-install"]).config(&json!({}));
    let error = host.plugin.status(&host.node, &config).unwrap().error().unwrap();
    assert_eq!((error.code, error.details.as_str()), (50, "AgentUnreachable: systemctl start podwire"));
    // The run directory of the test node is not the default.
    let command = format!("podwire status --run-dir {}", host.node.run_dir().display());
    assert!(error.msg.ends_with(&format!("; `{command}` shows why")), "{error:?}");
    has(
        &host
            .node
            .run(&["sh", "-c", &command.replace("podwire", host.tool.to_str().unwrap())], b"")
            .unwrap()
            .stdout,
        &["AgentUnreachable"],
    );
}
