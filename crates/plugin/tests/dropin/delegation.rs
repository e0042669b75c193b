//! E19: addresses from another IPAM plugin.

use std::path::PathBuf;

use serde_json::{Value, json};
use testkit::{Call, DEADLINE, Outcome, Plugin, Pod, REFERENCE_DIR, Snapshot, Verb, inspect, wait_until};

use crate::common::{DUAL, Host, MODES, ips, nets, verdict, with, with_previous, words};

fn host_local(host: &Host, more: &Value) -> Value {
    let config = host.config(&json!({"isDefaultGateway": true, "ipam": {"type": "host-local", "dataDir": host.node.dir().join("leases"),
        "ranges": [[{"subnet": "10.88.0.0/24"}], [{"subnet": "fd00:88::/64"}]]}}));
    // The installed host-local does not speak 1.1.0.
    with(&with(&config, &json!({"cniVersion": "1.0.0"})), more)
}

#[test]
fn e19_host_local_gives_the_addresses_and_gets_them_back() {
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
        let (neighbour, neighbours) = host.attached("b", &config);
        for ip in ips(&neighbours) {
            assert!(testkit::ping(&pod, ip, 1).unwrap().all(), "{mode}: {ip}");
        }
        host.check(&pod, &config, &result).unwrap();
        for ip in ips(&result) {
            std::fs::remove_file(host.node.dir().join(format!("leases/blue/{ip}"))).unwrap();
        }
        host.check(&pod, &config, &result).expect_err("host-local misses the lease");
        host.del(&pod, &config);
        host.del(&neighbour, &config);
        host.del(&neighbour, &config);
        let leases = std::fs::read_dir(host.node.dir().join("leases/blue")).unwrap();
        let left: Vec<_> =
            leases.map(|e| e.unwrap().file_name()).filter(|n| n.to_str().unwrap().contains("88")).collect();
        assert_eq!(left, Vec::<std::ffi::OsString>::new(), "{mode}");
    }
}

/// An IPAM plugin that writes down how it was called, and answers what it is told to.
pub(crate) struct Scribe {
    pub(crate) dir: PathBuf,
}

