//! The command-line tool as a person runs it, on a node of the lab.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use testkit::{Lab, Node, Outcome, Plugin, Snapshot};

/// The tool, with the plugin beside it as `make build` leaves them.
fn tool(lab: &Lab) -> PathBuf {
    let folder = lab.dir().join("bin");
    fs::create_dir_all(&folder).unwrap();
    let tool = folder.join("podwire");
    fs::copy(env!("CARGO_BIN_EXE_podwire"), &tool).unwrap();
    fs::copy(Plugin::podwire().unwrap().path, folder.join("podwire-cni")).unwrap();
    tool
}

fn run(node: &Node, tool: &Path, args: &[&str]) -> Outcome {
    let argv: Vec<&str> = [tool.to_str().unwrap()].into_iter().chain(args.iter().copied()).collect();
    node.run(&argv, b"").unwrap()
}

fn config(node: &Node) -> Value {
    json!({
        "cniVersion": "1.1.0", "name": "pods", "type": "podwire-cni", "bridge": "pw-test0",
        "subnet": "10.50.0.0/24,fd00:50::/64", "ipMasq": true,
        "runDir": node.run_dir(), "logFile": node.log_file(),
    })
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn e20_install_puts_the_plugin_and_one_conflist_in_place() {
    let lab = Lab::new("install").unwrap();
    let node = lab.node("n").unwrap();
    let tool = tool(&lab);
    let (bin, conf) = (lab.dir().join("opt/cni/bin"), lab.dir().join("etc/cni/net.d"));
    let args = [
        "install",
        "--plugin-dir",
        bin.to_str().unwrap(),
        "--config-dir",
        conf.to_str().unwrap(),
        "--name",
        "blue",
        "--subnet",
        "10.51.0.0/24",
        "--subnet",
        "fd00:51::/64",
    ];
    // Twice: the second replaces what is there, also while the plugin runs.
    for _ in 0..2 {
        let outcome = run(&node, &tool, &args);
        assert!(outcome.success(), "{}", outcome.stderr);
    }
    let file = conf.join("10-blue.conflist");
    assert_eq!((mode(&bin.join("podwire-cni")), mode(&file)), (0o700, 0o600));
    assert_eq!(fs::read_dir(&conf).unwrap().count(), 1, "no temporary file is left");
    assert_eq!(fs::read_dir(&bin).unwrap().count(), 1);
    let list: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    assert_eq!(list["cniVersion"], "1.1.0");
    assert_eq!(list["cniVersions"], json!(["0.4.0", "1.0.0", "1.1.0"]));
    assert_eq!(list["plugins"].as_array().unwrap().len(), 1);
    let capabilities = &list["plugins"][0]["capabilities"];
    assert!(capabilities["portMappings"] == true && capabilities["bandwidth"] == true);

    // What was installed wires a pod, as a runtime would call it.
    let mut plugin_config = list["plugins"][0].clone();
    for key in ["cniVersion", "name"] {
        plugin_config[key] = list[key].clone();
    }
    plugin_config["runDir"] = json!(node.run_dir());
    plugin_config["logFile"] = json!(node.log_file());
    let installed = Plugin { path: bin.join("podwire-cni") };
    let pod = node.pod("a").unwrap();
    let result = installed.add(&pod, &plugin_config).unwrap().ok().unwrap();
    assert_eq!(result["ips"][0]["address"], "10.51.0.2/24");
    assert!(installed.del(&pod, &plugin_config).unwrap().success());
}

#[test]
fn e20_a_config_that_the_plugin_would_refuse_is_not_installed() {
    let lab = Lab::new("badinst").unwrap();
    let node = lab.node("n").unwrap();
    let tool = tool(&lab);
    let (bin, conf) = (lab.dir().join("bin2"), lab.dir().join("conf2"));
    let args = [
        "install",
        "--plugin-dir",
        bin.to_str().unwrap(),
        "--config-dir",
        conf.to_str().unwrap(),
        "--subnet",
        "10.1.0.0/32",
    ];
    let outcome = run(&node, &tool, &args);
    assert!(!outcome.success());
    assert!(outcome.stderr.contains("/32"), "{}", outcome.stderr);
    assert!(!bin.exists() && !conf.exists());
}

#[test]
fn pods_are_shown_as_a_table_and_as_json() {
    let lab = Lab::new("pods").unwrap();
    let node = lab.node("n").unwrap();
    let tool = tool(&lab);
    let state = node.run_dir();
    let args = ["pods", "--run-dir", state.to_str().unwrap()];
    assert!(run(&node, &tool, &args).stdout.starts_with("no pods in "));

    let plugin = Plugin::podwire().unwrap();
    let pod = node.pod("a").unwrap();
    plugin.add(&pod, &config(&node)).unwrap().ok().unwrap();
    let table = run(&node, &tool, &args).stdout;
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines.len(), 2, "{table}");
    assert!(lines[0].starts_with("NETWORK"), "{table}");
    for word in ["pods", "10.50.0.2", "fd00:50::2", "bridge", "ready", "eth0"] {
        assert!(lines[1].contains(word), "{word} in {table}");
    }
    let json: Value =
        serde_json::from_str(&run(&node, &tool, &[&args[..], &["-o", "json"]].concat()).stdout).unwrap();
    assert_eq!(json[0]["state"], "ready");
    assert_eq!(json[0]["attachment"]["container"], pod.id());
    assert_eq!(json[0]["attachment"]["addresses"][1]["address"], "fd00:50::2/64");
    assert!(plugin.del(&pod, &config(&node)).unwrap().success());
}

