//! Every key of the configuration, once.

use std::path::Path;

use crate::Fallback::{Found, Is};
use crate::ValueKind::{Bool, List, Number, Secret, Text};
use crate::{
    Config, Etcd, Fallback, InstallConfig, Key, PluginConfig, StoreChoice, ValueKind, cluster, etcd, values,
};

const fn row(name: &'static str, kind: ValueKind, fallback: Fallback, meaning: &'static str) -> Key {
    Key { name, kind, fallback, meaning, aliases: &[], flag: "", set: |_, _| Ok(()), show: |_| None }
}

fn install(config: &Config, show: fn(&InstallConfig) -> Option<String>) -> Option<String> {
    config.install.as_ref().and_then(show)
}

fn etcd(config: &Config, show: fn(&Etcd) -> Option<String>) -> Option<String> {
    match &config.store {
        StoreChoice::Embedded => None,
        StoreChoice::Etcd(etcd) => show(etcd),
    }
}

fn path(path: &Path) -> Option<String> {
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
            "directory of what dies with a boot: attachments, addresses",
        )
    },
    Key {
        flag: "state-dir",
        set: |d, v| values::put(&mut d.state_dir, values::path(v)),
        show: |c| path(&c.state_dir),
        ..row("state_dir", Text, Is("/var/lib/podwire"), "directory of what is kept over boots")
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
        ..row(
            "store",
            Text,
            Found("`etcd` where `etcd.endpoints` are given, else `embedded`"),
            "where cluster objects live: `embedded`, for one node, or `etcd`, for many",
        )
    },
    Key {
        flag: "store-dir",
        set: |d, v| values::put(&mut d.store_dir, values::path(v)),
        show: |c| c.store_dir.as_deref().and_then(path),
        ..row(
            "store_dir",
            Text,
            Found("store in the network's directory in state_dir"),
            "directory of the embedded store, which belongs to one agent",
        )
    },
    Key {
        flag: "node-interface",
        set: |d, v| values::optional(v, values::name).map(|v| d.node_interface = v),
        show: |c| c.node_interface.as_ref().map(ToString::to_string),
        ..row(
            "node_interface",
            Text,
            Found("the one with the default route"),
            "the link by which other nodes reach this one",
        )
    },
    Key {
        flag: "node-addresses",
        set: |d, v| values::optional(v, values::addresses).map(|v| d.node_addresses = v.unwrap_or_default()),
        show: |c| Some(values::join(&c.node_addresses)).filter(|all| !all.is_empty()),
        ..row(
            "node_addresses",
            List,
            Found("those of node_interface"),
            "the addresses by which other nodes reach this one: at most one IPv4 and one IPv6",
        )
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
        flag: "etcd-endpoints",
        aliases: &["ETCD_HOST"],
        set: |d, v| values::optional(v, etcd::endpoints).map(|v| d.endpoints = v.unwrap_or_default()),
        show: |c| etcd(c, |e| Some(values::join(&e.endpoints))),
        ..row(
            "etcd.endpoints",
            List,
            Found("none"),
            "where etcd is: hosts, with a port or without (2379), with http:// or https:// or without",
        )
    },
    Key {
        flag: "etcd-prefix",
        aliases: &["ETCD_PREFIX"],
        set: |d, v| values::put(&mut d.prefix, etcd::prefix(v)),
        show: |c| Some(c.layout.prefix().to_owned()),
        ..row("etcd.prefix", Text, Is("/podwire"), "the directory of our keys, in the embedded store too")
    },
    Key {
        flag: "etcd-counter-key",
        aliases: &["ETCD_COUNTER_KEY"],
        set: |d, v| values::optional(v, etcd::counter).map(|v| d.counter = v),
        show: |c| {
            let is_default = c.layout == model::KeyLayout::new(c.layout.prefix(), None);
            (!is_default).then(|| c.layout.counter().to_owned())
        },
        ..row(
            "etcd.counter_key",
            Text,
            Found("`counter` under `etcd.prefix`"),
            "the key that tells a new node where to start looking for a block",
        )
    },
    Key {
        flag: "etcd-ca",
        set: |d, v| values::optional(v, values::path).map(|v| d.ca = v),
        show: |c| etcd(c, |e| e.ca.as_deref().and_then(path)),
        ..row(
            "etcd.ca",
            Text,
            Found("none"),
            "a PEM file with whom we trust to have signed etcd's certificate; none: whom the system trusts",
        )
    },
    Key {
        flag: "etcd-cert",
        set: |d, v| values::optional(v, values::path).map(|v| d.cert = v),
        show: |c| etcd(c, |e| e.cert.as_deref().and_then(path)),
        ..row("etcd.cert", Text, Found("none"), "a PEM file with our certificate for etcd, with etcd.key")
    },
    Key {
        flag: "etcd-key",
        set: |d, v| values::optional(v, values::path).map(|v| d.key = v),
        show: |c| etcd(c, |e| e.key.as_deref().and_then(path)),
        ..row("etcd.key", Text, Found("none"), "a PEM file with the private key of etcd.cert")
    },
    Key {
        flag: "etcd-user",
        set: |d, v| values::optional(v, etcd::user).map(|v| d.user = v),
        show: |c| etcd(c, |e| e.user.clone()),
        ..row("etcd.user", Text, Found("none"), "our name in etcd, with a password")
    },
    Key {
        flag: "etcd-password",
        set: |d, v| values::optional(v, etcd::password).map(|v| d.password = v),
        // Only that there is one.
        show: |c| etcd(c, |e| e.password.as_ref().filter(|p| p.file().is_none()).map(|_| String::new())),
        ..row(
            "etcd.password",
            Secret,
            Found("none"),
            "the password of etcd.user; every user of the machine can read flags: better in etcd.password_file",
        )
    },
    Key {
        flag: "etcd-password-file",
        set: |d, v| values::optional(v, etcd::password_file).map(|v| d.password_file = v),
        show: |c| etcd(c, |e| e.password.as_ref().and_then(etcd::Secret::file).and_then(path)),
        ..row(
            "etcd.password_file",
            Text,
            Found("none"),
            "a file with the password of etcd.user, one line; no other user may have access to it (mode 0600)",
        )
    },
    Key {
        flag: "etcd-insecure",
        set: |d, v| values::put(&mut d.insecure, values::boolean(v)),
        show: |c| etcd(c, |e| Some(e.insecure.to_string())),
        ..row(
            "etcd.insecure",
            Bool,
            Is("false"),
            "send etcd.user and the password over http, in clear text; without it they need https",
        )
    },
    Key {
        flag: "network-name",
        aliases: &["CNI_NAME"],
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
        aliases: &["BRIDGE_NAME"],
        set: |d, v| values::put(&mut d.bridge, values::bridge(v)),
        show: |c| Some(c.network.bridge.to_string()),
        ..row("network.bridge", Text, Is("podwire0"), "the link that carries the gateway addresses")
    },
    Key {
        flag: "network-subnet",
        aliases: &["IP_SUBNET"],
        set: |d, v| values::put(&mut d.subnets, values::subnets(v)),
        show: |c| Some(c.network.subnet_list()),
        ..row(
            "network.subnets",
            List,
            Is(types::DEFAULT_SUBNETS),
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
        flag: "network-connections-per-pod",
        set: |d, v| {
            values::optional(v, |v| values::number(v, 1..=u32::MAX)).map(|v| d.connections_per_pod = v)
        },
        show: |c| c.network.connections_per_pod.map(|count| count.to_string()),
        ..row(
            "network.connections_per_pod",
            Number,
            Found("none"),
            "how many connections a pod may open at once on this node, from 1; none: no limit",
        )
    },
    Key {
        flag: "network-masquerade",
        set: |d, v| values::put(&mut d.masquerade, values::boolean(v)),
        show: |c| Some(c.network.masquerade.to_string()),
        ..row("network.masquerade", Bool, Is("true"), "what leaves the network gets the node's address")
    },
    Key {
        flag: "network-margin",
        aliases: &["IP_SUBNET_MARGIN"],
        set: |d, v| values::put(&mut d.margin, values::number(v, 0..=32)),
        show: |c| Some(c.cluster.margin.to_string()),
        ..row(
            "network.margin",
            Number,
            Found("8 with etcd, 0 with the embedded store"),
            "by how many bits the prefix of a node's block is longer than the subnet's: 8 cuts a /16 into 256 of /24",
        )
    },
    Key {
        flag: "network-transport",
        set: |d, v| values::put(&mut d.transport, cluster::transport(v)),
        show: |c| Some(c.cluster.transport.to_string()),
        ..row(
            "network.transport",
            Text,
            Is("auto"),
            "how pods' packets reach other nodes: `direct`, `vxlan`, or `auto`: direct to nodes on the same link",
        )
    },
    Key {
        flag: "network-vni",
        set: |d, v| values::put(&mut d.vni, values::number(v, 1..=16_777_215)),
        show: |c| Some(c.cluster.vni.to_string()),
        ..row(
            "network.vni",
            Number,
            Is("4077"),
            "the tunnel's VXLAN number, the same on all nodes, 1 to 16777215",
        )
    },
    Key {
        flag: "network-vxlan-port",
        set: |d, v| values::put(&mut d.vxlan_port, values::number(v, 1..=65535)),
        show: |c| Some(c.cluster.vxlan_port.to_string()),
        ..row("network.vxlan_port", Number, Is("4789"), "the tunnel's UDP port, the same on all nodes")
    },
    Key {
        flag: "network-tunnel",
        set: |d, v| values::put(&mut d.tunnel, cluster::tunnel(v)),
        show: |c| Some(c.cluster.tunnel.clone()),
        ..row(
            "network.tunnel",
            Text,
            Is("pwvx"),
            "how the tunnel devices' names begin, at most 14 bytes; 4 or 6 follows",
        )
    },
    Key {
        flag: "network-tunnel-checksum",
        set: |d, v| values::put(&mut d.tunnel_checksum, cluster::tunnel_checksum(v)),
        show: |c| Some(c.cluster.tunnel_checksum.to_string()),
        ..row(
            "network.tunnel_checksum",
            Text,
            Is("auto"),
            "checksum offload of the tunnel: `on`, `off`, or `auto`: off where other nodes get wrong ones, which is tried out",
        )
    },
    Key {
        flag: "network-accept-forward",
        set: |d, v| values::put(&mut d.accept_forward, values::boolean(v)),
        show: |c| Some(c.cluster.accept_forward.to_string()),
        ..row(
            "network.accept_forward",
            Bool,
            Is("false"),
            "put accept rules for pods into forward chains of others that drop",
        )
    },
    Key {
        flag: "delegate-directories",
        set: |d, v| values::optional(v, values::paths).map(|v| d.delegate_directories = v),
        show: |c| {
            let all: Vec<_> = c.delegates.directories.iter().map(|dir| dir.display()).collect();
            Some(values::join(&all))
        },
        ..row(
            "delegate.directories",
            List,
            Found("install.plugin_dir, /usr/lib/cni, /usr/libexec/cni"),
            "directories with the IPAM plugins of `ipam.type`, not writable by every user; CNI_PATH is not used",
        )
    },
    Key {
        flag: "delegate-plugins",
        set: |d, v| values::put(&mut d.delegate_plugins, values::plugins(v)),
        show: |c| {
            Some(values::join(&c.delegates.plugins))
                .map(|all| if all.is_empty() { "none".to_owned() } else { all })
        },
        ..row(
            "delegate.plugins",
            List,
            Is("dhcp,host-local,static"),
            "IPAM plugins that a CNI config may name in `ipam.type`, or `none`",
        )
    },
    Key {
        flag: "install",
        set: |d, v| values::put(&mut d.install_enabled, values::boolean(v)),
        show: |c| Some(c.install.is_some().to_string()),
        ..row(
            "install.enabled",
            Bool,
            Found("true where CNI_CONFIG_LOCATION or CNI_PLUGIN_LOCATION is given, else false"),
            "put plugin and CNI config into the runtime's directories, and put them back when they change",
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
        aliases: &["CNI_PLUGIN_LOCATION"],
        set: |d, v| values::put(&mut d.plugin_dir, values::path(v)),
        show: |c| install(c, |i| path(&i.plugin_dir)),
        ..row(
            "install.plugin_dir",
            Text,
            Found("as containerd or CRI-O is configured, else /opt/cni/bin"),
            "where the runtime looks for plugins",
        )
    },
    Key {
        flag: "install-type",
        aliases: &["CNI_TYPE"],
        set: |d, v| values::put(&mut d.plugin_name, values::plugin_name(v)),
        show: |c| Some(c.plugin.name.clone()),
        ..row(
            "install.type",
            Text,
            Is(PluginConfig::NAME),
            "the plugin's type in the CNI config, and the name of its file in install.plugin_dir",
        )
    },
    Key {
        flag: "install-cni-version",
        aliases: &["CNI_VERSION"],
        set: |d, v| values::put(&mut d.cni_version, values::cni_version(v)),
        show: |c| Some(c.plugin.version.to_string()),
        ..row(
            "install.cni_version",
            Text,
            Is("1.0.0"),
            "the CNI config's version for runtimes that do not choose one of its `cniVersions` themselves",
        )
    },
    Key {
        flag: "install-config-dir",
        aliases: &["CNI_CONFIG_LOCATION"],
        set: |d, v| values::put(&mut d.config_dir, values::path(v)),
        show: |c| install(c, |i| path(&i.config_dir)),
        ..row(
            "install.config_dir",
            Text,
            Found("as containerd or CRI-O is configured, else /etc/cni/net.d"),
            "where the runtime looks for CNI configs",
        )
    },
    Key {
        flag: "install-config-name",
        aliases: &["CNI_CONFIG_LOCATION"],
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
