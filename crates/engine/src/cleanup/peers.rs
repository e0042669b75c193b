//! Removes routes and tunnels to other nodes, and Podwire's rules in unmanaged firewall chains.

use netlink::{Op, RouteFilter};
use types::PEER_PROTOCOL;

use super::{CleanupRun, Scope};
use crate::Error;
use crate::alias::LinkMark;
use crate::detach::delete_link;

impl CleanupRun {
    /// Whether the network belongs to the cleaned run directory. If the directory was lost, each network counts that no other run
    /// directory has.
    fn is_own(&self, network: &str) -> bool {
        match self.scope {
            Scope::Everything => true,
            Scope::Own if self.own.networks.is_empty() => !self.other_networks.networks.contains_key(network),
            Scope::Own => self.own.networks.contains(network),
        }
    }

    /// Removes tunnel devices. The kernel removes their routes, neighbours and forwarding entries too.
    pub(super) fn remove_tunnels(&mut self) -> Result<(), Error> {
        for link in self.host.links()? {
            let (Some(LinkMark::Tunnel(network)), name) = (LinkMark::of(&link), &link.name) else { continue };
            if self.is_own(network) {
                delete_link(&mut self.host, link.index)?;
                self.report.changes.push(format!("tunnel {name} removed"));
            } else {
                self.other_tunnels += 1;
                self.report.remaining.push(format!(
                    "tunnel {name} stays: it belongs to network {network} of another run directory"
                ));
            }
        }
        Ok(())
    }

    /// A route does not contain its network. If another network exists, its agent may need the routes.
    pub(super) fn remove_peer_routes(&mut self) -> Result<(), Error> {
        let routes =
            self.host.routes(RouteFilter { protocol: Some(PEER_PROTOCOL), ..RouteFilter::default() })?;
        if routes.is_empty() {
            return Ok(());
        }
        if !self.other_networks.is_empty() || self.other_tunnels > 0 {
            let count = types::count(routes.len() as u64, "route");
            self.report.remaining.push(format!(
                "{count} to other nodes stay: another run directory may need them (ip route show proto {PEER_PROTOCOL})"
            ));
            return Ok(());
        }
        let mut removed = 0;
        for route in routes {
            match self.host.run(&Op::DelRoute(route)) {
                Ok(()) => removed += 1,
                Err(error) if error.is_missing() => {}
                Err(error) => self.report.remaining.push(format!("route to {} stays: {error}", route.dst)),
            }
        }
        self.report.changes.push(format!("{} to other nodes removed", types::count(removed, "route")));
        Ok(())
    }

    /// Removes firewall tables of these networks, after the tunnels that they protect.
    pub(super) fn remove_network_tables(&mut self) -> Result<(), Error> {
        let removed = nft::Firewall::open()?.delete_network_tables(&|network| self.is_own(network))?;
        self.report
            .changes
            .extend(removed.into_iter().map(|table| format!("nftables table {table} removed")));
        Ok(())
    }

