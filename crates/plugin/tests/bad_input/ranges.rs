//! Ranges that are too small or exhausted, and requested addresses.

use serde_json::{Value, json};
use testkit::{Call, Verb};

use crate::common::{Host, ips, nets, with};
use crate::watch::{Watch, dual, records_and_claims, refused_with};

#[test]
fn c2_subnets_too_small_for_gateway_and_pod_are_refused() {
    let host = Host::new("c2");
    let good = dual(&host, &json!({}));
    let (running, _) = host.attached("a", &good);
    let pod = host.pod("b");
    let watch = Watch::on(&host, &[&running, &pod]);
    for subnet in ["10.9.0.0/31", "10.9.0.0/32", "fd09::/127", "fd09::/128", "10.9.0.0/24,fd09::/127"] {
        let small = subnet.split(',').next_back().unwrap();
        let larger = if small.contains(':') { "/126" } else { "/30" };
        for config in
            [json!({"subnet": subnet}), json!({"subnet": null, "ipam": {"ranges": [[{"subnet": small}]]}})]
        {
            let config = with(&good, &config);
            let outcome = host.plugin.add(&pod, &config).unwrap();
            refused_with(subnet, &outcome, (7, &[small, "too small", "gateway", larger]));
            refused_with(subnet, &host.plugin.status(&host.node, &config).unwrap(), (7, &[small]));
            host.del(&pod, &config);
        }
    }
    watch.expect_same("small subnets");
    for (name, subnet) in [("c", "10.30.0.0/30"), ("d", "fd00:30::/126")] {
        host.attached(name, &host.config(&json!({"name": name, "bridge": name, "subnet": subnet})));
    }
}

#[test]
fn c3_the_exhaustion_error_counts_addresses_in_use() {
    let host = Host::new("c3");
    for (network, subnet, capacity) in [("v4", "10.8.0.0/29", 5), ("v6", "fd00:8::/125", 6)] {
        let config = host.config(&json!({"name": network, "bridge": network, "subnet": subnet}));
        let attached: Vec<_> =
            (0..capacity).map(|n| host.attached(&format!("{network}-{n}"), &config)).collect();
        let pod = host.pod(&format!("{network}-late"));
        let watch = Watch::on(&host, &[&pod]);
        let all = format!("{capacity} of {capacity} in use");
        refused_with(
            network,
            &host.plugin.add(&pod, &config).unwrap(),
            (100, &[subnet, &all, "remove pods"]),
        );
        watch.expect_same(network);
        host.del(&pod, &config);
        watch.expect_same("DEL of the refused pod");
        let (removed, result) = &attached[2];
        host.del(removed, &config);
        assert_eq!(nets(&host.add(&pod, &config)), nets(result), "the only free address");
    }
}

/// The first family is allocated before the second family turns out to be exhausted.
#[test]
fn c3_a_failed_add_releases_its_addresses() {
    let host = Host::new("c3back");
    let (large, small) = ("10.8.0.0/24", "fd00:8::/126");
    for subnet in [format!("{large},{small}"), "10.8.0.0/30,fd00:8::/64".to_owned()] {
        let network = format!("n{}", subnet.len());
        let config = host.config(&json!({"name": network, "bridge": network, "subnet": subnet}));
        let mut pods = vec![host.attached(&format!("{network}-0"), &config)];
        let refusal = loop {
            let pod = host.pod(&format!("{network}-{}", pods.len()));
            let before = records_and_claims(&host.node.run_dir());
            let outcome = host.plugin.add(&pod, &config).unwrap();
            if !outcome.success() {
                assert_eq!(records_and_claims(&host.node.run_dir()), before);
                break outcome;
            }
            pods.push((pod, outcome.ok().unwrap()));
        };
        refused_with(&subnet, &refusal, (100, &["in use"]));
        for (pod, _) in &pods {
            host.del(pod, &config);
        }
        assert!(!records_and_claims(&host.node.run_dir()).iter().any(|path| path.starts_with(&network)));
    }
}

/// The same requested address in CNI_ARGS, in `args.cni` and in `runtimeConfig`.
fn requests(address: &str) -> [(Value, Option<String>); 3] {
    [
        (json!({}), Some(format!("IP={address}"))),
        (json!({"args": {"cni": {"ips": [address]}}}), None),
        (json!({"runtimeConfig": {"ips": [address]}}), None),
    ]
}

