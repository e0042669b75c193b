//! STATUS: could an ADD be served now (50 if not), and are pods that run already worse off (51)?

use std::path::Path;

use cni::Config;
use netconf::{Addresses, NetConf, Place};
use netlink::RtSocket;
use nft::{Certainty, ForeignFamily};
use types::{AttachMode, Code, Finding, Severity};

use crate::condition::{Failed, not_a_bridge};
use crate::delegate::Delegate;
use crate::overlap::{self, Observed};
use crate::state::{Listed, Phase, State, StateError};
use crate::{Caller, Error, firewall, gc, privileges, relearn};

/// How many pods are looked at. What happens to the firewall's tables mostly happens to all of them.
const SAMPLES: usize = 4;
/// The next ADD or STATUS makes them anew, with all pods. A table is added first: nft refuses to delete one that is missing.
pub const DELETE_TABLES: &str = "nft 'add table inet podwire; delete table inet podwire; add table bridge podwire; delete table bridge podwire'";

pub(crate) fn status(
    config: &Config,
    conf: &NetConf,
    place: &Place,
    caller: &Caller<'_>,
) -> Result<(), Error> {
    let dir = place.run_dir.as_path();
    privileges::check().map_err(|e| not_ready(e, dir, Code::PermissionDenied, "process"))?;
    let kernel = |error: netlink::Error| not_ready(error.into(), dir, Code::ReconcileFailed, "kernel");
    if conf.spoof_check || conf.ip_masq {
        let available = nft::Firewall::open().and_then(|mut firewall| firewall.is_available());
        available.map_err(|e| not_ready(e.into(), dir, Code::KernelFeatureMissing, "nftables"))?;
    }
    degraded(config, conf, place)?;
    let mut host = RtSocket::open().map_err(kernel)?;
    if let Some(link) = host.link(&conf.bridge).map_err(kernel)?
        && link.kind.as_deref() != Some("bridge")
    {
        let error = not_a_bridge(&mut host, &conf.bridge, link);
        return Err(not_ready(error, dir, Code::BridgeNameTaken, "link"));
    }
    match &conf.addresses {
        Addresses::Own(_) => room(config, conf, place, &mut host).map_err(|error| {
            let network = format!("network {}", config.name);
            let is_full = matches!(error, Error::State(StateError::Exhausted { .. }));
            let code = if is_full { Code::AddressesExhausted } else { Code::RunDirUnusable };
            not_ready(error, dir, code, &network)
        })?,
        Addresses::Absent => {}
        Addresses::Delegated(plugin) => {
            let object = format!("plugin {plugin}");
            let found = Delegate::find(plugin, config, caller.delegates);
            found.map_err(|error| not_ready(error, dir, Code::IpamUnavailable, &object))?.status()?;
        }
    }
    overlaps(config, conf, &mut host, caller)?;
    dropped(conf)
}

/// A subnet that another program uses too: pods that run are affected, and without pods none should be started. Another
/// network of Podwire with the same subnet is only reported by `podwire status` and `podwire doctor`.
fn overlaps(config: &Config, conf: &NetConf, host: &mut RtSocket, caller: &Caller<'_>) -> Result<(), Error> {
    let subnets = overlap::routed_subnets(conf);
    if subnets.is_empty() {
        return Ok(());
    }
    let observed = Observed::of(host, &subnets)?;
    let network = overlap::Network { name: &config.name, bridge: &conf.bridge, subnets: &subnets };
    match overlap::of_status(&network, &observed) {
        // An agent that is ready reports what appears later as degraded.
        Some(found) if found.severity == Severity::NotReady && caller.resident.is_none() => {
            Err(Error::NotReady(found))
        }
        Some(found) => Err(Error::Degraded(found)),
        None => Ok(()),
    }
}

fn not_ready(error: Error, run_dir: &Path, code: Code, object: &str) -> Error {
    Error::NotReady(error.finding(&Failed { code, object, run_dir }))
}

/// Somebody else's firewall that lets no pod out (A9). Only where it is certain: a runtime that is told 51 sends no pods. Pods
/// that the host does not route do not meet it.
fn dropped(conf: &NetConf) -> Result<(), Error> {
    if conf.mode == AttachMode::Bridge && !conf.is_gateway {
        return Ok(());
    }
    let drops = match nft::foreign_drops(&[&conf.bridge]) {
        Ok(drops) => drops,
        Err(error) => {
            let error = error.to_string();
            eprintln!("podwire: cannot look at the firewall's other tables: {}", types::one_line(&error));
            return Ok(());
        }
    };
    let is_certain = |drop: &nft::ForeignDrop| drop.certainty == Certainty::Certain;
    match drops.into_iter().find(|drop| is_certain(drop) && meets(drop.family, &conf.addresses)) {
        Some(drop) => Err(Error::Degraded(drop.finding())),
        None => Ok(()),
    }
}

/// Do pods have addresses that a table of this family sees? Those of another plugin are not known.
fn meets(family: ForeignFamily, addresses: &Addresses) -> bool {
    let Addresses::Own(pools) = addresses else { return true };
    let mut ranges = pools.sets().iter().flat_map(ipam::RangeSet::ranges);
    match family {
        ForeignFamily::Ip => ranges.any(ipam::Range::is_ipv4),
        ForeignFamily::Ip6 => ranges.any(|range| !range.is_ipv4()),
        ForeignFamily::Inet => true,
    }
}

