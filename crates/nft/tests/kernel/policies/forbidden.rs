//! Flows that a change forbids: a bit of their mark stops them, and they continue when it is cleared.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use model::objects::Direction::{Egress, Ingress};
use nft::conntrack::{FlowAction, FlowScan, FlowSelection, TrackedFlow, judge_flows};
use nft::desired::policy::MarkBit;
use nft::{AttachMode, Protocol};
use policy::PolicyVerdict::Accept;
use policy::{PolicyElement, VerdictKey};
use testkit::uninterrupted;
use types::Family;

use super::judge::{Testbed, any, group};
use super::samples::{FORBIDDEN, class, options, profile, ranges, verdict};
use crate::common::{Sample, in_netns, run};
use crate::lab::At;

const TIMEOUT: Option<Duration> = Some(Duration::from_secs(20));
const FAMILIES: [Family; 2] = [Family::V4, Family::V6];
/// Bits of other programs.
const OTHER_BITS: u32 = 0x0000_a0f1;

fn bit() -> MarkBit {
    MarkBit::new(FORBIDDEN).unwrap()
}

fn accepting_testbed() -> Testbed {
    let accept = |side| verdict(side, VerdictKey::Default { profile: profile(1) }, Accept);
    let mut elements: Vec<PolicyElement> = ranges(&[], class(0, 0));
    elements.extend([accept(Ingress), accept(Egress)]);
    Testbed::new(&options(), [group(profile(1)); 2], &elements)
}