#[test]
fn e18_the_error_for_an_address_in_use_names_its_pod() {
    let host = Host::new("e18taken");
    let config = dual(&host, &json!({}));
    let (holder, first) = host.attached("a", &config);
    let pod = host.pod("b");
    host.attached("c", &config);
    let watch = Watch::on(&host, &[&holder, &pod]);
    for address in ips(&first).iter().map(ToString::to_string) {
        for (more, args) in requests(&address) {
            let call = Call { args, ..Call::pod(Verb::Add, &pod, &with(&config, &more)) };
            let outcome = host.plugin.call(&host.node, &call).unwrap();
            refused_with(&address, &outcome, (101, &[&address, holder.id(), "eth0"]));
            watch.expect_same(&address);
        }
    }
    host.del(&pod, &config);
    watch.expect_same("DEL");
}

#[test]
fn e18_requested_addresses_that_are_not_allocatable_are_refused() {
    let host = Host::new("e18outside");
    let good = host.config(&json!({"ipMasq": true, "ipam": {"ranges": [
        [{"subnet": "10.88.0.0/24", "rangeStart": "10.88.0.10", "rangeEnd": "10.88.0.99", "exclude": ["10.88.0.50"]}],
        [{"subnet": "fd00:88::/64"}],
    ]}}));
    let (running, _) = host.attached("a", &good);
    let pod = host.pod("b");
    let watch = Watch::on(&host, &[&running, &pod]);
    let cases = [
        ("10.99.0.5", "outside"),
        ("10.88.0.9", "outside"),
        ("fd99::5", "outside"),
        ("10.88.0.1", "10.88.0.1"),
        ("fd00:88::1", "gateway"),
        ("10.88.0.50", "excluded"),
        ("fd00:88::", "fd00:88::"),
        ("10.88.0.20/16", "10.88.0.20/24"),
    ];
    for (address, reason) in cases {
        for (more, args) in requests(address) {
            let call = Call { args, ..Call::pod(Verb::Add, &pod, &with(&good, &more)) };
            refused_with(
                address,
                &host.plugin.call(&host.node, &call).unwrap(),
                (7, &["requested address", reason]),
            );
        }
        watch.expect_same(address);
    }
    let two = with(&good, &json!({"runtimeConfig": {"ips": ["10.88.0.20", "10.88.0.21"]}}));
    refused_with("two", &host.plugin.add(&pod, &two).unwrap(), (7, &["10.88.0.20", "10.88.0.21"]));
    watch.expect_same("two addresses of one family");
}

#[test]
fn special_subnets_are_refused_and_change_nothing() {
    let host = Host::new("special");
    let good = dual(&host, &json!({}));
    let (running, _) = host.attached("a", &good);
    let pod = host.pod("b");
    let watch = Watch::on(&host, &[&running, &pod]);
    for (subnet, kind) in [
        ("0.0.0.0/8", "an unspecified address"),
        ("127.0.0.0/8", "a loopback address"),
        ("169.254.0.0/16", "a link-local address"),
        ("224.0.0.0/4", "a multicast address"),
        ("255.255.255.0/24", "a broadcast address"),
        ("0.0.0.0/0", "an unspecified address"),
        ("::/96", "an unspecified address"),
        ("fe80::/64", "a link-local address"),
        ("ff00::/8", "a multicast address"),
    ] {
        for mode in ["bridge", "routed"] {
            let config =
                with(&good, &json!({"name": "special", "bridge": "special", "mode": mode, "subnet": subnet}));
            refused_with(subnet, &host.plugin.add(&pod, &config).unwrap(), (7, &["subnet", subnet, kind]));
            refused_with(subnet, &host.plugin.status(&host.node, &config).unwrap(), (7, &[subnet]));
            host.del(&pod, &config);
        }
        watch.expect_same(subnet);
    }
}

#[test]
fn at_most_16_range_sets_are_accepted() {
    let host = Host::new("manysets");
    let sets =
        |count: usize| (0..count).map(|n| json!([{"subnet": format!("10.{n}.0.0/24")}])).collect::<Vec<_>>();
    let config = |count| host.config(&json!({"ipam": {"ranges": sets(count)}}));
    let pod = host.pod("a");
    let watch = Watch::on(&host, &[&pod]);
    for count in [17, 250] {
        refused_with("sets", &host.plugin.add(&pod, &config(count)).unwrap(), (7, &["ipam.ranges", "16"]));
        watch.expect_same("too many sets");
    }
    assert_eq!(nets(&host.add(&pod, &config(16))).len(), 16);
    host.del(&pod, &config(16));
}
