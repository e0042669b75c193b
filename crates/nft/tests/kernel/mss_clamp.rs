//! MSS clamping: the MTU of pod links is larger than that of the tunnel, and TCP connections must not depend on ICMP "too big".

use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use nft::{AttachMode, Firewall, Protocol};
use types::IfName;

use crate::common::{Sample, drift, in_netns, nft, repair, run};
use crate::lab::{At, Lab, Server};

const TIMEOUT: Duration = Duration::from_secs(10);

fn names(names: &[&str]) -> Vec<IfName> {
    names.iter().map(|&name| IfName::try_from(name).unwrap()).collect()
}

fn clamp(tunnels: &[&str]) -> Option<String> {
    clamp_network("blue", tunnels)
}

fn clamp_network(network: &str, tunnels: &[&str]) -> Option<String> {
    Firewall::open().unwrap().clamp(&network.try_into().unwrap(), &names(tunnels)).unwrap()
}

/// Whether a chain in the forward hook clamps.
fn is_clamping() -> bool {
    run("nft", &["list", "chains"]).contains("chain clamp ")
}

/// A VXLAN tunnel per family between host and outside. Its MTU is 1450 on the host and 1500 outside. Received MSS options are
/// recorded outside and in the pod.
fn create_tunnels(lab: &Lab) {
    for (at, [own, other], mtu) in [(At::Host, [1, 2], 1450), (At::Outside, [2, 1], 1500)] {
        for (family, id, local, remote) in [
            (4, 7, format!("192.0.2.{own}"), format!("192.0.2.{other}")),
            (6, 8, format!("2001:db8::{own}"), format!("2001:db8::{other}")),
        ] {
            lab.ip(at, &format!("link add pwvx{family} mtu {mtu} type vxlan id {id} local {local} remote {remote} dstport 4789"));
            lab.ip(at, &format!("link set pwvx{family} up"));
        }
        lab.ip(at, &format!("addr add 10.99.0.{own}/24 dev pwvx4"));
        lab.ip(at, &format!("addr add fd99::{own}/64 dev pwvx6 nodad"));
    }
    lab.ip(At::Outside, "route add 10.77.0.0/16 via 10.99.0.1");
    lab.ip(At::Outside, "route add fd77::/64 via fd99::1");
    for at in [At::Outside, At::Pod(2)] {
        lab.inside(at, || {
            run("nft", &["table inet received { set sizes { typeof tcp option maxseg size; flags dynamic; size 99; }; chain c { type filter hook prerouting priority 0; tcp flags syn update @sizes { tcp option maxseg size }; }; }"])
        });
    }
}

/// The MSS options of SYN packets that arrived since the last call.
fn received_mss(lab: &Lab, at: At) -> Vec<u16> {
    lab.inside(at, || {
        let listed = nft("list set inet received sizes");
        nft("flush set inet received sizes");
        let (_, elements) = listed.split_once("elements = {").unwrap_or_default();
        let mut sizes: Vec<u16> =
            elements.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok()).collect();
        sizes.sort_unstable();
        sizes
    })
}

fn connect(lab: &Lab, from: At, target: &str) {
    let target: SocketAddr = target.parse().unwrap();
    lab.inside(from, || TcpStream::connect_timeout(&target, TIMEOUT)).unwrap();
}

#[test]
fn pain10_the_mss_of_connections_through_a_tunnel_is_clamped() {
    for mode in [AttachMode::Bridge, AttachMode::Routed] {
        let lab = Lab::new(mode);
        lab.add_pod(&Sample { chain: None, ..Sample::new(mode, 2) });
        create_tunnels(&lab);
        for (outside, pod, unclamped, clamped) in
            [("10.99.0.2:80", "10.77.0.2:80", 1460, 1410), ("[fd99::2]:80", "[fd77::2]:80", 1440, 1390)]
        {
            let _servers: [Server; 2] =
                [lab.serve(At::Outside, Protocol::Tcp, outside), lab.serve(At::Pod(2), Protocol::Tcp, pod)];
            let both_directions = |size: u16| {
                connect(&lab, At::Pod(2), outside);
                assert_eq!(received_mss(&lab, At::Outside), [size], "{mode:?}: SYN of the pod to {outside}");
                received_mss(&lab, At::Pod(2));
                connect(&lab, At::Outside, pod);
                assert_eq!(received_mss(&lab, At::Pod(2)), [size], "{mode:?}: SYN to the pod");
                assert_eq!(received_mss(&lab, At::Outside), [size], "{mode:?}: SYN-ACK of the pod");
            };
            both_directions(unclamped);
            assert!(lab.inside(At::Host, || clamp(&["pwvx4", "pwvx6"])).is_some());
            both_directions(clamped);
            assert!(lab.inside(At::Host, || clamp(&[])).is_some());
            both_directions(unclamped);
        }
    }
}

