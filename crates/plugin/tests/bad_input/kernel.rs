//! A kernel or a node that does not let us: a link in the way, parts that are missing, rights that are missing.

use serde_json::{Value, json};
use testkit::{Call, Plugin, Verb};

use crate::common::{Host, host_link, with};
use crate::mounts::Mounts;
use crate::watch::{BRIDGE, Watch, dual, refused, refused_with, wrapped};

#[test]
fn e7_a_bridge_that_is_no_bridge() {
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

/// The nft program makes the tables once. A network without a firewall does not need it. Where the tables are there, pods
/// can be added, but STATUS reports that the tables could not be repaired.
#[test]
fn e7_a_missing_nft_program() {
    let host = Host::new("nonft");
    host.node.sh(&["ip", "link", "add", BRIDGE, "up", "type", "bridge"]).unwrap();
    let (pod, config) = (host.pod("a"), dual(&host, &json!({})));
    let empty = "for dir in /usr/sbin /sbin /usr/local/sbin; do mount -t tmpfs pwt $dir; done";
    let mounts = Mounts::new(&host, empty);
    let without = |verb, config: &Value| {
        let env = vec![("PATH".to_owned(), "/usr/bin:/bin".to_owned())];
        mounts.plugin.call(&host.node, &Call { env, ..Call::pod(verb, &pod, config) }).unwrap()
    };
    let watch = Watch::on(&host, &[&pod]);
    let words = ["nft program is not installed", "apt install nftables"];
    refused_with("ADD", &without(Verb::Add, &config), (103, &words));
    refused_with("STATUS", &without(Verb::Status, &config), (50, &words));
    watch.expect_same("no nft");
    without(Verb::Del, &config).ok().unwrap();
    let open = with(&config, &json!({"spoofCheck": false, "ipMasq": false}));
    without(Verb::Status, &open).ok().unwrap();
    without(Verb::Add, &open).ok().unwrap();
    without(Verb::Del, &open).ok().unwrap();
    host.attached("b", &config);
    let status = without(Verb::Status, &config);
    refused_with("STATUS with tables", &status, (50, &["NftMissing: apt install nftables"]));
    without(Verb::Add, &config).ok().unwrap();
    without(Verb::Del, &config).ok().unwrap();
}

#[test]
fn e7_sysctls_that_cannot_be_written() {
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

fn with_less(host: &Host, name: &str, setpriv: &str) -> Plugin {
    wrapped(host, name, &format!("exec setpriv {setpriv} \"$PLUGIN\""))
}

#[test]
fn e7_missing_privileges() {
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
        let plugin = with_less(&host, case, setpriv);
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

/// All that the kernel wants, but not root's right to every file.
#[test]
fn e7_a_state_directory_of_somebody_else() {
    let host = Host::new("foreignstate");
    let config = dual(&host, &json!({}));
    let (running, _) = host.attached("a", &config);
    let pod = host.pod("b");
    let watch = Watch::on(&host, &[&running, &pod]);
    let caps = "+net_admin,+sys_admin";
    let setpriv =
        format!("--reuid=65534 --regid=65534 --clear-groups --inh-caps={caps} --ambient-caps={caps}");
    let plugin = with_less(&host, "somebody", &setpriv);
    for config in
        [config.clone(), with(&config, &json!({"runDir": host.node.dir().join("new"), "name": "new"}))]
    {
        let outcome = plugin.add(&pod, &config).unwrap();
        refused_with("ADD", &outcome, (5, &["Permission denied", "run as root, or set runDir"]));
        watch.expect_same("a foreign state directory");
    }
}

/// Descriptors run out at every step in turn: whatever fails, DEL makes it good, and with enough of them it works.
#[test]
fn e12_no_descriptors_left() {
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
