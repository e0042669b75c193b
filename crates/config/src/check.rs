//! Checks that need the values of several keys.

mod store;

use std::os::unix::ffi::OsStrExt;

use model::BlockLayout;
use netconf::{Network, NetworkSettings};
use types::MIN_MTU_V6;

use crate::draft::{Draft, Origins};
use crate::{Config, Origin, Problem, aliases};

/// `sun_path` has 108 bytes including the terminating NUL.
const MAX_SOCKET: usize = 107;

/// Checks several keys together and attributes each problem to the origin of a value.
#[derive(Clone, Copy)]
pub(super) struct Checker<'a> {
    pub(super) origins: &'a Origins,
    /// Keys with a value that could not be parsed.
    pub(super) invalid_keys: &'a [&'static str],
}

struct ConfigFinding {
    key: &'static str,
    /// The other keys that the check reads.
    related: &'static [&'static str],
    reason: String,
}

impl Checker<'_> {
    /// Checks the draft: the requirements of the store, and contradictions.
    pub(super) fn draft(self, draft: &Draft) -> Vec<Problem> {
        let mut problems = self.problems(store::check(draft, self.origins));
        if let Some((file, given)) = &draft.plugin_file
            && !self.invalid_keys.contains(&"install.type")
            && let Some(reason) =
                draft.plugin_name.as_deref().and_then(|name| aliases::name_mismatch(file, name))
        {
            let origin = Origin::Variable(aliases::PLUGIN_LOCATION.to_owned());
            problems.push(Problem::Value { origin, key: "install.plugin_dir", value: given.clone(), reason });
        }
        problems
    }

    pub(super) fn config(self, config: &Config) -> Vec<Problem> {
        let origins = self.origins;
        let findings = [
            socket(config, origins),
            directories(config),
            mtu(config),
            network(config),
            margin(config, origins),
            tunnel(config),
            counter(config),
            delegates(config),
        ];
        self.problems(findings.into_iter().flatten())
    }

    /// Skips findings about keys with an invalid value: the draft holds the value of a lower layer for them.
    fn problems(self, findings: impl IntoIterator<Item = ConfigFinding>) -> Vec<Problem> {
        let is_valid = |key: &&str| !self.invalid_keys.contains(key);
        let findings = findings
            .into_iter()
            .filter(|finding| is_valid(&finding.key) && finding.related.iter().all(&is_valid));
        findings
            .map(|ConfigFinding { key, reason, .. }| {
                let (origin, value) =
                    self.origins.get(key).cloned().unwrap_or((Origin::Default, String::new()));
                Problem::Value { origin, key, value, reason }
            })
            .collect()
    }
}

fn socket(config: &Config, origins: &Origins) -> Option<ConfigFinding> {
    let length = config.socket.as_os_str().as_bytes().len();
    if length <= MAX_SOCKET {
        return None;
    }
    // The default socket is in the run directory, so the run directory has to change.
    let key = if origins.contains_key("socket") { "socket" } else { "run_dir" };
    let reason = format!(
        "makes the path of the socket {} {length} bytes long; the limit is {MAX_SOCKET} bytes: use a shorter path",
        config.socket.display()
    );
    Some(ConfigFinding { key, related: &["socket"], reason })
}

fn directories(config: &Config) -> Option<ConfigFinding> {
    (config.run_dir == config.state_dir).then(|| ConfigFinding {
        key: "state_dir",
        related: &["run_dir"],
        reason: "must not be run_dir, which is cleared at boot".to_owned(),
    })
}

fn mtu(config: &Config) -> Option<ConfigFinding> {
    let mtu = config.network.mtu.filter(|mtu| *mtu < MIN_MTU_V6)?;
    config.network.subnets.iter().find(|net| net.addr().is_ipv6()).map(|net| ConfigFinding {
        key: "network.mtu",
        related: &["network.subnets"],
        reason: format!("must be {MIN_MTU_V6} or more with the IPv6 subnet {net}, not {mtu}"),
    })
}

/// Builds the network as for a request, which finds all mistakes that the checks above do not report.
fn network(config: &Config) -> Option<ConfigFinding> {
    if mtu(config).is_some() {
        return None;
    }
    let error = Network::whole(&config.network).err()?;
    Some(ConfigFinding {
        key: "network.subnets",
        related: &[],
        reason: format!("cannot be used: {}", error.msg),
    })
}

/// The largest margin that all subnets allow, or None if a subnet is too small for any margin.
fn max_margin(network: &NetworkSettings) -> Option<u8> {
    (0..=32).rev().find(|margin| network.subnets.iter().all(|net| BlockLayout::new(*net, *margin).is_ok()))
}

fn margin(config: &Config, origins: &Origins) -> Option<ConfigFinding> {
    let margin = config.cluster.margin;
    let error = config.network.subnets.iter().find_map(|net| BlockLayout::new(*net, margin).err())?;
    let (key, related, reason) = match max_margin(&config.network) {
        Some(max) if origins.contains_key("network.margin") => (
            "network.margin",
            &["network.subnets"],
            format!("must be a number from 0 to {max} here: {error}"),
        ),
        Some(max) => {
            let reason = format!("must be larger, or network.margin at most {max} (it is {margin}): {error}");
            ("network.subnets", &["network.margin"], reason)
        }
        None => ("network.subnets", &["network.margin"], format!("must be larger: {error}")),
    };
    Some(ConfigFinding { key, related, reason })
}

fn tunnel(config: &Config) -> Option<ConfigFinding> {
    let stem = config.cluster.tunnel.as_str();
    let is_bridge =
        config.network.bridge.as_str().strip_prefix(stem).is_some_and(|suffix| matches!(suffix, "4" | "6"));
    is_bridge.then(|| ConfigFinding {
        key: "network.tunnel",
        related: &["network.bridge"],
        reason: format!("must be a different prefix: {} is network.bridge", config.network.bridge),
    })
}

/// A plugin that delegates to itself would recurse without end.
fn delegates(config: &Config) -> Option<ConfigFinding> {
    let own = &config.plugin.name;
    config.delegates.plugins.contains(own).then(|| ConfigFinding {
        key: "delegate.plugins",
        related: &["install.type"],
        reason: format!(
            "must not contain {own}, the plugin of install.type: Podwire cannot delegate to itself"
        ),
    })
}

/// A counter key in the directory of an object would be read as an object.
fn counter(config: &Config) -> Option<ConfigFinding> {
    let layout = &config.layout;
    let objects = model::ObjectKind::ALL.map(|kind| layout.objects(kind));
    let others =
        [layout.nodes(), layout.former_blocks(), layout.alives(), layout.identities(), layout.pods()];
    let directories: Vec<String> = others.into_iter().chain(objects).collect();
    let is_inside = directories.iter().any(|directory| layout.counter().starts_with(directory.as_str()));
    (is_inside || layout.counter() == layout.network()).then(|| ConfigFinding {
        key: "etcd.counter_key",
        related: &["etcd.prefix"],
        reason: format!(
            "must not be the key of an object: {}, or a key under {}",
            layout.network(),
            directories.join(", ")
        ),
    })
}
