//! The device that leads to other nodes: how the kernel treats what comes and goes through it. Who makes it and what it
//! leads to is the agent's.

use types::IfName;

use crate::Error;
use crate::sysctl;

/// Sets what the device needs to carry pods' packets, and says what was not so. All of it goes with the device, so
/// nothing is recorded.
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
    fn f6_a_tunnel_is_loose_takes_no_advertisements_and_forwards() {
        let in_a_namespace = || {
            let words = "link add pwvx4 type vxlan id 7 local 127.0.0.1 dstport 4789";
            assert!(Command::new("ip").args(words.split(' ')).status().unwrap().success());
            // What a distribution may have set for all.
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
                // The machine's own are left alone.
                ("ipv4/conf/all/rp_filter", "1"),
                ("ipv4/ip_forward", "0"),
            ] {
                assert_eq!(read(key), value, "{key}");
            }
            assert_eq!(prepare(&name).unwrap(), [""; 0]);
            fs::write("/proc/sys/net/ipv4/conf/pwvx4/rp_filter", "1").unwrap();
            assert_eq!(prepare(&name).unwrap().len(), 1);
            let gone = IfName::try_from("pwvx6").unwrap();
            assert!(prepare(&gone).unwrap_err().to_string().contains("pwvx6"));
        };
        NetNs::create().unwrap().run(in_a_namespace).unwrap();
    }
}
