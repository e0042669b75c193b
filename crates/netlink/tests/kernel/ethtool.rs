//! Checksum offload of a tunnel device on a real kernel.

use netlink::{AddVxlan, Ethtool};

use crate::testbed::{Testbed, mac, name};

#[test]
fn checksum_offload_of_a_tunnel_can_be_read_and_changed() {
    for local in ["192.0.2.1", "2001:db8::1"] {
        let mut w = Testbed::new();
        let pwvx = name("pwvx");
        let local = local.parse().unwrap();
        let add = AddVxlan { name: &pwvx, mac: mac(9), mtu: 1400, vni: 7, port: 4789, local, link: None };
        let link = w.host_socket.create_vxlan(&add, None).unwrap();
        let mut ethtool = Ethtool::open_in(&w.host).unwrap();
        assert!(ethtool.tx_checksum(link).unwrap());
        for on in [false, false, true, true, false] {
            ethtool.set_tx_checksum(link, on).unwrap();
            assert_eq!(ethtool.tx_checksum(link).unwrap(), on);
        }
        // A second socket reads the same value: it belongs to the link, not to the socket.
        assert!(!Ethtool::open_in(&w.host).unwrap().tx_checksum(link).unwrap());
    }
}

#[test]
fn a_missing_link_and_a_fixed_offload_are_reported() {
    let mut w = Testbed::new();
    let mut ethtool = Ethtool::open_in(&w.host).unwrap();
    let error = ethtool.tx_checksum(4711).unwrap_err();
    assert!(error.is_missing() && error.to_string().contains("read the features of link 4711"), "{error}");
    let lo = w.host_socket.link(&name("lo")).unwrap().unwrap().index;
    let error = ethtool.set_tx_checksum(lo, false).unwrap_err();
    assert!(error.is_unsupported(), "{error}");
    assert!(error.to_string().contains(&format!("switch checksum offload of link {lo} off")), "{error}");
}