#[test]
fn f7_cleanup_leaves_the_node_as_it_was_and_says_what_it_could_not_restore() {
    let lab = Lab::new("cleanup").unwrap();
    let node = lab.node("n").unwrap();
    let tool = tool(&lab);
    node.sh(&["ip", "link", "add", "foreign0", "type", "bridge"]).unwrap();
    node.sh(&["nft", "add", "table", "inet", "foreign"]).unwrap();
    let before = Snapshot::of(&node).unwrap();
    let sysctl = |name: &str| node.sh(&["cat", &format!("/proc/sys/net/{name}")]).unwrap().trim().to_owned();
    assert_eq!(
        (sysctl("ipv4/ip_forward"), sysctl("ipv6/conf/all/forwarding")),
        ("0".to_owned(), "0".to_owned())
    );

    let plugin = Plugin::podwire().unwrap();
    let pods: Vec<_> = (0..3).map(|n| node.pod(&format!("p{n}")).unwrap()).collect();
    for pod in &pods {
        plugin.add(pod, &config(&node)).unwrap().ok().unwrap();
    }
    assert_eq!(
        (sysctl("ipv4/ip_forward"), sysctl("ipv6/conf/all/forwarding")),
        ("1".to_owned(), "1".to_owned())
    );
    let state = node.run_dir();
    let args = ["cleanup", "--run-dir", state.to_str().unwrap()];
    let outcome = run(&node, &tool, &args);
    assert!(outcome.success(), "{}{}", outcome.stdout, outcome.stderr);
    for word in
        ["3 attachments", "bridge pw-test0 removed", "nftables", "ip_forward back to 0", "state folder"]
    {
        assert!(outcome.stdout.contains(word), "{word} in {}", outcome.stdout);
    }
    before.wait_for_same(&node, std::time::Duration::from_secs(5)).unwrap();
    assert!(!state.exists());
    assert_eq!(
        (sysctl("ipv4/ip_forward"), sysctl("ipv6/conf/all/forwarding")),
        ("0".to_owned(), "0".to_owned())
    );
    assert_eq!(run(&node, &tool, &args).stdout, "nothing of Podwire is here\n");
}

