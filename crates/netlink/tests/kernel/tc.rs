//! Traffic shaping, compared with the output of `tc -j`.

use std::time::Duration;

use crate::testbed::{Testbed, command, name};
use netlink::{AddTbf, Op, QdiscAt, Tbf};

#[test]
fn a_token_bucket_has_its_rate_above_4_gib_per_second() {
    let mut w = Testbed::new();
    let (link, _) = w.veth("pwabc", "eth0");
    let handle = 0x5057_0000;
    for (rate, burst) in [(125_000, 20_000), (1_250_000_000, 1 << 20), (10_000_000_000, 4 << 20)] {
        let tbf = Tbf::with_latency(rate, burst, Duration::from_millis(25));
        w.host_socket.run(&Op::AddTbf(AddTbf { link, handle, tbf })).unwrap();
        let shown = &command(&w.host, "tc -j qdisc show dev pwabc root")[0];
        assert_eq!(shown["kind"], "tbf");
        assert_eq!(shown["options"]["rate"], rate);
        // tc prints the burst as the bytes that the rate carries in whole microseconds.
        let shown = shown["options"]["burst"].as_u64().unwrap();
        assert!(shown.abs_diff(burst.into()) <= rate / 1_000_000 + 1, "{shown}");
        let listed = w.host_socket.qdiscs(Some(link)).unwrap();
        assert_eq!((listed.len(), listed[0].kind.as_str(), listed[0].at), (1, "tbf", QdiscAt::Root));
        assert_eq!(listed[0].handle, handle);
        let found = listed[0].tbf.unwrap();
        assert_eq!((found.rate_bytes, found.limit_bytes), (tbf.rate_bytes, tbf.limit_bytes));
        // The kernel stores the burst in ticks of 64 ns.
        assert!(u64::from(found.burst_bytes.abs_diff(burst)) <= rate / 15_625_000 + 2, "{found:?}");
    }
    let remove = Op::DelQdisc { link, at: QdiscAt::Root };
    w.host_socket.run(&remove).unwrap();
    assert!(w.host_socket.qdiscs(Some(link)).unwrap().iter().all(|q| q.kind != "tbf"));
    assert!(w.host_socket.run(&remove).unwrap_err().is_missing());
}

#[test]
fn ingress_traffic_is_redirected_to_the_shaper() {
    let mut w = Testbed::new();
    let (link, pod) = w.veth("pwabc", "eth0");
    let shaper = name("pishaper");
    w.host_socket.run(&Op::AddIfb { name: &shaper, mtu: 1500 }).unwrap();
    let to = w.host_socket.link(&shaper).unwrap().unwrap().index;
    assert!(w.host_socket.redirects(link).unwrap().is_empty());
    let redirect = Op::RedirectIngress { from: link, to };
    let without_ingress = w.host_socket.run(&redirect).unwrap_err();
    assert!(!without_ingress.is_unsupported() && !without_ingress.is_exists(), "{without_ingress}");
    let tbf = Tbf::with_latency(1_000_000, 50_000, Duration::from_millis(25));
    w.host_socket
        .run_every(&[Op::AddTbf(AddTbf { link: to, handle: 0, tbf }), Op::AddIngress { link }, redirect])
        .unwrap();

    assert_eq!(w.host_socket.redirects(link).unwrap(), [to]);
    let filters = command(&w.host, "tc -j filter show dev pwabc ingress");
    let with_options =
        filters.as_array().unwrap().iter().find(|f| !f["options"]["actions"].is_null()).unwrap();
    let action = &with_options["options"]["actions"][0];
    assert_eq!((&action["kind"], &action["to_dev"]), (&"mirred".into(), &"pishaper".into()));
    assert_eq!((&action["mirred_action"], &action["direction"]), (&"redirect".into(), &"egress".into()));

    // The shaper's token bucket counts a packet that the pod sends.
    w.pod_socket
        .run(&Op::AddNeighbour(netlink::AddNeighbour {
            link: pod,
            addr: "fd00::9".parse().unwrap(),
            mac: crate::testbed::mac(2),
            protocol: 112,
        }))
        .unwrap();
    let route = netlink::Route { link: Some(pod), ..netlink::Route::to("fd00::9/128".parse().unwrap()) };
    let own = netlink::AddAddress {
        link: pod,
        addr: "fd00::1/128".parse().unwrap(),
        nodad: true,
        broadcast: None,
        no_subnet_route: false,
        mode: netlink::Mode::Exclusive,
    };
    let both = [Op::AddAddress(own), Op::AddRoute { route, mode: netlink::Mode::Exclusive }];
    w.pod_socket.run_every(&both).unwrap();
    let send = || {
        let socket = std::net::UdpSocket::bind("[fd00::1]:0").unwrap();
        socket.send_to(&[0; 100], "[fd00::9]:9").unwrap();
    };
    let packets = |w: &Testbed| {
        command(&w.host, "tc -j -s qdisc show dev pishaper root")[0]["packets"].as_u64().unwrap()
    };
    let before = packets(&w);
    w.pod.run(send).unwrap();
    assert!(packets(&w) > before);

    assert!(w.host_socket.run(&Op::AddIngress { link }).unwrap_err().is_exists());
    w.host_socket.run(&Op::DelQdisc { link, at: QdiscAt::Ingress }).unwrap();
    assert!(w.host_socket.redirects(link).unwrap().is_empty());
}
