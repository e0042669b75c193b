//! Kernel settings of a tunnel device. The agent creates the device and its peers.

use types::IfName;

use crate::Error;
use crate::sysctl;

/// Sets the sysctls that the device needs to carry pod traffic, and returns the changed ones. The kernel removes them with the
/// device, so nothing is recorded.
pub fn prepare(name: &IfName) -> Result<Vec<String>, Error> {
    sysctl::prepare_tunnel(name)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use netlink::NetNs;

    use super::*;

    #[test]
    fn f6_a_tunnel_has_loose_rp_filter_no_ra_and_forwarding() {
        let in_a_namespace = || {
            let words = "link add pwvx4 type vxlan id 7 local 127.0.0.1 dstport 4789";
            assert!(Command::new("ip").args(words.split(' ')).status().unwrap().success());
            // A distribution may set this for all links.
            fs::write("/proc/sys/net/ipv4/conf/all/rp_filter", "1").unwrap();
            fs::write("/proc/sys/net/ipv6/conf/pwvx4/disable_ipv6", "1").unwrap();
            let name = IfName::try_from("pwvx4").unwrap();
            let changed = prepare(&name).unwrap();
            assert!(changed.contains(&"net.ipv4.conf.pwvx4.rp_filter set to 2".to_owned()), "{changed:?}");
            let read =
                |key: &str| fs::read_to_string(format!("/proc/sys/net/{key}")).unwrap().trim().to_owned();
            for (key, value) in [
                ("ipv4/conf/pwvx4/rp_filter", "2"),
                ("ipv4/conf/pwvx4/send_redirects", "0"),
                ("ipv4/conf/pwvx4/forwarding", "1"),
                ("ipv6/conf/pwvx4/accept_ra", "0"),
                ("ipv6/conf/pwvx4/forwarding", "1"),
                ("ipv6/conf/pwvx4/disable_ipv6", "0"),
                // Settings of the host are not changed.
                ("ipv4/conf/all/rp_filter", "1"),
                ("ipv4/ip_forward", "0"),
            ] {
                assert_eq!(read(key), value, "{key}");
            }
            assert_eq!(prepare(&name).unwrap(), [""; 0]);
            fs::write("/proc/sys/net/ipv4/conf/pwvx4/rp_filter", "1").unwrap();
            assert_eq!(prepare(&name).unwrap().len(), 1);
            let missing = IfName::try_from("pwvx6").unwrap();
            assert!(prepare(&missing).unwrap_err().to_string().contains("pwvx6"));
        };
        NetNs::create().unwrap().run(in_a_namespace).unwrap();
    }
}
