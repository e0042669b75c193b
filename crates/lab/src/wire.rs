use anyhow::{Result, ensure};

use crate::lab::ip;
use crate::{DEADLINE, Lab, Ns, inspect, wait_until};

/// One end of a cable.
#[derive(Debug, Clone, Copy)]
pub struct CableEnd<'a> {
    pub ns: &'a Ns,
    pub dev: &'a str,
    /// With prefix length, of either family.
    pub addresses: &'a [&'a str],
}

impl Lab {
    /// Creates a veth between two namespaces of this lab and waits until both ends are up. The ends also get the link-local
    /// addresses fe80::a and fe80::b.
    pub fn wire(&self, a: &CableEnd<'_>, b: &CableEnd<'_>) -> Result<()> {
        for end in [a, b] {
            ensure!(self.inner.owns(end.ns), "{} does not belong to lab {}", end.ns.name(), self.prefix());
        }
        let (here, there) = (a.ns.name(), b.ns.name());
        ip(&["-n", here, "link", "add", a.dev, "type", "veth", "peer", "name", b.dev, "netns", there])?;
        bring_up(a, "fe80::a/64")?;
        bring_up(b, "fe80::b/64")?;
        for end in [a, b] {
            let what = format!("link {} in {} to be up", end.dev, end.ns.name());
            wait_until(&what, DEADLINE, || Ok(inspect::link(end.ns, end.dev)?.operstate == "UP"))?;
        }
        Ok(())
    }
}

/// A router sends neighbour solicitations from its link-local address, so it needs one. It is set explicitly, because the
/// kernel would generate it later and snapshots would differ.
fn bring_up(end: &CableEnd<'_>, link_local: &str) -> Result<()> {
    let ns = end.ns.name();
    ip(&["-n", ns, "link", "set", "dev", end.dev, "addrgenmode", "none"])?;
    for address in end.addresses.iter().chain([&link_local]) {
        let mut args = vec!["-n", ns, "addr", "add", address, "dev", end.dev];
        if address.contains(':') {
            args.push("nodad");
        }
        ip(&args)?;
    }
    ip(&["-n", ns, "link", "set", "dev", end.dev, "up"])?;
    Ok(())
}
