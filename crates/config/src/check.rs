//! What only shows when several keys are looked at together.

mod store;

use std::os::unix::ffi::OsStrExt;

use model::BlockLayout;
use netconf::{Network, NetworkSettings};
use types::MIN_MTU_V6;

use crate::draft::{Draft, Origins};
use crate::{Config, Origin, Problem, aliases};

/// `sun_path` has 108 bytes, the last of which ends it.
const MAX_SOCKET: usize = 107;

/// Looks at several keys, and knows who said what.
#[derive(Clone, Copy)]
pub(super) struct Judge<'a> {
    pub(super) origins: &'a Origins,
    /// Keys with a value that could not be read.
    pub(super) refused: &'a [&'static str],
}

struct ConfigFinding {
    key: &'static str,
    /// The other keys that take part in it.
    also: &'static [&'static str],
    allowed: String,
}

impl Judge<'_> {
    /// Before it is complete: what the store needs, and who contradicts whom.
    pub(super) fn draft(self, draft: &Draft) -> Vec<Problem> {
        let mut problems = self.problems(store::look(draft, self.origins));
        if let Some((file, said)) = &draft.plugin_file
            && !self.refused.contains(&"install.type")
            && let Some(allowed) = draft.plugin_name.as_deref().and_then(|name| aliases::disagree(file, name))
        {
            let origin = Origin::Variable(aliases::PLUGIN_LOCATION.to_owned());
            problems.push(Problem::Value { origin, key: "install.plugin_dir", value: said.clone(), allowed });
        }
        problems
    }

    pub(super) fn config(self, config: &Config) -> Vec<Problem> {
        let origins = self.origins;
        let found = [
            socket(config, origins),
            directories(config),
            mtu(config),
            network(config),
            margin(config, origins),
            tunnel(config),
            counter(config),
            delegates(config),
        ];
        self.problems(found.into_iter().flatten())
    }

    /// A value that was refused is replaced by a lower layer's here, which nobody asked about.
    fn problems(self, found: impl IntoIterator<Item = ConfigFinding>) -> Vec<Problem> {
        let known = |key: &&str| !self.refused.contains(key);
        let found =
            found.into_iter().filter(|finding| known(&finding.key) && finding.also.iter().all(&known));
        found
            .map(|ConfigFinding { key, allowed, .. }| {
                let (origin, value) =
                    self.origins.get(key).cloned().unwrap_or((Origin::Default, String::new()));
                Problem::Value { origin, key, value, allowed }
            })
            .collect()
    }
}

fn socket(config: &Config, origins: &Origins) -> Option<ConfigFinding> {
    let length = config.socket.as_os_str().as_bytes().len();
    if length <= MAX_SOCKET {
        return None;
    }
    // The default lies in the run directory; then that is what must change.
    let key = if origins.contains_key("socket") { "socket" } else { "run_dir" };
    let allowed = format!(
        "makes the socket's path {} {length} bytes long; the kernel takes {MAX_SOCKET}: use a shorter path",
        config.socket.display()
    );
    Some(ConfigFinding { key, also: &["socket"], allowed })
}

fn directories(config: &Config) -> Option<ConfigFinding> {
    (config.run_dir == config.state_dir).then(|| ConfigFinding {
        key: "state_dir",
        also: &["run_dir"],
        allowed: "must not be run_dir, which is emptied after a boot".to_owned(),
    })
}

fn mtu(config: &Config) -> Option<ConfigFinding> {
    let mtu = config.network.mtu.filter(|mtu| *mtu < MIN_MTU_V6)?;
    config.network.subnets.iter().find(|net| net.addr().is_ipv6()).map(|net| ConfigFinding {
        key: "network.mtu",
        also: &["network.subnets"],
        allowed: format!("must be {MIN_MTU_V6} or more with the IPv6 subnet {net}, not {mtu}"),
    })
}

/// The network as requests will get it: it finds every mistake that no check above reports.
fn network(config: &Config) -> Option<ConfigFinding> {
    if mtu(config).is_some() {
        return None;
    }
    let error = Network::whole(&config.network).err()?;
    Some(ConfigFinding {
        key: "network.subnets",
        also: &[],
        allowed: format!("cannot be used: {}", error.msg),
    })
}

/// The most that every subnet can be cut by, or None where one is too small at all.
fn most(network: &NetworkSettings) -> Option<u8> {
    (0..=32).rev().find(|margin| network.subnets.iter().all(|net| BlockLayout::new(*net, *margin).is_ok()))
}

fn margin(config: &Config, origins: &Origins) -> Option<ConfigFinding> {
    let margin = config.cluster.margin;
    let error = config.network.subnets.iter().find_map(|net| BlockLayout::new(*net, margin).err())?;
    let (key, also, allowed) = match most(&config.network) {
        Some(most) if origins.contains_key("network.margin") => (
            "network.margin",
            &["network.subnets"],
            format!("must be a number from 0 to {most} here: {error}"),
        ),
        Some(most) => {
            let allowed =
                format!("must be larger, or network.margin at most {most} (it is {margin}): {error}");
            ("network.subnets", &["network.margin"], allowed)
        }
        None => ("network.subnets", &["network.margin"], format!("must be larger: {error}")),
    };
    Some(ConfigFinding { key, also, allowed })
}

fn tunnel(config: &Config) -> Option<ConfigFinding> {
    let stem = config.cluster.tunnel.as_str();
    let is_bridge =
        config.network.bridge.as_str().strip_prefix(stem).is_some_and(|rest| matches!(rest, "4" | "6"));
    is_bridge.then(|| ConfigFinding {
        key: "network.tunnel",
        also: &["network.bridge"],
        allowed: format!("must be another one: {} is network.bridge", config.network.bridge),
    })
}

/// A plugin that runs itself would run itself without end.
fn delegates(config: &Config) -> Option<ConfigFinding> {
    let own = &config.plugin.name;
    config.delegates.plugins.contains(own).then(|| ConfigFinding {
        key: "delegate.plugins",
        also: &["install.type"],
        allowed: format!("must not name {own}, which is install.type: Podwire is no IPAM plugin of its own"),
    })
}

/// A counter among the objects would be taken for one of them.
fn counter(config: &Config) -> Option<ConfigFinding> {
    let layout = &config.layout;
    let directories = [layout.nodes(), layout.blocks(), layout.alives()];
    let inside = directories.iter().any(|directory| layout.counter().starts_with(directory.as_str()));
    (inside || layout.counter() == layout.network()).then(|| ConfigFinding {
        key: "etcd.counter_key",
        also: &["etcd.prefix"],
        allowed: format!(
            "must be no key of an object: {}, and whatever is in {}",
            layout.network(),
            directories.join(", ")
        ),
    })
}