    /// Removes rules that accept pod traffic in unmanaged chains.
    pub(super) fn remove_accept_rules(&mut self) {
        match nft::withdraw_from_unmanaged(&|network| self.is_own(network)) {
            Ok(done) => self.report.changes.extend(done),
            Err(error) => self.report.remaining.push(format!(
                "cannot remove Podwire's rules from other firewalls: {error} (nft -a list ruleset shows them)"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use netlink::{NetNs, RtSocket};

    use crate::{CleanupReport, cleanup};

    fn run(program: &str, words: &[&str]) -> String {
        let output = Command::new(program).args(words).output().unwrap();
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    const SETUP: [&str; 12] = [
        "link add up0 type veth peer name peer0",
        "link set up0 up",
        "link set peer0 up",
        "addr add 192.0.2.1/24 dev up0",
        "link add pwvx4 type vxlan id 7 local 192.0.2.1 dstport 4789",
        "link add pwvx6 type vxlan id 8 local 192.0.2.1 dstport 4790",
        "link add unmanaged type vxlan id 9 local 192.0.2.1 dstport 4791",
        "link set pwvx4 up",
        "route add 10.88.1.0/24 via 192.0.2.2 proto 113",
        "route add fd88:1::/64 dev up0 proto 113",
        "route add 10.88.2.0/24 dev pwvx4 proto 113",
        "route add 10.99.0.0/24 via 192.0.2.2",
    ];

    fn peer_rules() -> nft::PeerRules {
        let (locals, mac) = (vec!["192.0.2.1".parse().unwrap()], "02:00:00:00:00:07".parse().unwrap());
        nft::PeerRules { vni: 7, port: 4789, mac, locals, blocks4: [24].into(), blocks6: [].into() }
    }

    /// pwvx4 belongs to network blue, pwvx6 to `other`.
    fn set_up(other: &str) {
        for line in SETUP {
            run("ip", &line.split(' ').collect::<Vec<_>>());
        }
        run("ip", &["link", "set", "pwvx4", "alias", "podwire tunnel blue"]);
        run("ip", &["link", "set", "pwvx6", "alias", &format!("podwire tunnel {other}")]);
        run("nft", &["table inet strict { chain c { type filter hook forward priority 0; policy drop; }; }"]);
        for network in ["blue", other] {
            let name = network.try_into().unwrap();
            nft::PeerTable::open(&name).unwrap().reconcile(&peer_rules(), &[], nft::Surplus::Remove).unwrap();
            nft::accept_in_unmanaged(&name, &["10.88.0.0/16".parse().unwrap()]).unwrap();
        }
    }

    fn after(
        other: &str,
        clean: impl Fn(&Path) -> CleanupReport + Sync,
    ) -> (Vec<String>, String, String, CleanupReport) {
        let in_a_namespace = || {
            set_up(other);
            let report = clean(Path::new("/nonexistent/podwire"));
            let links = RtSocket::open().unwrap().links().unwrap().into_iter().map(|link| link.name);
            let tunnels = links.filter(|name| name.starts_with("pwvx") || name == "unmanaged").collect();
            let routes = run("ip", &["route"]) + &run("ip", &["-6", "route"]);
            (tunnels, routes, run("nft", &["list", "ruleset"]), report)
        };
        NetNs::create().unwrap().run(in_a_namespace).unwrap()
    }

    #[test]
    fn f7_tunnels_peer_routes_and_accept_rules_are_removed() {
        let (network, bridge) = ("blue".try_into().unwrap(), "blue0".try_into().unwrap());
        for everything in [false, true] {
            let clean = |dir: &Path| match everything {
                true => CleanupReport::of_everything(dir).unwrap(),
                false => cleanup(dir, Some((&network, &bridge))).unwrap(),
            };
            let (tunnels, routes, rules, report) = after("blue", clean);
            assert_eq!(tunnels, ["unmanaged"], "{report:?}");
            assert!(routes.contains("10.99.0.0/24") && !routes.contains("113"), "{routes}");
            assert!(rules.contains("table inet strict") && !rules.contains("podwire"), "{rules}");
            assert_eq!(report.remaining, [""; 0]);
            assert!(report.changes.contains(&"2 routes to other nodes removed".to_owned()), "{report:?}");
        }
    }

    #[test]
    fn f7_objects_of_another_networks_agent_stay_and_are_reported() {
        let (network, bridge) = ("blue".try_into().unwrap(), "blue0".try_into().unwrap());
        let (tunnels, routes, rules, report) =
            after("red", |dir| cleanup(dir, Some((&network, &bridge))).unwrap());
        assert_eq!(tunnels, ["pwvx6", "unmanaged"], "{report:?}");
        assert!(routes.contains("10.88.1.0/24") && !routes.contains("10.88.2.0/24"), "{routes}");
        assert!(rules.contains("podwire red") && !rules.contains("podwire blue"), "{rules}");
        assert!(rules.contains("podwire-peers-red") && !rules.contains("podwire-peers-blue"), "{rules}");
        let remaining = report.remaining.join("\n");
        assert!(
            remaining.contains("tunnel pwvx6 stays") && remaining.contains("2 routes to other nodes stay"),
            "{remaining}"
        );
    }
}
