//! Source check: a pod can only send from its own addresses and MAC.

use std::net::{IpAddr, UdpSocket};
use std::time::Duration;

use serde_json::json;
use testkit::{DEADLINE, Ns, Pod, inspect, ping, uninterrupted, wait_until};

use crate::common::{DUAL, Host, MODES, ips, v4, v6, words};
use crate::probes::ip;

/// Addresses of the subnet that are not assigned to the pod.
const SPOOFED: [&str; 2] = ["10.88.0.200", "fd00:88::200"];

/// Sends datagrams and returns those that the listener received before `end`. All datagrams take the same path, so none can
/// arrive after `end`.
fn received(listener: &UdpSocket, sends: &[&dyn Fn()], end: &dyn Fn()) -> Vec<String> {
    for send in sends {
        send();
    }
    end();
    let mut datagrams = Vec::new();
    let mut buffer = [0; 64];
    loop {
        let count = uninterrupted(|| listener.recv(&mut buffer)).expect("the end datagram was dropped");
        match String::from_utf8_lossy(&buffer[..count]).as_ref() {
            "end" => return datagrams,
            "hello" => {}
            datagram => datagrams.push(datagram.to_owned()),
        }
    }
}

fn listen(ns: &Ns, address: IpAddr) -> UdpSocket {
    let socket = ns.enter(|| UdpSocket::bind((address, 0)).unwrap()).unwrap();
    socket.set_read_timeout(Some(DEADLINE)).unwrap();
    socket
}

fn send(from: &Ns, source: IpAddr, to: &UdpSocket, text: &str) {
    let target = to.local_addr().unwrap();
    let socket = from.enter(|| UdpSocket::bind((source, 0)).unwrap()).unwrap();
    // This fails if the kernel knows that the neighbour does not answer. Then the datagram is not received either.
    let _ = socket.send_to(text.as_bytes(), target);
}

/// Resolves neighbours on both ends, so that later datagrams are sent immediately and in order.
fn resolve_neighbours(from: &Ns, source: IpAddr, to: &UdpSocket) {
    let mut buffer = [0; 64];
    to.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    wait_until("a first datagram to be received", DEADLINE, || {
        send(from, source, to, "hello");
        Ok(uninterrupted(|| to.recv(&mut buffer))? > 0)
    })
    .unwrap();
    to.set_read_timeout(Some(DEADLINE)).unwrap();
}

#[test]
fn spoofed_addresses_are_dropped_unless_spoof_check_is_off() {
    for mode in MODES {
        for checked in [true, false] {
            let host = Host::new("spoof-ip");
            let config = host.config(&json!({"subnet": DUAL, "mode": mode, "spoofCheck": checked}));
            let ((attacker, attacker_result), (victim, victim_result)) =
                (host.attached("m", &config), host.attached("v", &config));
            for (family, spoofed_ip) in SPOOFED.iter().map(|text| ip(text)).enumerate() {
                let prefix = if spoofed_ip.is_ipv4() { 32 } else { 128 };
                let mut add = vec!["ip", "addr", "add"];
                let address = format!("{spoofed_ip}/{prefix}");
                add.extend([address.as_str(), "dev", "eth0"]);
                add.extend(spoofed_ip.is_ipv6().then_some("nodad"));
                attacker.sh(&add).unwrap();
                let (own_ip, victim_ip) = (ips(&attacker_result)[family], ips(&victim_result)[family]);
                for (receiver, target) in
                    [(&*victim, victim_ip), (&*host.node, ip(["10.88.0.1", "fd00:88::1"][family]))]
                {
                    let listener = listen(receiver, target);
                    resolve_neighbours(&attacker, own_ip, &listener);
                    let spoofed = || send(&attacker, spoofed_ip, &listener, "spoofed");
                    let datagrams = received(&listener, &[&spoofed, &spoofed], &|| {
                        send(&attacker, own_ip, &listener, "end");
                    });
                    let expected: &[&str] = if checked { &[] } else { &["spoofed", "spoofed"] };
                    assert_eq!(datagrams, expected, "{mode}, spoofCheck {checked}, {spoofed_ip} to {target}");
                }
            }
        }
    }
}

