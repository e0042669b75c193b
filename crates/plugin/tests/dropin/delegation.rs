//! E19: addresses of an external IPAM plugin.

use std::path::PathBuf;

use serde_json::{Value, json};
use testkit::{Call, DEADLINE, Outcome, Plugin, Pod, REFERENCE_DIR, Snapshot, Verb, inspect, wait_until};

use crate::common::{DUAL, Host, MODES, ips, nets, verdict, with, with_previous, words};

fn host_local(host: &Host, more: &Value) -> Value {
    let config = host.config(&json!({"isDefaultGateway": true, "ipam": {"type": "host-local", "dataDir": host.node.dir().join("leases"),
        "ranges": [[{"subnet": "10.88.0.0/24"}], [{"subnet": "fd00:88::/64"}]]}}));
    // The installed host-local does not support 1.1.0.
    with(&with(&config, &json!({"cniVersion": "1.0.0"})), more)
}

#[test]
fn e19_host_local_assigns_and_releases_addresses() {
    for mode in MODES {
        let host = Host::new("e19");
        let config = host_local(&host, &json!({"mode": mode, "ipMasq": true}));
        let (pod, result) = host.attached("a", &config);
        let lease = host.node.dir().join("leases/blue/10.88.0.2");
        assert!(std::fs::read_to_string(&lease).unwrap().starts_with(pod.id()), "{mode}");
        let expected = if mode == "bridge" {
            ["10.88.0.2/24", "fd00:88::2/64"]
        } else {
            ["10.88.0.2/32", "fd00:88::2/128"]
        };
        assert_eq!(nets(&result), expected, "{mode}");
        assert_eq!(
            inspect::addresses(&host.node, "pw0").unwrap().iter().filter(|a| a.scope == "global").count(),
            2
        );
        let (neighbour, neighbour_result) = host.attached("b", &config);
        for ip in ips(&neighbour_result) {
            assert!(testkit::ping(&pod, ip, 1).unwrap().all(), "{mode}: {ip}");
        }
        host.check(&pod, &config, &result).unwrap();
        for ip in ips(&result) {
            std::fs::remove_file(host.node.dir().join(format!("leases/blue/{ip}"))).unwrap();
        }
        host.check(&pod, &config, &result).expect_err("CHECK succeeds without a lease");
        host.del(&pod, &config);
        host.del(&neighbour, &config);
        host.del(&neighbour, &config);
        let leases = std::fs::read_dir(host.node.dir().join("leases/blue")).unwrap();
        let remaining: Vec<_> =
            leases.map(|e| e.unwrap().file_name()).filter(|n| n.to_str().unwrap().contains("88")).collect();
        assert_eq!(remaining, Vec::<std::ffi::OsString>::new(), "{mode}");
    }
}

/// An IPAM plugin that records its calls and returns configured answers.
pub(crate) struct Recorder {
    pub(crate) dir: PathBuf,
}

