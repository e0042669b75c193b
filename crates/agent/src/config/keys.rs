//! Every key of the configuration, once.

use crate::config::draft::Draft;
use crate::config::{Config, Install, values};

/// What a value looks like in a file; variables and flags are text in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Text,
    Number,
    Bool,
    /// In a file a list of strings; elsewhere separated by commas.
    List,
}

/// What holds when nobody says anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fallback {
    /// This value, read like one that was given.
    Is(&'static str),
    /// Nothing, for which `none` can be written; or something that is found out, as the words say.
    Found(&'static str),
}

/// One key of the configuration.
pub struct Key {
    /// As in the file: `TABLE.KEY`.
    pub name: &'static str,
    pub kind: Kind,
    pub fallback: Fallback,
    pub meaning: &'static str,
    /// Other variables that mean the same. Our own name wins over them.
    pub aliases: &'static [&'static str],
    /// Without the dashes.
    pub flag: &'static str,
    /// Reads a value; the error says what is allowed.
    pub(super) set: fn(&mut Draft, &str) -> Result<(), String>,
    /// The value in effect, if there is one.
    pub(super) show: fn(&Config) -> Option<String>,
}

impl Key {
    pub fn variable(&self) -> String {
        format!("PODWIRE_{}", self.name.replace('.', "_").to_uppercase())
    }

    /// The table it stands in, and its name there.
    pub fn place(&self) -> (Option<&'static str>, &'static str) {
        match self.name.split_once('.') {
            Some((table, key)) => (Some(table), key),
            None => (None, self.name),
        }
    }

    pub(super) fn find(name: &str) -> Option<&'static Self> {
        KEYS.iter().find(|key| key.name == name)
    }
}

use Fallback::{Found, Is};
use Kind::{Bool, List, Number, Text};

const fn row(name: &'static str, kind: Kind, fallback: Fallback, meaning: &'static str) -> Key {
    Key { name, kind, fallback, meaning, aliases: &[], flag: "", set: |_, _| Ok(()), show: |_| None }
}

fn install(config: &Config, show: fn(&Install) -> Option<String>) -> Option<String> {
    config.install.as_ref().and_then(show)
}

fn path(path: &std::path::Path) -> Option<String> {
    Some(path.display().to_string())
}

