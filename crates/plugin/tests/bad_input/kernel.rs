//! Faults of the node: a link with the bridge's name, missing programs, missing privileges, and exhausted descriptors.

use serde_json::{Value, json};
use testkit::{Call, Plugin, Verb};

use crate::common::{Host, host_link, with};
use crate::mounts::Mounts;
use crate::watch::{BRIDGE, Watch, dual, refused, refused_with, wrapped};

#[test]
fn e7_a_link_of_another_type_is_refused_as_bridge() {
    let host = Host::new("nobridge");
    let config = dual(&host, &json!({}));
    let (running, result) = host.attached("a", &config);
    host.node.sh(&["ip", "link", "add", "v0", "type", "veth", "peer", "name", "v1"]).unwrap();
    let pod = host.pod("b");
    let watch = Watch::on(&host, &[&running, &pod]);
    for (bridge, kind) in [("lo", "physical link"), ("v0", "veth"), (host_link(&result), "veth")] {
        let config = with(&config, &json!({"bridge": bridge}));
        let outcome = host.plugin.add(&pod, &config).unwrap();
        refused_with(bridge, &outcome, (7, &[bridge, kind, "not a bridge", "to another name"]));
        watch.expect_same(bridge);
        host.del(&pod, &config);
        watch.expect_same("DEL");
    }
}

/// The nft program is needed to create the tables. A network without firewall does not need it. If the tables exist, pods can be
/// added, but STATUS reports that the tables cannot be repaired.
#[test]
fn e7_a_missing_nft_program_is_reported() {
    let host = Host::new("nonft");
    host.node.sh(&["ip", "link", "add", BRIDGE, "up", "type", "bridge"]).unwrap();
    let (pod, config) = (host.pod("a"), dual(&host, &json!({})));
    let hide_nft = "for dir in /usr/sbin /sbin /usr/local/sbin; do mount -t tmpfs pwt $dir; done";
    let mounts = Mounts::new(&host, hide_nft);
    let call_without_nft = |verb, config: &Value| {
        let env = vec![("PATH".to_owned(), "/usr/bin:/bin".to_owned())];
        mounts.plugin.call(&host.node, &Call { env, ..Call::pod(verb, &pod, config) }).unwrap()
    };
    let watch = Watch::on(&host, &[&pod]);
    let words = ["nft program is not installed", "apt install nftables"];
    refused_with("ADD", &call_without_nft(Verb::Add, &config), (103, &words));
    refused_with("STATUS", &call_without_nft(Verb::Status, &config), (50, &words));
    watch.expect_same("no nft");
    call_without_nft(Verb::Del, &config).ok().unwrap();
    let no_firewall = with(&config, &json!({"spoofCheck": false, "ipMasq": false}));
    call_without_nft(Verb::Status, &no_firewall).ok().unwrap();
    call_without_nft(Verb::Add, &no_firewall).ok().unwrap();
    call_without_nft(Verb::Del, &no_firewall).ok().unwrap();
    host.attached("b", &config);
    let status = call_without_nft(Verb::Status, &config);
    refused_with("STATUS with tables", &status, (50, &["NftMissing: apt install nftables"]));
    call_without_nft(Verb::Add, &config).ok().unwrap();
    call_without_nft(Verb::Del, &config).ok().unwrap();
}

#[test]
fn e7_sysctls_that_cannot_be_written_are_reported() {
    let host = Host::new("sysctl");
    let config = dual(&host, &json!({}));
    let (running, _) = host.attached("a", &config);
    let pod = host.pod("b");
    let sys = "mount --bind /proc/sys /proc/sys\nmount -o remount,ro,bind /proc/sys";
    let mounts = Mounts::new(&host, sys);
    let cases = [
        ("1", "1", "accept_ra"),
        ("0", "1", "/proc/sys/net/ipv4/ip_forward"),
        ("1", "0", "/proc/sys/net/ipv6/conf/all/forwarding"),
    ];
    for (v4, v6, path) in cases {
        let set = format!(
            "echo {v4} >/proc/sys/net/ipv4/ip_forward; echo {v6} >/proc/sys/net/ipv6/conf/all/forwarding"
        );
        host.node.sh(&["sh", "-c", &set]).unwrap();
        let watch = Watch::on(&host, &[&running, &pod]);
        let outcome = mounts.plugin.add(&pod, &config).unwrap();
        refused_with(path, &outcome, (103, &[path, "Read-only file system", "set it by hand"]));
        watch.expect_same(path);
        mounts.plugin.del(&pod, &config).unwrap().ok().unwrap();
        watch.expect_same("DEL");
    }
}

