//! What leads to other nodes, and what others' firewalls have of ours.

use netlink::{Op, RouteFilter};
use types::PEER_PROTOCOL;

use super::{Leaving, Scope};
use crate::Error;
use crate::alias::LinkMark;
use crate::detach::delete_link;

impl Leaving {
    /// Is this network of the directory that is cleaned? One that nobody knows is, where the directory was lost.
    fn is_own(&self, network: &str) -> bool {
        match self.scope {
            Scope::Everything => true,
            Scope::Own if self.own.networks.is_empty() => !self.others.networks.contains_key(network),
            Scope::Own => self.own.networks.contains(network),
        }
    }

    /// The tunnel devices that we made; their routes, neighbours and forwarding entries go with them.
    pub(super) fn remove_tunnels(&mut self) -> Result<(), Error> {
        for link in self.host.links()? {
            let (Some(LinkMark::Tunnel(network)), name) = (LinkMark::of(&link), &link.name) else { continue };
            if self.is_own(network) {
                delete_link(&mut self.host, link.index)?;
                self.report.done.push(format!("tunnel {name} removed"));
            } else {
                self.strange_tunnels += 1;
                self.report.left.push(format!(
                    "tunnel {name} stays: it is of network {network} of another run directory"
                ));
            }
        }
        Ok(())
    }

    /// A route does not say whose it is: where another network lives, its agent may need it.
    pub(super) fn remove_peer_routes(&mut self) -> Result<(), Error> {
        let routes =
            self.host.routes(RouteFilter { protocol: Some(PEER_PROTOCOL), ..RouteFilter::default() })?;
        if routes.is_empty() {
            return Ok(());
        }
        if !self.others.is_empty() || self.strange_tunnels > 0 {
            let count = types::count(routes.len() as u64, "route");
            self.report.left.push(format!(
                "{count} to other nodes stay: another run directory may need them (ip route show proto {PEER_PROTOCOL})"
            ));
            return Ok(());
        }
        let mut removed = 0;
        for route in routes {
            match self.host.run(&Op::DelRoute(route)) {
                Ok(()) => removed += 1,
                Err(error) if error.is_missing() => {}
                Err(error) => self.report.left.push(format!("route to {} stays: {error}", route.dst)),
            }
        }
        self.report.done.push(format!("{} to other nodes removed", types::count(removed, "route")));
        Ok(())
    }

    /// The firewall's tables of these networks, after the tunnels that they protect.
    pub(super) fn remove_network_tables(&mut self) -> Result<(), Error> {
        let removed = nft::Firewall::open()?.delete_network_tables(&|network| self.is_own(network))?;
        self.report.done.extend(removed.into_iter().map(|table| format!("nftables table {table} removed")));
        Ok(())
    }

    /// The rules that accept pods in chains of others.
    pub(super) fn withdraw_rules(&mut self) {
        match nft::withdraw_from_unmanaged(&|network| self.is_own(network)) {
            Ok(done) => self.report.done.extend(done),
            Err(error) => self.report.left.push(format!(
                "our rules in others' firewalls could not be removed: {error} (nft -a list ruleset shows them)"
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

    const SCENE: [&str; 12] = [
        "link add up0 type veth peer name peer0",
        "link set up0 up",
        "link set peer0 up",
        "addr add 192.0.2.1/24 dev up0",
        "link add pwvx4 type vxlan id 7 local 192.0.2.1 dstport 4789",
        "link add pwvx6 type vxlan id 8 local 192.0.2.1 dstport 4790",
        "link add theirs type vxlan id 9 local 192.0.2.1 dstport 4791",
        "link set pwvx4 up",
        "route add 10.88.1.0/24 via 192.0.2.2 proto 113",
        "route add fd88:1::/64 dev up0 proto 113",
        "route add 10.88.2.0/24 dev pwvx4 proto 113",
        "route add 10.99.0.0/24 via 192.0.2.2",
    ];

    fn peer_rules() -> nft::PeerRules {
        let (locals, mac) = (vec!["192.0.2.1".parse().unwrap()], "02:00:00:00:00:07".parse().unwrap());
        nft::PeerRules { vni: 7, port: 4789, mac, locals, block4: Some(24), block6: None }
    }

    /// With pwvx4 of network blue and pwvx6 of `other`.
    fn scene(other: &str) {
        for line in SCENE {
            run("ip", &line.split(' ').collect::<Vec<_>>());
        }
        run("ip", &["link", "set", "pwvx4", "alias", "podwire tunnel blue"]);
        run("ip", &["link", "set", "pwvx6", "alias", &format!("podwire tunnel {other}")]);
        run("nft", &["table inet strict { chain c { type filter hook forward priority 0; policy drop; }; }"]);
        for network in ["blue", other] {
            let name = network.try_into().unwrap();
            nft::PeerTable::open(&name).unwrap().keep(&peer_rules(), &[], nft::Surplus::Remove).unwrap();
            nft::accept_in_unmanaged(&name, &["10.88.0.0/16".parse().unwrap()]).unwrap();
        }
    }

    fn after(
        other: &str,
        clean: impl Fn(&Path) -> CleanupReport + Sync,
    ) -> (Vec<String>, String, String, CleanupReport) {
        let in_a_namespace = || {
            scene(other);
            let report = clean(Path::new("/nonexistent/podwire"));
            let links = RtSocket::open().unwrap().links().unwrap().into_iter().map(|link| link.name);
            let tunnels = links.filter(|name| name.starts_with("pwvx") || name == "theirs").collect();
            let routes = run("ip", &["route"]) + &run("ip", &["-6", "route"]);
            (tunnels, routes, run("nft", &["list", "ruleset"]), report)
        };
        NetNs::create().unwrap().run(in_a_namespace).unwrap()
    }

    #[test]
    fn f7_tunnels_routes_to_nodes_and_rules_in_others_chains_go() {
        let (network, bridge) = ("blue".try_into().unwrap(), "blue0".try_into().unwrap());
        for everything in [false, true] {
            let clean = |dir: &Path| match everything {
                true => CleanupReport::of_everything(dir).unwrap(),
                false => cleanup(dir, Some((&network, &bridge))).unwrap(),
            };
            let (tunnels, routes, rules, report) = after("blue", clean);
            assert_eq!(tunnels, ["theirs"], "{report:?}");
            assert!(routes.contains("10.99.0.0/24") && !routes.contains("113"), "{routes}");
            assert!(rules.contains("table inet strict") && !rules.contains("podwire"), "{rules}");
            assert_eq!(report.left, [""; 0]);
            assert!(report.done.contains(&"2 routes to other nodes removed".to_owned()), "{report:?}");
        }
    }

    #[test]
    fn f7_what_another_networks_agent_made_stays_and_is_named() {
        let (network, bridge) = ("blue".try_into().unwrap(), "blue0".try_into().unwrap());
        let (tunnels, routes, rules, report) =
            after("red", |dir| cleanup(dir, Some((&network, &bridge))).unwrap());
        assert_eq!(tunnels, ["pwvx6", "theirs"], "{report:?}");
        assert!(routes.contains("10.88.1.0/24") && !routes.contains("10.88.2.0/24"), "{routes}");
        assert!(rules.contains("podwire red") && !rules.contains("podwire blue"), "{rules}");
        assert!(rules.contains("podwire-peers-red") && !rules.contains("podwire-peers-blue"), "{rules}");
        let left = report.left.join("\n");
        assert!(
            left.contains("tunnel pwvx6 stays") && left.contains("2 routes to other nodes stay"),
            "{left}"
        );
    }
}