fn scan(
    testbed: &Testbed,
    family: Family,
    selection: FlowSelection,
    judge: impl Fn(&TrackedFlow) -> FlowAction + Sync,
) -> FlowScan {
    testbed
        .lab
        .inside(At::Host, || judge_flows(Some(family), bit(), selection, &mut |flow| judge(flow)).unwrap())
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Whether a byte from the client reaches the server and returns. If not, the table counted a dropped packet.
fn is_alive(testbed: &Testbed, client: &mut TcpStream, server: &mut TcpStream) -> bool {
    let before = testbed.denied().forbidden;
    client.write_all(b"x").unwrap();
    server.set_nonblocking(true).unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut byte = [0];
    let is_alive = loop {
        if uninterrupted(|| server.read(&mut byte)).is_ok() {
            break true;
        }
        if testbed.denied().forbidden > before {
            break false;
        }
        assert!(Instant::now() < deadline, "neither received nor dropped");
        std::thread::yield_now();
    };
    server.set_nonblocking(false).unwrap();
    is_alive
}

/// All marks of the entries of a family.
fn marks(testbed: &Testbed, family: &str) -> Vec<String> {
    let listed = testbed.lab.inside(At::Host, || run("conntrack", &["-L", "-f", family]));
    listed.split_whitespace().filter_map(|word| word.strip_prefix("mark=")).map(str::to_owned).collect()
}

#[test]
fn a_forbidden_connection_stops_and_continues_when_it_is_allowed_again() {
    let testbed = accepting_testbed();
    testbed.lab.add_pod(&Sample::new(AttachMode::Routed, 2).publish(Protocol::Tcp, 8080, 80));
    for (family, name, host, pod) in [
        (Family::V4, "ipv4", "192.0.2.1:8080", "10.77.0.2"),
        (Family::V6, "ipv6", "[2001:db8::1]:8080", "fd77::2"),
    ] {
        let own = SocketAddr::new(address(pod), 80);
        let listener = testbed.lab.inside(At::Pod(2), || TcpListener::bind(own).unwrap());
        let mut client = testbed.lab.inside(At::Outside, || TcpStream::connect(host).unwrap());
        let (mut server, _) = uninterrupted(|| listener.accept()).unwrap();
        let other_bits = format!("{OTHER_BITS:#x}");
        testbed
            .lab
            .inside(At::Host, || run("conntrack", &["-U", "-f", name, "-p", "tcp", "-m", &other_bits]));
        assert!(is_alive(&testbed, &mut client, &mut server));
        let from = client.local_addr().unwrap().ip();
        // The flow's target is the pod, although the client connected to the host port.
        let is_to = |flow: &TrackedFlow| {
            assert_eq!(flow.origin(), from);
            (flow.target(), flow.target_port(), flow.protocol) == (own.ip(), Some(80), 6)
        };
        let forbid = |flow: &TrackedFlow| if is_to(flow) { FlowAction::Forbid } else { FlowAction::Keep };
        let clear = |flow: &TrackedFlow| if is_to(flow) { FlowAction::Clear } else { FlowAction::Keep };
        assert_eq!(scan(&testbed, family, FlowSelection::Forbidden, clear), FlowScan::default());
        let stopped = FlowScan { listed: 1, forbidden: 1, cleared: 0 };
        assert_eq!(scan(&testbed, family, FlowSelection::All, forbid), stopped);
        assert_eq!(marks(&testbed, name), [(OTHER_BITS | bit().mask()).to_string()]);
        assert_eq!(scan(&testbed, family, FlowSelection::All, forbid), FlowScan { forbidden: 0, ..stopped });
        assert!(!is_alive(&testbed, &mut client, &mut server));
        assert!(!is_alive(&testbed, &mut server, &mut client));
        let cleared = FlowScan { listed: 1, forbidden: 0, cleared: 1 };
        assert_eq!(scan(&testbed, family, FlowSelection::Forbidden, clear), cleared);
        assert_eq!(marks(&testbed, name), [OTHER_BITS.to_string()]);
        // TCP sends the bytes again.
        client.set_read_timeout(TIMEOUT).unwrap();
        server.set_read_timeout(TIMEOUT).unwrap();
        uninterrupted(|| server.read(&mut [0; 9])).unwrap();
        uninterrupted(|| client.read(&mut [0; 9])).unwrap();
        assert!(is_alive(&testbed, &mut client, &mut server));
    }
}

#[test]
fn only_datagrams_of_a_forbidden_flow_are_dropped() {
    let testbed = accepting_testbed();
    for (family, target) in FAMILIES.into_iter().zip(["10.77.0.2:80", "[fd77::2]:80"]) {
        let target: SocketAddr = target.parse().unwrap();
        let server = testbed.lab.inside(At::Pod(2), || UdpSocket::bind(target).unwrap());
        server.set_read_timeout(TIMEOUT).unwrap();
        let senders =
            [(); 2].map(|()| testbed.lab.inside(At::Pod(3), || UdpSocket::bind(any(target)).unwrap()));
        let receive = || {
            let mut datagram = [0; 9];
            let length = uninterrupted(|| server.recv(&mut datagram)).unwrap();
            String::from_utf8_lossy(&datagram[..length]).into_owned()
        };
        for sender in &senders {
            sender.send_to(b"first", target).unwrap();
            assert_eq!(receive(), "first");
        }
        let chosen = senders[0].local_addr().unwrap().port();
        let judge = |action| {
            move |flow: &TrackedFlow| match flow.original.ports {
                Some((source, _)) if source == chosen => action,
                Some(_) | None => FlowAction::Keep,
            }
        };
        let before = testbed.denied();
        assert_eq!(scan(&testbed, family, FlowSelection::All, judge(FlowAction::Forbid)).forbidden, 1);
        senders[0].send_to(b"dropped", target).unwrap();
        senders[1].send_to(b"second", target).unwrap();
        assert_eq!(receive(), "second");
        // Both packets took the same path, so the first one was dropped before.
        assert_eq!(testbed.denied().forbidden, before.forbidden + 1);
        assert_eq!(scan(&testbed, family, FlowSelection::All, judge(FlowAction::Clear)).cleared, 1);
        senders[0].send_to(b"third", target).unwrap();
        assert_eq!(receive(), "third");
    }
}

#[test]
fn thousands_of_flows_are_marked_in_one_scan() {
    in_netns(|| {
        let entries: String = (1..=3000)
            .map(|port| {
                format!(
                    "-I -s 10.0.0.1 -d 10.0.0.2 -p udp --sport {port} --dport 53 -t 600 -m {OTHER_BITS}\n"
                )
            })
            .collect();
        let file = tempfile(&entries);
        run("conntrack", &["-R", &file]);
        std::fs::remove_file(&file).unwrap();
        let is_odd = |flow: &TrackedFlow| flow.original.ports.is_some_and(|(port, _)| port % 2 == 1);
        let judge = |selection, of: &dyn Fn(&TrackedFlow) -> FlowAction| {
            judge_flows(Some(Family::V4), bit(), selection, &mut |flow| of(flow)).unwrap()
        };
        let forbid = |flow: &TrackedFlow| if is_odd(flow) { FlowAction::Forbid } else { FlowAction::Clear };
        let first = judge(FlowSelection::All, &forbid);
        assert_eq!(first, FlowScan { listed: 3000, forbidden: 1500, cleared: 0 });
        let is_marked = |flow: &TrackedFlow| {
            assert!(is_odd(flow) && flow.mark == OTHER_BITS | bit().mask(), "{flow:?}");
            FlowAction::Keep
        };
        assert_eq!(judge(FlowSelection::Forbidden, &is_marked).listed, 1500);
        assert_eq!(judge(FlowSelection::Forbidden, &|_| FlowAction::Clear).cleared, 1500);
        assert_eq!(judge(FlowSelection::Forbidden, &|_| FlowAction::Keep), FlowScan::default());
        assert_eq!(judge(FlowSelection::All, &|_| FlowAction::Keep).listed, 3000);
        let nothing = judge_flows(Some(Family::V6), bit(), FlowSelection::All, &mut |_| FlowAction::Forbid);
        assert_eq!(nothing.unwrap(), FlowScan::default());
    });
}

/// The port is that of the pod, in the kernel's default zone and in others.
#[test]
fn the_kernel_lists_only_flows_of_the_selected_protocol_and_port() {
    in_netns(|| {
        for [from, to] in [["10.0.0.1", "10.0.0.2"], ["fd00::1", "fd00::2"]] {
            for (protocol, port, more) in [
                ("udp", "53", &[][..]),
                ("udp", "54", &[]),
                ("tcp", "53", &["--state", "ESTABLISHED"]),
                // Published: the pod has port 53.
                ("udp", "1053", &["-r", to, "-q", from, "--reply-port-src", "53", "--reply-port-dst", "10"]),
                ("udp", "53", &["-w", "7"]),
            ] {
                let entry = [
                    "-I", "-s", from, "-d", to, "-p", protocol, "--sport", "9", "--dport", port, "-t", "600",
                ];
                run("conntrack", &[&entry, more].concat());
            }
        }
        for family in FAMILIES {
            let listed = |selection| {
                let mut ports = Vec::new();
                let judge = &mut |flow: &TrackedFlow| {
                    ports.push((flow.protocol, flow.target_port().unwrap()));
                    FlowAction::Forbid
                };
                let scan = judge_flows(Some(family), bit(), selection, judge).unwrap();
                ports.sort_unstable();
                (ports, scan.forbidden)
            };
            assert_eq!(listed(FlowSelection::Port(17, 54)), (vec![(17, 54)], 1));
            assert_eq!(listed(FlowSelection::Port(17, 53)), (vec![(17, 53); 3], 3));
            assert_eq!(listed(FlowSelection::Port(17, 10)), (vec![], 0));
            assert_eq!(listed(FlowSelection::Protocol(6)), (vec![(6, 53)], 1));
            assert_eq!(listed(FlowSelection::Protocol(132)), (vec![], 0));
            assert_eq!(listed(FlowSelection::All).0.len(), 5);
        }
        let both = |selection| judge_flows(None, bit(), selection, &mut |_| FlowAction::Clear).unwrap();
        assert_eq!(both(FlowSelection::Port(17, 53)), FlowScan { listed: 6, forbidden: 0, cleared: 6 });
        assert_eq!(both(FlowSelection::Forbidden), FlowScan { listed: 4, forbidden: 0, cleared: 4 });
        assert_eq!(both(FlowSelection::All), FlowScan { listed: 10, forbidden: 0, cleared: 0 });
    });
}

fn tempfile(text: &str) -> String {
    let path = std::env::temp_dir().join(format!("podwire-flows-{}", std::process::id()));
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}