#[test]
fn pain15_drift_of_the_clamp_table_is_repaired_without_changing_pod_tables() {
    in_netns(|| {
        assert_eq!(clamp(&[]), None);
        assert_eq!(run("nft", &["list", "ruleset"]), "", "no tunnel, no pod, no table");
        assert!(clamp(&["pwvx4"]).unwrap().starts_with("the MSS of connections through pwvx4 is clamped"));
        assert!(is_clamping());
        let sample = Sample::new(AttachMode::Routed, 2);
        sample.add_pod();
        assert!(clamp(&["pwvx4", "pwvx6"]).is_some());
        let listed = || nft("list set inet podwire-clamp-blue tunnels");
        let all = listed();
        assert!(all.contains(r#""pwvx4""#) && all.contains(r#""pwvx6""#), "{all}");
        for act in [
            "flush chain inet podwire-clamp-blue clamp",
            "insert rule inet podwire-clamp-blue clamp accept",
            "flush chain inet podwire-clamp-blue clamp; delete chain inet podwire-clamp-blue clamp",
            "flush chain inet podwire-clamp-blue clamp; add rule inet podwire-clamp-blue clamp tcp flags fin goto clamp-syn",
            "flush set inet podwire-clamp-blue tunnels",
            "add element inet podwire-clamp-blue tunnels { other }",
            "add set inet podwire-clamp-blue tunnels { type ifname; size 9; }",
            // A set of the same name with another type.
            "flush chain inet podwire-clamp-blue clamp-syn; delete set inet podwire-clamp-blue tunnels; add set inet podwire-clamp-blue tunnels { type ipv4_addr; }",
        ] {
            run("nft", &[act]);
            assert!(clamp(&["pwvx6", "pwvx4"]).is_some(), "{act}");
            assert_eq!(clamp(&["pwvx6", "pwvx4"]), None, "{act}");
            assert!(listed().contains("pwvx4") && !listed().contains("other"), "{act}");
            assert_eq!(drift(&[sample.pod()]), [""; 0], "{act}");
        }
        nft("flush chain inet podwire guard");
        repair(&[sample.pod()]);
        assert_eq!(clamp(&["pwvx4", "pwvx6"]), None);
        assert!(clamp(&["pwvx4"]).is_some());
        assert!(clamp(&[]).is_some());
        assert!(!is_clamping());
        // Earlier versions had the chain in the table of pods.
        nft("add chain inet podwire clamp { type filter hook forward priority -150; }");
        assert_eq!(drift(&[sample.pod()]), ["chain inet podwire clamp is not Podwire's"]);
        repair(&[sample.pod()]);
        assert!(!is_clamping());
    });
}

#[test]
fn tunnels_of_another_network_stay_clamped() {
    in_netns(|| {
        assert!(clamp(&["pwvx4"]).is_some() && clamp_network("red", &["red4"]).is_some());
        assert_eq!((clamp(&["pwvx4"]), clamp_network("red", &["red4"])), (None, None));
        assert!(clamp_network("red", &[]).is_some());
        assert_eq!(clamp(&["pwvx4"]), None);
        assert!(is_clamping());
        let deleted = Firewall::open().unwrap().delete_network_tables(&|network| network == "blue").unwrap();
        assert_eq!(deleted, ["podwire-clamp-blue"]);
        assert!(!is_clamping());
    });
}