/// In the order in which they are documented; the tables' keys stand together, after those without a table.
pub const KEYS: &[Key] = &[
    Key {
        flag: "node",
        set: |d, v| values::put(&mut d.node, values::node(v)),
        show: |c| Some(c.node.clone()),
        ..row("node", Text, Found("the host's name"), "this node's name")
    },
    Key {
        flag: "run-dir",
        set: |d, v| values::put(&mut d.run_dir, values::path(v)),
        show: |c| path(&c.run_dir),
        ..row(
            "run_dir",
            Text,
            Is(netconf::DEFAULT_RUN_DIR),
            "folder of what dies with a boot: attachments, addresses",
        )
    },
    Key {
        flag: "state-dir",
        set: |d, v| values::put(&mut d.state_dir, values::path(v)),
        show: |c| path(&c.state_dir),
        ..row("state_dir", Text, Is("/var/lib/podwire"), "folder of what is kept over boots")
    },
    Key {
        flag: "socket",
        set: |d, v| values::put(&mut d.socket, values::path(v)),
        show: |c| path(&c.socket),
        ..row(
            "socket",
            Text,
            Found("agent.sock in run_dir"),
            "the agent's unix socket, at most 107 bytes long",
        )
    },
    Key {
        flag: "store",
        set: |d, v| values::put(&mut d.store, values::store(v)),
        show: |c| Some(c.store.to_string()),
        ..row("store", Text, Is("embedded"), "where cluster objects live: `embedded`, for one node")
    },
    Key {
        flag: "log-format",
        set: |d, v| values::put(&mut d.log_format, values::log_format(v)),
        show: |c| Some(c.log_format.to_string()),
        ..row("log_format", Text, Is("text"), "`text` for people or `json` for programs")
    },
    Key {
        flag: "log-level",
        set: |d, v| values::put(&mut d.log_level, values::log_level(v)),
        show: |c| Some(c.log_level.to_string()),
        ..row("log_level", Text, Is("info"), "the least that is logged: `error`, `warn`, `info` or `debug`")
    },
    Key {
        flag: "metrics",
        set: |d, v| values::optional(v, values::listen).map(|v| d.metrics = v),
        show: |c| c.metrics.map(|address| address.to_string()),
        ..row(
            "metrics",
            Text,
            Found("none"),
            "address and port for Prometheus over TCP, such as 127.0.0.1:9100 or [::1]:9100",
        )
    },
    Key {
        flag: "workers",
        set: |d, v| values::put(&mut d.workers, values::number(v, 1..=256)),
        show: |c| Some(c.workers.to_string()),
        ..row("workers", Number, Is("16"), "how many requests are worked on at once, 1 to 256")
    },
    Key {
        flag: "reconcile-seconds",
        set: |d, v| values::put(&mut d.reconcile_seconds, values::number(v, 1..=3600)),
        show: |c| Some(c.reconcile.as_secs().to_string()),
        ..row(
            "reconcile_seconds",
            Number,
            Is("30"),
            "how often records and kernel are compared even if nothing happens, 1 to 3600",
        )
    },
    Key {
        flag: "network-name",
        set: |d, v| values::put(&mut d.network_name, values::name(v)),
        show: |c| Some(c.network.name.to_string()),
        ..row("network.name", Text, Is("podwire"), "the network's name, as in the runtime's CNI config")
    },
    Key {
        flag: "network-mode",
        set: |d, v| values::put(&mut d.mode, values::mode(v)),
        show: |c| Some(c.network.mode.to_string()),
        ..row("network.mode", Text, Is("routed"), "how a pod meets its host: `routed` or `bridge`")
    },
    Key {
        flag: "network-bridge",
        set: |d, v| values::put(&mut d.bridge, values::name(v)),
        show: |c| Some(c.network.bridge.to_string()),
        ..row("network.bridge", Text, Is("podwire0"), "the link that carries the gateway addresses")
    },
    Key {
        flag: "network-subnet",
        set: |d, v| values::put(&mut d.subnets, values::subnets(v)),
        show: |c| Some(c.network.block()),
        ..row(
            "network.subnets",
            List,
            Is("10.88.0.0/16,fd00:88::/64"),
            "the pods' subnets: one, or one IPv4 and one IPv6",
        )
    },
    Key {
        flag: "network-mtu",
        set: |d, v| {
            values::optional(v, |v| values::number(v, types::MIN_MTU_V4..=types::MAX_MTU)).map(|v| d.mtu = v)
        },
        show: |c| c.network.mtu.map(|mtu| mtu.to_string()),
        ..row(
            "network.mtu",
            Number,
            Found("none"),
            "MTU of the pods' links, 68 to 65535, with IPv6 from 1280; none: the bridge's own, else 1500",
        )
    },
    Key {
        flag: "network-masquerade",
        set: |d, v| values::put(&mut d.masquerade, values::boolean(v)),
        show: |c| Some(c.network.masquerade.to_string()),
        ..row("network.masquerade", Bool, Is("true"), "what leaves the network gets the node's address")
    },
    Key {
        flag: "install",
        set: |d, v| values::put(&mut d.install_enabled, values::boolean(v)),
        show: |c| Some(c.install.is_some().to_string()),
        ..row(
            "install.enabled",
            Bool,
            Is("false"),
            "put plugin and CNI config into the runtime's folders, and put them back when they change",
        )
    },
    Key {
        flag: "install-plugin",
        set: |d, v| values::put(&mut d.plugin, values::path(v)),
        show: |c| install(c, |i| path(&i.plugin)),
        ..row("install.plugin", Text, Found("podwire-cni beside podwire"), "the plugin's program file")
    },
    Key {
        flag: "install-plugin-dir",
        set: |d, v| values::put(&mut d.plugin_dir, values::path(v)),
        show: |c| install(c, |i| path(&i.plugin_dir)),
        ..row("install.plugin_dir", Text, Is("/opt/cni/bin"), "where the runtime looks for plugins")
    },
    Key {
        flag: "install-config-dir",
        set: |d, v| values::put(&mut d.config_dir, values::path(v)),
        show: |c| install(c, |i| path(&i.config_dir)),
        ..row("install.config_dir", Text, Is("/etc/cni/net.d"), "where the runtime looks for CNI configs")
    },
    Key {
        flag: "install-config-name",
        set: |d, v| values::put(&mut d.config_name, values::config_name(v)),
        show: |c| install(c, |i| Some(i.config_name.clone())),
        ..row(
            "install.config_name",
            Text,
            Is("10-podwire.conflist"),
            "the CNI config's file name; runtimes take the first in alphabetical order",
        )
    },
    Key {
        flag: "install-template",
        set: |d, v| values::optional(v, values::path).map(|v| d.template = v),
        show: |c| install(c, |i| i.template.as_deref().and_then(path)),
        ..row(
            "install.template",
            Text,
            Found("none"),
            "a template for the CNI config instead of the one that is built in",
        )
    },
];
