//! Pods whose links carry more than the tunnel: their connections learn how much fits, without any "too big".

use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use nft::{Firewall, Mode, Protocol};
use types::IfName;

use crate::common::{Sample, in_netns, nft, run};
use crate::lab::{At, Lab, Server};

const PATIENCE: Duration = Duration::from_secs(10);

fn names(names: &[&str]) -> Vec<IfName> {
    names.iter().map(|&name| IfName::try_from(name).unwrap()).collect()
}

fn set(tunnels: &[&str]) -> Vec<String> {
    let ours = names(&["pwvx4", "pwvx6"]);
    Firewall::open().unwrap().set_tunnels(&ours, &names(tunnels)).unwrap()
}

/// Does every packet that is forwarded pay for it?
fn clamps() -> bool {
    run("nft", &["list", "chains"]).contains("chain clamp ")
}

/// A tunnel for each family between the host and somebody outside, who believes that it carries 1500.
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

/// The segment sizes that arrived since the last look.
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
    lab.inside(from, || TcpStream::connect_timeout(&target, PATIENCE)).unwrap();
}

#[test]
fn pain10_a_connection_through_a_tunnel_learns_what_fits() {
    for mode in [Mode::Bridge, Mode::Routed] {
        let lab = Lab::new(mode);
        lab.admit(&Sample { chain: None, ..Sample::new(mode, 2) });
        dig(&lab);
        for (outside, pod, whole, fits) in
            [("10.99.0.2:80", "10.77.0.2:80", 1460, 1410), ("[fd99::2]:80", "[fd77::2]:80", 1440, 1390)]
        {
            let _servers: [Server; 2] =
                [lab.serve(At::Outside, Protocol::Tcp, outside), lab.serve(At::Pod(2), Protocol::Tcp, pod)];
            let ways = |size: u16| {
                connect(&lab, At::Pod(2), outside);
                assert_eq!(seen(&lab, At::Outside), [size], "{mode:?}: what a pod asks {outside} for");
                seen(&lab, At::Pod(2));
                connect(&lab, At::Outside, pod);
                assert_eq!(seen(&lab, At::Pod(2)), [size], "{mode:?}: what a pod is asked for");
                assert_eq!(seen(&lab, At::Outside), [size], "{mode:?}: what a pod answers");
            };
            ways(whole);
            assert_eq!(lab.inside(At::Host, || set(&["pwvx4", "pwvx6"])).len(), 2);
            ways(fits);
            assert_eq!(lab.inside(At::Host, || set(&[])).len(), 2);
            ways(whole);
        }
    }
}

#[test]
fn pain15_tunnels_stay_known_through_repairs() {
    in_netns(|| {
        assert_eq!(set(&[]), [""; 0]);
        assert_eq!(run("nft", &["list", "ruleset"]), "", "no tunnel, no pod, no table");
        // Also where there is no table yet.
        assert_eq!(set(&["pwvx4"]), ["connections through pwvx4 are clamped to what fits"]);
        assert!(clamps());
        let sample = Sample::new(Mode::Routed, 2);
        sample.admit();
        assert_eq!(set(&["pwvx4", "pwvx6"]).len(), 1);
        let listed = || nft("list set inet podwire tunnels");
        let all = listed();
        assert!(all.contains(r#""pwvx4""#) && all.contains(r#""pwvx6""#), "{all}");
        let pods = [sample.pod()];
        let mut firewall = Firewall::open().unwrap();
        for (act, is_damage) in [
            ("flush chain inet podwire clamp", true),
            ("insert rule inet podwire clamp accept", true),
            ("flush chain inet podwire clamp; delete chain inet podwire clamp", true),
            // What only new tables can put right.
            (
                "flush chain inet podwire bent; delete set inet podwire hairpin4; add set inet podwire hairpin4 { type ipv4_addr; }",
                true,
            ),
            ("flush set inet podwire pods4", false),
        ] {
            run("nft", &[act]);
            assert_eq!(!firewall.damage(&pods).unwrap().is_empty(), is_damage, "{act}");
            firewall.rebuild(&pods).unwrap();
            assert_eq!(firewall.damage(&pods).unwrap(), [""; 0], "{act}");
            assert_eq!(listed(), all, "{act}");
            assert_eq!(set(&["pwvx6", "pwvx4"]), [""; 0], "{act}");
        }
        // The same name for something else.
        run(
            "nft",
            &[
                "flush chain inet podwire clamp; flush chain inet podwire clamp-syn; delete set inet podwire tunnels; add set inet podwire tunnels { type ipv4_addr; }",
            ],
        );
        firewall.rebuild(&pods).unwrap();
        assert_eq!(set(&["pwvx4", "pwvx6"]).len(), 2);
        assert_eq!((listed(), firewall.damage(&pods).unwrap()), (all.clone(), vec![]));
        assert!(clamps());
        nft("flush ruleset");
        firewall.rebuild(&pods).unwrap();
        assert!(!clamps(), "nobody needs it");
        assert_eq!(set(&["pwvx4", "pwvx6"]).len(), 2);
        assert_eq!(listed(), all);
        assert_eq!(set(&["pwvx4"]), ["connections through pwvx6 are no longer clamped"]);
        assert!(clamps());
        assert_eq!(set(&[]), ["connections through pwvx4 are no longer clamped"]);
        assert!(!clamps());
        assert_eq!(firewall.damage(&pods).unwrap(), [""; 0]);
        // Somebody left one there that every packet would pay for.
        nft("add chain inet podwire clamp { type filter hook forward priority -150; }");
        assert_eq!(firewall.damage(&pods).unwrap(), ["chain inet podwire clamp is not ours"]);
        firewall.repair(&pods).unwrap();
        assert!(!clamps());
    });
}

#[test]
fn tunnels_of_another_network_stay_known() {
    in_netns(|| {
        let keep = |ours: &[&str], wanted: &[&str]| {
            Firewall::open().unwrap().set_tunnels(&names(ours), &names(wanted)).unwrap()
        };
        let listed = || nft("list set inet podwire tunnels");
        for name in ["pwvx4", "red4"] {
            run("ip", &["link", "add", name, "type", "bridge"]);
        }
        assert_eq!((set(&["pwvx4"]).len(), keep(&["red4", "red6"], &["red4"]).len()), (1, 1));
        let both = listed();
        assert!(both.contains(r#""pwvx4""#) && both.contains(r#""red4""#), "{both}");
        assert_eq!((set(&["pwvx4"]), keep(&["red4", "red6"], &["red4"])), (vec![], vec![]));
        assert_eq!(keep(&["red4", "red6"], &[]), ["connections through red4 are no longer clamped"]);
        assert!(listed().contains(r#""pwvx4""#) && clamps());
        // Nobody would ever remove the name of a device that was renamed by a new config.
        run("ip", &["link", "del", "pwvx4"]);
        assert_eq!(keep(&["red4", "red6"], &[]), ["connections through pwvx4 are no longer clamped"]);
        assert!(!clamps());
    });
}