/// On a bridge, a spoofed source MAC diverts frames to the attacker. `frames::a10_spoofed_source_macs_are_dropped_in_both_modes`
/// covers mode `routed`.
#[test]
fn spoofed_macs_are_dropped_unless_spoof_check_is_off() {
    for checked in [true, false] {
        let host = Host::new("spoof-mac");
        let config = host.config(&json!({"subnet": DUAL, "mode": "bridge", "spoofCheck": checked}));
        let ((attacker, attacker_result), (victim, victim_result)) =
            (host.attached("m", &config), host.attached("v", &config));
        let mac = attacker_result["interfaces"][2]["mac"].as_str().unwrap();
        let victim_mac = inspect::link(&victim, "eth0").unwrap().mac.unwrap();
        for family in [0, 1] {
            let (own_ip, victim_ip) = (ips(&attacker_result)[family], ips(&victim_result)[family]);
            let listener = listen(&victim, victim_ip);
            resolve_neighbours(&attacker, own_ip, &listener);
            let set_mac = |mac: &str| {
                attacker.sh(&["ip", "link", "set", "eth0", "address", mac]).unwrap();
                // Changing the MAC flushes the neighbours, and frames that wait for resolution can be reordered.
                let line = format!("ip neigh replace {victim_ip} lladdr {victim_mac} dev eth0 nud permanent");
                attacker.sh(&words(&line)).unwrap();
            };
            set_mac("02:00:00:00:00:99");
            let spoofed = || send(&attacker, own_ip, &listener, "spoofed");
            let end = || {
                set_mac(mac);
                send(&attacker, own_ip, &listener, "end");
            };
            let expected: &[&str] = if checked { &[] } else { &["spoofed"] };
            assert_eq!(received(&listener, &[&spoofed], &end), expected, "spoofCheck {checked}, {own_ip}");
        }
    }
}

/// Sets the victim's link down and adds its addresses to the attacker.
fn impersonate(attacker: &Pod, victim: &Pod, addresses: [IpAddr; 2]) {
    victim.sh(&words("ip link set eth0 down")).unwrap();
    attacker.sh(&["ip", "addr", "add", &format!("{}/32", addresses[0]), "dev", "eth0"]).unwrap();
    attacker.sh(&["ip", "addr", "add", &format!("{}/128", addresses[1]), "dev", "eth0", "nodad"]).unwrap();
}

#[test]
fn a_pod_cannot_answer_for_another_pod() {
    for (mode, checked) in [("bridge", true), ("bridge", false), ("routed", true), ("routed", false)] {
        let host = Host::new("spoof-answer");
        let config = host.config(&json!({"subnet": DUAL, "mode": mode, "spoofCheck": checked}));
        let ((client, _), (attacker, attacker_result)) =
            (host.attached("a", &config), host.attached("m", &config));
        let (victim, victim_result) = host.attached("v", &config);
        impersonate(&attacker, &victim, [v4(&victim_result), v6(&victim_result)]);
        let mac = attacker_result["interfaces"][2]["mac"].as_str();
        // In mode `routed` the host routes prevent it even without the check.
        let succeeds = mode == "bridge" && !checked;
        for address in ips(&victim_result) {
            for from in [&*client, &*host.node] {
                let count = if succeeds { 5 } else { 1 };
                let is_answered = ping(from, address, count).unwrap().any();
                assert_eq!(
                    is_answered,
                    succeeds,
                    "{mode}, spoofCheck {checked}: {address} from {}",
                    from.name()
                );
                // An accepted answer to ARP or ND is enough to divert the victim's traffic.
                let neighbours = inspect::neighbours(from).unwrap();
                let is_diverted = neighbours.iter().any(|n| n.dst == address && n.mac.as_deref() == mac);
                assert_eq!(
                    is_diverted,
                    succeeds,
                    "{mode}, spoofCheck {checked}: {address} at {}",
                    from.name()
                );
            }
        }
    }
}
