//! Pods whose links carry more than the tunnel: their connections learn how much fits, without any "too big".

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

fn set(tunnels: &[&str]) -> Option<String> {
    set_of("blue", tunnels)
}

fn set_of(network: &str, tunnels: &[&str]) -> Option<String> {
    Firewall::open().unwrap().clamp(&network.try_into().unwrap(), &names(tunnels)).unwrap()
}

/// Does every packet that is forwarded pay for it?
fn clamps() -> bool {
    run("nft", &["list", "chains"]).contains("chain clamp ")
}

/// A tunnel for each family between the host and an outside host with an MTU of 1500.
fn dig(lab: &Lab) {
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
            run("nft", &["table inet seen { set sizes { typeof tcp option maxseg size; flags dynamic; size 99; }; chain c { type filter hook prerouting priority 0; tcp flags syn update @sizes { tcp option maxseg size }; }; }"])
        });
    }
}

/// The segment sizes that arrived since the last call.
fn seen(lab: &Lab, at: At) -> Vec<u16> {
    lab.inside(at, || {
        let listed = nft("list set inet seen sizes");
        nft("flush set inet seen sizes");
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
fn pain10_a_connection_through_a_tunnel_learns_what_fits() {
    for mode in [AttachMode::Bridge, AttachMode::Routed] {
        let lab = Lab::new(mode);
        lab.add_pod(&Sample { chain: None, ..Sample::new(mode, 2) });
        dig(&lab);
        for (outside, pod, whole, fits) in
            [("10.99.0.2:80", "10.77.0.2:80", 1460, 1410), ("[fd99::2]:80", "[fd77::2]:80", 1440, 1390)]
        {
            let _servers: [Server; 2] =
                [lab.serve(At::Outside, Protocol::Tcp, outside), lab.serve(At::Pod(2), Protocol::Tcp, pod)];
            let both_directions = |size: u16| {
                connect(&lab, At::Pod(2), outside);
                assert_eq!(seen(&lab, At::Outside), [size], "{mode:?}: what a pod asks {outside} for");
                seen(&lab, At::Pod(2));
                connect(&lab, At::Outside, pod);
                assert_eq!(seen(&lab, At::Pod(2)), [size], "{mode:?}: what a pod is asked for");
                assert_eq!(seen(&lab, At::Outside), [size], "{mode:?}: what a pod answers");
            };
            both_directions(whole);
            assert!(lab.inside(At::Host, || set(&["pwvx4", "pwvx6"])).is_some());
            both_directions(fits);
            assert!(lab.inside(At::Host, || set(&[])).is_some());
            both_directions(whole);
        }
    }
}

#[test]
fn pain15_every_change_of_the_clamp_is_repaired_and_tables_of_pods_are_not_concerned() {
    in_netns(|| {
        assert_eq!(set(&[]), None);
        assert_eq!(run("nft", &["list", "ruleset"]), "", "no tunnel, no pod, no table");
        assert!(set(&["pwvx4"]).unwrap().starts_with("the MSS of connections through pwvx4 is clamped"));
        assert!(clamps());
        let sample = Sample::new(AttachMode::Routed, 2);
        sample.add_pod();
        assert!(set(&["pwvx4", "pwvx6"]).is_some());
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
            // The same name for something else.
            "flush chain inet podwire-clamp-blue clamp-syn; delete set inet podwire-clamp-blue tunnels; add set inet podwire-clamp-blue tunnels { type ipv4_addr; }",
        ] {
            run("nft", &[act]);
            assert!(set(&["pwvx6", "pwvx4"]).is_some(), "{act}");
            assert_eq!(set(&["pwvx6", "pwvx4"]), None, "{act}");
            assert!(listed().contains("pwvx4") && !listed().contains("other"), "{act}");
            assert_eq!(drift(&[sample.pod()]), [""; 0], "{act}");
        }
        nft("flush chain inet podwire guard");
        repair(&[sample.pod()]);
        assert_eq!(set(&["pwvx4", "pwvx6"]), None);
        assert!(set(&["pwvx4"]).is_some());
        assert!(set(&[]).is_some());
        assert!(!clamps());
        // Earlier versions clamped in the table of pods.
        nft("add chain inet podwire clamp { type filter hook forward priority -150; }");
        assert_eq!(drift(&[sample.pod()]), ["chain inet podwire clamp is not Podwire's"]);
        repair(&[sample.pod()]);
        assert!(!clamps());
    });
}

#[test]
fn tunnels_of_another_network_stay_clamped() {
    in_netns(|| {
        assert!(set(&["pwvx4"]).is_some() && set_of("red", &["red4"]).is_some());
        assert_eq!((set(&["pwvx4"]), set_of("red", &["red4"])), (None, None));
        assert!(set_of("red", &[]).is_some());
        assert_eq!(set(&["pwvx4"]), None);
        assert!(clamps());
        let deleted = Firewall::open().unwrap().delete_network_tables(&|network| network == "blue").unwrap();
        assert_eq!(deleted, ["podwire-clamp-blue"]);
        assert!(!clamps());
    });
}
