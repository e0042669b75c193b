//! The definitions of all configuration keys.

use std::path::Path;

use crate::DefaultValue::{Described, Value};
use crate::ValueKind::{Bool, List, Number, Secret, Text};
use crate::{
    Config, DefaultValue, Etcd, InstallConfig, Key, PluginConfig, StoreChoice, ValueKind, cluster, etcd,
    values,
};

const fn row(name: &'static str, kind: ValueKind, default: DefaultValue, description: &'static str) -> Key {
    Key { name, kind, default, description, aliases: &[], flag: "", set: |_, _| Ok(()), show: |_| None }
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

/// In the order of the documentation. Top-level keys come first, and the keys of a table are adjacent.
pub const KEYS: &[Key] = &[
    Key {
        flag: "node",
        set: |d, v| values::put(&mut d.node, values::node(v)),
        show: |c| Some(c.node.clone()),
        ..row("node", Text, Described("the host name"), "name of this node in the cluster")
    },
    Key {
        flag: "run-dir",
        set: |d, v| values::put(&mut d.run_dir, values::path(v)),
        show: |c| path(&c.run_dir),
        ..row(
            "run_dir",
            Text,
            Value(netconf::DEFAULT_RUN_DIR),
            "directory for state that does not survive a reboot, such as attachment records and allocated addresses",
        )
    },
    Key {
        flag: "state-dir",
        set: |d, v| values::put(&mut d.state_dir, values::path(v)),
        show: |c| path(&c.state_dir),
        ..row(
            "state_dir",
            Text,
            Value("/var/lib/podwire"),
            "directory for state that survives reboots, such as the embedded store",
        )
    },
    Key {
        flag: "socket",
        set: |d, v| values::put(&mut d.socket, values::path(v)),
        show: |c| path(&c.socket),
        ..row(
            "socket",
            Text,
            Described("`agent.sock` in `run_dir`"),
            "path of the agent's Unix socket, at most 107 bytes",
        )
    },
    Key {
        flag: "store",
        set: |d, v| values::put(&mut d.store, values::store(v)),
        show: |c| Some(c.store.to_string()),
        ..row(
            "store",
            Text,
            Described("`etcd` if `etcd.endpoints` is set, otherwise `embedded`"),
            "store for cluster objects: `embedded` for a single node, `etcd` for a cluster",
        )
    },
    Key {
        flag: "store-dir",
        set: |d, v| values::put(&mut d.store_dir, values::path(v)),
        show: |c| c.store_dir.as_deref().and_then(path),
        ..row(
            "store_dir",
            Text,
            Described("`store` in the network's directory under `state_dir`"),
            "directory of the embedded store; one agent at a time can use it",
        )
    },
    Key {
        flag: "node-interface",
        set: |d, v| values::optional(v, values::name).map(|v| d.node_interface = v),
        show: |c| c.node_interface.as_ref().map(ToString::to_string),
        ..row(
            "node_interface",
            Text,
            Described("the interface with the default route"),
            "interface that connects this node to the other nodes",
        )
    },
    Key {
        flag: "node-addresses",
        set: |d, v| values::optional(v, values::addresses).map(|v| d.node_addresses = v.unwrap_or_default()),
        show: |c| Some(values::join(&c.node_addresses)).filter(|all| !all.is_empty()),
        ..row(
            "node_addresses",
            List,
            Described("the addresses of `node_interface`"),
            "addresses at which other nodes reach this node: at most one IPv4 and one IPv6 address",
        )
    },
    Key {
        flag: "log-format",
        set: |d, v| values::put(&mut d.log_format, values::log_format(v)),
        show: |c| Some(c.log_format.to_string()),
        ..row("log_format", Text, Value("text"), "format of log lines: `text` or `json`")
    },
    Key {
        flag: "log-level",
        set: |d, v| values::put(&mut d.log_level, values::log_level(v)),
        show: |c| Some(c.log_level.to_string()),
        ..row(
            "log_level",
            Text,
            Value("info"),
            "minimum level of logged events: `error`, `warn`, `info` or `debug`",
        )
    },
    Key {
        flag: "metrics",
        set: |d, v| values::optional(v, values::listen).map(|v| d.metrics = v),
        show: |c| c.metrics.map(|address| address.to_string()),
        ..row(
            "metrics",
            Text,
            Described("none"),
            "TCP address and port for Prometheus metrics, such as 127.0.0.1:9100 or [::1]:9100; none: metrics only on the Unix socket",
        )
    },
    Key {
        flag: "workers",
        set: |d, v| values::put(&mut d.workers, values::number(v, 1..=256)),
        show: |c| Some(c.workers.to_string()),
        ..row(
            "workers",
            Number,
            Value("16"),
            "maximum number of requests that the agent processes in parallel, 1 to 256",
        )
    },
    Key {
        flag: "reconcile-seconds",
        set: |d, v| values::put(&mut d.reconcile_seconds, values::number(v, 1..=3600)),
        show: |c| Some(c.reconcile.as_secs().to_string()),
        ..row(
            "reconcile_seconds",
            Number,
            Value("30"),
            "interval of the periodic comparison of records and kernel state, in seconds, 1 to 3600; events trigger it earlier",
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
            Described("none"),
            "etcd endpoints: host names or addresses, optionally with a scheme and a port (default 2379); without a scheme: https if `etcd.ca` or `etcd.cert` is set, otherwise http",
        )
    },
    Key {
        flag: "etcd-prefix",
        aliases: &["ETCD_PREFIX"],
        set: |d, v| values::put(&mut d.prefix, etcd::prefix(v)),
        show: |c| Some(c.layout.prefix().to_owned()),
        ..row(
            "etcd.prefix",
            Text,
            Value("/podwire"),
            "prefix of Podwire's keys, in etcd and in the embedded store",
        )
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
            Described("`counter` under `etcd.prefix`"),
            "key of the counter at which a new node starts its search for a free block",
        )
    },
    Key {
        flag: "etcd-ca",
        set: |d, v| values::optional(v, values::path).map(|v| d.ca = v),
        show: |c| etcd(c, |e| e.ca.as_deref().and_then(path)),
        ..row(
            "etcd.ca",
            Text,
            Described("none"),
            "CA bundle (PEM file) that verifies etcd's server certificate; none: system trust store",
        )
    },
    Key {
        flag: "etcd-cert",
        set: |d, v| values::optional(v, values::path).map(|v| d.cert = v),
        show: |c| etcd(c, |e| e.cert.as_deref().and_then(path)),
        ..row(
            "etcd.cert",
            Text,
            Described("none"),
            "client certificate (PEM file) for etcd; requires `etcd.key`",
        )
    },
    Key {
        flag: "etcd-key",
        set: |d, v| values::optional(v, values::path).map(|v| d.key = v),
        show: |c| etcd(c, |e| e.key.as_deref().and_then(path)),
        ..row("etcd.key", Text, Described("none"), "private key (PEM file) of `etcd.cert`")
    },
    Key {
        flag: "etcd-user",
        set: |d, v| values::optional(v, etcd::user).map(|v| d.user = v),
        show: |c| etcd(c, |e| e.user.clone()),
        ..row(
            "etcd.user",
            Text,
            Described("none"),
            "user name for etcd; requires `etcd.password` or `etcd.password_file`",
        )
    },
    Key {
        flag: "etcd-password",
        set: |d, v| values::optional(v, etcd::password).map(|v| d.password = v),
        // Shows only that a password is set.
        show: |c| etcd(c, |e| e.password.as_ref().filter(|p| p.file().is_none()).map(|_| String::new())),
        ..row(
            "etcd.password",
            Secret,
            Described("none"),
            "password of `etcd.user`; prefer `etcd.password_file`, because all local users can read command lines",
        )
    },
    Key {
        flag: "etcd-password-file",
        set: |d, v| values::optional(v, etcd::password_file).map(|v| d.password_file = v),
        show: |c| etcd(c, |e| e.password.as_ref().and_then(etcd::Secret::file).and_then(path)),
        ..row(
            "etcd.password_file",
            Text,
            Described("none"),
            "file with the password of `etcd.user` in a single line; other users must not have access to it (mode 0600)",
        )
    },
    Key {
        flag: "etcd-insecure",
        set: |d, v| values::put(&mut d.insecure, values::boolean(v)),
        show: |c| etcd(c, |e| Some(e.insecure.to_string())),
        ..row(
            "etcd.insecure",
            Bool,
            Value("false"),
            "allow `etcd.user` and its password over http, in clear text; false: https is required",
        )
    },
    Key {
        flag: "network-name",
        aliases: &["CNI_NAME"],
        set: |d, v| values::put(&mut d.network_name, values::name(v)),
        show: |c| Some(c.network.name.to_string()),
        ..row("network.name", Text, Value("podwire"), "name of the network, as in the runtime's CNI config")
    },
    Key {
        flag: "network-mode",
        set: |d, v| values::put(&mut d.mode, values::mode(v)),
        show: |c| Some(c.network.mode.to_string()),
        ..row(
            "network.mode",
            Text,
            Value("routed"),
            "attachment mode: `routed` (a host route per pod, no shared L2) or `bridge` (pods are ports of `network.bridge`)",
        )
    },
    Key {
        flag: "network-bridge",
        aliases: &["BRIDGE_NAME"],
        set: |d, v| values::put(&mut d.bridge, values::bridge(v)),
        show: |c| Some(c.network.bridge.to_string()),
        ..row(
            "network.bridge",
            Text,
            Value("podwire0"),
            "bridge that carries the gateway addresses, created if missing; in mode `routed` it has no ports",
        )
    },
    Key {
        flag: "network-subnet",
        aliases: &["IP_SUBNET"],
        set: |d, v| values::put(&mut d.subnets, values::subnets(v)),
        show: |c| Some(c.network.subnet_list()),
        ..row(
            "network.subnets",
            List,
            Value(types::DEFAULT_SUBNETS),
            "pod subnets of the network: one, or one IPv4 and one IPv6 subnet; must be the same on all nodes",
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
            Described("none"),
            "MTU of pod interfaces in bytes, 68 to 65535, at least 1280 with IPv6; none: the MTU of `node_interface`, less the tunnel header unless the transport is direct; for the embedded store with margin 0 (its default): the MTU of an existing bridge, or 1500",
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
            Described("none"),
            "maximum number of concurrent connections that a pod may open on this node, from 1; none: no limit",
        )
    },
    Key {
        flag: "network-masquerade",
        set: |d, v| values::put(&mut d.masquerade, values::boolean(v)),
        show: |c| Some(c.network.masquerade.to_string()),
        ..row("network.masquerade", Bool, Value("true"), "masquerade traffic that leaves the pod network")
    },
    Key {
        flag: "network-margin",
        aliases: &["IP_SUBNET_MARGIN"],
        set: |d, v| values::put(&mut d.margin, values::number(v, 0..=32)),
        show: |c| Some(c.cluster.margin.to_string()),
        ..row(
            "network.margin",
            Number,
            Described("8 with etcd, 0 with the embedded store"),
            "size of a node's block: number of bits by which its prefix is longer than the subnet's, 0 to 32; 8 divides a /16 into 256 blocks of /24; must be the same on all nodes",
        )
    },
    Key {
        flag: "network-transport",
        set: |d, v| values::put(&mut d.transport, cluster::transport(v)),
        show: |c| Some(c.cluster.transport.to_string()),
        ..row(
            "network.transport",
            Text,
            Value("auto"),
            "transport between nodes: `direct` (routes), `vxlan`, or `auto` (direct to nodes on the same link, otherwise vxlan)",
        )
    },
    Key {
        flag: "network-vni",
        set: |d, v| values::put(&mut d.vni, values::number(v, 1..=16_777_215)),
        show: |c| Some(c.cluster.vni.to_string()),
        ..row(
            "network.vni",
            Number,
            Value("4077"),
            "VXLAN network identifier of the tunnel, 1 to 16777215; must be the same on all nodes",
        )
    },
    Key {
        flag: "network-vxlan-port",
        set: |d, v| values::put(&mut d.vxlan_port, values::number(v, 1..=65535)),
        show: |c| Some(c.cluster.vxlan_port.to_string()),
        ..row(
            "network.vxlan_port",
            Number,
            Value("4789"),
            "UDP port of the tunnel, 1 to 65535; must be the same on all nodes",
        )
    },
    Key {
        flag: "network-tunnel",
        set: |d, v| values::put(&mut d.tunnel, cluster::tunnel(v)),
        show: |c| Some(c.cluster.tunnel.clone()),
        ..row(
            "network.tunnel",
            Text,
            Value("pwvx"),
            "name prefix of the tunnel devices, at most 14 bytes; Podwire appends `4` or `6`",
        )
    },
    Key {
        flag: "network-tunnel-checksum",
        set: |d, v| values::put(&mut d.tunnel_checksum, cluster::tunnel_checksum(v)),
        show: |c| Some(c.cluster.tunnel_checksum.to_string()),
        ..row(
            "network.tunnel_checksum",
            Text,
            Value("auto"),
            "transmit checksum offload of the tunnel: `on`, `off`, or `auto` (off if a probe finds that peers receive invalid checksums)",
        )
    },
    Key {
        flag: "network-path-check",
        set: |d, v| values::put(&mut d.path_check, cluster::path_check(v)),
        show: |c| Some(c.cluster.path_check.to_string()),
        ..row(
            "network.path_check",
            Text,
            Value("auto"),
            "whether other nodes drop direct packets of this node's pods that have another source MAC than this node's links: `auto` (unless a link is a bond), or `off` if the underlay changes source MACs",
        )
    },
    Key {
        flag: "network-accept-forward",
        set: |d, v| values::put(&mut d.accept_forward, values::boolean(v)),
        show: |c| Some(c.cluster.accept_forward.to_string()),
        ..row(
            "network.accept_forward",
            Bool,
            Value("false"),
            "insert accept rules for pods into forward chains of other firewalls that drop pod traffic",
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
            Described("`install.plugin_dir`, /usr/lib/cni, /usr/libexec/cni"),
            "directories with the IPAM plugins for `ipam.type`, not writable by all users; CNI_PATH is ignored",
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
            Value("dhcp,host-local,static"),
            "IPAM plugins that a CNI config may name in `ipam.type`; none: no plugins",
        )
    },
    Key {
        flag: "install",
        set: |d, v| values::put(&mut d.install_enabled, values::boolean(v)),
        show: |c| Some(c.install.is_some().to_string()),
        ..row(
            "install.enabled",
            Bool,
            Described("true if CNI_CONFIG_LOCATION or CNI_PLUGIN_LOCATION is set, otherwise false"),
            "install the plugin and the CNI config in the runtime's directories, and restore them when they change",
        )
    },
    Key {
        flag: "install-plugin",
        set: |d, v| values::put(&mut d.plugin, values::path(v)),
        show: |c| install(c, |i| path(&i.plugin)),
        ..row(
            "install.plugin",
            Text,
            Described("`podwire-cni` in the directory of `podwire`"),
            "path of the plugin binary to install",
        )
    },
    Key {
        flag: "install-plugin-dir",
        aliases: &["CNI_PLUGIN_LOCATION"],
        set: |d, v| values::put(&mut d.plugin_dir, values::path(v)),
        show: |c| install(c, |i| path(&i.plugin_dir)),
        ..row(
            "install.plugin_dir",
            Text,
            Described("from the configuration of containerd or CRI-O, otherwise /opt/cni/bin"),
            "directory in which the runtime searches for plugins",
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
            Value(PluginConfig::NAME),
            "plugin type in the CNI config, and file name of the plugin in `install.plugin_dir`",
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
            Value("1.0.0"),
            "`cniVersion` of the CNI config, for runtimes that do not support `cniVersions`",
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
            Described("from the configuration of containerd or CRI-O, otherwise /etc/cni/net.d"),
            "directory in which the runtime searches for CNI configs",
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
            Value("10-podwire.conflist"),
            "file name of the CNI config; runtimes use the first file in alphabetical order",
        )
    },
    Key {
        flag: "install-template",
        set: |d, v| values::optional(v, values::path).map(|v| d.template = v),
        show: |c| install(c, |i| i.template.as_deref().and_then(path)),
        ..row(
            "install.template",
            Text,
            Described("none"),
            "template of the CNI config; none: the built-in template",
        )
    },
];