const SCRIBE: &str = r#"#!/bin/sh
dir=${0%/*}
echo "$CNI_COMMAND" >>"$dir/verbs"
cat >"$dir/stdin-$CNI_COMMAND"
tr '\0' '\n' </proc/$$/environ | sort >"$dir/env-$CNI_COMMAND"
echo "scribe heard $CNI_COMMAND" >&2
[ -e "$dir/do-$CNI_COMMAND" ] && . "$dir/do-$CNI_COMMAND"
[ "$CNI_COMMAND" = ADD ] && cat "$dir/result"
exit 0
"#;

impl Scribe {
    pub(crate) fn new(host: &Host) -> Self {
        let scribe = Self { dir: host.node.dir().join("cni") };
        std::fs::create_dir(&scribe.dir).unwrap();
        // Written by another process: see the script helper of testkit's own tests.
        let path = scribe.dir.join("scribe").display().to_string();
        let write = format!("cat >{path} && chmod 755 {path}");
        assert!(host.node.run(&["sh", "-c", &write], SCRIBE.as_bytes()).unwrap().success());
        scribe.answers(&json!({"cniVersion": "1.1.0", "ips": [{"address": "10.88.0.9/24", "gateway": "10.88.0.1"},
            {"address": "fd00:88::9/64", "gateway": "fd00:88::1"}],
            "routes": [{"dst": "0.0.0.0/0"}, {"dst": "192.0.2.0/24", "gw": "10.88.0.7"}], "dns": {"nameservers": ["10.88.0.53"]}}));
        scribe
    }

    fn answers(&self, result: &Value) {
        std::fs::write(self.dir.join("result"), result.to_string()).unwrap();
    }

    /// What it does on a verb besides writing it down.
    pub(crate) fn does(&self, verb: &str, script: &str) {
        std::fs::write(self.dir.join(format!("do-{verb}")), script).unwrap();
    }

    pub(crate) fn fails(&self, verb: &str, error: &str) {
        self.does(verb, &format!("echo '{error}'; exit 1"));
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

pub(crate) fn scribe_config(host: &Host, more: &Value) -> Value {
    let config = host.config(&json!({"isGateway": true, "ipam": {"type": "scribe", "unknown": [1, null]}}));
    with(&config, more)
}

pub(crate) fn call(host: &Host, scribe: &Scribe, call: Call) -> Outcome {
    host.plugin.call(&host.node, &Call { env: vec![scribe.path()], ..call }).unwrap()
}

#[test]
fn e19_all_that_the_plugin_says_is_used() {
    for mode in MODES {
        let host = Host::new("e19-says");
        let scribe = Scribe::new(&host);
        let config = scribe_config(&host, &json!({"mode": mode}));
        let pod = host.pod("a");
        let result = call(&host, &scribe, Call::pod(Verb::Add, &pod, &config)).ok().unwrap();
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
        assert_eq!(pod.sh(&words("ip -6 route show default")).unwrap(), "", "{mode}: nobody asked for one");
        let check = with_previous(&config, &result);
        verdict(&call(&host, &scribe, Call::pod(Verb::Check, &pod, &check))).unwrap();
        // The config's own word on DNS is stronger; a default gateway is not doubled.
        let other = host.pod("b");
        scribe.answers(&json!({"ips": [{"address": "10.88.0.10/24"}], "routes": [{"dst": "0.0.0.0/0"}]}));
        let more = json!({"dns": {"nameservers": ["10.88.0.54"]}, "isDefaultGateway": true});
        let result = call(&host, &scribe, Call::pod(Verb::Add, &other, &with(&config, &more))).ok().unwrap();
        assert_eq!(result["dns"], json!({"nameservers": ["10.88.0.54"]}), "{mode}");
        assert_eq!(result["ips"][0]["gateway"], "10.88.0.1", "{mode}: the first of the subnet");
        let defaults =
            result["routes"].as_array().unwrap().iter().filter(|r| r["dst"] == "0.0.0.0/0").count();
        assert_eq!(defaults, 1, "{mode}: {result}");
    }
}

#[test]
fn e19_every_verb_gets_the_cni_variables_and_the_config_verbatim() {
    let host = Host::new("e19-verbatim");
    let scribe = Scribe::new(&host);
    let config = scribe_config(&host, &json!({}));
    let pod = host.pod("a");
    let args = Some("IgnoreUnknown=1;K8S_POD_NAME=web;FOO=bar".to_owned());
    // Spaces, order and unknown keys must arrive as they were sent.
    let pretty =
        |config: &Value| format!("\n{}\n\n", serde_json::to_string_pretty(config).unwrap()).into_bytes();
    let result = call(
        &host,
        &scribe,
        Call { args: args.clone(), stdin: pretty(&config), ..Call::pod(Verb::Add, &pod, &config) },
    );
    assert!(result.stderr.contains("scribe heard ADD"), "{}", result.stderr);
    let previous = with_previous(&config, &result.ok().unwrap());
    let valid =
        with(&config, &json!({"cni.dev/valid-attachments": [{"containerID": pod.id(), "ifname": "eth0"}]}));
    for (verb, of_pod, config) in [
        (Verb::Add, true, &config),
        (Verb::Check, true, &previous),
        (Verb::Status, false, &config),
        (Verb::Gc, false, &valid),
        (Verb::Del, true, &previous),
    ] {
        let base = if of_pod { Call::pod(verb, &pod, config) } else { Call::network(verb, config) };
        let env = vec![scribe.path(), ("PODWIRE_ETCD_PASSWORD".to_owned(), "secret".to_owned())];
        let sent = Call { args: args.clone(), stdin: pretty(config), env, ..base };
        if verb != Verb::Add {
            let outcome = host.plugin.call(&host.node, &sent).unwrap();
            outcome.ok().unwrap();
            assert!(
                outcome.stderr.contains(&format!("scribe heard {}", verb.as_str())),
                "{}",
                outcome.stderr
            );
        }
        let name = verb.as_str();
        assert_eq!(scribe.read(&format!("stdin-{name}")).into_bytes(), sent.stdin, "{name}");
        let mut expected = vec![
            format!("CNI_COMMAND={name}"),
            format!("CNI_PATH={}", scribe.path().1),
            "CNI_PODWIRE_DELEGATED=1".to_owned(),
            "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned(),
        ];
        expected.extend(args.iter().map(|args| format!("CNI_ARGS={args}")));
        if of_pod {
            expected.push(format!("CNI_CONTAINERID={}", pod.id()));
            expected.push(format!("CNI_NETNS={}", pod.netns_path().display()));
            expected.push("CNI_IFNAME=eth0".to_owned());
        }
        expected.sort();
        assert_eq!(scribe.read(&format!("env-{name}")).lines().collect::<Vec<_>>(), expected, "{name}");
    }
    assert_eq!(scribe.verbs(), ["ADD", "CHECK", "STATUS", "GC", "DEL"]);
}

#[test]
fn e19_its_error_is_passed_on() {
    let error = r#"{"cniVersion":"1.1.0","code":11,"msg":"lease server away","details":"eth7 is down"}"#;
    for verb in [Verb::Add, Verb::Check, Verb::Del, Verb::Gc, Verb::Status] {
        let host = Host::new("e19-error");
        let scribe = Scribe::new(&host);
        let config = scribe_config(&host, &json!({}));
        let pod = host.pod("a");
        let mut asked = config.clone();
        if verb != Verb::Add {
            let result = call(&host, &scribe, Call::pod(Verb::Add, &pod, &config)).ok().unwrap();
            asked = with(&config, &json!({"prevResult": result, "cni.dev/valid-attachments": []}));
        }
        scribe.fails(verb.as_str(), error);
        let base = match verb {
            Verb::Gc | Verb::Status | Verb::Version => Call::network(verb, &asked),
            Verb::Add | Verb::Check | Verb::Del => Call::pod(verb, &pod, &asked),
        };
        let said = call(&host, &scribe, base).error().unwrap();
        assert_eq!(said.code, 11, "{}: {said:?}", verb.as_str());
        assert!(
            said.msg.contains("lease server away") && said.msg.contains("scribe"),
            "{}: {said:?}",
            verb.as_str()
        );
        if matches!(verb, Verb::Del | Verb::Gc) {
            assert!(inspect::link(&pod, "eth0").is_err(), "{}: our part is done all the same", verb.as_str());
        }
    }
}

#[test]
fn e19_a_plugin_that_answers_nonsense_is_named() {
    for (script, says) in [
        ("echo nonsense; exit 0", "scribe"),
        ("exit 7", "7"),
        ("kill -9 $$", "scribe"),
        (r#"echo '{"cniVersion":"1.1.0","ips":[]}'; exit 0"#, "no address"),
        (r#"echo '{"cniVersion":"1.1.0","ips":[{"address":"10.88.0.300/24"}]}'; exit 0"#, "10.88.0.300"),
    ] {
        let host = Host::new("e19-nonsense");
        let scribe = Scribe::new(&host);
        scribe.does("ADD", script);
        let (pod, config) = (host.pod("a"), scribe_config(&host, &json!({})));
        let error = call(&host, &scribe, Call::pod(Verb::Add, &pod, &config)).error().unwrap();
        assert!(error.msg.contains(says), "{script}: {error:?}");
        assert_eq!(scribe.verbs(), ["ADD", "DEL"], "{script}: what it may have given goes back");
        assert!(
            inspect::links(&pod).unwrap().len() == 1 && inspect::links(&host.node).unwrap().len() <= 2,
            "{script}"
        );
    }
}

#[test]
fn e19_what_it_gave_goes_back_when_the_rest_fails() {
    for mode in MODES {
        let host = Host::new("e19-back");
        let scribe = Scribe::new(&host);
        let ports = json!({"runtimeConfig": {"portMappings": [{"hostPort": 8080, "containerPort": 80}]}});
        let own = with(
            &host.config(
                &json!({"name": "own", "bridge": "pw9", "subnet": "10.99.0.0/24,fd00:99::/64", "mode": mode}),
            ),
            &ports,
        );
        let (_holder, _) = host.attached("holder", &own);
        let config = scribe_config(&host, &json!({"mode": mode}));
        let pod = host.pod("a");
        // Once, so that bridge and chains are there.
        call(&host, &scribe, Call::pod(Verb::Add, &pod, &config)).ok().unwrap();
        call(&host, &scribe, Call::pod(Verb::Del, &pod, &config)).ok().unwrap();
        let before = Snapshot::of(&host.node).unwrap();
        let error = call(&host, &scribe, Call::pod(Verb::Add, &pod, &with(&config, &ports))).error().unwrap();
        assert!(error.msg.contains("8080"), "{mode}: {error:?}");
        assert_eq!(scribe.verbs()[2..], ["ADD", "DEL"], "{mode}");
        assert_eq!(scribe.read("stdin-DEL"), scribe.read("stdin-ADD"), "{mode}");
        before.expect_same(&host.node).unwrap();
        // The interface is deleted while the plugin works.
        scribe.does("ADD", "nsenter --net=\"$CNI_NETNS\" ip link del \"$CNI_IFNAME\"");
        let error = call(&host, &scribe, Call::pod(Verb::Add, &pod, &config)).error().unwrap();
        assert!(error.code >= 100 || error.code == 11, "{mode}: {error:?}");
        assert_eq!(scribe.verbs()[4..], ["ADD", "DEL"], "{mode}");
        before.expect_same(&host.node).unwrap();
        assert!(inspect::link(&pod, "eth0").is_err(), "{mode}");
    }
}

/// As in the reference: a DHCP client sends through it.
#[test]
fn b11_the_interface_is_there_and_up_when_the_plugin_is_called() {
    for mode in MODES {
        let host = Host::new("b11-there");
        let scribe = Scribe::new(&host);
        let config = scribe_config(&host, &json!({"mode": mode}));
        let pod = host.pod("a");
        scribe.does("ADD", "nsenter --net=\"$CNI_NETNS\" ip -o addr show \"$CNI_IFNAME\" >\"$dir/link\"; nsenter --net=\"$CNI_NETNS\" ip -o link show \"$CNI_IFNAME\" >>\"$dir/link\"");
        call(&host, &scribe, Call::pod(Verb::Add, &pod, &config)).ok().unwrap();
        let seen = scribe.read("link");
        assert!(seen.contains("LOWER_UP") && !seen.contains(" inet "), "{mode}: {seen}");
        call(&host, &scribe, Call::pod(Verb::Del, &pod, &config)).ok().unwrap();
        assert_eq!(scribe.verbs(), ["ADD", "DEL"], "{mode}");
        // Killed while the plugin works: the next ADD undoes it, with the plugin's DEL.
        scribe.does("ADD", "[ -e \"$dir/once\" ] || { touch \"$dir/once\"; kill -9 $PPID; }");
        assert!(call(&host, &scribe, Call::pod(Verb::Add, &pod, &config)).killed(), "{mode}");
        call(&host, &scribe, Call::pod(Verb::Add, &pod, &config)).ok().unwrap();
        assert_eq!(scribe.verbs()[2..], ["ADD", "DEL", "ADD"], "{mode}");
    }
}

/// Not every IPAM plugin knows GC; a DHCP client would renew the lease for ever.
#[test]
fn b11_gc_gives_the_addresses_of_collected_pods_back() {
    for mode in MODES {
        let host = Host::new("b11-gc");
        let scribe = Scribe::new(&host);
        let config = scribe_config(&host, &json!({"mode": mode}));
        let pod = host.pod("a");
        call(&host, &scribe, Call::pod(Verb::Add, &pod, &config)).ok().unwrap();
        let gc = with(&config, &json!({"cni.dev/valid-attachments": []}));
        call(&host, &scribe, Call::network(Verb::Gc, &gc)).ok().unwrap();
        assert_eq!(scribe.verbs(), ["ADD", "DEL", "GC"], "{mode}");
        let of_pod = |verb: &str| {
            let env = scribe.read(&format!("env-{verb}"));
            let is_of_pod = |line: &&str| {
                ["CNI_CONTAINERID", "CNI_IFNAME", "CNI_NETNS="].iter().any(|name| line.starts_with(name))
            };
            env.lines().filter(is_of_pod).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(of_pod("DEL"), of_pod("ADD"), "{mode}");
        assert_eq!((of_pod("DEL").len(), of_pod("GC").len()), (3, 0), "{mode}");
        assert!(inspect::link(&pod, "eth0").is_err(), "{mode}");
    }
}

/// Longer than a process waits for a record that another one works on.
#[test]
fn b11_a_del_waits_for_an_add_whose_plugin_takes_long() {
    let host = Host::new("b11-slow");
    let (scribe, pod) = (Scribe::new(&host), host.pod("a"));
    let config = scribe_config(&host, &json!({}));
    scribe.does("ADD", "sleep 12");
    std::thread::scope(|scope| {
        let adding = scope.spawn(|| call(&host, &scribe, Call::pod(Verb::Add, &pod, &config)));
        wait_until("the plugin's ADD", DEADLINE, || Ok(!scribe.verbs().is_empty())).unwrap();
        call(&host, &scribe, Call::pod(Verb::Del, &pod, &config)).ok().unwrap();
        adding.join().unwrap().ok().unwrap();
    });
    assert!(inspect::link(&pod, "eth0").is_err());
    assert_eq!(scribe.verbs(), ["ADD", "DEL"]);
}

#[test]
fn e19_an_unknown_plugin_is_a_clear_error_and_never_keeps_a_pod_from_going() {
    let host = Host::new("e19-unknown");
    let config = host.config(&json!({"ipam": {"type": "no-such-ipam"}}));
    let before = Snapshot::of(&host.node).unwrap();
    let pod = host.pod("a");
    let error = host.refused(&pod, &config);
    assert!(error.msg.contains("no-such-ipam") && error.msg.contains("CNI_PATH"), "{error:?}");
    assert!(error.msg.contains(REFERENCE_DIR), "where it was looked for: {error:?}");
    let left = before.difference(&Snapshot::of(&host.node).unwrap());
    assert!(left.new.iter().all(|line| line.contains("pw0")), "{left}");
    for bad in ["../host-local", "/usr/lib/cni/host-local", ".."] {
        let error = host.refused(&pod, &host.config(&json!({"ipam": {"type": bad}})));
        assert_eq!(error.code, 7, "{bad}: {error:?}");
    }
    // It was there for the ADD and was uninstalled since.
    let (pod, _) = host.attached("b", &host.config(&json!({"subnet": DUAL})));
    let error = delete(&host, &pod, &config);
    assert!(error.msg.contains("no-such-ipam"), "{error:?}");
    assert!(inspect::link(&pod, "eth0").is_err(), "our part is done all the same");
}

fn delete(host: &Host, pod: &Pod, config: &Value) -> testkit::CniError {
    host.plugin.del(pod, config).unwrap().error().unwrap()
}

#[test]
fn special_or_too_many_addresses_of_an_ipam_plugin_are_given_back() {
    let many: Vec<Value> = (1..=17).map(|n| json!({"address": format!("10.88.{n}.9/24")})).collect();
    let one = |address: &str| vec![json!({ "address": address })];
    for (given, word) in [
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
            let (scribe, pod) = (Scribe::new(&host), host.pod("a"));
            let config = scribe_config(&host, &json!({"mode": mode}));
            // Once, so that bridge and tables are there.
            for verb in [Verb::Add, Verb::Del] {
                call(&host, &scribe, Call::pod(verb, &pod, &config)).ok().unwrap();
            }
            scribe.answers(&json!({"cniVersion": "1.1.0", "ips": given}));
            let before = Snapshot::of(&host.node).unwrap();
            let error = call(&host, &scribe, Call::pod(Verb::Add, &pod, &config)).error().unwrap();
            assert_eq!(error.code, 106, "{error:?}");
            assert!(format!("{} {}", error.msg, error.details).contains(word), "{error:?}");
            assert_eq!(scribe.verbs()[2..], ["ADD", "DEL"], "{mode}");
            before.expect_same(&host.node).unwrap();
        }
    }
}

/// The plugin, a delegate, the runner of the delegate, and a namespace's first process with its own helpers.
const FEW: usize = 12;

/// Called in a pid namespace: a plugin that runs itself would take all pids of the machine.
#[test]
fn podwire_is_refused_as_its_own_ipam_plugin_under_any_name() {
    let host = Host::new("own-delegate");
    let dir = host.node.dir().join("cni");
    std::fs::create_dir(&dir).unwrap();
    let at = |name: &str| dir.join(name).display().to_string();
    let own = at("podwire-cni");
    // Not by this process: another test's child could inherit the descriptor, and then it cannot be executed.
    let make = format!(
        "cp {0} {own} && cp {own} {copy} && ln -s {own} {symlink} && ln {own} {hardlink} &&
         printf '#!/bin/sh\nexec {own}\n' >{through} && chmod 755 {through}",
        host.plugin.path.display(),
        copy = at("copy"),
        symlink = at("symlink"),
        hardlink = at("hardlink"),
        through = at("through"),
    );
    host.node.sh(&["sh", "-c", &make]).unwrap();
    let plugin = Plugin { path: own.into() };
    let (running, previous) = host.attached("running", &host.config(&json!({"subnet": DUAL})));
    let pod = host.pod("a");
    let before = Snapshot::of(&host.node).unwrap();
    for (name, is_known) in
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
            let outcome = testkit::call_contained(&plugin, &host.node, &call, FEW).unwrap();
            // An ADD of these is refused before anything runs, so there is nothing to give back.
            if is_known && matches!(verb, Verb::Del | Verb::Gc) {
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
