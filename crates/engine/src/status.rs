//! STATUS reports whether an ADD can be served (code 50 if not), and whether running pods are affected (code 51).

use cni::NetworkConfig;
use netconf::{LocalPaths, NetConf};
use netlink::RtSocket;
use types::{Code, Finding, Severity};

use crate::condition::FailureContext;
use crate::delegate::DELEGATE_TIMEOUT;
use crate::firewall::Replacing;
use crate::inspect::{IpamFault, TableInspection};
use crate::state::NodeState;
use crate::{Caller, Error, Warn, firewall, gc, inspect, privileges, reconcile, recover};

/// Returns the first finding of the network. STATUS creates and repairs what an ADD would: after an error, the runtime sends
/// no ADD that could do it.
pub(crate) fn status(
    config: &NetworkConfig,
    conf: &NetConf,
    paths: &LocalPaths,
    caller: &Caller<'_>,
) -> Result<(), Error> {
    let dir = paths.run_dir.as_path();
    let not_ready = |error: Error, code: Code, object: &str| {
        Error::NotReady(error.finding(&FailureContext { code, object, run_dir: dir }))
    };
    privileges::check().map_err(|error| not_ready(error, Code::PermissionDenied, "process"))?;
    let tables =
        if caller.kernel_cache.is_some() { TableInspection::LeaveToAgent } else { TableInspection::Inspect };
    let mut findings = inspect::of_network(dir, config, conf, tables);
    let is_final = |finding: &Finding| {
        finding.severity == Severity::NotReady && finding.code != Code::AddressesExhausted
    };
    if !findings.iter().any(is_final) {
        let object = format!("network {}", config.name);
        let prepared = prepare((config, conf, paths), &findings, caller.warn);
        match prepared.map_err(|error| not_ready(error, Code::RunDirUnusable, &object))? {
            Prepared::Unchanged => {}
            Prepared::Changed => findings = inspect::of_network(dir, config, conf, tables),
        }
    }
    let findings = findings.into_iter().map(|finding| match (finding.code, finding.severity) {
        (Code::FirewallDrift, _) => {
            let outcome = firewall::repair(&paths.run_dir, Replacing::Refused);
            after_repair(finding, outcome, "; `nft monitor` shows the changes of other programs")
        }
        (Code::BridgeDown | Code::GatewayMissing, _) => match caller.kernel_cache {
            Some(_) => finding.fix("systemctl restart podwire"),
            None => after_repair(finding, reconcile::restore_bridges(&paths.run_dir, Some(&config.name)), ""),
        },
        // A ready agent reports a new overlap as degraded.
        (Code::SubnetOverlap, Severity::NotReady) if caller.kernel_cache.is_some() => finding.degraded(),
        (_, _) => finding,
    });
    let (unready, degraded): (Vec<_>, Vec<_>) =
        findings.partition(|finding| finding.severity == Severity::NotReady);
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

/// Creates the state directory and removes dead pods, like an ADD.
fn prepare(
    (config, conf, paths): (&NetworkConfig, &NetConf, &LocalPaths),
    findings: &[Finding],
    warn: Warn<'_>,
) -> Result<Prepared, Error> {
    let state = NodeState::open(&paths.run_dir)?;
    let is_new = state.existing_network(&config.name).is_none();
    let network = recover::network(&state, &config.name, Some(conf))?;
    let is_exhausted = findings.iter().any(|finding| finding.code == Code::AddressesExhausted);
    // If dead pods cannot be removed, the network stays exhausted, and this is reported.
    let has_freed = is_exhausted
        && gc::collect_dead(&network, &mut RtSocket::open()?, &Caller::standalone(warn))
            .is_ok_and(|count| count > 0);
    Ok(if is_new || has_freed { Prepared::Changed } else { Prepared::Unchanged })
}

/// A repaired finding is reported once, so that the operator notices the program that changes the node.
fn after_repair(finding: Finding, outcome: Result<(), Error>, hint: &str) -> Finding {
    let (outcome, fix) = match outcome {
        Ok(()) => (format!("repaired just now{hint}"), None),
        Err(error) => (format!("the repair failed: {error}"), finding.fix),
    };
    Finding { message: format!("{}: {outcome}", finding.message), fix, ..finding }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use netlink::NetNs;

    use super::*;

    fn request_status(dir: &Path, more: &str) -> Result<(), cni::Error> {
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

    const DUAL_STACK: &str = r#""mode": "routed", "subnet": "10.50.0.0/24,fd00:50::/64""#;
    const IPV4_ONLY: &str = r#""mode": "routed", "subnet": "10.50.0.0/24""#;
    const NO_GATEWAY: &str = r#""mode": "bridge", "isGateway": false, "subnet": "10.50.0.0/24""#;

    #[test]
    fn a9_a_firewall_that_drops_pod_traffic_is_reported_with_its_fix() {
        let table = |family: &str, rule: &str| {
            format!(
                "table {family} t {{ chain c {{ type filter hook forward priority 0; policy drop; {rule} }}; }}"
            )
        };
        for (text, conf, is_reported) in [
            (table("inet", ""), DUAL_STACK, true),
            (table("ip6", "iifname eth7 accept;"), DUAL_STACK, true),
            (table("ip6", ""), IPV4_ONLY, false),
            (table("inet", ""), NO_GATEWAY, false),
            (table("inet", "ip saddr 10.0.0.0/8 accept;"), DUAL_STACK, false),
            (table("inet", "").replace("policy drop", "policy accept"), DUAL_STACK, false),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let in_a_namespace = || {
                let run = |command: &str| {
                    assert!(Command::new("sh").args(["-c", command]).status().unwrap().success());
                };
                assert!(request_status(dir.path(), conf).is_ok(), "{text}: before");
                run(&format!("nft '{text}'"));
                let answer = request_status(dir.path(), conf);
                assert_eq!(answer.is_err(), is_reported, "{text}: {answer:?}");
                let Err(error) = answer else { return };
                assert_eq!(error.code, cni::ErrorCode::LimitedConnectivity, "{error}");
                let command = error.details.strip_prefix("PodTrafficDropped: ").unwrap();
                run(command);
                assert!(request_status(dir.path(), conf).is_ok(), "{text}: after {command}");
            };
            NetNs::create().unwrap().run(in_a_namespace).unwrap();
        }
    }
}
