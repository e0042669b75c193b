//! Builds the configuration from the values of all layers and the defaults of the host.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use engine::AllowedDelegates;
use ipnet::IpNet;
use model::KeyLayout;
use netconf::NetworkSettings;
use types::{AttachMode, IfName, NetworkName, NodeName};

use crate::Directories;
use crate::etcd::{self, Endpoint, Scheme};
use crate::layers::{Collected, ConfigValue};
use crate::{
    ClusterConfig, Config, ConfigError, ConfiguredPaths, DefaultValue, Etcd, InstallConfig, KEYS, KeyOrigins,
    LogFormat, LogLevel, Origin, PathCheck, PluginConfig, Problem, Secret, StoreChoice, Transport,
    TunnelChecksum, check, values,
};

/// The default margin with etcd: divides a /16 into 256 blocks of 254 addresses.
const ETCD_MARGIN: u8 = 8;
/// Directories in which distributions install CNI plugins.
const DISTRIBUTION_DIRS: [&str; 2] = ["/usr/lib/cni", "/usr/libexec/cni"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StoreKind {
    Embedded,
    Etcd,
}

#[derive(Default)]
pub(super) struct Draft {
    pub(super) node: Option<NodeName>,
    pub(super) run_dir: Option<PathBuf>,
    pub(super) state_dir: Option<PathBuf>,
    pub(super) socket: Option<PathBuf>,
    pub(super) store: Option<StoreKind>,
    pub(super) store_dir: Option<PathBuf>,
    pub(super) node_interface: Option<IfName>,
    pub(super) node_addresses: Vec<IpAddr>,
    pub(super) log_format: Option<LogFormat>,
    pub(super) log_level: Option<LogLevel>,
    pub(super) metrics: Option<SocketAddr>,
    pub(super) workers: Option<usize>,
    pub(super) reconcile_seconds: Option<u64>,
    pub(super) endpoints: Vec<Endpoint>,
    pub(super) prefix: Option<String>,
    pub(super) counter: Option<String>,
    pub(super) ca: Option<PathBuf>,
    pub(super) cert: Option<PathBuf>,
    pub(super) key: Option<PathBuf>,
    pub(super) user: Option<String>,
    pub(super) password: Option<Secret>,
    pub(super) password_file: Option<Secret>,
    pub(super) insecure: Option<bool>,
    pub(super) network_name: Option<NetworkName>,
    pub(super) mode: Option<AttachMode>,
    pub(super) bridge: Option<IfName>,
    pub(super) subnets: Option<Vec<IpNet>>,
    pub(super) mtu: Option<u32>,
    pub(super) connections_per_pod: Option<u32>,
    pub(super) masquerade: Option<bool>,
    pub(super) margin: Option<u8>,
    pub(super) transport: Option<Transport>,
    pub(super) vni: Option<u32>,
    pub(super) vxlan_port: Option<u16>,
    pub(super) tunnel: Option<String>,
    pub(super) tunnel_checksum: Option<TunnelChecksum>,
    pub(super) path_check: Option<PathCheck>,
    pub(super) accept_forward: Option<bool>,
    pub(super) delegate_directories: Option<Vec<PathBuf>>,
    pub(super) delegate_plugins: Option<Vec<String>>,
    pub(super) install_enabled: Option<bool>,
    /// A variable set the location of the plugin or the CNI config, which enables the installation by default.
    pub(super) has_location: bool,
    pub(super) plugin_name: Option<String>,
    /// The plugin's file name in CNI_PLUGIN_LOCATION, and the complete value of that variable.
    pub(super) plugin_file: Option<(String, String)>,
    pub(super) cni_version: Option<cni::Version>,
    pub(super) plugin: Option<PathBuf>,
    pub(super) plugin_dir: Option<PathBuf>,
    pub(super) config_dir: Option<PathBuf>,
    pub(super) config_name: Option<String>,
    pub(super) template: Option<PathBuf>,
}

/// The origin and the displayed text of each effective value.
pub(super) type Origins = BTreeMap<&'static str, (Origin, String)>;

pub(super) fn build(
    collected: Collected,
    detect: impl FnOnce() -> Directories,
) -> Result<Config, ConfigError> {
    let Collected { values, mut problems, file } = collected;
    let defaults = KEYS.iter().filter_map(|key| match key.default {
        DefaultValue::Value(text) => Some(ConfigValue::new(key, text.to_owned(), Origin::Default)),
        DefaultValue::Described(_) => None,
    });
    let (mut draft, mut origins, mut invalid_keys) = (Draft::default(), Origins::new(), Vec::new());
    for ConfigValue { key, text, origin, set } in defaults.chain(values) {
        let result = set(&mut draft, &text);
        let value = key.shown(&text);
        match result {
            Ok(()) => {
                origins.insert(key.name, (origin, value));
            }
            Err(reason) => {
                invalid_keys.push(key.name);
                problems.push(Problem::Value { origin, key: key.name, value, reason });
            }
        }
    }
    let checker = check::Checker { origins: &origins, invalid_keys: &invalid_keys };
    problems.extend(checker.draft(&draft));
    let config = draft.with_host_defaults(&mut problems).with_directories(detect).finish();
    if let Some(config) = &config {
        problems.extend(checker.config(config));
    }
    match config {
        Some(config) if problems.is_empty() => {
            let origins = origins.iter().map(|(name, (origin, _))| (name, origin));
            Ok(Config { key_origins: KeyOrigins::new(origins, file), ..config })
        }
        Some(_) | None => Err(ConfigError { problems }),
    }
}

/// The paths of an invalid configuration. None if the file cannot be read, or one of these keys is invalid.
pub(super) fn paths(collected: Collected) -> Option<ConfiguredPaths> {
    let Collected { values, problems, .. } = collected;
    let is_unreadable =
        |problem: &Problem| matches!(problem, Problem::Syntax { .. } | Problem::Unreadable { .. });
    if problems.iter().any(is_unreadable) {
        return None;
    }
    let mut draft = Draft::default();
    let defaults = KEYS.iter().filter_map(|key| match key.default {
        DefaultValue::Value(text) => Some(ConfigValue::new(key, text.to_owned(), Origin::Default)),
        DefaultValue::Described(_) => None,
    });
    let is_path = |value: &ConfigValue| ["run_dir", "state_dir", "socket"].contains(&value.key.name);
    for ConfigValue { text, set, .. } in defaults.chain(values).filter(is_path) {
        set(&mut draft, &text).ok()?;
    }
    let (run_dir, state_dir) = (draft.run_dir?, draft.state_dir?);
    let socket = draft.socket.unwrap_or_else(|| netconf::default_socket(&run_dir));
    Some(ConfiguredPaths { run_dir, state_dir, socket })
}

impl Draft {
    /// Fills in the defaults that depend on this host.
    fn with_host_defaults(mut self, problems: &mut Vec<Problem>) -> Self {
        if self.node.is_none() {
            let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
            match values::node(&host) {
                Ok(node) => self.node = Some(node),
                Err(reason) => {
                    let reason = format!("(the host name) {reason}; set --node");
                    problems.push(Problem::Value {
                        origin: Origin::Default,
                        key: "node",
                        value: host,
                        reason,
                    });
                }
            }
        }
        if self.plugin.is_none() && self.installs() {
            match std::env::current_exe() {
                Ok(exe) => self.plugin = Some(exe.with_file_name(PluginConfig::NAME)),
                Err(error) => problems.push(Problem::OwnExecutable(error)),
            }
        }
        if self.socket.is_none() {
            self.socket = self.run_dir.as_deref().map(netconf::default_socket);
        }
        self
    }

    fn with_directories(mut self, detect: impl FnOnce() -> Directories) -> Self {
        if self.plugin_dir.is_none() || self.config_dir.is_none() {
            let directories = if self.installs() { detect() } else { Directories::default() };
            self.plugin_dir.get_or_insert(directories.plugins);
            self.config_dir.get_or_insert(directories.configs);
        }
        self
    }

    pub(super) fn installs(&self) -> bool {
        self.install_enabled.unwrap_or(self.has_location)
    }

    pub(super) fn store(&self) -> StoreKind {
        let default = if self.endpoints.is_empty() { StoreKind::Embedded } else { StoreKind::Etcd };
        self.store.unwrap_or(default)
    }

    /// The scheme of all endpoints. If no endpoint has a scheme, certificates imply https.
    pub(super) fn scheme(&self) -> Scheme {
        let with_certificates = self.ca.is_some() || self.cert.is_some();
        let default = if with_certificates { Scheme::Https } else { Scheme::Http };
        self.endpoints.iter().find_map(|endpoint| endpoint.scheme).unwrap_or(default)
    }

    fn etcd(&self, prefix: &str) -> Etcd {
        Etcd {
            endpoints: etcd::complete(&self.endpoints, self.scheme()),
            prefix: prefix.to_owned(),
            counter: self.counter.clone(),
            ca: self.ca.clone(),
            cert: self.cert.clone(),
            key: self.key.clone(),
            user: self.user.clone(),
            password: self.password.clone().or_else(|| self.password_file.clone()),
            insecure: self.insecure.unwrap_or_default(),
        }
    }

    fn cluster(&self) -> Option<ClusterConfig> {
        let margin = match self.store() {
            StoreKind::Embedded => 0,
            StoreKind::Etcd => ETCD_MARGIN,
        };
        Some(ClusterConfig {
            margin: self.margin.unwrap_or(margin),
            transport: self.transport?,
            vni: self.vni?,
            vxlan_port: self.vxlan_port?,
            tunnel: self.tunnel.clone()?,
            tunnel_checksum: self.tunnel_checksum?,
            path_check: self.path_check?,
            accept_forward: self.accept_forward?,
        })
    }

    fn install(&self) -> Option<InstallConfig> {
        Some(InstallConfig {
            plugin: self.plugin.clone()?,
            plugin_dir: self.plugin_dir.clone()?,
            config_dir: self.config_dir.clone()?,
            config_name: self.config_name.clone()?,
            template: self.template.clone(),
        })
    }

    /// None if a required value is missing. A problem was reported for it.
    fn finish(mut self) -> Option<Config> {
        let prefix = self.prefix.clone()?;
        // An explicitly set default is equal to an unset key.
        self.counter.take_if(|counter| *counter == KeyLayout::new(&prefix, None).counter());
        Some(Config {
            key_origins: KeyOrigins::default(),
            store: match self.store() {
                StoreKind::Embedded => StoreChoice::Embedded,
                StoreKind::Etcd => StoreChoice::Etcd(self.etcd(&prefix)),
            },
            layout: KeyLayout::new(&prefix, self.counter.as_deref()),
            cluster: self.cluster()?,
            install: if self.installs() { Some(self.install()?) } else { None },
            node: self.node?.into(),
            run_dir: self.run_dir?,
            state_dir: self.state_dir?,
            socket: self.socket?,
            store_dir: self.store_dir,
            node_interface: self.node_interface,
            node_addresses: self.node_addresses,
            log_format: self.log_format?,
            log_level: self.log_level?,
            metrics: self.metrics,
            workers: self.workers?,
            reconcile: Duration::from_secs(self.reconcile_seconds?),
            network: NetworkSettings {
                name: self.network_name?,
                mode: self.mode?,
                bridge: self.bridge?,
                subnets: self.subnets?,
                mtu: self.mtu,
                connections_per_pod: self.connections_per_pod,
                masquerade: self.masquerade?,
            },
            plugin: PluginConfig { name: self.plugin_name?, version: self.cni_version? },
            delegates: AllowedDelegates {
                directories: match self.delegate_directories {
                    Some(directories) => directories,
                    None => {
                        [self.plugin_dir?].into_iter().chain(DISTRIBUTION_DIRS.map(PathBuf::from)).collect()
                    }
                },
                plugins: self.delegate_plugins?,
            },
        })
    }
}
