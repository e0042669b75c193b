//! STATUS: could an ADD be served now (50 if not), and are pods that run already worse off (51)?

use cni::NetworkConfig;
use netconf::{LocalPaths, NetConf};
use netlink::RtSocket;
use types::{Code, Finding, Severity};

use crate::condition::FailureContext;
use crate::delegate::DELEGATE_TIMEOUT;
use crate::firewall::Replacing;
use crate::inspect::{IpamFault, TableInspection};
use crate::state::NodeState;
use crate::{Caller, Error, Warn, firewall, gc, inspect, privileges, reconcile, relearn};

/// The first finding that concerns the network. What an ADD would make is made, and what can be repaired is repaired: a
/// runtime that gets an error sends no ADD that would do it.
pub(crate) fn status(
    config: &NetworkConfig,
    conf: &NetConf,
    place: &LocalPaths,
    caller: &Caller<'_>,
) -> Result<(), Error> {
    let dir = place.run_dir.as_path();
    let not_ready = |error: Error, code: Code, object: &str| {
        Error::NotReady(error.finding(&FailureContext { code, object, run_dir: dir }))
    };
    privileges::check().map_err(|error| not_ready(error, Code::PermissionDenied, "process"))?;
    let tables =
        if caller.kernel_cache.is_some() { TableInspection::LeaveToAgent } else { TableInspection::Inspect };
    let mut found = inspect::of_network(dir, config, conf, tables);
    let is_final = |one: &Finding| one.severity == Severity::NotReady && one.code != Code::AddressesExhausted;
    if !found.iter().any(is_final) {
        let object = format!("network {}", config.name);
        let prepared = prepare((config, conf, place), &found, caller.warn);
        match prepared.map_err(|error| not_ready(error, Code::RunDirUnusable, &object))? {
            Prepared::Unchanged => {}
            Prepared::Changed => found = inspect::of_network(dir, config, conf, tables),
        }
    }
    let found = found.into_iter().map(|one| match (one.code, one.severity) {
        (Code::FirewallDrift, _) => {
            let outcome = firewall::repair(&place.run_dir, Replacing::Refused);
            repaired(one, outcome, "; `nft monitor` shows what changes them")
        }
        (Code::BridgeDown | Code::GatewayMissing, _) => match caller.kernel_cache {
            Some(_) => one.fix("systemctl restart podwire"),
            None => repaired(one, reconcile::restore_bridges(&place.run_dir, Some(&config.name)), ""),
        },
        // An agent that is ready reports an overlap that appears later as degraded.
        (Code::SubnetOverlap, Severity::NotReady) if caller.kernel_cache.is_some() => one.degraded(),
        (_, _) => one,
    });
    let (unready, degraded): (Vec<_>, Vec<_>) = found.partition(|one| one.severity == Severity::NotReady);
    if let Some(first) = unready.into_iter().next() {
        return Err(Error::NotReady(first));
    }
    if let Some(IpamFault { finding, code }) =
        inspect::ipam_status(config, (caller.delegates, DELEGATE_TIMEOUT), dir)
    {
        return Err(match code {
            Some(code) => cni::Error::new(code, &finding.message).with_details(finding.summary()).into(),
            None => Error::NotReady(finding),
        });
    }
    degraded.into_iter().next().map_or(Ok(()), |first| Err(Error::Degraded(first)))
}

enum Prepared {
    Unchanged,
    Changed,
}

/// Makes the state directory and removes pods that are gone, as an ADD would.
fn prepare(
    (config, conf, place): (&NetworkConfig, &NetConf, &LocalPaths),
    found: &[Finding],
    warn: Warn<'_>,
) -> Result<Prepared, Error> {
    let state = NodeState::open(&place.run_dir)?;
    let is_new = state.existing_network(&config.name).is_none();
    let network = relearn::network(&state, &config.name, Some(conf))?;
    let is_exhausted = found.iter().any(|one| one.code == Code::AddressesExhausted);
    // Pods that cannot be removed leave the network exhausted, which is reported.
    let has_freed = is_exhausted
        && gc::collect_dead(&network, &mut RtSocket::open()?, &Caller::standalone(warn))
            .is_ok_and(|count| count > 0);
    Ok(if is_new || has_freed { Prepared::Changed } else { Prepared::Unchanged })
}

/// It is reported once more, so that the operator learns of the program that changes the node.
fn repaired(found: Finding, outcome: Result<(), Error>, hint: &str) -> Finding {
    let (outcome, fix) = match outcome {
        Ok(()) => (format!("repaired just now{hint}"), None),
        Err(error) => (format!("the repair failed: {error}"), found.fix),
    };
    Finding { message: format!("{}: {outcome}", found.message), fix, ..found }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use netlink::NetNs;

    use super::*;

    fn ask(dir: &Path, more: &str) -> Result<(), cni::Error> {
        let text = format!(
            r#"{{"cniVersion": "1.1.0", "name": "pods", "type": "podwire-cni", "runDir": "{}", {more}}}"#,
            dir.display()
        );
        let config = NetworkConfig::from_slice(text.as_bytes())?;
        status(
            &config,
            &NetConf::parse(&config)?,
            &LocalPaths::parse(&config)?,
            &Caller::standalone(&|_| ()),
        )?;
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
                assert_eq!(error.code, cni::ErrorCode::LimitedConnectivity, "{error}");
                let command = error.details.strip_prefix("PodTrafficDropped: ").unwrap();
                nft(command);
                assert!(ask(dir.path(), conf).is_ok(), "{text}: after {command}");
            };
            NetNs::create().unwrap().run(in_a_namespace).unwrap();
        }
    }
}
