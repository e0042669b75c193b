//! A pod is heard under its own addresses and its own MAC, and under no others.

use std::net::{IpAddr, UdpSocket};
use std::time::Duration;

use serde_json::json;
use testkit::{DEADLINE, Ns, Pod, inspect, ping, uninterrupted, wait_until};

use crate::common::{DUAL, Host, MODES, ips, v4, v6, words};
use crate::world::ip;

const FOREIGN: [&str; 2] = ["10.88.0.200", "fd00:88::200"];

/// Sends one datagram after another and tells what the listener heard. What was sent before `end` and is not among it when
/// `end` is there will not come any more: all go the same way.
fn heard(listener: &UdpSocket, sends: &[&dyn Fn()], end: &dyn Fn()) -> Vec<String> {
    for send in sends {
        send();
    }
    end();
    let mut words = Vec::new();
    let mut buffer = [0; 64];
    loop {
        let count = uninterrupted(|| listener.recv(&mut buffer)).expect("the end is always heard");
        match String::from_utf8_lossy(&buffer[..count]).as_ref() {
            "end" => return words,
            "hello" => {}
            word => words.push(word.to_owned()),
        }
    }
}

fn listen(ns: &Ns, at: IpAddr) -> UdpSocket {
    let socket = ns.enter(|| UdpSocket::bind((at, 0)).unwrap()).unwrap();
    socket.set_read_timeout(Some(DEADLINE)).unwrap();
    socket
}

fn say(from: &Ns, source: IpAddr, to: &UdpSocket, word: &str) {
    let target = to.local_addr().unwrap();
    let socket = from.enter(|| UdpSocket::bind((source, 0)).unwrap()).unwrap();
    // The kernel may know already that the neighbour does not answer; then nothing was heard either.
    let _ = socket.send_to(word.as_bytes(), target);
}

/// The first word makes both ends known to each other, so that what follows waits for nothing.
fn greet(from: &Ns, source: IpAddr, to: &UdpSocket) {
    let mut buffer = [0; 64];
    to.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    wait_until("a greeting to be heard", DEADLINE, || {
        say(from, source, to, "hello");
        Ok(uninterrupted(|| to.recv(&mut buffer))? > 0)
    })
    .unwrap();
    to.set_read_timeout(Some(DEADLINE)).unwrap();
}

#[test]
fn a_foreign_address_is_not_heard_unless_spoof_check_is_off() {
    for mode in MODES {
        for checked in [true, false] {
            let host = Host::new("spoof-ip");
            let config = host.config(&json!({"subnet": DUAL, "mode": mode, "spoofCheck": checked}));
            let ((mallory, own), (victim, victims)) =
                (host.attached("m", &config), host.attached("v", &config));
            for (family, foreign) in FOREIGN.iter().map(|text| ip(text)).enumerate() {
                let prefix = if foreign.is_ipv4() { 32 } else { 128 };
                let mut add = vec!["ip", "addr", "add"];
                let address = format!("{foreign}/{prefix}");
                add.extend([address.as_str(), "dev", "eth0"]);
                add.extend(foreign.is_ipv6().then_some("nodad"));
                mallory.sh(&add).unwrap();
                let (mine, theirs) = (ips(&own)[family], ips(&victims)[family]);
                for (place, at) in
                    [(&*victim, theirs), (&*host.node, ip(["10.88.0.1", "fd00:88::1"][family]))]
                {
                    let listener = listen(place, at);
                    greet(&mallory, mine, &listener);
                    let spoofed = || say(&mallory, foreign, &listener, "spoofed");
                    let words = heard(&listener, &[&spoofed, &spoofed], &|| {
                        say(&mallory, mine, &listener, "end");
                    });
                    let expected: &[&str] = if checked { &[] } else { &["spoofed", "spoofed"] };
                    assert_eq!(words, expected, "{mode}, spoofCheck {checked}, {foreign} to {at}");
                }
            }
        }
    }
}

/// On a bridge a MAC is what leads frames to a pod. `frames::a10_foreign_source_mac_is_dropped_in_both_modes` covers `routed`.
#[test]
fn a_foreign_mac_is_not_heard_unless_spoof_check_is_off() {
    for checked in [true, false] {
        let host = Host::new("spoof-mac");
        let config = host.config(&json!({"subnet": DUAL, "mode": "bridge", "spoofCheck": checked}));
        let ((mallory, own), (victim, victims)) = (host.attached("m", &config), host.attached("v", &config));
        let mac = own["interfaces"][2]["mac"].as_str().unwrap();
        let victims_mac = inspect::link(&victim, "eth0").unwrap().mac.unwrap();
        for family in [0, 1] {
            let (mine, theirs) = (ips(&own)[family], ips(&victims)[family]);
            let listener = listen(&victim, theirs);
            greet(&mallory, mine, &listener);
            let set_mac = |mac: &str| {
                mallory.sh(&["ip", "link", "set", "eth0", "address", mac]).unwrap();
                // Changing it forgets the neighbours, and a frame that waits for one is not sent in order.
                let neighbour = [theirs.to_string(), victims_mac.clone()];
                let line = format!(
                    "ip neigh replace {} lladdr {} dev eth0 nud permanent",
                    neighbour[0], neighbour[1]
                );
                mallory.sh(&words(&line)).unwrap();
            };
            set_mac("02:00:00:00:00:99");
            let spoofed = || say(&mallory, mine, &listener, "spoofed");
            let end = || {
                set_mac(mac);
                say(&mallory, mine, &listener, "end");
            };
            let expected: &[&str] = if checked { &[] } else { &["spoofed"] };
            assert_eq!(heard(&listener, &[&spoofed], &end), expected, "spoofCheck {checked}, {mine}");
        }
    }
}

/// Gives a pod the address of another one, which is taken off the air.
fn impersonate(mallory: &Pod, victim: &Pod, addresses: [IpAddr; 2]) {
    victim.sh(&words("ip link set eth0 down")).unwrap();
    mallory.sh(&["ip", "addr", "add", &format!("{}/32", addresses[0]), "dev", "eth0"]).unwrap();
    mallory.sh(&["ip", "addr", "add", &format!("{}/128", addresses[1]), "dev", "eth0", "nodad"]).unwrap();
}

#[test]
fn nobody_answers_for_another_pod() {
    for (mode, checked) in [("bridge", true), ("bridge", false), ("routed", true), ("routed", false)] {
        let host = Host::new("spoof-answer");
        let config = host.config(&json!({"subnet": DUAL, "mode": mode, "spoofCheck": checked}));
        let ((asks, _), (mallory, mallorys)) = (host.attached("a", &config), host.attached("m", &config));
        let (victim, victims) = host.attached("v", &config);
        impersonate(&mallory, &victim, [v4(&victims), v6(&victims)]);
        let mac = mallorys["interfaces"][2]["mac"].as_str();
        // A route per pod cannot be answered for, whatever is checked.
        let fooled = mode == "bridge" && !checked;
        for address in ips(&victims) {
            for from in [&*asks, &*host.node] {
                let count = if fooled { 5 } else { 1 };
                let answered = ping(from, address, count).unwrap().any();
                assert_eq!(answered, fooled, "{mode}, spoofCheck {checked}: {address} from {}", from.name());
                // Also an answer to ARP or ND alone would take the pod off the air.
                let known = inspect::neighbours(from).unwrap();
                let believed = known.iter().any(|n| n.dst == address && n.mac.as_deref() == mac);
                assert_eq!(believed, fooled, "{mode}, spoofCheck {checked}: {address} at {}", from.name());
            }
        }
    }
}