fn with_setpriv(host: &Host, name: &str, setpriv: &str) -> Plugin {
    wrapped(host, name, &format!("exec setpriv {setpriv} \"$PLUGIN\""))
}

#[test]
fn e7_missing_capabilities_are_reported() {
    let host = Host::new("privileges");
    let config = dual(&host, &json!({}));
    let (running, _) = host.attached("a", &config);
    let pod = host.pod("b");
    let watch = Watch::on(&host, &[&running, &pod]);
    let (net, sys) = ("CAP_NET_ADMIN", "CAP_SYS_ADMIN");
    let cases: [(&str, &str, &[&str]); 4] = [
        ("net", "--bounding-set=-net_admin", &[net]),
        ("sys", "--bounding-set=-sys_admin", &[sys]),
        ("none", "--bounding-set=-all", &[net, sys]),
        ("nobody", "--reuid=65534 --regid=65534 --clear-groups", &[net, sys]),
    ];
    for (case, setpriv, missing) in cases {
        let plugin = with_setpriv(&host, case, setpriv);
        let error =
            refused_with(case, &plugin.add(&pod, &config).unwrap(), (103, &["run podwire-cni as root"]));
        for capability in [net, sys] {
            assert_eq!(error.msg.contains(capability), missing.contains(&capability), "{case}: {error:?}");
        }
        let status = plugin.status(&host.node, &config).unwrap();
        refused_with(case, &status, (50, missing));
        watch.expect_same(case);
    }
    host.add(&pod, &config);
    host.del(&pod, &config);
}

/// The plugin runs as another user with network capabilities but without access to root's files.
#[test]
fn e7_a_run_directory_of_another_user_is_reported() {
    let host = Host::new("otheruser");
    let config = dual(&host, &json!({}));
    let (running, _) = host.attached("a", &config);
    let pod = host.pod("b");
    let watch = Watch::on(&host, &[&running, &pod]);
    let caps = "+net_admin,+sys_admin";
    let setpriv =
        format!("--reuid=65534 --regid=65534 --clear-groups --inh-caps={caps} --ambient-caps={caps}");
    let plugin = with_setpriv(&host, "otheruser", &setpriv);
    for config in
        [config.clone(), with(&config, &json!({"runDir": host.node.dir().join("new"), "name": "new"}))]
    {
        let outcome = plugin.add(&pod, &config).unwrap();
        refused_with("ADD", &outcome, (5, &["Permission denied", "run as root, or set runDir"]));
        watch.expect_same("a run directory of another user");
    }
}

/// The limit of open files increases until the ADD succeeds, so that the ADD fails at each step. A DEL must clean up.
#[test]
fn e12_an_add_without_free_descriptors_is_undone_by_del() {
    let host = Host::new("nofile");
    let config = dual(&host, &json!({}));
    let (running, _) = host.attached("a", &config);
    let pod = host.pod("b");
    let watch = Watch::on(&host, &[&running, &pod]);
    let mut failures = 0;
    for limit in 4..64 {
        let plugin =
            wrapped(&host, &format!("limit{limit}"), &format!("ulimit -n {limit}; exec \"$PLUGIN\""));
        let outcome = plugin.add(&pod, &config).unwrap();
        if !outcome.success() {
            refused(&limit.to_string(), &outcome);
            failures += 1;
        }
        host.del(&pod, &config);
        watch.expect_same(&format!("{limit} descriptors"));
        if outcome.success() {
            assert!(failures > 2, "{failures}");
            return;
        }
    }
    panic!("no ADD succeeded");
}
