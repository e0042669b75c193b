//! The route to a gateway's subnet over its bridge. The kernel made it with a gateway address of an earlier version, or pods
//! on the bridge needed it. Where all pods of the subnet are routed it is removed.

use std::path::PathBuf;

use ipnet::IpNet;
use netlink::{Link, Mode, Op, Route, RouteFilter, RtSocket};
use types::AttachMode;

use super::diff::knows_bridge;
use crate::Error;
use crate::alias::Alias;
use crate::bridge::{Bridge, Gateway};
use crate::state::{Attachment, NodeState, RecordPhase};

/// Whether the route is gone.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum RouteRemoval {
    Removed,
    /// A pod on the bridge needs it.
    Needed,
    /// The pod of a record that cannot be read may need it.
    MayBeNeeded(PathBuf),
}

/// Removes the routes that an earlier version left, from a managed bridge. What cannot be removed stays: the pods that need
/// it come first.
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
) -> Result<RouteRemoval, Error> {
    // Listed after the routes: an ADD has a record before it makes a route.
    match need(host, state, (bridge, gateway))? {
        RouteRemoval::Removed => delete(host, state, (bridge, gateway), route),
        needed @ (RouteRemoval::Needed | RouteRemoval::MayBeNeeded(_)) => Ok(needed),
    }
}

fn delete(
    host: &mut RtSocket,
    state: &NodeState,
    (bridge, gateway): (&Bridge, &Gateway),
    route: &Route,
) -> Result<RouteRemoval, Error> {
    match host.run(&Op::DelRoute(*route)) {
        Err(e) if e.is_missing() => {}
        other => other?,
    }
    // An ADD that began after the records were listed may have found the route, and relies on it. Its record is there.
    let need = need(host, state, (bridge, gateway))?;
    let replay = Gateway { mode: AttachMode::Bridge, ..*gateway }.subnet_route();
    if let (RouteRemoval::Needed | RouteRemoval::MayBeNeeded(_), Some(route)) = (&need, replay) {
        match host.run(&Op::AddRoute { route, mode: Mode::Exclusive }) {
            Err(e) if e.is_exists() => {}
            other => other?,
        }
    }
    Ok(need)
}

/// Who needs the route, by the records as they are now. `Removed`: no pod does.
fn need(
    host: &mut RtSocket,
    state: &NodeState,
    (bridge, gateway): (&Bridge, &Gateway),
) -> Result<RouteRemoval, Error> {
    let mut unreadable = Vec::new();
    for network in state.networks()? {
        for listed in network.list()? {
            match &listed.attachment {
                Some(attachment) if is_on(attachment, bridge) && needs(attachment, &gateway.address) => {
                    return Ok(RouteRemoval::Needed);
                }
                Some(_) => {}
                None => unreadable.push((network.path_of(&listed.stem), network.name(), listed)),
            }
        }
    }
    if unreadable.is_empty() {
        return Ok(RouteRemoval::Removed);
    }
    let links = host.links()?;
    let has_ports = links.iter().any(|link| link.master == Some(bridge.index));
    for (path, network, listed) in unreadable {
        let is_its = |link: &&Link| Alias::of(link).is_some_and(|a| a.is_of_record(&network, &listed.stem));
        let may_need = match links.iter().find(is_its) {
            Some(link) => link.master == Some(bridge.index),
            // Its link is not made yet, or it is a port that lost its alias.
            None => listed.phase == RecordPhase::Pending || has_ports,
        };
        if may_need {
            return Ok(RouteRemoval::MayBeNeeded(path));
        }
    }
    Ok(RouteRemoval::Removed)
}

/// A record that was recovered from a link alone does not name its bridge.
fn is_on(attachment: &Attachment, bridge: &Bridge) -> bool {
    attachment.mode == AttachMode::Bridge && (attachment.bridge == bridge.name || !knows_bridge(attachment))
}

/// Is the gateway's subnet one of this pod's?
pub(super) fn needs(attachment: &Attachment, gateway: &IpNet) -> bool {
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

    fn put_record(run_dir: &Path, phase: &str, text: &str) -> NodeState {
        let state = NodeState::open(run_dir).unwrap();
        let network = state.network(&"blue".try_into().unwrap(), || Ok::<_, Error>(Vec::new())).unwrap();
        fs::write(network.path_of("c1@eth0").with_extension(phase), text).unwrap();
        state
    }

    /// A bridge whose gateway has the kernel's route to its subnet.
    fn in_node(
        of: impl Fn(&mut RtSocket, &Bridge, &Gateway, &Route) + Sync + Send,
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
            of(&mut host, &bridge, &gateway, &route);
        })
        .unwrap();
        let mut routes = inspect::routes(&node, inspect::Family::V4).unwrap();
        routes.retain(|route| route.dst == SUBNET);
        routes
    }

    #[test]
    fn a6_only_records_of_pods_on_the_bridge_keep_its_route() {
        let newer = r#"{"schema": 99}"#.to_owned();
        for (phase, text, is_kept) in [
            ("pending", attachment("routed", "pw0"), false),
            ("ready", attachment("routed", "pw0"), false),
            ("pending", attachment("bridge", "other"), false),
            ("ready", newer.clone(), false),
            ("pending", attachment("bridge", "pw0"), true),
            ("ready", attachment("bridge", "pw0"), true),
            // Its bridge is not known.
            ("ready", attachment("bridge", "pwx"), true),
            ("pending", newer, true),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let state = put_record(dir.path(), phase, &text);
            let routes = in_node(|host, bridge, gateway, route| {
                let removal = remove(host, &state, (bridge, gateway), route).unwrap();
                assert_eq!(removal != RouteRemoval::Removed, is_kept, "{phase} {text}: {removal:?}");
            });
            assert_eq!(!routes.is_empty(), is_kept, "{phase} {text}: {routes:?}");
        }
    }

    #[test]
    fn a6_a_route_that_an_add_relied_on_meanwhile_is_restored() {
        let dir = tempfile::tempdir().unwrap();
        let state = put_record(dir.path(), "pending", &attachment("bridge", "pw0"));
        let routes = in_node(|host, bridge, gateway, route| {
            // As if the record had been written after the records were listed.
            let removal = delete(host, &state, (bridge, gateway), route).unwrap();
            assert_eq!(removal, RouteRemoval::Needed);
        });
        assert_eq!(routes.len(), 1, "{routes:?}");
        assert_eq!(routes[0].prefsrc, Some("10.88.1.1".parse().unwrap()));
    }
}
