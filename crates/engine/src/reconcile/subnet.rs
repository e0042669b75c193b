//! The route to a gateway's subnet over its bridge. It exists because bridged pods needed it, or because an earlier version of
//! Podwire added the gateway's address without `noprefixroute`. It is removed if all pods of the subnet are routed.

use std::path::PathBuf;

use ipnet::IpNet;
use netlink::{Link, Mode, Op, Route, RouteFilter, RtSocket};
use types::AttachMode;

use super::diff::has_bridge_name;
use crate::Error;
use crate::alias::Alias;
use crate::bridge::{Bridge, Gateway};
use crate::state::{Attachment, NodeState, RecordPhase};

/// Whether pods need the route. A route that is not needed is removed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum RouteNeed {
    NotNeeded,
    /// A bridged pod needs it.
    Needed,
    /// The pod of an unreadable record may need it.
    MayBeNeeded(PathBuf),
}

/// Removes routes of an earlier version from a managed bridge. Routes that a pod needs or may need stay.
pub(crate) fn remove_earlier(
    host: &mut RtSocket,
    state: &NodeState,
    (bridge, gateway): (&Bridge, &Gateway),
) -> Result<(), Error> {
    let over_bridge = host.routes(RouteFilter { link: Some(bridge.index), ..RouteFilter::default() })?;
    for route in over_bridge.iter().filter(|route| gateway.is_over_bridge(route)) {
        remove(host, state, (bridge, gateway), route)?;
    }
    Ok(())
}

/// Removes a route that was listed before, unless it is needed.
pub(super) fn remove(
    host: &mut RtSocket,
    state: &NodeState,
    (bridge, gateway): (&Bridge, &Gateway),
    route: &Route,
) -> Result<RouteNeed, Error> {
    // Records are listed after the routes, because an ADD writes its record before it adds a route.
    match need_for_route(host, state, (bridge, gateway))? {
        RouteNeed::NotNeeded => delete(host, state, (bridge, gateway), route),
        needed @ (RouteNeed::Needed | RouteNeed::MayBeNeeded(_)) => Ok(needed),
    }
}

fn delete(
    host: &mut RtSocket,
    state: &NodeState,
    (bridge, gateway): (&Bridge, &Gateway),
    route: &Route,
) -> Result<RouteNeed, Error> {
    match host.run(&Op::DelRoute(*route)) {
        Err(e) if e.is_missing() => {}
        other => other?,
    }
    // An ADD that started after the records were listed may have relied on the route. Its record exists now.
    let need = need_for_route(host, state, (bridge, gateway))?;
    let restored = Gateway { mode: AttachMode::Bridge, ..*gateway }.subnet_route();
    if let (RouteNeed::Needed | RouteNeed::MayBeNeeded(_), Some(route)) = (&need, restored) {
        match host.run(&Op::AddRoute { route, mode: Mode::Exclusive }) {
            Err(e) if e.is_exists() => {}
            other => other?,
        }
    }
    Ok(need)
}

/// Checks the current records for pods that need the route.
fn need_for_route(
    host: &mut RtSocket,
    state: &NodeState,
    (bridge, gateway): (&Bridge, &Gateway),
) -> Result<RouteNeed, Error> {
    let mut unreadable = Vec::new();
    for network in state.networks()? {
        for listed in network.list()? {
            match &listed.attachment {
                Some(attachment)
                    if is_on(attachment, bridge) && needs_gateway(attachment, &gateway.address) =>
                {
                    return Ok(RouteNeed::Needed);
                }
                Some(_) => {}
                None => unreadable.push((network.path_of(&listed.stem), network.name(), listed)),
            }
        }
    }
    if unreadable.is_empty() {
        return Ok(RouteNeed::NotNeeded);
    }
    let links = host.links()?;
    let has_ports = links.iter().any(|link| link.master == Some(bridge.index));
    for (path, network, listed) in unreadable {
        let is_host_end =
            |link: &&Link| Alias::of(link).is_some_and(|a| a.is_of_record(&network, &listed.stem));
        let may_need = match links.iter().find(is_host_end) {
            Some(link) => link.master == Some(bridge.index),
            // Its link does not exist yet, or is a port that lost its alias.
            None => listed.phase == RecordPhase::Pending || has_ports,
        };
        if may_need {
            return Ok(RouteNeed::MayBeNeeded(path));
        }
    }
    Ok(RouteNeed::NotNeeded)
}

/// A record that was recovered from a link without its config does not name its bridge.
fn is_on(attachment: &Attachment, bridge: &Bridge) -> bool {
    attachment.mode == AttachMode::Bridge
        && (attachment.bridge == bridge.name || !has_bridge_name(attachment))
}

