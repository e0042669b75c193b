//! Packets with the source of a pod of another node are accepted only from that node.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use testkit::{Cluster, Ns, Plan, TransportMode};

use crate::common::{TIMEOUT, await_that, expect_reach, pod, up};

fn send(from: &Ns, source: IpAddr, to: SocketAddr, text: &[u8]) {
    from.enter(|| UdpSocket::bind((source, 0)).unwrap().send_to(text, to)).unwrap().unwrap();
}

/// How many packets the node's table of peers dropped because of their path.
fn dropped(cluster: &Cluster, node: &str) -> u64 {
    let table = ["nft", "list", "table", "inet", "podwire-peers-podwire"];
    let text = cluster.node(node).unwrap().sh(&table).unwrap();
    let counters = text.split("chain path").skip(1).filter_map(|chain| {
        let (_, count) = chain.split_once("counter packets ")?;
        count.split(' ').next()?.parse::<u64>().ok()
    });
    counters.sum()
}

fn expect_forged_sources_to_be_dropped(label: &str, transport: TransportMode) {
    let cluster = up(label, &Plan { transport, ..Plan::default() });
    let (target, owner) = (pod(&cluster, "p1"), pod(&cluster, "p2"));
    let (n1, n3) = (cluster.node("n1").unwrap(), cluster.node("n3").unwrap());
    let before = dropped(&cluster, "n1");
    for (family, (to, source)) in target.addresses.iter().zip(&owner.addresses).enumerate() {
        let socket = target.pod.enter(|| UdpSocket::bind((*to, 0))).unwrap().unwrap();
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        let at = socket.local_addr().unwrap();
        // Node n3 has the address of a pod of n2, and sends to n1 without a tunnel.
        let length = if source.is_ipv4() { 32 } else { 128 };
        let nodad = if source.is_ipv4() { "" } else { "nodad" };
        let (address, route) = (format!("{source}/{length}"), format!("{to}/{length}"));
        let via = cluster.addresses("n1").unwrap()[family].to_string();
        let words = format!("ip address add {address} dev lo {nodad}");
        n3.sh(&words.split_whitespace().collect::<Vec<_>>()).unwrap();
        n3.sh(&["ip", "route", "add", &route, "via", &via]).unwrap();
        send(n3, *source, at, b"forged");
        await_that("the packet to be dropped", TIMEOUT, || dropped(&cluster, "n1") > before + family as u64);
        // The owner's packet arrives, and it is the first one.
        send(&owner.pod, *source, at, b"legal");
        let mut text = [0; 16];
        let received = socket.recv(&mut text).unwrap();
        assert_eq!(&text[..received], b"legal");
        n3.sh(&["ip", "address", "del", &address, "dev", "lo"]).unwrap();
        n3.sh(&["ip", "route", "del", &route]).unwrap();
    }
    assert!(dropped(&cluster, "n1") >= before + 2);
    // The rules are restored like others.
    n1.sh(&["nft", "flush", "chain", "inet", "podwire-peers-podwire", "path"]).unwrap();
    await_that("the rules to be restored", TIMEOUT, || {
        let chain = ["nft", "list", "chain", "inet", "podwire-peers-podwire", "path"];
        n1.sh(&chain).is_ok_and(|text| text.contains("@checked4_24"))
    });
    expect_reach(&cluster, TIMEOUT + Duration::from_secs(1));
}

#[test]
fn d_a_source_of_another_node_is_dropped_when_the_transport_is_direct() {
    expect_forged_sources_to_be_dropped("paths-direct", TransportMode::Direct);
}

#[test]
fn d_a_source_of_another_node_is_dropped_outside_of_its_tunnel() {
    expect_forged_sources_to_be_dropped("paths-vxlan", TransportMode::Vxlan);
}