/// Whether the state folder can be written, and has an address left. Made if it is not there, as an ADD would.
fn room(config: &Config, conf: &NetConf, place: &Place, host: &mut RtSocket) -> Result<(), Error> {
    let Addresses::Own(pools) = &conf.addresses else { return Ok(()) };
    let state = State::open(&place.run_dir)?;
    let network = relearn::network(&state, &config.name, Some(conf))?;
    match network.has_room(pools) {
        // Also as an ADD would. A runtime that is told 50 sends no ADD that could make room.
        Err(StateError::Exhausted { .. })
            if gc::collect_dead(&network, host, &Caller::STANDALONE).is_ok_and(|n| n > 0) =>
        {
            Ok(network.has_room(pools)?)
        }
        other => Ok(other?),
    }
}

/// Pods that run suffer when their bridge is gone or down, or the firewall's tables were flushed.
fn degraded(config: &Config, conf: &NetConf, place: &Place) -> Result<(), Error> {
    let Ok(Some(state)) = State::open_existing(&place.run_dir) else { return Ok(()) };
    let Some(network) = state.existing_network(&config.name) else { return Ok(()) };
    let listed = network.list()?;
    let ready: Vec<&Listed> = listed.iter().filter(|l| l.phase == Phase::Ready).collect();
    let running = ready.len();
    if running == 0 {
        return Ok(());
    }
    let mut host = RtSocket::open()?;
    let bridge = &conf.bridge;
    let object = format!("bridge {bridge}");
    let (pods, they_are) = match running {
        1 => ("1 pod has".to_owned(), "it is"),
        _ => (format!("{running} pods have"), "they are"),
    };
    let found = match host.link(bridge)? {
        Some(link) if link.up => return unguarded(&state, &ready),
        Some(_) => {
            let message = format!("bridge {bridge} is down, and {pods} no network until it is up");
            Finding::new(Code::BridgeDown, object, message).fix(format!("ip link set {bridge} up"))
        }
        None => {
            let message =
                format!("bridge {bridge} is gone, and {pods} no network until {they_are} restarted");
            Finding::new(Code::BridgeMissing, object, message).degraded()
        }
    };
    Err(Error::Degraded(found))
}

/// Are pods without what the firewall should have of them? Then it is put back here: a runtime that is told 51 sends no ADD
/// that would. It is still told, once.
fn unguarded(state: &State, ready: &[&Listed]) -> Result<(), Error> {
    let Some(lost) = lost(ready)? else { return Ok(()) };
    let (what, fix) = match firewall::put_back(state, None).and_then(|()| self::lost(ready)) {
        Ok(None) => {
            ("all pods were put back just now; `nft monitor` shows what removes them".to_owned(), None)
        }
        // Chains whose rules were removed look complete to an ADD; whole tables are made anew.
        Ok(Some(_)) => ("the tables must be made anew".to_owned(), Some(DELETE_TABLES.to_owned())),
        Err(error) => (format!("putting the pods back failed: {error}"), None),
    };
    let message = format!("pods were removed from Podwire's tables, {lost}: {what}");
    let found = Finding::new(Code::FirewallDrift, "tables podwire", message);
    Err(Error::Degraded(Finding { fix, ..found }))
}

/// What the firewall lacks of a pod, for the first that lacks anything.
fn lost(ready: &[&Listed]) -> Result<Option<String>, Error> {
    for attachment in ready.iter().filter_map(|l| l.attachment.as_ref()).take(SAMPLES) {
        let missing = firewall::missing(attachment)?;
        if let Some(first) = missing.first() {
            return Ok(Some(format!("{} lacks {first}", attachment.key)));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use netlink::NetNs;

    use super::*;

    fn ask(dir: &Path, more: &str) -> Result<(), cni::Error> {
        let text = format!(
            r#"{{"cniVersion": "1.1.0", "name": "pods", "type": "podwire-cni", "runDir": "{}", {more}}}"#,
            dir.display()
        );
        let config = Config::from_slice(text.as_bytes())?;
        status(&config, &NetConf::parse(&config)?, &Place::parse(&config)?, &Caller::STANDALONE)?;
        Ok(())
    }

    const BOTH: &str = r#""mode": "routed", "subnet": "10.50.0.0/24,fd00:50::/64""#;
    const ONLY_V4: &str = r#""mode": "routed", "subnet": "10.50.0.0/24""#;
    const FLAT: &str = r#""mode": "bridge", "isGateway": false, "subnet": "10.50.0.0/24""#;

    #[test]
    fn a9_a_firewall_that_lets_no_pod_out_is_told_with_what_helps_and_never_on_a_guess() {
        let table = |family: &str, rule: &str| {
            format!(
                "table {family} t {{ chain c {{ type filter hook forward priority 0; policy drop; {rule} }}; }}"
            )
        };
        for (text, conf, is_told) in [
            (table("inet", ""), BOTH, true),
            (table("ip6", "iifname eth7 accept;"), BOTH, true),
            (table("ip6", ""), ONLY_V4, false),
            (table("inet", ""), FLAT, false),
            (table("inet", "ip saddr 10.0.0.0/8 accept;"), BOTH, false),
            (table("inet", "").replace("policy drop", "policy accept"), BOTH, false),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let in_a_namespace = || {
                let nft =
                    |words: &str| assert!(Command::new("sh").args(["-c", words]).status().unwrap().success());
                assert!(ask(dir.path(), conf).is_ok(), "{text}: before");
                nft(&format!("nft '{text}'"));
                let answer = ask(dir.path(), conf);
                assert_eq!(answer.is_err(), is_told, "{text}: {answer:?}");
                let Err(error) = answer else { return };
                assert_eq!(error.code, cni::Code::LimitedConnectivity, "{error}");
                let command = error.details.strip_prefix("PodTrafficDropped: ").unwrap();
                nft(command);
                assert!(ask(dir.path(), conf).is_ok(), "{text}: after {command}");
            };
            NetNs::create().unwrap().run(in_a_namespace).unwrap();
        }
    }
}