/// Whether the gateway's subnet contains an address or gateway of this pod.
pub(super) fn needs_gateway(attachment: &Attachment, gateway: &IpNet) -> bool {
    let mut addresses = attachment.addresses.iter().map(|a| a.address.addr());
    attachment.wiring.gateways.contains(gateway) || addresses.any(|address| gateway.contains(&address))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use serde_json::json;
    use testkit::{Lab, inspect};

    use super::*;
    use crate::bridge::{self, Spec};

    const SUBNET: &str = "10.88.1.0/24";

    fn attachment(mode: &str, bridge: &str) -> String {
        let record = json!({"schema": 1, "network": "blue", "container": "c1", "ifname": "eth0", "netns": "",
            "mode": mode, "bridge": bridge, "host_link": "pwx", "host_mac": "02:00:00:00:00:01",
            "pod_mac": "02:00:00:00:00:02", "mtu": 1500, "spoof_check": true, "created": 0,
            "addresses": [{"address": "10.88.1.7/24"}], "gateways": ["10.88.1.1/24"], "hairpin": false});
        record.to_string()
    }

    fn write_record(run_dir: &Path, phase: &str, text: &str) -> NodeState {
        let state = NodeState::open(run_dir).unwrap();
        let network = state.network(&"blue".try_into().unwrap(), || Ok::<_, Error>(Vec::new())).unwrap();
        fs::write(network.path_of("c1@eth0").with_extension(phase), text).unwrap();
        state
    }

    /// Calls `test` with a bridge and its gateway, which has the kernel's route to its subnet. Returns the remaining routes.
    fn routes_after(
        test: impl Fn(&mut RtSocket, &Bridge, &Gateway, &Route) + Sync + Send,
    ) -> Vec<inspect::ListedRoute> {
        let lab = Lab::new("subnet").unwrap();
        let node = lab.node("n").unwrap();
        node.enter(|| {
            let mut host = RtSocket::open().unwrap();
            let spec = Spec { name: &"pw0".try_into().unwrap(), mtu: None, promisc: false };
            let bridge = bridge::ensure(&mut host, &spec, None).unwrap();
            let address = "10.88.1.1/24".parse().unwrap();
            let add = Gateway { bridge: bridge.index, address, mode: AttachMode::Bridge };
            host.run_all(&add.ops()).unwrap();
            let routes = host.routes(RouteFilter { link: Some(bridge.index), ..RouteFilter::default() });
            let gateway = Gateway { mode: AttachMode::Routed, ..add };
            let route = routes.unwrap().into_iter().find(|route| gateway.is_over_bridge(route)).unwrap();
            test(&mut host, &bridge, &gateway, &route);
        })
        .unwrap();
        let mut routes = inspect::routes(&node, inspect::Family::V4).unwrap();
        routes.retain(|route| route.dst == SUBNET);
        routes
    }

    #[test]
    fn a6_only_records_of_bridged_pods_keep_the_route() {
        let newer = r#"{"schema": 99}"#.to_owned();
        for (phase, text, is_kept) in [
            ("pending", attachment("routed", "pw0"), false),
            ("ready", attachment("routed", "pw0"), false),
            ("pending", attachment("bridge", "other"), false),
            ("ready", newer.clone(), false),
            ("pending", attachment("bridge", "pw0"), true),
            ("ready", attachment("bridge", "pw0"), true),
            // The bridge is unknown.
            ("ready", attachment("bridge", "pwx"), true),
            ("pending", newer, true),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let state = write_record(dir.path(), phase, &text);
            let routes = routes_after(|host, bridge, gateway, route| {
                let removal = remove(host, &state, (bridge, gateway), route).unwrap();
                assert_eq!(removal != RouteNeed::NotNeeded, is_kept, "{phase} {text}: {removal:?}");
            });
            assert_eq!(!routes.is_empty(), is_kept, "{phase} {text}: {routes:?}");
        }
    }

    #[test]
    fn a6_a_route_needed_by_a_concurrent_add_is_restored() {
        let dir = tempfile::tempdir().unwrap();
        let state = write_record(dir.path(), "pending", &attachment("bridge", "pw0"));
        let routes = routes_after(|host, bridge, gateway, route| {
            // Simulates a record that was written after the records were listed.
            let removal = delete(host, &state, (bridge, gateway), route).unwrap();
            assert_eq!(removal, RouteNeed::Needed);
        });
        assert_eq!(routes.len(), 1, "{routes:?}");
        assert_eq!(routes[0].prefsrc, Some("10.88.1.1".parse().unwrap()));
    }
}