#[test]
fn f7_cleanup_gives_back_a_bridge_that_is_not_ours() {
    for mode in ["bridge", "routed"] {
        let lab = Lab::new("foreign").unwrap();
        let node = lab.node("n").unwrap();
        let tool = tool(&lab);
        for line in [
            "ip link add pw-test0 address 02:00:00:00:00:77 type bridge",
            // Its link-local address would come with its first port.
            "ip link set pw-test0 addrgenmode none",
            "ip link set pw-test0 up",
            "ip addr add 192.0.2.9/24 dev pw-test0",
            "ip addr add fd00:77::9/64 dev pw-test0 nodad",
        ] {
            node.sh(&line.split(' ').collect::<Vec<_>>()).unwrap();
        }
        let settings = || {
            ["ipv4/conf/pw-test0/route_localnet", "ipv6/conf/pw-test0/accept_ra"]
                .map(|key| node.sh(&["cat", &format!("/proc/sys/net/{key}")]).unwrap())
        };
        let (before, settings_before) = (Snapshot::of(&node).unwrap(), settings());
        let mut config = config(&node);
        config["mode"] = json!(mode);
        config["runtimeConfig"] =
            json!({"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]});
        let pod = node.pod("a").unwrap();
        Plugin::podwire().unwrap().add(&pod, &config).unwrap().ok().unwrap();
        assert_ne!(settings(), settings_before, "{mode}");
        let state = node.run_dir();
        let outcome = run(&node, &tool, &["cleanup", "--run-dir", state.to_str().unwrap()]);
        assert!(outcome.success(), "{mode}: {}{}", outcome.stdout, outcome.stderr);
        for word in ["address 10.50.0.1/24 of bridge pw-test0 removed", "fd00:50::1/64", "accept_ra back to"]
        {
            assert!(outcome.stdout.contains(word), "{mode}: {word} in {}", outcome.stdout);
        }
        before.wait_for_same(&node, std::time::Duration::from_secs(5)).unwrap();
        assert_eq!(settings(), settings_before, "{mode}");
    }
}

#[test]
fn f7_an_address_that_another_one_hangs_on_stays_and_is_named() {
    let lab = Lab::new("hangs").unwrap();
    let node = lab.node("n").unwrap();
    let tool = tool(&lab);
    node.sh(&["ip", "link", "add", "pw-test0", "type", "bridge"]).unwrap();
    let pod = node.pod("a").unwrap();
    Plugin::podwire().unwrap().add(&pod, &config(&node)).unwrap().ok().unwrap();
    node.sh(&["ip", "addr", "add", "10.50.0.77/24", "dev", "pw-test0"]).unwrap();
    let outcome = run(&node, &tool, &["cleanup", "--run-dir", node.run_dir().to_str().unwrap()]);
    assert!(!outcome.success());
    assert!(outcome.stdout.contains("left: address 10.50.0.1/24 of bridge pw-test0"), "{}", outcome.stdout);
    let shown = node.sh(&["ip", "addr", "show", "dev", "pw-test0"]).unwrap();
    assert!(shown.contains("10.50.0.77/24") && !shown.contains("fd00:50::1"), "{shown}");
}

#[test]
fn f7_a_sysctl_that_somebody_changed_after_us_is_theirs() {
    let lab = Lab::new("sysctl").unwrap();
    let node = lab.node("n").unwrap();
    let tool = tool(&lab);
    let pod = node.pod("a").unwrap();
    let redirects = "/proc/sys/net/ipv4/conf/all/send_redirects";
    Plugin::podwire().unwrap().add(&pod, &config(&node)).unwrap().ok().unwrap();
    // As if we had set it from 0 to 2, and it reads 1 now.
    let log = node.run_dir().join("sysctls");
    let mut noted: Value = serde_json::from_slice(&fs::read(&log).unwrap()).unwrap();
    noted[redirects] = json!({ "before": "0", "ours": "2" });
    fs::write(&log, noted.to_string()).unwrap();
    let outcome = run(&node, &tool, &["cleanup", "--run-dir", node.run_dir().to_str().unwrap()]);
    assert!(!outcome.success());
    assert!(outcome.stdout.contains(&format!("left: {redirects} is 1")), "{}", outcome.stdout);
    assert_eq!(node.sh(&["cat", redirects]).unwrap().trim(), "1");
}

#[test]
fn the_demo_shows_two_pods_and_leaves_nothing() {
    let lab = Lab::new("demo").unwrap();
    let node = lab.node("n").unwrap();
    let tool = tool(&lab);
    let outcome = run(&node, &tool, &["demo"]);
    assert!(outcome.success(), "{}{}", outcome.stdout, outcome.stderr);
    for word in ["ADD pod a", "ping pod a → pod b", "ping pod a → node", "fd00:88::3", "Nothing is left"]
    {
        assert!(outcome.stdout.contains(word), "{word} in {}", outcome.stdout);
    }
}