const RECORDER_SCRIPT: &str = r#"#!/bin/sh
dir=${0%/*}
echo "$CNI_COMMAND" >>"$dir/verbs"
cat >"$dir/stdin-$CNI_COMMAND"
tr '\0' '\n' </proc/$$/environ | sort >"$dir/env-$CNI_COMMAND"
echo "recorder received $CNI_COMMAND" >&2
[ -e "$dir/do-$CNI_COMMAND" ] && . "$dir/do-$CNI_COMMAND"
[ "$CNI_COMMAND" = ADD ] && cat "$dir/result"
exit 0
"#;

impl Recorder {
    pub(crate) fn new(host: &Host) -> Self {
        let recorder = Self { dir: host.node.dir().join("cni") };
        std::fs::create_dir(&recorder.dir).unwrap();
        // Another process writes the script: a file that is open for writing cannot be executed.
        let path = recorder.dir.join("recorder").display().to_string();
        let write = format!("cat >{path} && chmod 755 {path}");
        assert!(host.node.run(&["sh", "-c", &write], RECORDER_SCRIPT.as_bytes()).unwrap().success());
        recorder.set_result(&json!({"cniVersion": "1.1.0", "ips": [{"address": "10.88.0.9/24", "gateway": "10.88.0.1"},
            {"address": "fd00:88::9/64", "gateway": "fd00:88::1"}],
            "routes": [{"dst": "0.0.0.0/0"}, {"dst": "192.0.2.0/24", "gw": "10.88.0.7"}], "dns": {"nameservers": ["10.88.0.53"]}}));
        recorder
    }

    fn set_result(&self, result: &Value) {
        std::fs::write(self.dir.join("result"), result.to_string()).unwrap();
    }

    /// Sets a shell script that runs for this command.
    pub(crate) fn set_script(&self, verb: &str, script: &str) {
        std::fs::write(self.dir.join(format!("do-{verb}")), script).unwrap();
    }

    pub(crate) fn set_failure(&self, verb: &str, error: &str) {
        self.set_script(verb, &format!("echo '{error}'; exit 1"));
    }

    pub(crate) fn read(&self, file: &str) -> String {
        std::fs::read_to_string(self.dir.join(file)).unwrap_or_default()
    }

    pub(crate) fn verbs(&self) -> Vec<String> {
        self.read("verbs").lines().map(str::to_owned).collect()
    }

    pub(crate) fn path(&self) -> (String, String) {
        ("CNI_PATH".to_owned(), format!("{REFERENCE_DIR}:{}", self.dir.display()))
    }
}

pub(crate) fn recorder_config(host: &Host, more: &Value) -> Value {
    let config = host.config(&json!({"isGateway": true, "ipam": {"type": "recorder", "unknown": [1, null]}}));
    with(&config, more)
}

pub(crate) fn call(host: &Host, recorder: &Recorder, call: Call) -> Outcome {
    host.plugin.call(&host.node, &Call { env: vec![recorder.path()], ..call }).unwrap()
}

#[test]
fn e19_addresses_routes_and_dns_of_the_plugin_are_used() {
    for mode in MODES {
        let host = Host::new("e19-result");
        let recorder = Recorder::new(&host);
        let config = recorder_config(&host, &json!({"mode": mode}));
        let pod = host.pod("a");
        let result = call(&host, &recorder, Call::pod(Verb::Add, &pod, &config)).ok().unwrap();
        assert_eq!(
            ips(&result).iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["10.88.0.9", "fd00:88::9"]
        );
        assert_eq!(result["dns"], json!({"nameservers": ["10.88.0.53"]}), "{mode}");
        assert!(
            result["routes"]
                .as_array()
                .unwrap()
                .iter()
                .any(|r| r["dst"] == "192.0.2.0/24" && r["gw"] == "10.88.0.7")
        );
        assert!(pod.sh(&words("ip route show 192.0.2.0/24")).unwrap().contains("via 10.88.0.7"), "{mode}");
        assert!(pod.sh(&words("ip route show default")).unwrap().contains("via 10.88.0.1"), "{mode}");
        assert_eq!(
            pod.sh(&words("ip -6 route show default")).unwrap(),
            "",
            "{mode}: unexpected default route"
        );
        let check = with_previous(&config, &result);
        verdict(&call(&host, &recorder, Call::pod(Verb::Check, &pod, &check))).unwrap();
        // DNS of the config has precedence, and the default route is not duplicated.
        let other = host.pod("b");
        recorder
            .set_result(&json!({"ips": [{"address": "10.88.0.10/24"}], "routes": [{"dst": "0.0.0.0/0"}]}));
        let more = json!({"dns": {"nameservers": ["10.88.0.54"]}, "isDefaultGateway": true});
        let result =
            call(&host, &recorder, Call::pod(Verb::Add, &other, &with(&config, &more))).ok().unwrap();
        assert_eq!(result["dns"], json!({"nameservers": ["10.88.0.54"]}), "{mode}");
        assert_eq!(result["ips"][0]["gateway"], "10.88.0.1", "{mode}: the first address of the subnet");
        let defaults =
            result["routes"].as_array().unwrap().iter().filter(|r| r["dst"] == "0.0.0.0/0").count();
        assert_eq!(defaults, 1, "{mode}: {result}");
    }
}

#[test]
fn e19_the_plugin_gets_variables_and_config_unchanged() {
    let host = Host::new("e19-verbatim");
    let recorder = Recorder::new(&host);
    let config = recorder_config(&host, &json!({}));
    let pod = host.pod("a");
    let args = Some("IgnoreUnknown=1;K8S_POD_NAME=web;FOO=bar".to_owned());
    // White space, order and unknown keys must not change.
    let pretty =
        |config: &Value| format!("\n{}\n\n", serde_json::to_string_pretty(config).unwrap()).into_bytes();
    let result = call(
        &host,
        &recorder,
        Call { args: args.clone(), stdin: pretty(&config), ..Call::pod(Verb::Add, &pod, &config) },
    );
    assert!(result.stderr.contains("recorder received ADD"), "{}", result.stderr);
    let previous = with_previous(&config, &result.ok().unwrap());
    let valid =
        with(&config, &json!({"cni.dev/valid-attachments": [{"containerID": pod.id(), "ifname": "eth0"}]}));
    for (verb, has_pod, config) in [
        (Verb::Add, true, &config),
        (Verb::Check, true, &previous),
        (Verb::Status, false, &config),
        (Verb::Gc, false, &valid),
        (Verb::Del, true, &previous),
    ] {
        let base = if has_pod { Call::pod(verb, &pod, config) } else { Call::network(verb, config) };
        let env = vec![recorder.path(), ("PODWIRE_ETCD_PASSWORD".to_owned(), "secret".to_owned())];
        let sent = Call { args: args.clone(), stdin: pretty(config), env, ..base };
        if verb != Verb::Add {
            let outcome = host.plugin.call(&host.node, &sent).unwrap();
            outcome.ok().unwrap();
            assert!(
                outcome.stderr.contains(&format!("recorder received {}", verb.as_str())),
                "{}",
                outcome.stderr
            );
        }
        let name = verb.as_str();
        assert_eq!(recorder.read(&format!("stdin-{name}")).into_bytes(), sent.stdin, "{name}");
        let mut expected = vec![
            format!("CNI_COMMAND={name}"),
            format!("CNI_PATH={}", recorder.path().1),
            "CNI_PODWIRE_DELEGATED=1".to_owned(),
            "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned(),
        ];
        expected.extend(args.iter().map(|args| format!("CNI_ARGS={args}")));
        if has_pod {
            expected.push(format!("CNI_CONTAINERID={}", pod.id()));
            expected.push(format!("CNI_NETNS={}", pod.netns_path().display()));
            expected.push("CNI_IFNAME=eth0".to_owned());
        }
        expected.sort();
        assert_eq!(recorder.read(&format!("env-{name}")).lines().collect::<Vec<_>>(), expected, "{name}");
    }
    assert_eq!(recorder.verbs(), ["ADD", "CHECK", "STATUS", "GC", "DEL"]);
}

#[test]
fn e19_errors_of_the_plugin_are_returned() {
    let error = r#"{"cniVersion":"1.1.0","code":11,"msg":"no lease server","details":"eth7 is down"}"#;
    for verb in [Verb::Add, Verb::Check, Verb::Del, Verb::Gc, Verb::Status] {
        let host = Host::new("e19-error");
        let recorder = Recorder::new(&host);
        let config = recorder_config(&host, &json!({}));
        let pod = host.pod("a");
        let mut request = config.clone();
        if verb != Verb::Add {
            let result = call(&host, &recorder, Call::pod(Verb::Add, &pod, &config)).ok().unwrap();
            request = with(&config, &json!({"prevResult": result, "cni.dev/valid-attachments": []}));
        }
        recorder.set_failure(verb.as_str(), error);
        let base = match verb {
            Verb::Gc | Verb::Status | Verb::Version => Call::network(verb, &request),
            Verb::Add | Verb::Check | Verb::Del => Call::pod(verb, &pod, &request),
        };
        let returned = call(&host, &recorder, base).error().unwrap();
        assert_eq!(returned.code, 11, "{}: {returned:?}", verb.as_str());
        assert!(
            returned.msg.contains("no lease server") && returned.msg.contains("recorder"),
            "{}: {returned:?}",
            verb.as_str()
        );
        if matches!(verb, Verb::Del | Verb::Gc) {
            assert!(inspect::link(&pod, "eth0").is_err(), "{}: the link was not removed", verb.as_str());
        }
    }
}

#[test]
fn e19_an_invalid_answer_of_the_plugin_is_reported() {
    for (script, expected) in [
        ("echo nonsense; exit 0", "recorder"),
        ("exit 7", "7"),
        ("kill -9 $$", "recorder"),
        (r#"echo '{"cniVersion":"1.1.0","ips":[]}'; exit 0"#, "no address"),
        (r#"echo '{"cniVersion":"1.1.0","ips":[{"address":"10.88.0.300/24"}]}'; exit 0"#, "10.88.0.300"),
    ] {
        let host = Host::new("e19-invalid");
        let recorder = Recorder::new(&host);
        recorder.set_script("ADD", script);
        let (pod, config) = (host.pod("a"), recorder_config(&host, &json!({})));
        let error = call(&host, &recorder, Call::pod(Verb::Add, &pod, &config)).error().unwrap();
        assert!(error.msg.contains(expected), "{script}: {error:?}");
        assert_eq!(recorder.verbs(), ["ADD", "DEL"], "{script}: the plugin may have allocated addresses");
        assert!(
            inspect::links(&pod).unwrap().len() == 1 && inspect::links(&host.node).unwrap().len() <= 2,
            "{script}"
        );
    }
}

#[test]
fn e19_a_failed_add_releases_the_plugins_addresses() {
    for mode in MODES {
        let host = Host::new("e19-failed");
        let recorder = Recorder::new(&host);
        let ports = json!({"runtimeConfig": {"portMappings": [{"hostPort": 8080, "containerPort": 80}]}});
        let own = with(
            &host.config(
                &json!({"name": "own", "bridge": "pw9", "subnet": "10.99.0.0/24,fd00:99::/64", "mode": mode}),
            ),
            &ports,
        );
        let (_holder, _) = host.attached("holder", &own);
        let config = recorder_config(&host, &json!({"mode": mode}));
        let pod = host.pod("a");
        // The first pod creates bridge and chains.
        call(&host, &recorder, Call::pod(Verb::Add, &pod, &config)).ok().unwrap();
        call(&host, &recorder, Call::pod(Verb::Del, &pod, &config)).ok().unwrap();
        let before = Snapshot::of(&host.node).unwrap();
        let error =
            call(&host, &recorder, Call::pod(Verb::Add, &pod, &with(&config, &ports))).error().unwrap();
        assert!(error.msg.contains("8080"), "{mode}: {error:?}");
        assert_eq!(recorder.verbs()[2..], ["ADD", "DEL"], "{mode}");
        assert_eq!(recorder.read("stdin-DEL"), recorder.read("stdin-ADD"), "{mode}");
        before.expect_same(&host.node).unwrap();
        // The interface is deleted while the IPAM plugin runs.
        recorder.set_script("ADD", "nsenter --net=\"$CNI_NETNS\" ip link del \"$CNI_IFNAME\"");
        let error = call(&host, &recorder, Call::pod(Verb::Add, &pod, &config)).error().unwrap();
        assert!(error.code >= 100 || error.code == 11, "{mode}: {error:?}");
        assert_eq!(recorder.verbs()[4..], ["ADD", "DEL"], "{mode}");
        before.expect_same(&host.node).unwrap();
        assert!(inspect::link(&pod, "eth0").is_err(), "{mode}");
    }
}

/// As in the reference plugins, because a DHCP client sends through the interface.
#[test]
fn b11_the_interface_is_up_when_the_ipam_plugin_runs() {
    for mode in MODES {
        let host = Host::new("b11-up");
        let recorder = Recorder::new(&host);
        let config = recorder_config(&host, &json!({"mode": mode}));
        let pod = host.pod("a");
        recorder.set_script("ADD", "nsenter --net=\"$CNI_NETNS\" ip -o addr show \"$CNI_IFNAME\" >\"$dir/link\"; nsenter --net=\"$CNI_NETNS\" ip -o link show \"$CNI_IFNAME\" >>\"$dir/link\"");
        call(&host, &recorder, Call::pod(Verb::Add, &pod, &config)).ok().unwrap();
        let link = recorder.read("link");
        assert!(link.contains("LOWER_UP") && !link.contains(" inet "), "{mode}: {link}");
        call(&host, &recorder, Call::pod(Verb::Del, &pod, &config)).ok().unwrap();
        assert_eq!(recorder.verbs(), ["ADD", "DEL"], "{mode}");
        // podwire-cni is killed while the IPAM plugin runs. The next ADD undoes the first one, including the plugin's DEL.
        recorder.set_script("ADD", "[ -e \"$dir/once\" ] || { touch \"$dir/once\"; kill -9 $PPID; }");
        assert!(call(&host, &recorder, Call::pod(Verb::Add, &pod, &config)).killed(), "{mode}");
        call(&host, &recorder, Call::pod(Verb::Add, &pod, &config)).ok().unwrap();
        assert_eq!(recorder.verbs()[2..], ["ADD", "DEL", "ADD"], "{mode}");
    }
}

/// Not every IPAM plugin supports GC. Without a DEL, a DHCP client would renew the lease forever.
#[test]
fn b11_gc_releases_the_addresses_of_removed_pods() {
    for mode in MODES {
        let host = Host::new("b11-gc");
        let recorder = Recorder::new(&host);
        let config = recorder_config(&host, &json!({"mode": mode}));
        let pod = host.pod("a");
        call(&host, &recorder, Call::pod(Verb::Add, &pod, &config)).ok().unwrap();
        let gc = with(&config, &json!({"cni.dev/valid-attachments": []}));
        call(&host, &recorder, Call::network(Verb::Gc, &gc)).ok().unwrap();
        assert_eq!(recorder.verbs(), ["ADD", "DEL", "GC"], "{mode}");
        let pod_variables = |verb: &str| {
            let env = recorder.read(&format!("env-{verb}"));
            let is_pod_variable = |line: &&str| {
                ["CNI_CONTAINERID", "CNI_IFNAME", "CNI_NETNS="].iter().any(|name| line.starts_with(name))
            };
            env.lines().filter(is_pod_variable).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(pod_variables("DEL"), pod_variables("ADD"), "{mode}");
        assert_eq!((pod_variables("DEL").len(), pod_variables("GC").len()), (3, 0), "{mode}");
        assert!(inspect::link(&pod, "eth0").is_err(), "{mode}");
    }
}

/// The IPAM plugin takes longer than the usual timeout for a locked record.
#[test]
fn b11_del_waits_for_an_add_with_a_slow_ipam_plugin() {
    let host = Host::new("b11-slow");
    let (recorder, pod) = (Recorder::new(&host), host.pod("a"));
    let config = recorder_config(&host, &json!({}));
    recorder.set_script("ADD", "sleep 12");
    std::thread::scope(|scope| {
        let adding = scope.spawn(|| call(&host, &recorder, Call::pod(Verb::Add, &pod, &config)));
        wait_until("the plugin's ADD", DEADLINE, || Ok(!recorder.verbs().is_empty())).unwrap();
        call(&host, &recorder, Call::pod(Verb::Del, &pod, &config)).ok().unwrap();
        adding.join().unwrap().ok().unwrap();
    });
    assert!(inspect::link(&pod, "eth0").is_err());
    assert_eq!(recorder.verbs(), ["ADD", "DEL"]);
}

#[test]
fn e19_a_missing_plugin_is_reported_and_del_removes_the_link() {
    let host = Host::new("e19-unknown");
    let config = host.config(&json!({"ipam": {"type": "no-such-ipam"}}));
    let before = Snapshot::of(&host.node).unwrap();
    let pod = host.pod("a");
    let error = host.refused(&pod, &config);
    assert!(error.msg.contains("no-such-ipam") && error.msg.contains("CNI_PATH"), "{error:?}");
    assert!(error.msg.contains(REFERENCE_DIR), "the error does not name the directories: {error:?}");
    let difference = before.difference(&Snapshot::of(&host.node).unwrap());
    assert!(difference.new.iter().all(|line| line.contains("pw0")), "{difference}");
    for bad in ["../host-local", "/usr/lib/cni/host-local", ".."] {
        let error = host.refused(&pod, &host.config(&json!({"ipam": {"type": bad}})));
        assert_eq!(error.code, 7, "{bad}: {error:?}");
    }
    // The plugin was uninstalled after the ADD.
    let (pod, _) = host.attached("b", &host.config(&json!({"subnet": DUAL})));
    let error = failed_del(&host, &pod, &config);
    assert!(error.msg.contains("no-such-ipam"), "{error:?}");
    assert!(inspect::link(&pod, "eth0").is_err(), "the link was not removed");
}

fn failed_del(host: &Host, pod: &Pod, config: &Value) -> testkit::CniError {
    host.plugin.del(pod, config).unwrap().error().unwrap()
}

#[test]
fn special_or_too_many_addresses_of_a_plugin_are_released() {
    let many: Vec<Value> = (1..=17).map(|n| json!({"address": format!("10.88.{n}.9/24")})).collect();
    let one = |address: &str| vec![json!({ "address": address })];
    for (addresses, reason) in [
        (one("127.0.0.5/8"), "a loopback"),
        (one("224.0.0.5/24"), "a multicast"),
        (one("0.0.0.5/24"), "an unspecified"),
        (one("10.0.0.5/0"), "an unspecified"),
        (one("ff05::5/64"), "a multicast"),
        (one("::1/128"), "a loopback"),
        (many, "17 addresses"),
    ] {
        for mode in MODES {
            let host = Host::new("e19-special");
            let (recorder, pod) = (Recorder::new(&host), host.pod("a"));
            let config = recorder_config(&host, &json!({"mode": mode}));
            // The first pod creates bridge and tables.
            for verb in [Verb::Add, Verb::Del] {
                call(&host, &recorder, Call::pod(verb, &pod, &config)).ok().unwrap();
            }
            recorder.set_result(&json!({"cniVersion": "1.1.0", "ips": addresses}));
            let before = Snapshot::of(&host.node).unwrap();
            let error = call(&host, &recorder, Call::pod(Verb::Add, &pod, &config)).error().unwrap();
            assert_eq!(error.code, 106, "{error:?}");
            assert!(format!("{} {}", error.msg, error.details).contains(reason), "{error:?}");
            assert_eq!(recorder.verbs()[2..], ["ADD", "DEL"], "{mode}");
            before.expect_same(&host.node).unwrap();
        }
    }
}

/// Enough for the init process of the namespace with its helpers, the plugin and its delegate.
const MAX_PIDS: usize = 12;

/// Runs in a pid namespace with few pids, because a recursive plugin would use up the pids of the host.
#[test]
fn podwire_is_refused_as_its_own_ipam_plugin_under_any_name() {
    let host = Host::new("own-delegate");
    let dir = host.node.dir().join("cni");
    std::fs::create_dir(&dir).unwrap();
    let path_of = |name: &str| dir.join(name).display().to_string();
    let own = path_of("podwire-cni");
    // Another process writes the files: a child of a parallel test could inherit a descriptor, and then a file cannot be executed.
    let create = format!(
        "cp {0} {own} && cp {own} {copy} && ln -s {own} {symlink} && ln {own} {hardlink} &&
         printf '#!/bin/sh\nexec {own}\n' >{through} && chmod 755 {through}",
        host.plugin.path.display(),
        copy = path_of("copy"),
        symlink = path_of("symlink"),
        hardlink = path_of("hardlink"),
        through = path_of("through"),
    );
    host.node.sh(&["sh", "-c", &create]).unwrap();
    let plugin = Plugin { path: own.into() };
    let (running, previous) = host.attached("running", &host.config(&json!({"subnet": DUAL})));
    let pod = host.pod("a");
    let before = Snapshot::of(&host.node).unwrap();
    for (name, is_same_file) in
        [("podwire-cni", true), ("symlink", true), ("hardlink", true), ("copy", false), ("through", false)]
    {
        let config = host.config(&json!({"ipam": {"type": name}, "subnet": DUAL}));
        let gc = json!({"cni.dev/valid-attachments": [{"containerID": running.id(), "ifname": "eth0"}]});
        for call in [
            Call::pod(Verb::Add, &pod, &config),
            Call::pod(Verb::Check, &pod, &with_previous(&config, &previous)),
            Call::network(Verb::Status, &config),
            Call::pod(Verb::Del, &pod, &config),
            Call::network(Verb::Gc, &with(&config, &gc)),
        ] {
            let verb = call.verb;
            let call = Call { env: vec![("CNI_PATH".to_owned(), dir.display().to_string())], ..call };
            let outcome = testkit::call_contained(&plugin, &host.node, &call, MAX_PIDS).unwrap();
            // ADD is refused before the delegate runs, so DEL and GC need not run it either.
            if is_same_file && matches!(verb, Verb::Del | Verb::Gc) {
                outcome.ok().unwrap();
                continue;
            }
            let error = outcome.error().unwrap();
            assert!(
                error.code == 7 || (error.code == 50 && verb == Verb::Status),
                "{name} {verb:?}: {error:?}"
            );
            assert!(
                error.msg.contains("ipam.type") && error.msg.contains(name),
                "{name} {verb:?}: {error:?}"
            );
        }
    }
    before.expect_same(&host.node).unwrap();
    assert!(inspect::link(&pod, "eth0").is_err());
    host.check(&running, &host.config(&json!({"subnet": DUAL})), &previous).unwrap();
}
